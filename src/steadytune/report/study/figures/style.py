"""What all figures share: colours, fonts, panels in a grid, and how a line of a study looks in every one of them.

Colours are told apart without colour vision (after Okabe & Ito 2008), and lines differ in markers too. Each has a twin
for dark pages; the SVG of a page switches between them (figure.py). Text is drawn as text, never read as mathematics.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from steadytune.report.study.naming import short, short_names
from steadytune.report.study.telling import Telling

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawn

LIGHT = {"ink": "#1d2126", "muted": "#5f6b77", "line": "#d5dbe1", "faint": "#aab3bd", "paper": "#fffffe"}
LIGHT |= {"blue": "#0068b5", "orange": "#d15a00", "green": "#008a63", "purple": "#b0508f", "amber": "#b07d00"}
LIGHT |= {"sky": "#3e9bd6", "brown": "#7a5239", "base": "#48525c", "level": "#8a3b12"}
DARK = {"ink": "#e6e9ec", "muted": "#9aa5b0", "line": "#363e46", "faint": "#65707b", "paper": "#171b1f"}
DARK |= {"blue": "#58aef5", "orange": "#ff9350", "green": "#3fcfa0", "purple": "#e79fcb", "amber": "#f2c14e"}
DARK |= {"sky": "#9ad4ff", "brown": "#c8a38b", "base": "#c3ccd4", "level": "#f0a070"}
SERIES = ("blue", "orange", "green", "purple", "amber", "sky", "brown")
MARKERS = ("s", "^", "D", "v", "P", "X", "*")  # the baseline has "o"
FONTS = "'DejaVu Sans', Verdana, sans-serif"
WIDTH = 9.0  # inches; 864 CSS pixels
FONT = 9.0  # points
MOST_TASKS, MOST_LINES = 12, 30
MOST_BANDS = 5  # lines in a panel, above which only two of them keep their band
NAME_WIDTH = 30


_SETTINGS: dict[str, Any] = {"font.family": ["DejaVu Sans"], "font.size": FONT, "text.color": LIGHT["ink"]}
_SETTINGS |= {"text.parse_math": False, "text.usetex": False, "svg.fonttype": "none", "pdf.fonttype": 42}
_SETTINGS |= {"axes.edgecolor": LIGHT["faint"], "axes.linewidth": 0.8, "axes.labelcolor": LIGHT["muted"]}
_SETTINGS |= {"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True}
_SETTINGS |= {"axes.titlesize": FONT + 1, "axes.titlelocation": "left", "axes.titlecolor": LIGHT["ink"]}
_SETTINGS |= {"axes.labelsize": FONT - 0.5, "axes.formatter.use_mathtext": False, "legend.frameon": False}
_SETTINGS |= {"grid.color": LIGHT["line"], "grid.linewidth": 0.6, "xtick.color": LIGHT["muted"]}
_SETTINGS |= {"ytick.color": LIGHT["muted"], "xtick.labelsize": FONT - 1, "ytick.labelsize": FONT - 1}


@contextmanager
def drawing(salt: str) -> Iterator[None]:
    """matplotlib as it comes, whatever the user's settings; nothing of ours stays behind."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*")  # letters that the font lacks: browsers have others
        matplotlib.rcdefaults()
        settings: Any = _SETTINGS | {"svg.hashsalt": f"steadytune {salt}"}
        matplotlib.rcParams.update(settings)
        yield


@dataclass(frozen=True)
class Look:
    """How one line of the study is drawn."""

    colour: str
    marker: str
    width: float
    front: int
    label: str  # empty: not in the legend
    band: bool


def looks(tell: Telling) -> dict[str, Look]:
    """The baseline dark grey, the best seven others in colours, and any more thin and grey."""
    picked = (
        tell.ranked[: len(SERIES)] or [name for name in tell.compared.names if name != tell.baseline][: len(SERIES)]
    )
    coloured = [name for name in tell.compared.names if name in picked]
    banded = {tell.baseline, *(coloured if len(coloured) < MOST_BANDS else picked[:1])}
    labels = short_names(tell.compared.names, NAME_WIDTH)
    found: dict[str, Look] = {}
    for name in tell.compared.names:
        if name == tell.baseline:
            found[name] = Look(LIGHT["base"], "o", 1.6, 4, labels[name], True)
        elif name in coloured:
            place = coloured.index(name)
            found[name] = Look(LIGHT[SERIES[place]], MARKERS[place], 1.6, 5, labels[name], name in banded)
        else:
            found[name] = Look(LIGHT["faint"], "", 0.8, 2, "", False)
    return found


