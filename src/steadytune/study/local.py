"""Running a study on this machine: worker processes on its cores or GPUs, watched, and replaced when they die.

The workers claim their trials from the ledger by themselves; this driver only starts them, notices when one dies (its
trial is free again at once, and after the third time failed, with what the worker said last), and ends when nothing is
left. A second run of the same study adds its workers to those of the first.

Each worker writes to a log beside the ledger. Its file is locked for as long as the worker lives, so a later run
knows whose trials to take back without waiting for their leases.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

from steadytune.errors import SteadytuneError
from steadytune.signals import stop_on_signals
from steadytune.study import trial_folders
from steadytune.study.crew import Crew, Ended, Slot, is_running, last_words, log_of, shared_gpus, slots
from steadytune.study.ledger import Ledger
from steadytune.study.mps import side_by_side
from steadytune.study.worker import CANNOT_GO_ON, LEASE

_GLANCE = 0.05  # seconds between two looks at the workers
_TICK = 1.0


def run_local(
    ledger_path: str | Path,
    *,
    workers: int | None = None,
    devices: Sequence[str] | None = None,
    per_gpu: int | None = None,
    threads: int = 1,
    deterministic: bool = False,
    lease: float = LEASE,
    command: Sequence[str] | None = None,
    on_tick: Callable[[], object] | None = None,
    stop: threading.Event | None = None,
    grace: float = 60.0,
    say: Callable[[str], object] | None = None,
) -> bool:
    """Run all trials of a ledger. True when all have ended, False when it was asked to stop before.

    workers   how many processes; by default one per core, or one per GPU
    per_gpu   trials at a time on each GPU, several of them in one process (replicas.py); 1 by default
    devices   such as ["cpu"] or ["cuda:0", "cuda:1"]; by default all GPUs, or the CPU where there is none
    on_tick   called about once a second and before the end; may plan more trials, and then returns something true
    stop      set it to stop; without it Ctrl-C and SIGTERM do that (a second Ctrl-C does not wait for checkpoints)
    grace     seconds that workers have for their checkpoint when they are stopped
    say       told how processes share a GPU, where they do
    """
    path = Path(ledger_path)
    with (
        Ledger.open(path) as ledger,
        nullcontext(stop) if stop is not None else stop_on_signals() as stop,
        side_by_side(to_share := _to_share(ledger, slots(workers, devices, per_gpu, side_by_side=True))) as served,
    ):
        places = slots(workers, devices, per_gpu, side_by_side=bool(served))
        if say is not None and to_share and shared_gpus(places):
            how = "side by side, by NVIDIA's MPS" if served else "in turns"
            say(f"{len(places)} processes run on {len(to_share)} GPU{'s' * (len(to_share) > 1)}, {how}.")
        crew = Crew(
            path, places, threads=threads, lease=lease, command=command, served=served, deterministic=deterministic
        )
        sweep(ledger, path.parent / "trials")
        try:
            return Driver(ledger, crew, on_tick).run(stop)
        finally:
            for ended in crew.stop_(grace):
                with suppress(SteadytuneError):  # then its lease runs out
                    ledger.died(ended.name, "", counted=False)


def _to_share(ledger: Ledger, places: Sequence[Slot]) -> list[str]:
    """GPUs for which an MPS pays: not for a single trial, nor to find that all is known."""
    counts = ledger.counts()
    return shared_gpus(places) if counts["pending"] + counts["running"] > 1 else []


class Driver:
    """Keeps a crew at work. Its parts are separate so that they can be tested."""

    def __init__(self, ledger: Ledger, crew: Crew, on_tick: Callable[[], object] | None = None) -> None:
        self.ledger, self.crew, self.on_tick = ledger, crew, on_tick
        self._tick_at, self._was_idle, self._more = 0.0, False, False
        self._look_at = 0.0
        self._idle_deaths, self._claims = 0, -1

    def run(self, stop: threading.Event) -> bool:
        while not stop.is_set():
            for ended in self.crew.reap_():
                self._bury(ended)
            if time.monotonic() >= self._look_at:
                self._look_at = time.monotonic() + _TICK
                take_back(self.ledger, self.crew.logs, self.crew)
            counts = self.ledger.counts()
            left = counts["pending"] + counts["running"]
            if not self._more_to_come(idle=not left) and not left:
                return True
            self.crew.start_(up_to=left)
            stop.wait(_GLANCE)
        return False

    def _more_to_come(self, idle: bool) -> bool:
        """What `on_tick` says; asked about once a second, and at once when there is nothing left to do."""
        if self.on_tick is not None and (time.monotonic() >= self._tick_at or (idle and not self._was_idle)):
            self._tick_at = time.monotonic() + _TICK
            self._more = bool(self.on_tick())
        self._was_idle = idle
        return self._more

    def _bury(self, ended: Ended) -> None:
        """A worker ended that nobody had asked to."""
        if ended.code == CANNOT_GO_ON:
            with suppress(SteadytuneError):
                self.ledger.died(ended.name, "", counted=False)
            said = ended.last_words.rpartition("\n")[2]
            raise SteadytuneError(f"A worker had to give up, and others would too. {said}")
        if ended.code == 1:  # the GPU was lost to it, perhaps by another that shares it
            self.crew.part_()
        if self.ledger.died(ended.name, ended.how, ended.last_words):
            return
        # It had no trial. That is bad luck, or nothing can start here: then going on would be for ever.
        claims = self.ledger.attempts()
        self._idle_deaths = self._idle_deaths + 1 if claims == self._claims else 1
        self._claims = claims
        if self._idle_deaths >= max(3, len(self.crew.slots)):
            raise SteadytuneError(
                f"Workers end before they have begun a trial. The last one: {ended.how} The end of its log, "
                f"{ended.log}:\n{ended.last_words}"
            )


def take_back(ledger: Ledger, logs: Path, crew: Crew | None = None) -> list[str]:
    """Trials of workers that died together with the run that watched them; their leases need not be waited for.

    Those of our own `crew` are left out: it knows better how they ended.
    """
    taken = []
    for row in ledger.rows(status="running"):
        ours = crew is not None and row.worker is not None and crew.has_started(row.worker)
        log = log_of(logs, row.worker or "")
        if row.worker and not ours and log.is_file() and not is_running(log):
            reason = "It is gone, with the run that had started it: it was killed, or its machine was."
            taken += ledger.died(row.worker, reason, last_words(log))
    return taken


def sweep(ledger: Ledger, folder: Path) -> None:
    """Checkpoints of trials that have ended: their worker was killed between recording a result and deleting them."""
    for row in ledger.rows(keys=trial_folders.keys(folder)):
        if row.status in ("finished", "diverged") and not row.spec.get("keep"):
            trial_folders.delete(folder, row.key)
