"""A paper's table or figure as it came out here: measured beside published numbers, every claim tested, the figure.

made = make_report("mixout/table-1", workshop)
made.tables, made.verdicts, made.figures
made.record()                      # all of it as plain data, every seed included
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from steadytune.papers import published
from steadytune.papers.catalogue import PAPERS, Cell, Claim, Item, find
from steadytune.papers.claim_tests import Printed, judge
from steadytune.papers.experiment import Computed, Shown
from steadytune.papers.experiments import find_experiment
from steadytune.papers.reader import Reader
from steadytune.papers.run import Workshop, command, read_computed, tasks_of
from steadytune.papers.samples import MINUTES, Sample
from steadytune.papers.tables import beside, measured_item, own_std, printed_items, printed_number
from steadytune.papers.verdicts import Verdict
from steadytune.report.study.table_formats import Table

if TYPE_CHECKING:
    from steadytune.report.study.figures import Figure
    from steadytune.study.results import StudyResults

TIMED = "time per step"  # a task whose scores mean nothing


@dataclass(frozen=True, eq=False)
class PaperReport:
    item: Item
    workshop: Workshop
    tables: Sequence[Table]
    verdicts: Sequence[Verdict]
    figures: Sequence[Figure]
    notes: Sequence[str]
    cells: Sequence[Mapping[str, Any]]  # every number of the table, with the score of each seed
    made_with: Mapping[str, str]  # versions and device

    @property
    def title(self) -> str:
        return f"{self.item.number}: {self.item.title}"

    def word(self, verdict: Verdict) -> str:
        return word(verdict, self.item)

    def record(self) -> dict[str, Any]:
        """Small enough to be kept: docs/results/ is made of these."""
        return {
            "id": self.item.id,
            "title": self.title,
            "paper": PAPERS[self.item.paper].citation,
            "items": list(self.item.items),
            "scale": self.workshop.scale,
            "command": command("run", self.item.id, self.workshop).partition(" --out")[0],
            "made_with": dict(self.made_with),
            "notes": list(self.notes),
            "verdicts": [verdict.to_data() for verdict in self.verdicts],
            "cells": [dict(cell) for cell in self.cells],
        }


def word(verdict: Verdict, item: Item) -> str:
    """What came out of a claim. A theorem is not true at one scale and false at another."""
    made = verdict.word.removesuffix(" at this scale") if item.kind == "theory" else verdict.word
    return f"{made} (not counted: {verdict.uncounted})" if verdict.uncounted else made


def make_report(id: str, workshop: Workshop, notes: Sequence[str] = ()) -> PaperReport:
    """From what the runs have left; nothing is trained or written. `notes` are said besides the report's own."""
    experiment, item = find_experiment(id), find(id)
    if isinstance(experiment, Computed):
        data, made_with = read_computed(experiment, workshop)
        found = experiment.verdicts(data)
        figures, tables = experiment.figures(data), experiment.tables(data)
        told = _COMPUTED if item.kind == "theory" else _SCALE[workshop.scale]
        cells = [_cell(cell, sample, partial(printed_number, id)) for cell, sample in experiment.samples(data).items()]
        return PaperReport(item, workshop, tables, found, figures, (told, *notes), cells, made_with)
    made = _of_studies(experiment, item, workshop)
    return replace(made, notes=(*made.notes, *notes))


def _of_studies(experiment: Shown, item: Item, workshop: Workshop) -> PaperReport:
    reader = Reader(experiment, item, workshop)
    every = tasks_of(experiment, workshop)
    there = tuple(task for task in every if any(task in study.tasks for study in reader.studies))
    if len(there) < len(every):  # with --task
        workshop = replace(workshop, tasks=there)
    seeds = reader.seeds()
    if seeds is not None:  # with --seeds
        workshop = replace(workshop, seeds=seeds[0])
    claims = (*item.claims, *experiment.ours)
    full = workshop.scale == "full"
    verdicts = [judge(claim, reader.of(claim), reader.printed, full=full) for claim in claims]
    samples = reader.table_samples(claims)
    extras = _extras(item, claims)
    here = {cell: measured_item(sample, extras) for cell, sample in samples.items()}
    quantities = set(reader.quantities(claims).values()) or {"score"}
    caption = _caption(reader, extras, quantities, list(samples.values()))
    name = item.id.replace("/", "-")
    table = beside(name, item.number, caption, here, printed_items(item.id, experiment.listed), reader.heading)
    cells = [_cell(cell, sample, reader.printed) for cell, sample in samples.items()]
    figures = _figures(experiment, reader.shown)
    made_with = _made_with([trial.versions for trial in reader.shown.trials])
    left_out = [task for task in every if task not in there]
    notes = _notes(reader) + ([f"Run with {seeds[0]} of {seeds[1]} seeds."] if seeds is not None else [])
    notes += [f"Not run here: {', '.join(left_out)}."] if left_out else []
    return PaperReport(item, workshop, [table], verdicts, figures, notes, cells, made_with)


def _extras(item: Item, claims: Sequence[Claim]) -> list[str]:
    """What the table shows besides mean and standard deviation: what the paper prints or speaks of."""
    statistics = {claim.statistic for claim in claims}
    if item.id in published.available():
        statistics |= {each.statistic for each in published.load(item.id).numbers}
    return [each for each in ("max", "min", "degenerate") if each in statistics]


