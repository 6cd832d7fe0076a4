"""Every trial of a study, for the page: a row with its curve, and for those that failed what happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from steadytune.report import words
from steadytune.report.study.curves import Curve, Scale, make_curve, make_scale
from steadytune.study.flat_rows import what_happened
from steadytune.study.results import ENDED, StudyResults, TaskInfo, TrialResult

MOST_FAILURES = 100  # different tracebacks that are shown whole; rows tell what happened in any case
LONGEST_REMARK = 100
LEARNED_NOTHING = "not better than without learning"


@dataclass(frozen=True)
class Failure:
    """A traceback, and how many trials ended in it."""

    number: int
    happened: str
    trials: Sequence[TrialResult]
    error: str


@dataclass(frozen=True)
class Row:
    """One trial. `failure` is the number of its traceback, where that is shown."""

    variant: str
    seed: str
    phase: str
    status: str
    look: str  # the status, or `degenerate` for a finished run that learned nothing
    remark: str
    validation: str
    test: str
    step: str
    seconds: str
    key: str
    curve: Curve | None
    failure: int | None


@dataclass(frozen=True)
class TaskTrials:
    """The trials of one task, on one scale."""

    task: TaskInfo
    counted: str  # "58 finished, 2 diverged"
    scale: Scale | None
    rows: Sequence[Row]


@dataclass(frozen=True)
class TrialsSection:
    tasks: Sequence[TaskTrials]
    failures: Sequence[Failure]
    failures_left_out: int
    tuned: bool  # some runs are tuning runs, so each row says which it is


def make_trials(results: StudyResults) -> TrialsSection:
    failures = make_failures(results.trials)
    numbers = {failure.error: failure.number for failure in failures}
    by_task: dict[str, list[TrialResult]] = {name: [] for name in results.tasks}
    for trial in results.trials:
        by_task[trial.task].append(trial)
    return TrialsSection(
        [_of_task(results, name, trials, numbers) for name, trials in by_task.items() if trials],
        failures[:MOST_FAILURES],
        max(0, len(failures) - MOST_FAILURES),
        any(trial.phase == "choose" for trial in results.trials),
    )


def make_failures(trials: Sequence[TrialResult]) -> list[Failure]:
    """Each traceback once, the most frequent first."""
    found: dict[str, list[TrialResult]] = {}
    for trial in trials:
        if trial.error:
            found.setdefault(trial.error, []).append(trial)
    often = sorted(found.items(), key=lambda each: -len(each[1]))
    return [
        Failure(number, cut(what_happened(error)), same, error) for number, (error, same) in enumerate(often, start=1)
    ]


def counted(trials: Sequence[TrialResult]) -> str:
    """`58 finished, 2 diverged`: how many trials are in which state."""
    counts = Counter[str](trial.status for trial in trials)
    order = (*ENDED, "running", "pending")
    return ", ".join(f"{counts[status]:,} {shown_status(status)}" for status in order if counts[status])


def shown_status(status: str) -> str:
    """In a report a run *failed* when it learned nothing; what the ledger calls failed has *crashed*."""
    return "crashed" if status == "failed" else status


def _of_task(results: StudyResults, name: str, trials: Sequence[TrialResult], numbers: Mapping[str, int]) -> TaskTrials:
    scale = make_scale(trials, results.tasks[name].baseline.validation)
    rows = [_row(results, trial, scale, numbers.get(trial.error)) for trial in trials]
    return TaskTrials(results.tasks[name], counted(trials), scale, rows)


def _row(results: StudyResults, trial: TrialResult, scale: Scale | None, failure: int | None) -> Row:
    score = trial.best if results.weights == "best" else trial.last
    nothing = learned_nothing(results, trial)
    return Row(
        variant=trial.variant,
        seed=trial.seed,
        phase="tuning" if trial.phase == "choose" else "reported",
        status=shown_status(trial.status),
        look="degenerate" if nothing else shown_status(trial.status),
        remark=cut(what_happened(trial.error) or " ".join(trial.notes)) or (LEARNED_NOTHING if nothing else ""),
        validation=words.number(score.validation if score else None),
        test=words.number(score.test if score else None),
        step="–" if score is None else str(score.step),
        seconds=f"{trial.seconds:.1f}" if trial.ended else "–",
        key=trial.key[:8],
        curve=make_curve(trial, scale) if scale else None,
        failure=failure if failure is not None and failure <= MOST_FAILURES else None,
    )


def learned_nothing(results: StudyResults, trial: TrialResult) -> bool:
    """Finished, and not above the score without learning (V3)."""
    score, level = results.score(trial), results.level(trial.task)
    if score is None or level is None:
        return False
    return score <= level if results.tasks[trial.task].greater_is_better else score >= level


def cut(text: str) -> str:
    """What fits into a row."""
    return text if len(text) <= LONGEST_REMARK else f"{text[:LONGEST_REMARK]}…"
