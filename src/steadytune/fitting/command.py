"""`steadytune fit`: the fit with a bar, tables and exit codes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from steadytune.engine.train import Progress as StepProgress
from steadytune.fitting import FitFailed, check_plan, default_out, outputs, run_plan
from steadytune.fitting.plan import Plan, load_data, make_plan, make_recipe
from steadytune.fitting.seeds import Listener
from steadytune.report import terminal, words
from steadytune.report.record import FitRecord, SeedRecord
from steadytune.signals import Stopped


def run_fit(
    file: str,
    *,
    text: Sequence[str] | None,
    label: str | None,
    validation: str | float | None,
    test: str | float | None,
    recipe: str,
    methods: Sequence[str],
    changes: Mapping[str, Any],
    seeds: int,
    out: str | None,
    fresh: bool,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
    metric: str | None,
    kind: str | None,
    positive: str | None,
    missing: str,
    skip_ragged: bool,
    deterministic: bool = False,
) -> int:
    """The exit code: 0, 1 where every seed failed, 130 or 143 where a signal stopped it."""
    data = load_data(
        file,
        text=text,
        label=label,
        validation=validation,
        test=test,
        metric=metric,
        kind=kind,
        positive=positive,
        missing=missing,
        skip_ragged=skip_ragged,
    )
    plan = make_plan(data, make_recipe(recipe, methods, changes), seeds)
    if int(os.environ.get("RANK", "0")):  # of several processes the first one speaks
        quiet, as_json = True, False
    where = Path(out) if out is not None else default_out(file)
    aside = Console(stderr=True, quiet=quiet)  # progress goes here, so that --json leaves stdout to the JSON
    check_plan(plan, where, fresh)
    if dry_run:
        return _show_plan(plan, where, as_json, quiet)
    aside.print(terminal.plan(plan.record(), plan.steps(), str(where)))
    aside.print()
    try:
        with Bar(plan, aside, quiet) as bar:
            made = run_plan(plan, where, fresh=fresh, deterministic=deterministic, listener=bar)
    except Stopped as stopped:
        print(f"steadytune: {stopped}", file=sys.stderr)
        return stopped.exit_code
    except FitFailed as failed:
        if as_json:
            print(json.dumps(_with_paths(outputs.read_record(where) or {}, where), indent=1))
        print(f"steadytune: {failed}", file=sys.stderr)
        return 1
    if as_json:
        print(json.dumps(_with_paths(made.record.to_data(), where), indent=1))
    elif not quiet:
        console = Console()
        console.print(terminal.result(made.record))
        console.print()
        console.print(terminal.places(where), soft_wrap=True)
    return 0


def _show_plan(plan: Plan, where: Path, as_json: bool, quiet: bool) -> int:
    record = plan.record()
    if as_json:
        print(json.dumps({**record.to_data(), "status": "planned", "steps": plan.steps(), "out": str(where)}, indent=1))
    elif not quiet:
        Console().print(terminal.plan(record, plan.steps(), str(where)))
    return 0


def _with_paths(data: dict[str, Any], where: Path) -> dict[str, Any]:
    names = {"model": outputs.MODEL, "predictions": outputs.PREDICTIONS, "report": outputs.PAGE, "runs": outputs.RUNS}
    return {**data, "paths": {key: str(where / name) for key, name in names.items() if (where / name).exists()}}


class Bar(Listener):
    """One bar over all steps of all seeds, with the time left, and a line for each seed that ends."""

    def __init__(self, plan: Plan, console: Console, quiet: bool) -> None:
        self.plan, self.console = plan, console
        self.left = plan.steps() * len(plan.seeds)
        self.begun = 0  # the step at which this process took the seed up
        self.done = 0  # steps that this process has taken
        self.now = 0
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)
        self.line: TaskID = self.progress.add_task("preparing", total=self.left)
        self.number, self.told = 0, ""

    def __enter__(self) -> Bar:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def seed_begins(self, seed: int) -> None:
        self.number += 1
        self.begun = self.now = 0
        self.told = f"seed {seed} ({self.number} of {len(self.plan.seeds)})"
        self._show(self.told)

    def step(self, progress: StepProgress) -> None:
        if not self.now:  # what an earlier command did is not counted: it would spoil the time left
            self.begun = progress.step - 1
            self.left -= self.begun
        self.now = progress.step
        scored = "" if progress.validation is None else f", validation {words.number(progress.validation)}"
        self._show(f"{self.told}{scored}")

    def seed_ends(self, record: FitRecord, seed: SeedRecord) -> None:
        taken = self.now - self.begun if self.now else 0
        self.left -= self.plan.steps() - self.begun - taken  # stopped early, diverged, or read from disk
        self.done += taken
        self.begun = self.now = 0
        ending = f"  {words.status(record, seed)}" if words.status(record, seed) else ""
        self.console.print(
            f"seed {seed.seed}: validation {words.number(seed.validation)}, {words.duration(seed.seconds)}{ending}",
            markup=False,
            highlight=False,
        )

    def _show(self, told: str) -> None:
        done = self.done + (self.now - self.begun if self.now else 0)
        self.progress.update(self.line, description=told, completed=done, total=max(self.left, done))
