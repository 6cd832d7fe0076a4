"""The page of a study: one HTML file that needs no network, and reads and prints without JavaScript.

Whatever a study file, a traceback or a library put into a text stays text: Jinja2 escapes every value, and the page's
Content-Security-Policy runs no script and no style but the two whose hashes it names, and loads nothing.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from steadytune import __version__
from steadytune.report import words
from steadytune.report.study.made_section import make_made
from steadytune.report.study.table_formats import Table
from steadytune.report.study.trials_section import counted, make_trials
from steadytune.study.results import StudyResults

if TYPE_CHECKING:
    from markupsafe import Markup

# Scripts that are written from right to left: Hebrew, Arabic and their neighbours, and those of the upper planes.
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff]")


@dataclass(frozen=True)
class File:
    """A figure or table as a file beside the page."""

    kind: str  # "PDF"
    path: str  # relative to the page


@dataclass(frozen=True)
class PageTable:
    """A table as it stands on the page."""

    id: str
    table: Table
    files: Sequence[File] = ()

    @property
    def names(self) -> int:
        """How many columns from the left name the row rather than tell something about it."""
        columns = self.table.columns
        return next((number for number, column in enumerate(columns) if column.number), min(1, len(columns)))


@dataclass(frozen=True)
class PageFigure:
    """A figure as it stands on the page: an image in the page itself, in which no script can run."""

    id: str
    title: str
    caption: str
    source: str
    width: int
    height: int
    files: Sequence[File] = ()


def make_page(
    results: StudyResults, answer: Sequence[str], tables: Sequence[PageTable], figures: Sequence[PageFigure]
) -> str:
    """The whole page. `results` is expected to be `readable`; the first table is the main one."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folder = Path(__file__).parent
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["bdi"] = isolated
    style = (folder / "study.css").read_text(encoding="utf-8")
    script = (folder / "study.js").read_text(encoding="utf-8")
    names = [results.name, *results.tasks, *results.variants, *(each.family for each in results.variants.values())]
    return environment.get_template("study.html.jinja").render(
        study=results,
        overview=overview(results),
        contents=_contents(tables, figures),
        answer=[isolated_names(sentence, names) for sentence in answer],
        tables=tables,
        figures=figures,
        trials=make_trials(results),
        made=make_made(results),
        seconds=sum({trial.key: trial.seconds for trial in results.trials}.values()),  # trials may share a run
        words=words,
        style=style,
        script=script,
        policy=policy(style, script),
        version=__version__,
    )


def policy(style: str, script: str) -> str:
    """Nothing is loaded, nothing is run; except this style, this script, and images that are in the page."""
    style_hash, script_hash = (
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)
    )
    return (
        f"default-src 'none'; img-src data:; style-src 'sha256-{style_hash}'; script-src 'sha256-{script_hash}'; "
        "base-uri 'none'; form-action 'none'"
    )


def overview(results: StudyResults) -> str:
    """`4 tasks · 6 variants · 480 trials: 441 finished, 39 failed · reported: test score of the best step`"""
    weights = "best step on validation" if results.weights == "best" else "last step"
    parts = [
        words.plural(len(results.tasks), "task"),
        _variants(results),
        f"{words.plural(len(results.trials), 'trial')}{_shared(results)}: {counted(results.trials) or 'none planned'}",
        f"reported: {results.split} score of the {weights}",
    ]
    return " · ".join(parts)


def _shared(results: StudyResults) -> str:
    """Variants that come to the same recipe are rows of their own here, and one trial of the ledger (`study plan`)."""
    more = len(results.trials) - len({trial.key for trial in results.trials})
    return f" ({more:,} of them share a run with another row)" if more else ""


def _variants(results: StudyResults) -> str:
    """Those that are reported; candidates that were only tuned with are told beside them."""
    reported = {variant for _, variant in results.reported}
    candidates = {variant for _, variant in results.tuning if variant not in reported}
    chosen = f", chosen from {words.plural(len(candidates), 'candidate')}" if candidates else ""
    return words.plural(sum(name not in candidates for name in results.variants), "variant") + chosen


def isolated(text: str) -> Markup:
    """The text escaped, and right-to-left text kept apart from what stands around it."""
    from markupsafe import Markup, escape

    return Markup("<bdi>{}</bdi>").format(text) if _RIGHT_TO_LEFT.search(text) else escape(text)


def isolated_names(sentence: str, names: Iterable[str]) -> Markup:
    """The same for the names in a sentence."""
    from markupsafe import Markup

    turned = sorted({name for name in names if _RIGHT_TO_LEFT.search(name)}, key=len, reverse=True)
    if not turned:
        return isolated(sentence)
    parts = re.split("(" + "|".join(map(re.escape, turned)) + ")", sentence)
    return Markup("").join(isolated(part) for part in parts)


def svg_source(svg: str) -> str:
    """An SVG as the address of an image."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def svg_size(svg: str) -> tuple[int, int]:
    """Width and height in CSS pixels, from the size or the view box in the SVG's first tag."""
    start = re.search(r"<svg\b[^>]*>", svg)
    if start is None:
        raise ValueError("There is no <svg> in this figure.")
    found = [re.search(rf'\b{name}="([\d.]+)(pt|px)?"', start.group()) for name in ("width", "height")]
    if all(found):
        width, height = (float(each[1]) * (4 / 3 if each[2] == "pt" else 1) for each in found if each)
    else:
        box = re.search(r'viewBox="[-\d.]+ [-\d.]+ ([\d.]+) ([\d.]+)"', start.group())
        width, height = (float(box[1]), float(box[2])) if box else (640.0, 400.0)
    return round(width), round(height)


def _contents(tables: Sequence[PageTable], figures: Sequence[PageFigure]) -> list[tuple[str, str]]:
    found = [("answer", "Answer"), ("trials", "Every trial"), ("made", "How it was made")]
    if len(tables) > 1:
        found.insert(1, ("tables", "More tables"))
    if figures:
        found.insert(1, ("figures", "Figures"))
    if tables:
        found.insert(1, ("results", "Results"))
    return found
