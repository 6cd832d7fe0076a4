"""A study's report on the disk: the page, and its figures and tables as files of their own.

    report.html
    figures/<name>.svg .png .pdf
    tables/<name>.csv .md .tex

Everything is written under a hidden name first, so a full disk leaves the report of before as it was.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from steadytune.errors import SteadytuneError
from steadytune.report.study.answer import answer
from steadytune.report.study.comparisons import compare_all
from steadytune.report.study.figures import Figure, figures
from steadytune.report.study.page import File, PageFigure, PageTable, make_page, svg_size, svg_source
from steadytune.report.study.readable import readable
from steadytune.report.study.tables import Table, tables
from steadytune.study.new_file import write_text
from steadytune.study.results import StudyResults

PAGE, FIGURES, TABLES = "report.html", "figures", "tables"
FIGURE_FORMATS = {"svg": "SVG", "png": "PNG", "pdf": "PDF"}
TABLE_FORMATS = {"csv": "CSV", "md": "Markdown", "tex": "LaTeX"}


def write_report(results: StudyResults, folder: str | Path) -> Path:
    """Write the report of a study into `folder`; returns the path of its page."""
    folder = Path(folder)
    compared = compare_all(results)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".report-", dir=folder) as made:
            hidden = Path(made)
            drawn = _write_figures(figures(compared), hidden / FIGURES)
            listed = _write_tables(tables(compared), hidden / TABLES)
            write_text(hidden / PAGE, make_page(readable(results), answer(compared).sentences(), listed, drawn))
            for file in (*sorted(hidden.glob("*/*")), hidden / PAGE):  # all is on the disk: names are all it takes
                target = folder / file.relative_to(hidden)
                target.parent.mkdir(exist_ok=True)
                os.replace(file, target)
    except OSError as error:
        why = error.strerror or error
        raise SteadytuneError(
            f"The report could not be written to {folder}: {why}. Make room or name another folder, then run the same "
            "command again; the study is as it was."
        ) from error
    return folder / PAGE


def _write_figures(made: Sequence[Figure], folder: Path) -> list[PageFigure]:
    folder.mkdir()
    found: dict[str, PageFigure] = {}
    for each in made:
        name = safe_name(each.name, found)
        figure = replace(each, name=name, draw=cache(each.draw))  # drawn once, saved four times
        figure.save(folder, tuple(FIGURE_FORMATS))
        svg = figure.svg()  # not that of the file: on the page its colours follow the reader's scheme
        width, height = svg_size(svg)
        files = [File(kind, f"{FIGURES}/{name}.{ending}") for ending, kind in FIGURE_FORMATS.items()]
        found[name] = PageFigure(name, figure.title, figure.caption, svg_source(svg), width, height, files)
    return list(found.values())


def _write_tables(made: Sequence[Table], folder: Path) -> list[PageTable]:
    folder.mkdir()
    found: dict[str, PageTable] = {}
    for table in made:
        name = safe_name(table.name, found)
        replace(table, name=name).save(folder, tuple(TABLE_FORMATS))
        files = [File(kind, f"{TABLES}/{name}.{ending}") for ending, kind in TABLE_FORMATS.items()]
        found[name] = PageTable(name, table, files)
    return list(found.values())


def safe_name(name: str, taken: Collection[str]) -> str:
    """A name that is one file in one folder everywhere: small ASCII letters, digits and dashes, and not yet taken."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60] or "unnamed"
    number, made = 1, plain
    while made in taken:
        number += 1
        made = f"{plain}-{number}"
    return made
