"""The tables of a study. Each caption says which test, which tail, how many runs, and what it was corrected for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from steadytune.report.study.comparisons import ALPHA, POWER, Comparison, Comparisons
from steadytune.report.study.naming import count_of, listed, p_value, short_names, signed, spread
from steadytune.report.study.runs import Runs
from steadytune.report.study.table_formats import Column, Item, Plain, Table
from steadytune.report.study.tables_beside import cost_table, instability_table, tuning_table, variance_table
from steadytune.report.study.telling import Telling
from steadytune.report.words import number, plural

__all__ = ["Column", "Item", "Table", "tables"]
BEST, BETTER, WORSE = "*", "†", "‡"
CSV_WIDTH = 200  # of a name in a CSV file; the export of a study has it whole


def tables(compared: Comparisons) -> list[Table]:
    """All that have a row, the main one first."""
    tell = Telling(compared)
    made = [main_table(tell), overview_table(tell), pairwise_table(tell), tuning_table(tell), instability_table(tell)]
    made += [variance_table(tell), cost_table(tell)]
    return [table for table in made if table.rows]


def main_table(tell: Telling) -> Table:
    """Every line on every task: mean ± std, median, best, failed, n, and the papers' marks (M21, V11, V22)."""
    shown = [runs for runs in tell.compared.runs.values() if runs.planned]
    optional = {
        "chosen": any(runs.chosen is not None for runs in shown),
        "crashed": any(runs.crashed for runs in shown),
        "not_ended": any(runs.ended < runs.planned for runs in shown),
    }
    columns = (
        *(Column("task", "task", False, ("metric", "split", "without_learning")), Column("variant", "variant", False)),
        Column("chosen", "chosen", False),
        *(Column("mean", "mean ± std", True, ("std",)), Column("low", "95% interval", True, ("high",))),
        *(Column("median", "median", True, ("iqm", "q25", "q75")), Column("best", "best", True, ("worst",))),
        *(Column("failed", "failed", True, ("diverged", "failed_low", "failed_high")), Column("n", "n")),
        *(Column("crashed", "crashed"), Column("not_ended", "not ended"), Column("marks", "marks", False)),
    )
    kept = [place for place, column in enumerate(columns) if optional.get(column.key, True)]
    rows = [_main_row(tell, runs) for runs in shown]
    return Table(
        name="scores",
        title="Scores",
        caption=_main_caption(tell, optional["crashed"], optional["chosen"]),
        columns=tuple(columns[place] for place in kept),
        rows=tuple(tuple(row[place] for place in kept) for row in rows),
    )


def _main_row(tell: Telling, runs: Runs) -> tuple[Item, ...]:
    info = tell.results.tasks[runs.task]
    task, line = names(tell, runs)
    words = _mark_words(tell.compared, runs)
    chosen = Item(csv_name(runs.chosen), tell.chosen(runs) if runs.chosen else "–")
    ends = (Item(runs.crashed, str(runs.crashed)), Item(runs.planned - runs.ended, str(runs.planned - runs.ended)))
    first = (replace(task, also=(info.metric, tell.compared.split(runs.task), runs.level)), line, chosen)
    if runs.summary is None or runs.interval is None:
        blank = [Item(None, "–")] * 5
        return (*first, *blank, Item(runs.n, str(runs.n)), *ends, Item(words, words))
    summary, (low, high) = runs.summary, (runs.interval.low, runs.interval.high)
    share = runs.degenerate
    return (
        *(*first, _score(runs, marks_of(tell.compared, runs))),
        Item(low, "–" if low is None else f"{number(low)} to {number(high)}", (high,)),
        Item(summary.median, number(summary.median), (summary.iqm, *(value for _, value in summary.quantiles))),
        Item(runs.best, number(runs.best), (runs.worst,)),
        Item(
            runs.failed,
            count_of(runs.failed, runs.n),
            (runs.diverged, *((share.low, share.high) if share is not None else (None, None))),
        ),
        *(Item(runs.n, str(runs.n)), *ends, Item(words, words)),
    )


