"""What `steadytune study ...` does: each command as a function that prints, and returns an exit code."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.live import Live

from steadytune.errors import SteadytuneError
from steadytune.signals import stop_on_signals
from steadytune.study.screen import columns, duration, show_status
from steadytune.study.status import Status, read_status, study_folder

_PLAIN_EVERY = 30  # ticks between lines where the output is not a terminal
_PHASE = {"choose": "tune", "report": ""}
On = Literal["local", "ray"]


def run_plan(file: str, *, workers: int | None, price: float | None, as_json: bool, quiet: bool) -> int:
    """Show every trial and an estimate; write nothing."""
    from steadytune.study.estimate import estimate
    from steadytune.study.folder import LEDGER, ended_trials, inspect
    from steadytune.study.ledger import Ledger
    from steadytune.study.model_files import model_contents
    from steadytune.study.plan import plan

    console = Console(quiet=quiet)
    study, tasks, _ = inspect(file, _reading(console, as_json))
    ended, measured = {}, {}
    if (path := study_folder(file) / LEDGER).exists():
        with Ledger.open(path, readonly=True) as ledger:
            ended = ended_trials(ledger, study)
            measured = {row.key: row.seconds for row in ledger.rows() if row.seconds is not None and row.ended}
    base = Path(file).resolve().parent
    made = plan(study, tasks, ended, model_contents(study, base))
    guess = estimate(made.trials, tasks, measured, base)
    count = workers or os.cpu_count() or 1
    wall = guess.wall(count)
    if as_json:
        trials = [
            {"key": t.key, "task": t.task, "variant": t.variant, "phase": t.phase, "streams": vars(t.streams)}
            | {"status": _state(ended, t.key)}
            for t in made.trials
        ]
        cost = None if price is None or wall is None else price * wall / 3600
        facts = {"seconds": guess.seconds, "workers": count, "wall_seconds": wall, "cost": cost}
        print(json.dumps({"study": study.name, "trials": trials, "unplanned": made.unplanned, "estimate": facts}))
        return 0
    if not quiet:
        rows = [
            [t.key[:10], t.task, t.variant, _PHASE[t.phase], _seed(vars(t.streams)), _state(ended, t.key)]
            for t in made.trials
        ]
        for line in columns(["trial", "task", "variant", "", "seed", "status"], rows):
            print(line)
    runs = len(made.rows())
    shared = f" ({len(made.trials) - runs} more share a run with another variant)" if runs < len(made.trials) else ""
    console.print(f"\n[bold]{runs} trials[/bold]{shared}, {len(ended)} of them done.", highlight=False)
    if made.unplanned:
        console.print(f"{made.unplanned} more follow when their settings are chosen on validation.", highlight=False)
    by = f"by {guess.measured} finished trials" if guess.measured else "by the size of the model; a rough guess"
    if wall is None:
        console.print("How long they take is not known: a model cannot be had here.", highlight=False)
    else:
        console.print(f"About {duration(wall)} with {count} workers here ({by}).", highlight=False)
    if price is not None and wall is not None:
        console.print(f"About {price * wall / 3600:.2f} at {price:g} per hour.", highlight=False)
    return 0


def run_study(
    file: str,
    *,
    out: str | None,
    on: On,
    address: str | None,
    workers: int | None,
    per_gpu: str | None,
    threads: int,
    deterministic: bool = False,
    retry_failed: bool,
    as_json: bool,
    quiet: bool,
    known: Sequence[str] = (),
) -> int:
    """Plan, run what has not ended, and say how it stands. Running it again goes on."""
    from steadytune.study.folder import prepare
    from steadytune.study.known import Known
    from steadytune.study.ledger import Ledger

    if per_gpu not in (None, "auto") and not (per_gpu.isdecimal() and int(per_gpu) >= 1):
        raise SteadytuneError(f"--per-gpu is a number of at least 1, or auto, not {per_gpu!r}.")
    console = Console(quiet=quiet, stderr=as_json)
    prepared = prepare(file, out, _reading(console, as_json), Known(known))
    if prepared.taken:
        console.print(f"{prepared.taken} trials are known already and are not run again.", highlight=False)
    if retry_failed:
        with Ledger.open(prepared.ledger) as ledger:
            ledger.retry_failed()
    folder = prepared.folder
    replicas = None
    if per_gpu is not None:
        from steadytune.study import room

        replicas = room.per_gpu(per_gpu, (trial.recipe for trial in prepared.plan.trials), prepared.base, workers)

    before, began = read_status(folder).ended, time.perf_counter()
    with stop_on_signals() as stop, _Screen(folder, console) as screen:

        def tick() -> int:
            added = prepared.replan_()
            screen.tick()
            return added

        where: dict[str, Any] = {
            "workers": workers,
            "per_gpu": replicas,
            "threads": threads,
            "deterministic": deterministic,
        }
        where |= {"on_tick": tick, "stop": stop}
        if on == "ray":
            from steadytune.study.ray import run_ray

            ended = run_ray(prepared, address=address, **where)
        else:
            from steadytune.study.local import run_local

            ended = run_local(prepared.ledger, **where, say=lambda line: console.print(line, highlight=False))
    status = read_status(folder)
    if as_json:
        print(json.dumps(status.to_data()))
    elif not quiet:
        if ran := status.ended - before:
            took = duration(time.perf_counter() - began)
            console.print(f"{ran} trial{'s' * (ran > 1)} in {took}.", highlight=False)
        if prepared.plan.hopeless:
            groups = ", ".join(f"{group} on {task}" for task, group in prepared.plan.hopeless)
            console.print(f"No choice could be made for {groups}: every tuning run crashed.", style="red", markup=False)
        if ended:
            console.print(f"\nThe report:  steadytune study report {folder}", highlight=False, markup=False)
    if not ended:
        console.print("Stopped, with checkpoints. The same command goes on from there.", style="yellow")
        return 128 + (stop.signal or signal.SIGINT)
    return 1 if status.counts["failed"] else 0


def run_status(place: str, *, as_json: bool) -> int:
    status = read_status(study_folder(place))
    if as_json:
        print(json.dumps(status.to_data()))
    else:
        Console().print(show_status(status), highlight=False)
    return 0


def run_watch(place: str, *, every: float) -> int:
    from steadytune.study.screen import watch

    watch(study_folder(place), Console(), every)
    return 0


def run_keep(place: str, target: str) -> int:
    from steadytune.study.known import ENDING, keep
    from steadytune.study.status import LEDGER

    ledger = study_folder(place) / LEDGER
    if not ledger.exists():
        raise SteadytuneError(f"{place} holds no study: there is no {LEDGER}. Run it first: steadytune study run FILE")
    if not target.endswith(ENDING):
        raise SteadytuneError(f"Kept runs are found by the end of their name: call the file {target}{ENDING}")
    print(f"{target}: {keep(ledger, Path(target))} runs")
    return 0


def run_export(place: str, target: str) -> int:
    from steadytune.study.export import export
    from steadytune.study.folder import read_results

    export(read_results(study_folder(place)), Path(target))
    return 0


def _reading(console: Console, silent: bool) -> Callable[[str], None] | None:
    return None if silent else lambda task: console.print(f"Reading {task}", style="dim", markup=False)


def _state(ended: Mapping[str, Any], key: str) -> str:
    return str(ended[key].status) if key in ended else "pending"


def _seed(streams: dict[str, Any]) -> str:
    values = set(streams.values())
    return str(values.pop()) if len(values) == 1 else f"init {streams['init']}, order {streams['order']}"


class _Screen:
    """The live view while a study runs; a line now and then where the output is no terminal."""

    def __init__(self, folder: Path, console: Console) -> None:
        self.folder, self.console, self.ticks = folder, console, 0
        self.live = Live(console=console, auto_refresh=False) if console.is_terminal and not console.quiet else None
        self.lock = threading.Lock()

    def __enter__(self) -> _Screen:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.show(read_status(self.folder), last=True)
        if self.live is not None:
            self.live.stop()

    def tick(self) -> None:
        self.ticks += 1
        if self.live is not None or self.ticks % _PLAIN_EVERY == 1:
            self.show(read_status(self.folder))

    def show(self, status: Status, last: bool = False) -> None:
        with self.lock:
            if self.live is not None:
                self.live.update(show_status(status), refresh=True)
            elif last:
                self.console.print(show_status(status), highlight=False)
            else:
                left = duration(status.seconds_left)
                self.console.print(f"{status.ended} of {status.total} trials, time left: {left}", highlight=False)
