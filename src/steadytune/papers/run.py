"""Running an experiment: its studies one after another, each in a folder of its own, or its computation.

    OUT/small/mixout/table-1/     study.yaml, ledger.sqlite, ... as any study's folder
    OUT/small/mixout/digits/      result.json, of something that is computed at once; unfinished/ until it is there
    OUT/smoke/materials/          generated data and tiny models

Items that show the same runs share a folder. Running again goes on: trials that have ended stay, what was chosen stays.
Trials that another study of the same scale has run, or that were kept in files, are taken over (study/known.py).
Smoke runs stay in this process and on the CPU; others start workers, as `steadytune study run` does.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from steadytune.errors import SteadytuneError
from steadytune.locks import held
from steadytune.papers.experiment import UNFINISHED, Computed, Data, Part, Shown
from steadytune.papers.experiments import find_experiment
from steadytune.papers.materials.smoke import write_materials
from steadytune.papers.settings import SCALES, Scale, Setting
from steadytune.papers.study_data import at_most, only, write_study
from steadytune.papers.study_parts import PARTS, in_order
from steadytune.strict import nearest
from steadytune.study.new_file import write_text
from steadytune.study.status import LEDGER

if TYPE_CHECKING:
    from steadytune.study.folder import Prepared
    from steadytune.study.results import StudyResults

RESULT, MADE_WITH = "result.json", "made_with"
# A study file, where runs are known, whether each run has its GPU alone -> exit code of `study run`.
RunStudy = Callable[[Path, Sequence[str], bool], int]


@dataclass(frozen=True)
class Workshop:
    """Where the runs of a scale are kept, and what they are made of."""

    out: Path
    scale: Scale
    data: Path = Path("data")
    models: Mapping[str, str] = field(default_factory=dict)
    tasks: tuple[str, ...] = ()  # run these only; empty: all of an item's
    known: tuple[str, ...] = ()  # kept runs (study/known.py)
    seeds: int | None = None  # run so many at the most; None: all of a study's

    def folder(self, name: str) -> Path:
        return self.out / self.scale / name

    def known_to(self, part: Part) -> list[str]:
        """Where runs of a study may be known already: what was kept, and the other studies of this scale."""
        if part.timed:
            return []
        others = [self.folder(name) for name in PARTS if name != part.name]
        return [*self.known, *(str(folder) for folder in others if (folder / LEDGER).is_file())]

    def setting(self, name: str, earlier: Mapping[str, StudyResults] | None = None) -> Setting:
        data = self.folder("materials") if self.scale == "smoke" else self.data
        return Setting(self.scale, data, self.folder(name), self.models, earlier or {})


def run_experiment(
    id: str, workshop: Workshop, run_study: RunStudy, say: Callable[[str], None] = lambda line: None
) -> int:
    """Run what has not been run; 0 when all is there, else the exit code of what stopped it."""
    experiment = find_experiment(id)
    refuse_what_cannot_be_run(id, workshop)
    if workshop.scale == "smoke":
        write_materials(workshop.folder("materials"))
    if isinstance(experiment, Computed):
        compute(experiment, workshop, say)
        return 0
    earlier: dict[str, StudyResults] = {}
    code = 0
    for part in in_order(experiment, workshop.scale):
        setting = workshop.setting(part.name, earlier)
        if workshop.tasks and not part.for_all and not set(workshop.tasks) & set(part.make(setting)["tasks"]):
            continue  # such as the learning rates of other tasks
        alone = " (one run at a time on each GPU: their time is compared)" if part.timed else ""
        say(f"{part.name}: {workshop.folder(part.name)}{alone}{_who_chooses(part, setting, workshop)}")
        code = run_part(part, setting, run_study, workshop) or code
        if code > 1:  # stopped; failed trials are 1, and the other studies may do without them
            return code
        earlier[part.name] = read_part(workshop, part.name)
    return code


def _who_chooses(part: Part, setting: Setting, workshop: Workshop) -> str:
    """With `--seeds`, which seeds choose a setting is still the rule's own: what follows is then the same study."""
    choosing = part.make(setting).get("choose", {}).get("seeds")
    return f" (settings are chosen by {choosing} seeds all the same)" if choosing and workshop.seeds is not None else ""


