"""The answer first, in words: what to read if one reads nothing else.

"Beats" means the t-test of the comparisons (two-tailed, Holm-corrected); "failed" means not above the score without
learning, or diverged. Where nothing can be said, that is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from steadytune.report.study import remarks
from steadytune.report.study.comparisons import Comparisons
from steadytune.report.study.naming import count_of, listed
from steadytune.report.study.runs import Runs
from steadytune.report.study.telling import Telling, score
from steadytune.report.words import plural
from steadytune.stats.scores import FEWEST_RUNS

MOST_NAMED = 4


@dataclass(frozen=True)
class Answer:
    """The headline, then what to know beside it."""

    headline: str
    further: tuple[str, ...]

    def sentences(self) -> tuple[str, ...]:
        return self.headline, *self.further


def answer(compared: Comparisons) -> Answer:
    tell = Telling(compared)
    scored = [runs for runs in compared.runs.values() if runs.n]
    closing = [*remarks.only_validation(tell), *remarks.unfinished(tell)]
    if not scored:
        return Answer(_nothing(tell), tuple(remarks.unfinished(tell)))
    if not tell.ranked:
        return Answer(_alone(tell, scored), tuple(closing))
    beside = [*remarks.other_winners(tell), *remarks.best_per_task(tell), *remarks.steadiness(tell)]
    return Answer(_headline(tell), (*beside, *remarks.open_questions(tell), *closing))


def _headline(tell: Telling) -> str:
    leader = tell.ranked[0]
    found, won = tell.of(leader), tell.wins(leader)
    if all(each.verdict == "undecided" for each in tell.compared.against.values()):
        return _undecided(tell)
    if won == 0:
        return _nobody(tell)
    if len(found) == 1:
        where = f"on {tell.task[found[0].task]} ({tell.two_scores(found[0])})"
    else:
        where = f"on {won} of {len(found)} tasks"
        lost = [tell.task[each.task] for each in found if each.verdict == "worse"]
        where += f" and loses on {listed(lost, 3)}" if lost else ""
    return f"{tell.line[leader]} beats {tell.base} {where}; {tell.failures(leader)}."


def _undecided(tell: Telling) -> str:
    fewest = min(min(each.n) for each in tell.compared.against.values())
    if fewest < FEWEST_RUNS:
        why = f"nothing is called significant from fewer than {FEWEST_RUNS} runs, and here it is {fewest}"
    else:
        why = "the runs do not vary in a way that a test could weigh"
    return f"Nothing can be said yet about what beats {tell.base}: {why}."


def _nobody(tell: Telling) -> str:
    leader = tell.ranked[0]
    found, alone = tell.of(leader), len(tell.ranked) == 1
    worse = sum(any(each.verdict == "worse" for each in tell.of(name)) for name in tell.ranked)
    if len(found) == 1:
        where = f"on {tell.task[found[0].task]}"
        where += f" ({tell.two_scores(found[0])})" if alone else ""
    else:
        where = f"on any of {plural(len(found), 'task')}"
    if alone:
        lost = (
            ", and is worse " + tell.where([each for each in found if each.verdict == "worse"], found) if worse else ""
        )
        return f"{tell.line[leader]} is not shown to beat {tell.base} {where}{lost}; {tell.failures(leader)}."
    lost = f", and {plural(worse, 'variant')} {'does' if worse == 1 else 'do'} worse" if worse else ""
    return f"No variant is shown to beat {tell.base} {where}{lost}; {tell.failures(leader, name=True)}."


def _alone(tell: Telling, scored: Sequence[Runs]) -> str:
    """Nothing to compare with: what the runs are."""
    told = [
        f"{tell.chosen(runs)} scores {tell.metric(runs.task)} {score(runs)} on {tell.task[runs.task]} "
        f"({count_of(runs.failed, runs.n)} {'run' if runs.n == 1 else 'runs'} failed)"
        for runs in scored[:MOST_NAMED]
    ]
    more = len(scored) - len(told)
    return "; ".join(told) + (f"; {more} more in the table" if more else "") + "."


def _nothing(tell: Telling) -> str:
    trials = tell.results.trials
    ended = [trial for trial in trials if trial.ended]
    if not trials:
        return "Nothing can be said: the study has no trials."
    if not ended:
        return f"Nothing can be said yet: none of {plural(len(trials), 'trial')} has ended."
    if all(trial.status == "failed" for trial in ended):
        return f"Nothing can be said: {_all(len(ended))} that ended crashed."
    if not any(trial.ended and trial.phase == "report" for trial in trials):
        return "Nothing can be said yet: only tuning trials have ended so far."
    return "Nothing can be said: no run has a score."


def _all(count: int) -> str:
    return "the only trial" if count == 1 else f"all {count:,} trials"
