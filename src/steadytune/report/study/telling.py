"""What sentences are made of: the names as they are shown, and the few numbers that every sentence needs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from steadytune.report.study.comparisons import Comparison, Comparisons
from steadytune.report.study.naming import count_of, metric_name, short, short_names, spread
from steadytune.report.study.runs import Runs


class Telling:
    """A view of the comparisons for those who write about them."""

    def __init__(self, compared: Comparisons) -> None:
        self.compared = compared
        self.results = compared.results
        self.line = short_names(compared.names)
        self.task = short_names(compared.tasks)
        self.baseline = compared.baseline or ""
        self.base = self.line.get(self.baseline, "")

    def of(self, line: str) -> list[Comparison]:
        return self._by_line.get(line, [])

    @cached_property
    def _by_line(self) -> dict[str, list[Comparison]]:
        found: dict[str, list[Comparison]] = {}
        for (_, line), each in self.compared.against.items():
            found.setdefault(line, []).append(each)
        return found

    def wins(self, line: str) -> int:
        return sum(each.verdict == "better" for each in self.of(line))

    @cached_property
    def ranked(self) -> list[str]:
        """The lines that are compared: by tasks won less tasks lost, then by their average place among the means."""

        def standing(line: str) -> tuple[int, int, float]:
            found, won = self.of(line), self.wins(line)
            lost = sum(each.verdict == "worse" for each in found)
            return lost - won, -won, sum(self._places[each.task, line] for each in found) / len(found)

        return sorted((name for name in self.compared.names if self.of(name)), key=standing)

    @cached_property
    def _places(self) -> dict[tuple[str, str], int]:
        """(task, line) -> how many lines have a better mean there."""
        found: dict[tuple[str, str], int] = {}
        for task in self.compared.tasks:
            means = sorted(((self.mean(task, line), line) for line in self.compared.names), reverse=True)
            values = [value for value, _ in means]
            found |= {(task, line): values.index(value) for value, line in means}
        return found

    def mean(self, task: str, line: str) -> float:
        """Higher is better; the lowest there is where there is no score."""
        runs = self.runs(task, line)
        return runs.sign * runs.summary.mean if runs.summary is not None else float("-inf")

    def runs(self, task: str, line: str) -> Runs:
        return self.compared.runs[task, line]

    def metric(self, task: str) -> str:
        return metric_name(self.results.tasks[task].metric)

    def chosen(self, runs: Runs) -> str:
        """The line's name; where one of several candidates was chosen on this task, the name of that."""
        return short(runs.chosen) if runs.chosen is not None else self.line[runs.line]

    def where(self, some: Sequence[Comparison], found: Sequence[Comparison]) -> str:
        """`on rte` of one task, `on 3 of 4 tasks` of several."""
        if len(found) == 1:
            return f"on {self.task[found[0].task]}"
        return f"on {len(some)} of {len(found)} tasks"

    def two_scores(self, found: Comparison) -> str:
        """`accuracy 0.71 ± 0.02 against 0.63 ± 0.05, n = 20 each`."""
        runs, base = self.runs(found.task, found.line), self.runs(found.task, found.baseline)
        counts = f"n = {runs.n} each" if runs.n == base.n else f"n = {runs.n} and {base.n}"
        return f"{self.metric(found.task)} {score(runs)} against {score(base)}, {counts}"

    def failures(self, line: str, name: bool = False) -> str:
        """`0 of 80 runs failed against 31 of 80`, over the tasks where the two are compared."""
        tasks = [each.task for each in self.of(line)]
        ours, theirs = ([self.runs(task, each) for task in tasks] for each in (line, self.baseline))
        told = count_of(sum(runs.failed for runs in ours), total := sum(runs.n for runs in ours))
        against = count_of(sum(runs.failed for runs in theirs), sum(runs.n for runs in theirs))
        whose = f" of {self.line[line]}" if name else ""
        return f"{told} {'run' if total == 1 else 'runs'}{whose} failed against {against}"


def score(runs: Runs) -> str:
    return spread(runs.summary.mean, runs.summary.std) if runs.summary is not None else "–"