def compute(experiment: Computed, workshop: Workshop, say: Callable[[str], None]) -> None:
    path = workshop.folder(experiment.name) / RESULT
    if path.exists():
        read_computed(experiment, workshop)  # a damaged one is named, and not taken for a result
        say(f"{path} is there already; delete it to compute it again.")
        return
    make_folder(path.parent)  # now: what cannot be written need not be computed
    started, lock = time.perf_counter(), path.with_name(".lock")
    with held(lock, f"Another process computes {experiment.id} in {path.parent}: wait for it, or name another --out."):
        data = experiment.compute(workshop.setting(experiment.name), say)
        data = {**data, MADE_WITH: _made_with(data)}
        write_text(path, json.dumps(data) + "\n")
        shutil.rmtree(path.with_name(UNFINISHED), ignore_errors=True)
        lock.unlink(missing_ok=True)
    say(f"{path} ({time.perf_counter() - started:.1f} s)")


def _made_with(data: Data) -> dict[str, str]:
    """Theory is computed on the CPU; digits say where they were."""
    import torch

    from steadytune.engine.result import versions

    return versions(torch.device("cpu")) | ({"device": data["device"]} if "device" in data else {})


def run_part(part: Part, setting: Setting, run_study: RunStudy, workshop: Workshop) -> int:
    """One study: what it needs is made, its file written, its trials run, its models joined."""
    make_folder(setting.folder)
    if part.prepare is not None:
        part.prepare(setting)
    file = write_study(setting.folder, at_most(only(part.make(setting), workshop.tasks), workshop.seeds))
    known = workshop.known_to(part)
    code = run_inside(file, known) if setting.scale == "smoke" else run_study(file, known, part.timed)
    if code == 0 and part.finish is not None:
        from steadytune.study.folder import read_results

        part.finish(setting, read_results(setting.folder))
    return code


def tasks_of(experiment: Shown, workshop: Workshop) -> list[str]:
    """All tasks of the studies that an item shows, whether run or not."""
    parts = [part for part in in_order(experiment, workshop.scale) if part.name in experiment.parts_at(workshop.scale)]
    return list(dict.fromkeys(name for part in parts for name in part.make(workshop.setting(part.name))["tasks"]))


def asked_for(experiment: Shown, workshop: Workshop) -> list[str]:
    """The studies that an item shows, without those that `--task` has left out: not there, nor any task of theirs."""
    names = experiment.parts_at(workshop.scale)
    there = [name for name in names if workshop.folder(name).is_dir()]
    ran = {task for name in there for task in read_part(workshop, name).tasks}
    tasks = {name: set(PARTS[name].make(workshop.setting(name))["tasks"]) for name in names}
    return [name for name in names if not ran or name in there or ran & tasks[name]]


def refuse_what_cannot_be_run(id: str, workshop: Workshop) -> None:
    """What is asked of an item and it does not have, before anything is written."""
    experiment = find_experiment(id)
    if isinstance(experiment, Shown):
        _check_tasks(experiment, workshop)
        return
    for option, given in (("--task", bool(workshop.tasks)), ("--seeds", workshop.seeds is not None)):
        if given:
            raise SteadytuneError(f"{id} is computed as a whole: there is nothing to choose. Run it without {option}.")


def _check_tasks(experiment: Shown, workshop: Workshop) -> None:
    known = tasks_of(experiment, workshop)
    for name in workshop.tasks:
        if name not in known:
            raise SteadytuneError(
                f"{experiment.id} has no task {name!r} at the {workshop.scale} scale, only {', '.join(known)}. "
                f"{nearest(name, known)}"
            )


