"""The tables beside the scores: what was chosen (V16), instability of predictions, variance split (V23), cost (X8)."""

from __future__ import annotations

import math

from steadytune import stats
from steadytune.report.study.naming import p_value, short, short_names, spread
from steadytune.report.study.runs import Runs
from steadytune.report.study.table_formats import Column, Item, Table
from steadytune.report.study.telling import Telling
from steadytune.report.words import duration, number
from steadytune.study.results import TrialResult

_NAMES = (Column("task", "task", False), Column("variant", "variant", False))


def tuning_table(tell: Telling) -> Table:
    """Every candidate of a choice with its mean validation score."""
    results = tell.results
    columns = (
        *(_NAMES[0], Column("group", "variant", False), Column("candidate", "candidate", False)),
        Column("mean", "mean ± std on validation", True, ("std",)),
        *(Column("n", "n"), Column("chosen", "", False)),
    )
    rows = []
    shown = short_names(variant for _, variant in results.tuning)
    for (task, variant), trials in results.tuning.items():
        if task not in results.tasks or variant not in results.variants:
            continue
        group = results.variants[variant].family
        chosen = results.chosen.get((task, group)) == variant
        scores = [value for value in (validation_score(tell, trial) for trial in trials) if value is not None]
        found = stats.describe(scores) if scores else None
        word = "chosen" if chosen else ""
        rows.append(
            (
                *(_name(task, tell.task[task]), _name(group, short(group)), _name(variant, shown[variant])),
                _described(found, chosen),
                *(Item(len(scores), str(len(scores))), Item(word, word)),
            )
        )
    caption = (
        "Tuning runs: the candidate of the best mean validation score is chosen, per task and variant; only its "
        "reported runs count elsewhere. A diverged run counts at the score without learning."
    )
    return Table("choices", "What was chosen", caption, columns, tuple(rows))


def validation_score(tell: Telling, trial: TrialResult) -> float | None:
    """On validation; a diverged run at the score without learning. None where there is none."""
    if trial.status not in ("finished", "diverged"):
        return None
    found = trial.best if tell.results.weights == "best" else trial.last
    value = found.validation if trial.status == "finished" and found is not None else None
    value = tell.results.tasks[trial.task].baseline.validation if value is None else value
    return value if value is not None and math.isfinite(value) else None


def instability_table(tell: Telling) -> Table:
    """How differently runs predict, even where their scores agree."""
    columns = (
        *_NAMES,
        Column("disagreement", "disagreement"),
        Column("fleiss_kappa", "Fleiss' kappa"),
        *(Column("n", "n"), Column("examples", "rows"), Column("split", "split", False)),
    )
    rows = []
    for (task, line), found in tell.compared.luck.predictions.items():
        kappa = found.fleiss_kappa
        split = tell.compared.luck.splits[task]
        rows.append(
            (
                *_names(tell, tell.runs(task, line)),
                Item(found.pairwise_disagreement, f"{found.pairwise_disagreement:.1%}"),
                Item(kappa, "–" if kappa is None else f"{kappa:.3f}"),
                *(Item(found.runs, str(found.runs)), Item(found.examples, f"{found.examples:,}"), Item(split, split)),
            )
        )
    caption = (
        "Disagreement: the share of rows that two finished runs label differently, on average over pairs of runs. "
        "Fleiss' kappa: agreement beyond chance (1: all runs predict alike); undefined where all predict one class."
    )
    return Table("instability", "How differently the runs predict", caption, columns, tuple(rows))


def variance_table(tell: Telling) -> Table:
    """Init against order, from grids of seeds."""
    columns = (
        *_NAMES,
        *(Column("init_share", "init"), Column("order_share", "order"), Column("rest_share", "rest")),
        *(Column("std_init_fixed", "std, init fixed"), Column("std_order_fixed", "std, order fixed")),
        *(Column("p_init", "p, init"), Column("p_order", "p, order")),
        Column("inits", "grid", True, ("orders",)),
        Column("note", "note", False),
    )
    rows = []
    for (task, line), grid in tell.compared.luck.grids.items():
        split = grid.split
        shares = split.shares() if split is not None else {}
        fixed = (split.std_with_init_fixed(), split.std_with_order_fixed()) if split is not None else (None, None)
        tests = (split.init_test.p, split.order_test.p) if split is not None else (None, None)
        note = split.note if split is not None else grid.note
        rows.append(
            (
                *_names(tell, tell.runs(task, line)),
                *(Item(shares.get(part), _percent(shares.get(part))) for part in ("init", "order", "rest")),
                *(Item(std, number(std)) for std in fixed),
                *(Item(p, p_value(p)) for p in tests),
                Item(len(grid.inits), f"{len(grid.inits)} × {len(grid.orders)}", (len(grid.orders),)),
                Item(note, note),
            )
        )
    caption = (
        "Variance of the scores over a grid of init seeds x order (and noise) seeds, split by the method of moments: "
        "share of each source, and what the seeds together leave as rest. std with one seed fixed: the average over "
        "its values. p: F-test of the source, one-tailed, uncorrected; n is the grid."
    )
    return Table("variance", "Init or order?", caption, columns, tuple(rows))


def cost_table(tell: Telling) -> Table:
    """Time and memory of finished runs."""
    columns = (
        *_NAMES,
        *(Column("seconds", "time per run", True, ("seconds_std",)), Column("time_ratio", "against baseline")),
        *(Column("peak_memory_bytes", "peak memory"), Column("n", "n")),
    )
    rows = []
    for (task, _), runs in tell.compared.runs.items():
        if runs.seconds is None:
            continue
        base = tell.compared.runs.get((task, tell.baseline))
        ratio = runs.seconds.mean / base.seconds.mean if base is not None and base.seconds is not None else None
        memory = runs.memory.mean if runs.memory is not None else None
        std = f" ± {runs.seconds.std:.1f} s" if runs.seconds.std is not None else ""
        rows.append(
            (
                *_names(tell, runs),
                Item(runs.seconds.mean, duration(runs.seconds.mean) + std, (runs.seconds.std,)),
                Item(ratio, "–" if ratio is None else f"{ratio:.2f} x"),
                Item(memory, "–" if memory is None else memory_text(memory)),
                Item(runs.seconds.n, str(runs.seconds.n)),
            )
        )
    devices = sorted({trial.versions.get("device", "") for trial in tell.results.trials if trial.status == "finished"})
    on = f" Device: {', '.join(short(device) for device in devices[:4] if device)}." if any(devices) else ""
    caption = (
        f"Wall time (mean ± std) and mean peak memory of finished runs: of tensors on a GPU, of the whole process on a "
        f"CPU. Runs that shared a machine slow each other down.{on}"
    )
    return Table("cost", "Time and memory", caption, columns, tuple(rows))


def memory_text(size: float) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def _name(name: str, shown: str) -> Item:
    return Item(short(name, 200), shown)


def _names(tell: Telling, runs: Runs) -> tuple[Item, Item]:
    return _name(runs.task, tell.task[runs.task]), _name(runs.line, tell.line[runs.line])


def _described(found: stats.Summary | None, strong: bool) -> Item:
    if found is None:
        return Item(None, "–", (None,))
    return Item(found.mean, spread(found.mean, found.std), (found.std,), strong)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"