def overview_table(tell: Telling) -> Table:
    """One row per line and one column per task, as the papers print it; left out for a single task."""
    compared = tell.compared
    tasks = [task for task in compared.tasks if any(compared.runs[task, name].n for name in compared.names)]
    columns = [Column("variant", "variant", False)]
    for task in tasks:
        title = f"{tell.task[task]} ({tell.metric(task)})"
        columns.append(Column(f"{tell.task[task]} mean", title, True, (f"{tell.task[task]} std",)))
    rows = []
    for name in compared.names:
        cells = [compared.runs[task, name] for task in tasks]
        if any(runs.n for runs in cells):
            scores = [_score(runs, marks_of(compared, runs)) for runs in cells]
            rows.append((Item(csv_name(name), tell.line[name]), *scores))
    caption = f"{_what_is_scored(tell)} {_mark_legend(tell)}"
    return Table("overview", "Tasks side by side", caption, tuple(columns), tuple(rows if len(tasks) > 1 else ()))


def pairwise_table(tell: Telling) -> Table:
    """Every line against the baseline."""
    columns = (
        *(Column("task", "task", False), Column("variant", "variant", False)),
        Column("difference", "difference", True, ("low", "high")),
        Column("p_t_test", "p, t-test", True, ("p_t_test_uncorrected",)),
        Column("p_permutation", "p, permutation"),
        Column("probability_of_improvement", "P(better)"),
        Column("hedges_g", "Hedges' g"),
        Column("p_spread", "p, spread"),
        Column("p_failed", "p, failed"),
        Column("seeds_needed", "seeds needed"),
        Column("n", "n", True, ("n_baseline",)),
        Column("test", "test", False),
    )
    rows = tuple(_pairwise_row(tell, each) for each in tell.compared.against.values())
    return Table("against-baseline", f"Against {tell.base}", _pairwise_caption(tell), columns, rows)


def _pairwise_row(tell: Telling, each: Comparison) -> tuple[Item, ...]:
    mark = {"better": " " + BETTER, "worse": " " + WORSE}.get(each.verdict, "")
    low, high = each.difference.low, each.difference.high
    limits = "" if low is None or high is None else f" [{signed(low)}, {signed(high)}]"
    failures = each.failures.p if each.failures is not None else None
    plan = each.seeds_needed.seeds if each.seeds_needed is not None and each.verdict == "not shown" else None
    g, chance = each.effect.hedges_g, each.effect.probability_of_improvement
    counts = str(each.n[0]) if each.n[0] == each.n[1] else f"{each.n[0]} and {each.n[1]}"
    test = "Student, paired" if each.paired else "Welch, unpaired"
    return (
        *names(tell, tell.runs(each.task, each.line)),
        Item(each.difference.estimate, signed(each.difference.estimate) + limits, (low, high)),
        Item(each.t_test.p, p_value(each.t_test.p) + mark, (each.raw_p,), bool(mark)),
        Item(each.permutation.p, p_value(each.permutation.p)),
        Item(chance, f"{chance:.2f}"),
        Item(g, "–" if g is None else f"{g:.2f}"),
        Item(each.spread.p, p_value(each.spread.p)),
        Item(failures, p_value(failures)),
        Item(plan, "–" if plan is None else f"{plan:,}"),
        Item(each.n[0], counts, (each.n[1],)),
        Item(test, test),
    )


def names(tell: Telling, runs: Runs) -> tuple[Item, Item]:
    return Item(csv_name(runs.task), tell.task[runs.task]), Item(csv_name(runs.line), tell.line[runs.line])


def csv_name(name: str | None) -> Plain:
    return None if name is None else short_names([name], CSV_WIDTH)[name]


def marks_of(compared: Comparisons, runs: Runs) -> str:
    """The signs behind a mean: * is or equals the best, † is better than the baseline, ‡ worse."""
    against = compared.against.get((runs.task, runs.line))
    signs = BEST if compared.mark(runs.task, runs.line) in ("best", "equivalent") else ""
    return signs + {"better": BETTER, "worse": WORSE}.get(against.verdict if against is not None else "", "")