def run_inside(file: Path, known: Sequence[str] = ()) -> int:
    """All trials of a study in this process, on the CPU: for tiny models, where starting workers would take longest."""
    import torch

    from steadytune.study.folder import prepare
    from steadytune.study.known import Known
    from steadytune.study.ledger import Ledger
    from steadytune.study.trial import make_run
    from steadytune.study.worker import work

    prepared: Prepared = prepare(file, file.parent, known=Known(known))
    with Ledger.open(prepared.ledger, readonly=True) as ledger:
        run = make_run(ledger.meta, prepared.folder, "cpu", prepared.data)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a worker
    try:
        while True:
            name = f"inside-{os.getpid()}-{time.time_ns():x}"
            with contextlib.redirect_stderr(io.StringIO()):  # a worker's log
                work(prepared.ledger, run, worker=name, folder=prepared.folder / "trials")
            if not prepared.replan_():
                break
    finally:
        torch.set_num_threads(threads)
    with Ledger.open(prepared.ledger, readonly=True) as ledger:
        return 1 if ledger.counts()["failed"] else 0


def read_part(workshop: Workshop, name: str) -> StudyResults:
    from steadytune.study.folder import read_results

    return read_results(workshop.folder(name))


def read_computed(experiment: Computed, workshop: Workshop) -> tuple[Data, dict[str, str]]:
    """What was computed, and with what versions."""
    path = workshop.folder(experiment.name) / RESULT
    if not path.exists():
        raise SteadytuneError(f"{path} does not exist. Run it first: {command('run', experiment.id, workshop)}")
    try:
        found: Data = json.loads(path.read_text(encoding="utf-8"))
        made_with = found.pop(MADE_WITH, {})  # results of earlier versions have none
        experiment.verdicts(found), experiment.tables(found)  # whether all is there that a report needs
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise SteadytuneError(
            f"{path} is damaged, or of another version ({error!r}). Delete it, and run the experiment again: "
            f"{command('run', experiment.id, workshop)}"
        ) from error
    return found, made_with


def keep_runs(workshop: Workshop, folder: Path) -> dict[Path, int]:
    """Add the ended trials of every study of a scale to `folder/small-few-sample-rates.runs.gz` and so on.

    Returns how many runs each file has then. Times on other machines mean nothing, so studies of time are left out.
    """
    from steadytune.study.known import ENDING, keep

    made: dict[Path, int] = {}
    for name, part in PARTS.items():
        ledger = workshop.folder(name) / LEDGER
        if ledger.is_file() and not part.timed:
            target = folder / f"{workshop.scale}-{name.replace('/', '-')}{ENDING}"
            made[target] = keep(ledger, target)
    if not made:
        raise SteadytuneError(f"{workshop.out} has no runs of the {workshop.scale} scale to keep.")
    return made


def command(what: str, id: str, workshop: Workshop) -> str:
    part = ""
    if what == "run":
        part = "".join(f" --task {shlex.quote(name)}" for name in workshop.tasks)
        part += f" --seeds {workshop.seeds}" if workshop.seeds is not None else ""
    return f"steadytune paper {what} {id} --scale {workshop.scale}{part} --out {workshop.out}"


def scale_of(id: str, out: Path) -> Scale:
    """The scale of which there are runs; an error where there is none, or more than one."""
    experiment = find_experiment(id)
    found: list[Scale] = []
    for scale in SCALES:
        if isinstance(experiment, Computed):
            there = (out / scale / experiment.name / RESULT).exists()
        else:
            there = any((out / scale / name).is_dir() for name in experiment.parts_at(scale))
        found += [scale] if there else []
    if len(found) == 1:
        return found[0]
    if not found:
        raise SteadytuneError(
            f"{out} has no runs of {id}. Run it first: steadytune paper run {id} --scale small --out {out}"
        )
    raise SteadytuneError(f"{out} has runs of {id} at the scales {' and '.join(found)}: say which with --scale.")


def make_folder(folder: Path, option: str = "--out") -> None:
    """`option` is what named it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = error.strerror or error
        raise SteadytuneError(f"{folder} cannot be made: {why}. Name another {option}.") from error
