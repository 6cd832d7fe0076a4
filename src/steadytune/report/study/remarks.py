"""What to know beside the headline: other winners, the best of each task, steadiness, and what cannot be said."""

from __future__ import annotations

from collections import Counter

from steadytune.report.study.naming import count_of, listed, signed
from steadytune.report.study.telling import Telling, score
from steadytune.report.words import number, plural

MOST_TASKS = 4


def other_winners(tell: Telling) -> list[str]:
    leader = tell.ranked[0]
    won = [(name, tell.wins(name)) for name in tell.ranked[1:] if tell.wins(name)]
    if not won:
        return []
    total = len(tell.of(leader))
    told = [tell.line[name] + (f" ({wins} of {total} tasks)" if total > 1 else "") for name, wins in won]
    return [f"{listed(told, 4)} {'beats' if len(won) == 1 else 'beat'} {tell.base} too."]


def best_per_task(tell: Telling) -> list[str]:
    markings = tell.compared.markings
    if not markings or len(tell.compared.names) < 2:
        return []
    if len(markings) > MOST_TASKS:
        counts = Counter(marking.reference for marking in markings.values()).most_common()
        parts = [f"{tell.line[name]} on {count}" for name, count in counts]
        return [f"The best mean is that of {listed(parts, 4)} of {len(markings)} tasks."]
    parts = []
    for task, marking in markings.items():
        best = tell.runs(task, marking.reference)
        equal = [tell.line[mark.name] for mark in marking.marks if mark.verdict == "equivalent"]
        beside = f", not shown to be better than {listed(equal, 3)}" if equal else ""
        parts.append(f"{tell.chosen(best)} on {tell.task[task]} ({tell.metric(task)} {score(best)}{beside})")
    return [f"Best mean: {'; '.join(parts)}."]


def steadiness(tell: Telling) -> list[str]:
    leader = tell.ranked[0]
    found = tell.of(leader)
    parts = []
    for word, verdict in (("less", "better"), ("more", "worse")):
        some = [each for each in found if each.steadier == verdict]
        if some:
            parts.append(f"spread {word} {tell.where(some, found)} ({_stds(tell) or 'Brown-Forsythe test'})")
    for word, verdict in (("less", "better"), ("more", "worse")):
        some = [each for each in found if each.fails_less == verdict]
        if some:
            parts.append(f"fail {word} often {tell.where(some, found)} (Fisher's exact test)")
    return [f"Runs of {tell.line[leader]} {listed(parts)} than those of {tell.base}."] if parts else []


def _stds(tell: Telling) -> str:
    """Of a single task only: stds of different metrics have no average."""
    found = tell.of(tell.ranked[0])
    both = [tell.runs(found[0].task, line).summary for line in (found[0].line, found[0].baseline)]
    stds = [each.std for each in both if each is not None and each.std is not None]
    if len(found) > 1 or len(stds) < 2:
        return ""
    return f"std {number(stds[0])} against {number(stds[1])}, Brown-Forsythe test"


def open_questions(tell: Telling) -> list[str]:
    """What cannot be said, and how many seeds it would take; what is cheapest to settle first."""
    leader = tell.ranked[0]
    undecided = [each for each in tell.of(leader) if each.verdict == "undecided"]
    unclear = [each for each in tell.of(leader) if each.verdict == "not shown"]
    told = []
    if unclear:
        first = min(unclear, key=lambda each: each.seeds_needed.seeds if each.seeds_needed else float("inf"))
        words = (
            f"On {tell.task[first.task]} the difference between {tell.line[leader]} and {tell.base} "
            f"({signed(first.difference.estimate)}) may be chance"
        )
        now = min(first.n)
        if first.seeds_needed is not None:
            seeds = max(first.seeds_needed.seeds, now + 1)
            words += f": if it is as large as it looks, about {plural(seeds, 'seed')} would show it ({now} now)"
        more = len(unclear) - 1
        told.append(words + (f"; {plural(more, 'other task')} would take as many or more." if more else "."))
    if undecided and len(undecided) < len(tell.of(leader)):
        names = listed([tell.task[each.task] for each in undecided], 4)
        told.append(f"Nothing can be said about {tell.line[leader]} on {names}: {undecided[0].t_test.note}.")
    return told


def only_validation(tell: Telling) -> list[str]:
    tasks = [tell.task[task] for task in tell.compared.tasks if tell.compared.split(task) == "validation"]
    if not tasks:
        return []
    chosen = "where each run's best step was chosen, so they flatter" if tell.results.weights == "best" else ""
    if len(tasks) == len(tell.compared.tasks):
        return [f"All scores are from validation{', ' + chosen if chosen else ''}."]
    one = len(tasks) == 1
    whose = "has no test rows: its" if one else "have no test rows: their"
    return [f"{listed(tasks)} {whose} scores are from validation{', ' + chosen if chosen else ''}."]


def unfinished(tell: Telling) -> list[str]:
    trials = tell.results.trials
    waiting = sum(not trial.ended for trial in trials)
    crashed = sum(trial.status == "failed" for trial in trials)
    told = []
    if 0 < crashed < len(trials):
        told.append(f"{count_of(crashed, len(trials))} trials crashed and {'is' if crashed == 1 else 'are'} left out")
    if 0 < waiting < len(trials):
        have = "has" if waiting == 1 else "have"
        told.append(f"{count_of(waiting, len(trials))} trials {have} not ended, so these numbers will change")
    return ["; ".join(told) + "."] if told else []