def _made_with(versions: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Versions and devices of all runs: runs that were taken over may come from several machines."""
    names = dict.fromkeys(name for each in versions for name in each)
    found = {name: dict.fromkeys(str(each[name]) for each in versions if each.get(name)) for name in names}
    return {name: " and ".join(values) for name, values in found.items() if values}


def _figures(experiment: Shown, shown: StudyResults) -> list[Figure]:
    from steadytune.papers.figures import named
    from steadytune.report.study.comparisons import compare_all

    kept = {task: info for task, info in shown.tasks.items() if task != TIMED}
    trials = [trial for trial in shown.trials if trial.task in kept]
    ran = {shown.baseline, *(trial.variant for trial in trials if trial.ended)}  # the line of another would be empty
    trials = [trial for trial in trials if trial.variant in ran]
    variants = {name: variant for name, variant in shown.variants.items() if name in ran}
    compared = compare_all(replace(shown, tasks=kept, trials=trials, variants=variants))
    return [figure for name in experiment.figures for figure in named(compared, name)]


def _caption(reader: Reader, extras: Sequence[str], quantities: set[str], samples: Sequence[Sample]) -> str:
    shown, usual = reader.shown, reader.item.split or reader.shown.split
    split = " and ".join(dict.fromkeys(sample.place.split or usual for sample in samples)) or usual
    when = "of a run's best evaluation" if shown.weights == "best" else "of a run's end"
    if any(sample.place.minutes is not None for sample in samples):
        when = f"after so much time, of which the longest line took {MINUTES:g} minutes"
    words = {
        "score": f"{split} scores {when}",
        "expected_score": f"expected {split} scores of the best of n runs, kept by validation",
        "train_loss": "training loss, mean over a run's steps",
        "distance": "L2 distance of a block from its start, at the last evaluation",
        "seconds": "seconds",
    }
    runs = sorted({len(trials) for trials in shown.reported.values()})
    each = f"{runs[0]}" if len(runs) == 1 else f"{runs[0]} to {runs[-1]}" if runs else "no"
    told = " and ".join(words[name] for name in words if name in quantities)
    failed = " Failed: not above the score without learning, or diverged." if "degenerate" in extras else ""
    what = f"Mean ± standard deviation of {each} runs"
    if any(sample.place.fixed for sample in samples):
        what = f"Standard deviation of {each} runs with one seed fixed; mean ± standard deviation over that seed"
    here = f"Here: measured, {reader.workshop.scale} scale. Paper: as printed, percent as fractions."
    return f"{what}: {told}. {here}{failed}"


_COMPUTED = "Computed from the formulas; the scale says how many problems and draws there are."
_SCALE = {
    "full": "Full scale: the paper's set-up.",
    "small": "Small scale: the same experiment on smaller models and the data at hand; not the paper's numbers.",
    "smoke": "Smoke scale: tiny random models on generated data; its numbers mean nothing.",
}


def _notes(reader: Reader) -> list[str]:
    """What a reader must know: the scale, the models, the rates, data that is not what its name says."""
    shown = reader.shown
    models = sorted({_model(trial.recipe) for trial in shown.trials})
    rates: dict[str, set[float]] = {}
    for trial in shown.trials:
        rates.setdefault(trial.task, set()).add(float(trial.recipe["lr"]))
    told = ", ".join(f"{task} {' or '.join(f'{rate:g}' for rate in sorted(found))}" for task, found in rates.items())
    crashed = sum(trial.status == "failed" for trial in shown.trials)
    notes = [_SCALE[reader.workshop.scale], f"Models: {', '.join(models)}.", f"Learning rates: {told}."]
    notes += dict.fromkeys(study.about for study in reader.studies if study.about)  # such as what "Re-init 5" is here
    if reader.workshop.scale != "smoke":
        for task, info in shown.tasks.items():
            notes += [f"{task}: {said}" for said in info.notes if "not GLUE" in said or said.startswith("Of train")]
    return notes + ([f"{crashed} trials crashed and are left out."] if crashed else [])


def _model(recipe: Mapping[str, Any]) -> str:
    if recipe["from_config"]:
        return "from scratch"
    name = str(recipe["model"])
    return name.rpartition("/")[2] if name.startswith(".") else name


def _cell(cell: Cell, sample: Sample, printed: Printed) -> dict[str, Any]:
    found: dict[str, Any] = {"row": cell.row, "column": cell.column, "setting": cell.setting, "task": sample.place.task}
    found |= {"mean": _rounded(sample.number("mean")), "std": _rounded(own_std(sample))}
    found |= {name: _rounded(sample.number(name)) for name in ("min", "max")}
    found |= {"failed": sample.failed if sample.level is not None else None, "level": _rounded(sample.level)}
    found |= {"n": sample.n, "diverged": sample.diverged, "crashed": sample.crashed, "missing": sample.missing}
    found |= {f"published {name}": printed(cell, name) for name in ("mean", "std", "min", "max", "value")}
    return found | {"values": [_rounded(value) for value in sample.values.tolist()]}


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")
