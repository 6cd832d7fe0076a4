"""Time and memory of a run, per line (X8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from steadytune import stats
from steadytune.report.study.figures.figure import Figure
from steadytune.report.study.figures.style import (
    FONT,
    LIGHT,
    NAME_WIDTH,
    across,
    colours_of,
    lines_drawn,
    plain_number,
    sheet,
    tasks_drawn,
    text_inches,
    title,
)
from steadytune.report.study.naming import short_names
from steadytune.report.study.runs import Runs
from steadytune.report.study.tables_beside import memory_text
from steadytune.report.study.telling import Telling
from steadytune.report.words import duration

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawn

Measure = Callable[[Runs], stats.Summary | None]


def cost(tell: Telling) -> list[Figure]:
    """Two figures; each where something was measured."""
    every = list(tell.compared.runs.values())
    _, fewer = tasks_drawn(tell)
    _, fewer_lines = lines_drawn(tell)
    ending = f" of finished runs; whiskers: one standard deviation.{fewer_lines}{fewer}"
    made = []
    if any(runs.seconds is not None for runs in every):
        caption = f"Mean wall time{ending} Runs that shared a machine slow each other down."
        made.append(
            Figure("time", "Time per run", caption, lambda: _draw(tell, lambda runs: runs.seconds, "s", duration))
        )
    if any(runs.memory is not None for runs in every):
        caption = f"Mean peak memory{ending} Of tensors on a GPU, of the whole process on a CPU."
        made.append(
            Figure("memory", "Peak memory", caption, lambda: _draw(tell, lambda runs: runs.memory, "GiB", memory_text))
        )
    return made


def _draw(tell: Telling, measure: Measure, unit: str, words: Callable[[float], str]) -> Drawn:
    tasks, names = tasks_drawn(tell)[0], lines_drawn(tell)[0]
    labels, colours = short_names(names, NAME_WIDTH), colours_of(tell)
    left = 0.2 + text_inches(max(len(label) for label in labels.values()))
    size = 2**30 if unit == "GiB" else 1
    figure, axes = sheet(len(tasks), max(0.6, 0.22 * len(names) + 0.1), left=left, gap=0.34, shared=True)
    for place, (task, panel) in enumerate(zip(tasks, axes)):
        most = 0.0
        for height, name in enumerate(reversed(names)):
            found = measure(tell.runs(task, name))
            if found is None:
                continue
            colour = colours[name]
            mean, std = found.mean / size, (found.std or 0.0) / size
            panel.barh(height, mean, height=0.55, color=colour, alpha=0.45, linewidth=0, zorder=2)
            panel.plot([mean - std, mean + std], [height, height], color=colour, linewidth=1.2, zorder=3)
            panel.text(mean + std, height, f" {words(found.mean)}", va="center", fontsize=FONT - 2, color=LIGHT["ink"])
            most = max(most, mean + std)
        panel.set_xlim(0, most * 1.45 or 1.0)
        panel.set_ylim(-0.6, len(names) - 0.4)
        first = place % across(len(tasks)) == 0
        panel.set_yticks(range(len(names)), [labels[name] for name in reversed(names)] if first else [])
        panel.tick_params(axis="y", length=0, labelcolor=LIGHT["ink"], labelsize=FONT)
        panel.grid(False, axis="y")
        panel.locator_params(axis="x", nbins=4)
        panel.xaxis.set_major_formatter(lambda value, _: plain_number(value))
        panel.set_xlabel("seconds" if unit == "s" else unit)
        title(panel, tell.task[task])
    return figure
