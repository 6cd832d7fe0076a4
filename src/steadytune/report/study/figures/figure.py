"""A figure that is drawn when it is asked for: as SVG text for a page, or as SVG, PNG and PDF files."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from steadytune.errors import SteadytuneError
from steadytune.report.study.figures.style import DARK, FONTS, LIGHT, drawing
from steadytune.study.new_file import new_file, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawn

FORMATS = ("svg", "png", "pdf")
# matplotlib escapes <, > and & in text, so what looks like a tag is one, and what a name says is never inside it.
_TAG = re.compile(r"<[a-zA-Z][^<>]*>")
_COLOUR = re.compile("|".join(re.escape(colour) for colour in LIGHT.values()), re.IGNORECASE)
_METADATA = re.compile(r"\s*<metadata>.*?</metadata>", re.DOTALL)
_UNUSED = re.compile(
    r' id="(?:figure|axes|patch|text|line2d|xtick|ytick|legend|matplotlib\.axis|[A-Za-z]+Collection|QuadMesh)_\d+"'
    r'| transform="rotate\(-?0 [^"]*\)"'
)
_MARKS = re.compile(r"<g([^<>]*)>(\s*(?:<use [^<>]*/>\s*)+)</g>")
_STYLE = re.compile(r' style="[^"]*"')
_DIGITS = re.compile(r"-?\d+\.\d{3,}")
_CLASS = "steadytune-figure"


@dataclass(frozen=True)
class Figure:
    """`name` is a file name of our own making; `draw` makes a matplotlib figure inside `style.drawing`."""

    name: str
    title: str
    caption: str
    draw: Callable[[], Drawn]

    def svg(self) -> str:
        """For a page, light or dark: transparent, its colours follow the reader's scheme. The same bytes every time."""
        return _themed(self._svg())

    def save(self, folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
        """`folder/name.svg` and so on, in fixed light colours; SVG and PDF on no background, PNG on white."""
        unknown = [name for name in formats if name not in FORMATS]
        if unknown:
            raise SteadytuneError(
                f"A figure cannot be saved as {', '.join(unknown)}; choose from {', '.join(FORMATS)}."
            )
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{self.name}.{name}" for name in formats]
        for path in paths:
            if path.suffix == ".svg":
                write_text(path, self._svg())
            else:
                with drawing(self.name), new_file(path) as hidden:
                    self._save(self.draw(), hidden, path.suffix[1:])
        return paths

    def _svg(self) -> str:
        stream = io.StringIO()
        with drawing(self.name):
            self.draw().savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        return _slim(stream.getvalue())

    def _save(self, drawn: Drawn, path: Path, name: str) -> None:
        if name == "png":
            drawn.savefig(path, format="png", dpi=200, facecolor="white", metadata={"Software": None})
        else:
            nothing = {"CreationDate": None, "Creator": None, "Producer": None}
            drawn.savefig(path, format="pdf", transparent=True, metadata=nothing)


def _slim(svg: str) -> str:
    """Without what nobody reads: the address of a DTD, metadata, names of groups, and the fourth digit of a pixel."""
    drawn = _METADATA.sub("", svg[svg.index("<svg") :], count=1)
    drawn = _TAG.sub(lambda tag: _DIGITS.sub(_rounded, _UNUSED.sub("", tag.group())).replace(" \n", " "), drawn)
    return _MARKS.sub(_shared_style, drawn)


def _shared_style(found: re.Match[str]) -> str:
    """The style of many equal marks, said once for their group."""
    styles = set(_STYLE.findall(found.group(2)))
    if len(styles) != 1 or found.group(2).count("<use ") != len(_STYLE.findall(found.group(2))):
        return found.group()
    return f"<g{found.group(1)}{styles.pop()}>{re.sub(chr(10) + ' +', chr(10), _STYLE.sub('', found.group(2)))}</g>"


def _rounded(found: re.Match[str]) -> str:
    return f"{float(found.group()):.2f}".rstrip("0").rstrip(".")


def _themed(svg: str) -> str:
    """Colours become CSS variables with the light colour as fallback; a style in the SVG sets them for a dark page."""
    names = {colour.lower(): name for name, colour in LIGHT.items()}

    def variable(found: re.Match[str]) -> str:
        colour = found.group().lower()
        return f"var(--{names[colour]}, {colour})"

    themed = _TAG.sub(lambda tag: _COLOUR.sub(variable, tag.group()).replace("'DejaVu Sans'", FONTS), svg)
    dark = "".join(f"--{name}:{colour};" for name, colour in DARK.items())
    style = f"<style>@media screen and (prefers-color-scheme: dark){{.{_CLASS}{{{dark}}}}}</style>"
    return re.sub(r"<svg([^>]*)>", lambda root: f'<svg class="{_CLASS}"{root.group(1)}>{style}', themed, count=1)
