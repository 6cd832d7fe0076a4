"""A study on disk: its folder, its ledger, and what can be read from them.

    table1-study/
      study.yaml         the file it was made from
      ledger.sqlite      every trial, and what came out
      trials/            checkpoints of trials that are running
      models/KEY/        best weights, where the file says keep_models
      report.html, figures/, tables/

Preparing the same file again finds the same trials. A file that was changed adds what is new; trials that it no longer
asks for are not run, and those that have ended stay in the ledger and are not reported.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from steadytune.config import parse_yaml
from steadytune.errors import SteadytuneError
from steadytune.study.data import describe
from steadytune.study.file import Study, load_study, read_study
from steadytune.study.known import Known
from steadytune.study.ledger import Ledger
from steadytune.study.ledger.rows import TrialRow
from steadytune.study.model_files import model_contents
from steadytune.study.new_file import write_text
from steadytune.study.plan import Ended, Plan, plan
from steadytune.study.results import Score, StudyResults, TaskInfo, TrialResult
from steadytune.study.status import LEDGER, study_folder
from steadytune.tasks.base import Baseline, Data

FILE = "study.yaml"


@dataclass(eq=False)
class Prepared:
    """A study that is ready to run: planned, and on disk."""

    folder: Path
    study: Study
    tasks: Mapping[str, TaskInfo]
    data: Mapping[str, Data]
    models: Mapping[str, str]  # what is in the model directories
    base: Path  # what paths of the study file are relative to
    plan: Plan
    new: int  # trials that were not in the ledger before
    known: Known = field(default_factory=Known)
    taken: int = 0  # outcomes that were taken over from there

    @property
    def ledger(self) -> Path:
        return self.folder / LEDGER

    def replan_(self) -> int:
        """Plan what choices have made possible since; how many trials are new."""
        if not self.plan.waiting:
            return 0
        with Ledger.open(self.ledger) as ledger:
            return self.plan_(ledger)

    def plan_(self, ledger: Ledger) -> int:
        """Plan by what has ended, take over what is known, and again, as long as that makes a choice possible."""
        added = 0
        while True:
            self.plan = plan(self.study, self.tasks, ended_trials(ledger, self.study), self.models)
            added += _record(ledger, self.plan, self.study)
            taken = 0 if self.study.keep_models else self.known.hand_over_(ledger)
            self.taken += taken
            if not (taken and self.plan.waiting):
                return added


def inspect(
    file: str | Path, report: Callable[[str], None] | None = None
) -> tuple[Study, dict[str, TaskInfo], dict[str, Data]]:
    """The study of a file with its data read, and nothing written. `report` hears which task is being read."""
    study, base = load_study(file), Path(file).resolve().parent
    data: dict[str, Data] = {}
    tasks: dict[str, TaskInfo] = {}
    for name, task in study.tasks.items():
        if report is not None:
            report(name)
        try:
            data[name] = task.load(base)
        except SteadytuneError as error:
            raise SteadytuneError(f"{file}, task {name!r}: {error}") from error
        tasks[name] = describe(name, task, data[name], base)
    return study, tasks, data


def prepare(
    file: str | Path,
    out: str | Path | None = None,
    report: Callable[[str], None] | None = None,
    known: Known | None = None,
) -> Prepared:
    """Plan a study in its folder, which is made where it is not there, and take over runs that are `known`."""
    study, tasks, data = inspect(file, report)
    folder = study_folder(file) if out is None else Path(out)
    base = Path(file).resolve().parent
    models = model_contents(study, base)
    meta = _meta(study, tasks, models, folder, base)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = error.strerror or error
        raise SteadytuneError(f"{folder} cannot be made: {why}. Choose another with --out.") from error
    with Ledger.ensure(folder / LEDGER, meta) as ledger:
        there = ledger.meta
        if "models" not in there:  # planned before directories were looked into: its trials stay what they are
            del meta["models"]
            models = {}
        for name, value in meta.items():
            if there.get(name) != value and name != "text":
                ledger.set_meta(name, value)
        prepared = Prepared(folder, study, tasks, data, models, base, Plan(()), 0, known or Known())
        prepared.new = prepared.plan_(ledger)
        if there.get("text") != study.text:  # not else: another run of the same file may have planned more by now
            ledger.drop_pending(key for key, _, _ in prepared.plan.rows())
            ledger.set_meta("text", study.text)  # last: whoever is killed before does all of it again
    write_text(folder / FILE, study.text)
    return prepared


def read_results(folder: str | Path) -> StudyResults:
    """All that reports are made of. Does not write, and does not need the data."""
    path = study_folder(folder)
    if not (path / LEDGER).exists():
        raise SteadytuneError(f"{path} holds no study: there is no {LEDGER}. Run it first: steadytune study run FILE")
    with Ledger.open(path / LEDGER, readonly=True) as ledger:
        meta = ledger.meta
        study = study_of(meta, path)
        tasks = {name: task_info(data) for name, data in meta["tasks"].items()}
        rows = {row.key: row for row in ledger.rows()}
        made = plan(study, tasks, ended_trials(ledger, study), meta.get("models"))
        results = dict(ledger.outcomes(arrays=True))
    trials = []
    for trial in made.trials:
        row, outcome = rows.get(trial.key), results.get(trial.key)
        plain = TrialResult(
            trial.key, trial.task, trial.variant, trial.phase, asdict(trial.streams), trial.recipe.to_data()
        )
        trials.append(plain if row is None else _filled(plain, row, outcome))
    return StudyResults(
        name=study.name,
        about=study.about,
        tasks=tasks,
        variants=study.variants,
        trials=trials,
        baseline=study.baseline,
        split=study.report.split,
        weights=study.report.weights,
        chosen=made.chosen,
        text=study.text,
        command=meta.get("command", ""),
        folder=path.name,
    )


def study_of(meta: Mapping[str, Any], folder: Path) -> Study:
    """The study that a ledger was planned from, out of the ledger itself."""
    return read_study(parse_yaml(meta["text"], str(folder / FILE)), meta["text"])


def ended_trials(ledger: Ledger, study: Study) -> dict[str, Ended]:
    """What planning needs to know."""
    weights = study.report.weights
    return {
        row.key: Ended(row.status, row.best_validation if weights == "best" else row.last_validation)
        for row in ledger.rows()
        if row.status not in ("pending", "running")
    }


def task_info(data: Mapping[str, Any]) -> TaskInfo:
    return TaskInfo(**{**data, "baseline": Baseline(**data["baseline"])})


def _record(ledger: Ledger, made: Plan, study: Study) -> int:
    """The planned trials, then how many wait for a choice: who watches never sees neither."""
    new = ledger.plan(made.rows(study.keep_models))
    if ledger.meta.get("unplanned", 0) != made.unplanned:
        ledger.set_meta("unplanned", made.unplanned)
    return new


def _meta(
    study: Study, tasks: Mapping[str, TaskInfo], models: Mapping[str, str], folder: Path, base: Path
) -> dict[str, Any]:
    return {
        "name": study.name,
        "about": study.about,
        "text": study.text,
        "tasks": {name: asdict(info) for name, info in tasks.items()},
        "models": dict(models),
        "sources": {name: task.to_data() for name, task in study.tasks.items()},
        "report": asdict(study.report),
        "base": os.path.relpath(base, folder.resolve()),  # so that both may move together
        "command": shlex.join(["steadytune", *sys.argv[1:]]),
    }


def _filled(trial: TrialResult, row: TrialRow, outcome: Any) -> TrialResult:
    result = outcome.result if outcome is not None else {}
    return TrialResult(
        key=trial.key,
        task=trial.task,
        variant=trial.variant,
        phase=trial.phase,
        streams=trial.streams,
        recipe=trial.recipe,
        status=row.status,
        best=_score(result.get("best")),
        last=_score(result.get("last")),
        steps=result.get("steps", 0),
        history=result.get("history", ()),
        losses=result.get("losses", ()),
        grad_norms=result.get("grad_norms", ()),
        seconds=result.get("seconds", 0.0) or 0.0,
        peak_memory=result.get("peak_memory", 0),
        attempts=row.attempts,
        error=row.error,
        notes=result.get("notes", ()),
        versions=result.get("versions", {}),
        predictions={} if outcome is None else {n: a for n, a in outcome.arrays.items() if " " not in n},
    )


def _score(found: Mapping[str, Any] | None) -> Score | None:
    return None if found is None else Score(found["step"], found.get("validation"), found.get("test"))
