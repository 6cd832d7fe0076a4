"""How far training moved each block from its start: L2 distance by block, and block by block during training (V14)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from steadytune.report.study.figures.curves import BAND, by_step, steps_axis
from steadytune.report.study.figures.figure import Figure
from steadytune.report.study.figures.series import Series, draw_tasks, over_runs
from steadytune.report.study.figures.style import band_words, lines_drawn, tasks_drawn
from steadytune.report.study.runs import Line, trials_of
from steadytune.report.study.telling import Telling
from steadytune.study.results import TrialResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_ROWS = 4  # tasks whose distances are drawn during training
BLOCKS = 4  # of them: evenly spaced, the topmost among them: 6, 12, 18 and 24 of 24, as in the paper's Figure 7
_WHAT = "L2 distance of all parameters of a part from where training started"


def distances(tell: Telling) -> list[Figure]:
    """At the end of training, and during it."""
    tasks, fewer = tasks_drawn(tell)
    names, fewer_lines = lines_drawn(tell)
    lines = [line for line in tell.compared.lines if line.name in set(names)]
    parts = {task: found for task in tasks if (found := _parts(tell, lines, task))}
    if not parts:
        return []
    ends = {task: _ends(tell, lines, task, parts[task]) for task in parts}
    caption = (
        f"{_WHAT}, at the last evaluation of finished runs; mean over runs. "
        f"{band_words(tell, BAND)}{fewer_lines}{fewer}"
    )

    def finish(panel: Axes, task: str) -> None:
        kept = _ticks(parts[task])
        panel.set_xticks(list(kept), list(kept.values()))
        panel.set_xlabel("E: embeddings, blocks, P: pooler, H: head")
        panel.set_ylabel("distance")
        panel.set_ylim(bottom=0)

    made = [Figure("distance", "How far each block moved", caption, lambda: draw_tasks(tell, ends, finish))]
    during = _during(tell, lines, list(parts)[:MOST_ROWS], parts)
    if during:
        rule = f" The first {MOST_ROWS} tasks are drawn." if len(parts) > MOST_ROWS else ""
        caption = f"{_WHAT}, during training; mean over runs. {band_words(tell, BAND)}{rule}{fewer_lines}"
        made.append(Figure("distance-curves", "Blocks during training", caption, _CurvesDrawer(tell, during)))
    return made


def _ticks(parts: Sequence[str]) -> dict[int, str]:
    """Place -> label: initials, and as many numbers of blocks as there is room for."""
    step = -(-len(parts) // 9)
    kept = {place: part[:1].upper() for place, part in enumerate(parts) if not part.isdigit()}
    for place, part in enumerate(parts):
        near = any(0 < abs(other - place) < step for other in kept if not parts[other].isdigit())
        if part.isdigit() and (int(part) - 1) % step == 0 and not near:
            kept[place] = part
    return kept


class _CurvesDrawer:
    """A row of panels per task, a column per block."""

    def __init__(self, tell: Telling, panels: Mapping[str, Mapping[str, Series]]) -> None:
        self.tell, self.panels = tell, panels

    def __call__(self) -> Any:
        def finish(panel: Axes, _: str) -> None:
            panel.set_ylim(bottom=0)
            panel.set_ylabel("distance")
            steps_axis(panel, 3)

        columns = min(BLOCKS, len(self.panels))
        return draw_tasks(self.tell, self.panels, finish, height=1.5, columns=columns, markers=False, name=str)


def _parts(tell: Telling, lines: Sequence[Line], task: str) -> list[str]:
    """The parts that were measured, in the order of the model."""
    found: dict[str, None] = {}
    for line in lines:
        for trial in trials_of(tell.results, line, task):
            if trial.status == "finished" and trial.history:
                found |= dict.fromkeys(_measured(trial.history[-1]))
                break
    return list(found)


def _measured(entry: Mapping[str, Any]) -> Mapping[str, float]:
    return (entry.get("distances") or {}).get("start") or {}


def _ends(tell: Telling, lines: Sequence[Line], task: str, parts: Sequence[str]) -> dict[str, Series]:
    found = {}
    for line in lines:
        rows = [
            [_measured(trial.history[-1]).get(part, np.nan) for part in parts]
            for trial in trials_of(tell.results, line, task)
            if trial.status == "finished" and trial.history
        ]
        series = over_runs(range(len(parts)), np.array(rows, dtype=np.float64))
        if series is not None:
            found[line.name] = series
    return found


def _during(
    tell: Telling, lines: Sequence[Line], tasks: Sequence[str], parts: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, Series]]:
    found: dict[str, dict[str, Series]] = {}
    for task in tasks:
        blocks = [part for part in parts[task] if part.isdigit()]
        count = min(BLOCKS, len(blocks))
        for number in range(1, count + 1):
            block = blocks[-(-number * len(blocks) // count) - 1]
            series = {
                line.name: each
                for line in lines
                if (each := _block(trials_of(tell.results, line, task), block)) is not None
            }
            if series:
                found[f"{tell.task[task]}, block {block}"] = series
    return found


def _block(trials: Sequence[TrialResult], block: str) -> Series | None:
    return by_step([trial for trial in trials if trial.status == "finished"], lambda entry: _measured(entry).get(block))