def colours_of(tell: Telling) -> dict[str, str]:
    """For figures that name their lines: as in `looks`, but one colour per family where families were swept."""
    family = {name: tell.results.variants[name].family if name in tell.results.variants else name for name in tell.line}
    families = [each for each in dict.fromkeys(family.values()) if each != family.get(tell.baseline)]
    if len(families) + 1 >= len(family):
        return {name: look.colour for name, look in looks(tell).items()}
    colours = {each: LIGHT[SERIES[place % len(SERIES)]] for place, each in enumerate(families)}
    return {name: colours.get(each, LIGHT["base"]) for name, each in family.items()}


def band_words(tell: Telling, what: str) -> str:
    """The part of a caption that says what bands are, and which lines have one."""
    drawn = looks(tell)
    others = sum(not look.label for look in drawn.values())
    every = all(look.band for look in drawn.values() if look.label)
    whose = "" if every else f" (of {tell.base} and {tell.line[tell.ranked[0]]} only)" if tell.ranked else ""
    grey = f" Thin and grey: the {others} other lines." if others > 1 else " Thin and grey: the other line." * others
    return f"Bands: {what}{whose}.{grey}"


def tasks_drawn(tell: Telling) -> tuple[list[str], str]:
    """At most so many panels, and the sentence that says so."""
    tasks = [task for task in tell.compared.tasks if any(tell.runs(task, name).n for name in tell.compared.names)]
    left = len(tasks) - MOST_TASKS
    return tasks[:MOST_TASKS], f" The first {MOST_TASKS} of {len(tasks)} tasks are drawn." if left > 0 else ""


def lines_drawn(tell: Telling) -> tuple[list[str], str]:
    """All lines in the order of the study; of very many the baseline and the best."""
    names = list(tell.compared.names)
    if len(names) <= MOST_LINES:
        return names, ""
    kept = {tell.baseline, *tell.ranked[: MOST_LINES - 1]}
    return [name for name in names if name in kept], f" Of {len(names)} lines, the baseline and the best are drawn."


def across(count: int) -> int:
    """How many panels stand side by side."""
    return {1: 1, 2: 2, 3: 3, 4: 2}.get(count, 3)


def sheet(
    count: int,
    height: float,
    *,
    columns: int | None = None,
    left: float = 0.62,
    gap: float = 0.3,
    shared: bool = False,
    legend: int = 0,
) -> tuple[Drawn, list[Axes]]:
    """A figure with `count` panels of `height` inches. `left` is the room for labels: before every panel, or (shared)
    once per row. `legend` rows are kept free at the top."""
    from matplotlib.figure import Figure as MatplotlibFigure

    columns = columns or across(count)
    top, bottom = 0.34, 0.56
    head = 0.21 * legend
    total = head + math.ceil(count / columns) * (top + height + bottom)
    before = [left + (0 if shared else left) * column for column in range(columns)]
    width = (WIDTH - before[-1] - gap * columns) / columns
    figure = MatplotlibFigure(figsize=(WIDTH, total))
    axes = []
    for place in range(count):
        row, column = divmod(place, columns)
        x, y = before[column] + column * (width + gap), total - head - (row + 1) * (top + height + bottom) + bottom
        axes.append(figure.add_axes((x / WIDTH, y / total, width / WIDTH, height / total)))
    return figure, axes


def title(panel: Axes, text: str) -> None:
    """As much of a name as there is room for above its panel."""
    width = panel.get_position().width * WIDTH
    panel.set_title(short(text, max(8, int(width / text_inches(1, FONT + 1)))))


def metric_label(tell: Telling, task: str) -> str:
    return tell.metric(task) + ("" if tell.results.tasks[task].greater_is_better else " (lower is better)")


def legend_rows(labels: Sequence[str]) -> int:
    return math.ceil(len(labels) / _legend_columns(labels)) if labels else 0


def add_legend(figure: Drawn, handles: Mapping[str, Any]) -> None:
    """At the top of the sheet, as many columns as fit."""
    if handles:
        figure.legend(
            list(handles.values()),
            list(handles),
            loc="upper left",
            bbox_to_anchor=(0.0, 1.0),
            ncols=_legend_columns(list(handles)),
            fontsize=FONT,
            handlelength=1.8,
            columnspacing=1.4,
            borderaxespad=0.2,
            labelspacing=0.35,
        )


def _legend_columns(labels: Sequence[str]) -> int:
    widest = max(len(label) for label in labels) * text_inches(1) + 0.62
    return max(1, min(len(labels), int(WIDTH / widest)))


def text_inches(characters: int, size: float = FONT) -> float:
    """Roughly how wide a text is; letters are about 0.55 of their height."""
    return characters * 0.55 * size / 72


def handle(look: Look) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=look.colour, marker=look.marker, markersize=4, linewidth=look.width)


def plain_number(value: float) -> str:
    """`1,600`, `0.05`, `2e-05`."""
    if value == int(value) and 1000 <= abs(value) < 1e7:
        return f"{int(value):,}"
    return f"{value:.4g}"