def _mark_words(compared: Comparisons, runs: Runs) -> str:
    against = compared.against.get((runs.task, runs.line))
    found = [{"best": "best", "equivalent": "as good as the best"}.get(compared.mark(runs.task, runs.line), "")]
    if against is not None:
        found.append({"better": "better than baseline", "worse": "worse than baseline"}.get(against.verdict, ""))
        found.append("undecided" if against.verdict == "undecided" else "")
    return ", ".join(["baseline"] * (runs.line == compared.baseline) + [word for word in found if word])


def _score(runs: Runs, marks: str) -> Item:
    if runs.summary is None:
        return Item(None, "–", (None,))
    text = spread(runs.summary.mean, runs.summary.std) + (f" {marks}" if marks else "")
    return Item(runs.summary.mean, text, (runs.summary.std,), BEST in marks)


def _what_is_scored(tell: Telling) -> str:
    weights = "the step that was best on validation" if tell.results.weights == "best" else "the last step"
    splits = {tell.compared.split(task) for task in tell.compared.tasks}
    validation = [tell.task[task] for task in tell.compared.tasks if tell.compared.split(task) == "validation"]
    where = "Validation" if splits == {"validation"} else "Test"
    beside = f" (validation for {', '.join(validation)}: no test rows)" if len(splits) == 2 else ""
    lower = sorted({tell.metric(task) for task, info in tell.results.tasks.items() if not info.greater_is_better})
    better = f" Lower is better for {', '.join(lower)}." if lower else ""
    return f"{where} scores{beside} of {weights}, {_runs_each(list(tell.compared.runs.values()))}.{better}"


def _runs_each(runs: Sequence[Runs]) -> str:
    counts = sorted({each.n for each in runs if each.n})
    if not counts:
        return "no run has ended"
    return f"n = {counts[0]} runs each" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]} runs"


def _mark_legend(tell: Telling) -> str:
    legend = (
        f"{BEST}: the best mean of a task, and those not shown to be worse (Student's t-test, unpaired, one-tailed, "
        f"p < {ALPHA:g}, uncorrected; lines of fewer than 3 runs are left out)."
    )
    if tell.compared.against:
        legend += (
            f" {BETTER} better, {WORSE} worse than {tell.base} ({_t_tests(tell.compared)}, two-tailed, p < {ALPHA:g}, "
            f"Holm-corrected over {plural(tell.compared.tests, 'test')})."
        )
    return legend


def _t_tests(compared: Comparisons) -> str:
    kinds = {each.paired for each in compared.against.values()}
    if kinds == {True}:
        return "Student's t-test, paired by seed"
    if kinds == {False}:
        return "Welch's t-test, unpaired"
    return "Student's t-test, paired, where both ran the same seeds, else Welch's, unpaired"


def _main_caption(tell: Telling, crashed: bool, chosen: bool) -> str:
    compared = tell.compared
    levels = [(tell.task[task], tell.results.level(task)) for task in compared.tasks]
    known = [f"{number(level)} on {task}" for task, level in levels if level is not None]
    parts = [
        _what_is_scored(tell),
        "Failed: not above the score without learning, or diverged; a diverged run counts at that score.",
        f"Without learning: {listed(known)}." if known else "",
        "Crashed trials have no score and are left out." if crashed else "",
        "Chosen: by mean validation score over the tuning runs, which are not reported." if chosen else "",
        f"Interval: of the mean, expanded BCa bootstrap, {compared.draws:,} draws.",
        _mark_legend(tell),
    ]
    return " ".join(part for part in parts if part)


def _pairwise_caption(tell: Telling) -> str:
    compared = tell.compared
    return (
        f"Differences are variant minus {tell.base}, with 95% intervals (expanded BCa bootstrap). t-test: "
        f"{_t_tests(compared)}, two-tailed. p of t-test, spread (Brown-Forsythe test, two-tailed) and failed (Fisher's "
        f"exact test, two-tailed) are each Holm-corrected over this table, {compared.tests} t-tests; those of the "
        f"permutation test (two-tailed) are not corrected. P(better): probability of improvement. Seeds needed: to "
        f"show a difference as large as the observed one here with power {POWER:.0%}. {BETTER} better, {WORSE} worse, "
        f"p < {ALPHA:g}. Nothing is tested on fewer than 3 runs."
    )
