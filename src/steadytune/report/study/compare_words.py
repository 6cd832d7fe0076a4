"""What `steadytune compare` says: who beats whom, the tests behind it, and what they leave open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steadytune.report.study.comparisons import Comparison
from steadytune.report.study.naming import count_of, listed, p_value, short, short_names, signed
from steadytune.report.words import plural
from steadytune.stats.scores import FEWEST_RUNS

if TYPE_CHECKING:
    from steadytune.report.study.compare import Pair


def headline(pair: Pair) -> str:
    a, b = names(pair)
    every = list(pair.found.values())
    decided = [each for each in every if each.verdict != "undecided"]
    if not decided:
        fewest = min((min(each.n) for each in every), default=0)
        why = "the runs do not vary in a way that a test could weigh"
        if fewest < FEWEST_RUNS:
            why = f"nothing is called significant from fewer than {FEWEST_RUNS} runs, and here it is {fewest}"
        return f"Nothing can be said about {a} and {b}: {why}."
    won = [each for each in every if each.verdict == "better"]
    lost = [each for each in every if each.verdict == "worse"]
    if won and lost:
        told = f"{a} beats {b} on {_where(pair, won)}, and {b} beats {a} on {_where(pair, lost)}"
    elif won or lost:
        first, second = (a, b) if won else (b, a)
        told = f"{first} beats {second} on {_where(pair, won or lost)}"
    else:
        told = f"Neither {a} nor {b} is shown to beat the other on {_where(pair, every)}"
    turned = bool(lost) and not won
    return f"{told}; {_failures(pair, turned)}."


def _where(pair: Pair, some: list[Comparison]) -> str:
    if len(pair.found) == 1:
        return short(some[0].task)
    if len(some) < len(pair.found):
        return f"{len(some)} of {len(pair.found)} tasks"
    return "both tasks" if len(some) == 2 else f"all {len(some)} tasks"


def _failures(pair: Pair, turned: bool) -> str:
    sides = [[runs[place] for task, runs in pair.runs.items() if task in pair.found] for place in (0, 1)]
    ours, theirs = reversed(sides) if turned else sides
    counts = [(sum(runs.failed for runs in side), sum(runs.n for runs in side)) for side in (ours, theirs)]
    return f"{count_of(*counts[0])} {'run' if counts[0][1] == 1 else 'runs'} failed against {count_of(*counts[1])}"


def open_questions(pair: Pair) -> list[str]:
    """How many seeds it would take, and what is not compared."""
    told = []
    for each in pair.found.values():
        if each.verdict == "not shown" and each.seeds_needed is not None:
            seeds = max(each.seeds_needed.seeds, min(each.n) + 1)
            told.append(
                f"{short(each.task)}: if the difference is as large as it looks, about {plural(seeds, 'seed')} would "
                f"show it ({min(each.n)} now)."
            )
    alone = [
        task for side, other in ((pair.a, pair.b), (pair.b, pair.a)) for task in side.scores if task not in other.scores
    ]
    if alone:
        has = "was" if len(alone) == 1 else "were"
        told.append(f"{listed([short(task, 30) for task in alone])} {has} run on one side only and left out.")
    crashed = sum(side.crashed.get(task, 0) for side in (pair.a, pair.b) for task in pair.tasks)
    if crashed:
        told.append(f"{plural(crashed, 'trial')} crashed and {'is' if crashed == 1 else 'are'} left out.")
    return told


def tests(pair: Pair) -> list[str]:
    told = []
    for each in pair.found.values():
        low, high = each.difference.low, each.difference.high
        interval = f" [{signed(low)}, {signed(high)}]" if low is not None else ""
        start = f"{short(each.task)}: difference {signed(each.difference.estimate)}{interval}"
        if each.t_test.p is None:
            told.append(f"{start}; no test, because {each.t_test.note}.")
            continue
        chance = f"P({names(pair)[0]} better) {each.effect.probability_of_improvement:.2f}"
        p = p_value(each.t_test.p)
        told.append(f"{start}; {each.t_test.setting()}: p {p if p.startswith('<') else '= ' + p}; {chance}.")
    return told


def method(pair: Pair) -> str:
    count = sum(each.t_test.p is not None for each in pair.found.values())
    holm = f" p-values are Holm-corrected over {count} tasks." if count > 1 else ""
    pairing = " ".join(dict.fromkeys(each.pairing[0].upper() + each.pairing[1:] + "." for each in pair.found.values()))
    lower = any(not pair.a.greater_is_better[task] for task in pair.tasks)
    return (
        f"Differences are {names(pair)[0]} minus {names(pair)[1]}, with 95% bootstrap intervals."
        f"{' Lower is better for some metrics.' if lower else ''}{holm} {pairing} Failed: not above the score without "
        f"learning, or diverged."
    )


def names(pair: Pair) -> tuple[str, str]:
    if pair.a.name == pair.b.name:
        return f"{short(pair.a.name, 40)} (A)", f"{short(pair.b.name, 40)} (B)"
    shown = short_names([pair.a.name, pair.b.name], 40)
    return shown[pair.a.name], shown[pair.b.name]
