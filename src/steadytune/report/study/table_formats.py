"""A table as data, and as CSV, Markdown and LaTeX. For HTML the page takes `texts()` and escapes them itself."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from steadytune.report.card import escape as markdown_escape
from steadytune.report.study.naming import clean
from steadytune.study.new_file import write_text

Plain = str | int | float | None
FORMATS = ("csv", "md", "tex")


@dataclass(frozen=True)
class Column:
    """`key` names it in a CSV file, where the numbers of `also` follow it in columns of their own."""

    key: str
    title: str
    number: bool = True
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class Item:
    """What a cell holds and what it shows: `0.712 ± 0.021 *` of 0.7123 and, `also`, 0.0211."""

    value: Plain
    text: str
    also: tuple[Plain, ...] = ()
    strong: bool = False


@dataclass(frozen=True)
class Table:
    """`name` is a file name of our own making; everything else may hold names from a study file."""

    name: str
    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Item, ...], ...]

    def head(self) -> tuple[str, ...]:
        return tuple(column.title for column in self.columns)

    def texts(self) -> tuple[tuple[str, ...], ...]:
        """What is shown, as plain text: to be escaped by whoever writes it."""
        return tuple(tuple(item.text for item in row) for row in self.rows)

    def csv(self) -> str:
        """All digits, one value per column; names that a spreadsheet would run as formulas get an apostrophe."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([_csv_value(key) for column in self.columns for key in (column.key, *column.also)])
        for row in self.rows:
            values = [
                (item.value, *item.also)
                if len(item.also) == len(column.also)
                else (item.value, *[None] * len(column.also))
                for column, item in zip(self.columns, row)
            ]
            writer.writerow([_csv_value(value) for several in values for value in several])
        return stream.getvalue()

    def markdown(self) -> str:
        lines = [[_markdown(title) for title in self.head()]]
        lines.append(["---:" if column.number else "---" for column in self.columns])
        lines += [
            [f"**{_markdown(item.text)}**" if item.strong else _markdown(item.text) for item in row]
            for row in self.rows
        ]
        rows = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
        return f"## {_markdown(self.title)}\n\n{rows}\n\n{_markdown(self.caption)}\n"

    def latex(self) -> str:
        """A `table` for a document that uses the package booktabs."""
        align = "".join("r" if column.number else "l" for column in self.columns)
        rows = [[_latex_item(item) for item in row] for row in self.rows]
        body = "\n".join(" & ".join(cells) + r" \\" for cells in rows)
        head = " & ".join(_latex_cell(title) for title in self.head()) + r" \\"
        lines = [r"\begin{table}", r"\centering", rf"\caption{{{latex_escape(self.title + '. ' + self.caption)}}}"]
        lines += [rf"\label{{tab:{self.name}}}", rf"\begin{{tabular}}{{{align}}}", r"\toprule", head, r"\midrule"]
        lines += [*([body] if body else []), r"\bottomrule", r"\end{tabular}", r"\end{table}"]
        return "\n".join(lines) + "\n"

    def save(self, folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
        """Written as `folder/name.csv` and so on, each file whole or not at all."""
        made = {"csv": self.csv, "md": self.markdown, "tex": self.latex}
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for name in formats:
            paths.append(folder / f"{self.name}.{name}")
            write_text(paths[-1], made[name]())
        return paths


def _csv_value(value: Plain) -> Plain:
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@"):
        return "'" + value
    return value


def _markdown(text: str) -> str:
    return markdown_escape(clean(text) if text else text)


_LATEX = {character: "\\" + character for character in "&%$#_{}"}
_LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", '"': r"\char34{}"}
_LATEX |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "`": r"\textasciigrave{}"}
_LATEX |= {"±": r"$\pm$", "–": "--", "−": "$-$", "×": r"$\times$", "†": r"$^\dagger$", "‡": r"$^\ddagger$"}
_LATEX |= {"…": r"\dots{}"}
_LATEX_SPECIAL = re.compile("[" + re.escape("".join(_LATEX)) + "]")


def latex_escape(text: str) -> str:
    """Text that LaTeX prints as it is. Letters of other scripts stay themselves: they need a fitting font."""
    return _LATEX_SPECIAL.sub(lambda found: _LATEX[found.group()], clean(text) if text else text)


def _latex_cell(text: str) -> str:
    r"""A cell must not begin with what `\\` before it would take for its own argument."""
    made = latex_escape(text)
    return "{}" + made if made[:1] in ("[", "*") else made


def _latex_item(item: Item) -> str:
    return rf"\textbf{{{latex_escape(item.text)}}}" if item.strong else _latex_cell(item.text)
