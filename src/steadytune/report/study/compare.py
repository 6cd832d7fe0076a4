"""`steadytune compare A B`: two sides against each other, answered in the terminal.

The tests are those of a study's report (comparisons.py), with B as the baseline, Holm-corrected over the tasks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from steadytune.report.study import compare_words as words
from steadytune.report.study.comparisons import (
    ALPHA,
    MOST_DRAWS,
    POWER,
    Comparison,
    compare_runs,
    holm_corrected,
    with_plan,
)
from steadytune.report.study.naming import clean, count_of, metric_name, short, spread
from steadytune.report.study.runs import Runs, describe_runs
from steadytune.report.study.sides import Side, matched, side_of_fit, side_of_variant
from steadytune.report.words import number

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["Pair", "Side", "compare", "side_of_fit", "side_of_variant"]
SCHEMA = "steadytune compare 1"


@dataclass(frozen=True, eq=False)
class Pair:
    """A against B on each task they share. `found` lacks the tasks where a side has no score at all."""

    a: Side
    b: Side
    tasks: tuple[str, ...]
    runs: dict[str, tuple[Runs, Runs]]
    found: dict[str, Comparison]

    def answer(self) -> list[str]:
        """The answer first, then what cannot be said."""
        return [words.headline(self), *words.open_questions(self)]

    def render(self) -> RenderableType:
        """For a terminal: the answer, a table, and per task the difference and its test."""
        from rich.console import Group
        from rich.text import Text

        first, *others = self.answer()
        parts = [Text(first, style="bold"), Text(""), _table(self), Text("")]
        parts += [Text(sentence) for sentence in (*words.tests(self), *others)]
        return Group(*parts, Text(""), Text(words.method(self), style="dim"))

    def as_data(self) -> dict[str, Any]:
        """Plain data for JSON, all digits."""
        tasks = [_task_data(self, task) for task in self.tasks]
        names = {"a": clean(self.a.name), "b": clean(self.b.name)}
        return {"schema": SCHEMA, **names, "answer": self.answer(), "alpha": ALPHA, "power": POWER, "tasks": tasks}


def compare(a: Side, b: Side, *, draws: int = MOST_DRAWS) -> Pair:
    """Is A better than B? Differences are A minus B."""
    b, tasks = matched(a, b)
    runs: dict[str, tuple[Runs, Runs]] = {}
    for task in tasks:
        level = a.levels.get(task) if a.levels.get(task) is not None else b.levels.get(task)
        floor = level if level is not None else _worst(a, b, task)
        runs[task] = tuple(  # type: ignore[assignment]
            describe_runs(
                task,
                side.name,
                side.scores[task],
                greater_is_better=side.greater_is_better[task],
                level=level,
                floor=floor,
                draws=draws,
            )
            for side in (a, b)
        )
    scored = [pair for pair in runs.values() if pair[0].summary is not None and pair[1].summary is not None]
    corrected = holm_corrected([compare_runs(*pair, draws) for pair in scored])
    tests = sum(each.t_test.p is not None for each in corrected)
    planned = [with_plan(each, *pair, tests) for each, pair in zip(corrected, scored)]
    return Pair(a, b, tuple(tasks), runs, {each.task: each for each in planned})


def _worst(a: Side, b: Side, task: str) -> float | None:
    both = [*a.scores[task].values(), *b.scores[task].values()]
    there = [score for score in both if score is not None and math.isfinite(score)]
    return (min if a.greater_is_better[task] else max)(there, default=None)


def _table(pair: Pair) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("task", overflow="fold")
    table.add_column("", overflow="fold")
    for column in ("mean ± std", "median", "best", "failed", "n"):
        table.add_column(column, justify="right", no_wrap=True)
    for task in pair.tasks:
        metric = pair.a.metrics.get(task)
        label = short(task, 40) + (f" ({metric_name(metric)})" if metric else "")
        for place, runs in enumerate(pair.runs[task]):
            summary = runs.summary
            cells = [label if place == 0 else "", words.names(pair)[place]]
            cells += ["–", "–"] if summary is None else [spread(summary.mean, summary.std), number(summary.median)]
            cells += [number(runs.best), count_of(runs.failed, runs.n) if runs.n else "–", str(runs.n)]
            table.add_row(*(Text(cell) for cell in cells))
    return table


def _task_data(pair: Pair, task: str) -> dict[str, Any]:
    runs, each = pair.runs[task], pair.found.get(task)
    data: dict[str, Any] = {
        "task": clean(task),
        "metric": pair.a.metrics.get(task),
        "split": pair.a.splits.get(task),
        "greater_is_better": pair.a.greater_is_better[task],
        "without_learning": runs[0].level,
        "a": _runs_data(runs[0]),
        "b": _runs_data(runs[1]),
    }
    if each is None:
        return data
    return data | {
        "verdict": each.verdict,
        "difference": each.difference.estimate,
        "low": each.difference.low,
        "high": each.difference.high,
        "test": each.t_test.test,
        "tail": each.t_test.tail,
        "paired": each.paired,
        "p": each.t_test.p,
        "p_uncorrected": each.raw_p,
        "p_permutation": each.permutation.p,
        "p_spread": each.spread.p,
        "p_failed": each.failures.p if each.failures is not None else None,
        "probability_of_improvement": each.effect.probability_of_improvement,
        "hedges_g": each.effect.hedges_g,
        "seeds_needed": each.seeds_needed.seeds if each.seeds_needed is not None else None,
        "note": each.t_test.note,
    }


def _runs_data(runs: Runs) -> dict[str, Any]:
    summary = runs.summary
    described = {} if summary is None else {"mean": summary.mean, "std": summary.std, "median": summary.median}
    ends = {} if summary is None else {"best": runs.best, "worst": runs.worst}
    return {"n": runs.n, **described, **ends, "failed": runs.failed, "diverged": runs.diverged}
