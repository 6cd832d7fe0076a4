"""The worker processes of a local run: where each one runs, how it is started and stopped, and how it ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from steadytune.errors import SteadytuneError
from steadytune.study.mps import Served, answers
from steadytune.study.worker import BEGINS

try:
    import fcntl
except ImportError:  # Windows: trials of a killed run wait for their leases
    fcntl = None  # type: ignore[assignment]

_TAIL = 4000  # characters of a log that are kept with a failed trial
# Trials at a time in one process: Python runs one of its threads at a time, and a GPU waits for it then. Processes take
# turns on a GPU, which costs more, unless they are served side by side (mps.py).
_IN_TURNS, _SIDE_BY_SIDE = 6, 3


@dataclass(frozen=True)
class Slot:
    """A place for one worker."""

    device: str  # what the worker is told
    replicas: int = 1  # trials at a time
    visible: str | None = None  # CUDA_VISIBLE_DEVICES, for a worker on a GPU


@dataclass(frozen=True)
class Ended:
    """A worker that is no more."""

    name: str
    code: int
    how: str  # a sentence
    last_words: str
    log: Path


@dataclass(frozen=True, eq=False)
class _Worker:
    name: str
    slot: Slot
    log: Path
    process: subprocess.Popen[bytes]


class Crew:
    """At most one process per slot. Functions that end in _ start or end some."""

    def __init__(
        self,
        ledger: Path,
        places: Sequence[Slot],
        *,
        threads: int,
        lease: float,
        command: Sequence[str] | None = None,
        served: Served | None = None,
        deterministic: bool = False,
    ) -> None:
        self.slots, self.logs = list(places), ledger.parent / "workers"
        self._ledger, self._threads, self._lease, self._deterministic = ledger, threads, lease, deterministic
        self._command = list(command or [sys.executable, "-m", "steadytune.study.worker"])
        self.workers: list[_Worker] = []
        self._served = dict(served or {})
        self._started = 0
        self._run = os.urandom(3).hex()  # names of workers must never come again

    def has_started(self, name: str) -> bool:
        """Whether this is one of ours, dead or alive."""
        return name.startswith(f"{self._run}-")

    def start_(self, up_to: int) -> None:
        """Fill the free slots, but have no more workers than trials."""
        free = list(self.slots)
        for worker in self.workers:
            free.remove(worker.slot)
        for slot in free[: max(0, up_to - len(self.workers))]:
            try:
                self.workers.append(self._start(slot))
            except OSError as error:
                raise SteadytuneError(f"A worker could not be started: {error}.") from error

    def part_(self) -> None:
        """Processes that start from now on take turns on their GPU: one has done what ends all that share it."""
        self._served.clear()

    def reap_(self) -> list[Ended]:
        """Those that have ended since the last time."""
        gone = [worker for worker in self.workers if worker.process.poll() is not None]
        self.workers = [worker for worker in self.workers if worker not in gone]
        return [_ended(worker) for worker in gone]

    def stop_(self, grace: float) -> list[Ended]:
        """Ask all to stop, wait for their checkpoints, and kill those that take longer."""
        for worker in self.workers:
            worker.process.terminate()
        until = time.monotonic() + grace
        gone: list[Ended] = []
        with suppress(KeyboardInterrupt):  # Ctrl-C again: do not wait
            while self.workers and time.monotonic() < until:
                gone += self.reap_()
                time.sleep(0.01)
        for worker in self.workers:
            with suppress(ProcessLookupError):
                os.killpg(worker.process.pid, signal.SIGKILL)  # and what it has started
            worker.process.wait()
        gone += self.reap_()
        for ended in gone:
            ended.log.unlink(missing_ok=True)  # of workers that died by themselves it stays
        return gone

    def _start(self, slot: Slot) -> _Worker:
        self._started += 1
        name = f"{self._run}-{self._started}"
        self.logs.mkdir(parents=True, exist_ok=True)
        log = self.logs / f"{name}.log"
        told = ["--worker", name, "--device", slot.device, "--threads", str(self._threads), "--lease", str(self._lease)]
        told += ["--replicas", str(slot.replicas)] if slot.replicas > 1 else []
        told += ["--deterministic"] if self._deterministic else []
        environment = {**os.environ, "OMP_NUM_THREADS": str(self._threads), "TOKENIZERS_PARALLELISM": "false"}
        if slot.visible is not None:
            environment |= {"CUDA_VISIBLE_DEVICES": slot.visible, **self._served_on(slot.visible)}
        with log.open("wb") as stream:
            if fcntl is not None:
                fcntl.flock(stream, fcntl.LOCK_EX)  # the worker inherits it, and has it until it ends
            process = subprocess.Popen(
                [*self._command, str(self._ledger), *told, "--parent", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=environment,
                start_new_session=True,  # Ctrl-C in the terminal is for the driver, which passes it on
            )
        return _Worker(name, slot, log, process)

    def _served_on(self, gpu: str) -> Mapping[str, str]:
        """What makes a process share this GPU. One whose MPS has gone would be told of another GPU's number by it."""
        served = self._served.get(gpu, {})
        if served and not answers(served):
            del self._served[gpu]
            return {}
        return served


def slots(
    workers: int | None, devices: Sequence[str] | None, per_gpu: int | None, side_by_side: bool = False
) -> list[Slot]:
    """One per worker: those of a GPU run `per_gpu` trials at a time, or one per core; `workers` says how many in all,
    and `per_gpu` then how many each runs. `side_by_side`: processes need not take turns on a GPU."""
    devices = _devices() if devices is None else devices
    gpus = [device for device in devices if device.startswith("cuda")]
    if not gpus:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return [Slot("cpu")] * (workers or cores)
    # A number means one of those that we were given ourselves.
    given = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    numbers = [int(gpu.partition(":")[2] or 0) for gpu in gpus]
    visible = [given[number] if number < len(given) else str(number) for number in numbers]
    if workers:
        return [Slot("cuda", per_gpu or 1, visible[index % len(visible)]) for index in range(workers)]
    shares = _shares(per_gpu or 1, _SIDE_BY_SIDE if side_by_side else _IN_TURNS)
    return [Slot("cuda", replicas, each) for each in visible for replicas in shares]


def shared_gpus(places: Sequence[Slot]) -> list[str]:
    """Those with more than one process."""
    counts = Counter(place.visible for place in places if place.visible is not None)
    return [gpu for gpu, count in counts.items() if count > 1]


def _shares(trials: int, most: int) -> list[int]:
    """So many trials at a time, as evenly as can be over as few processes as can serve them, at `most` so many each."""
    processes = -(-trials // most)
    return [trials // processes + (number < trials % processes) for number in range(processes)]


def log_of(logs: Path, worker: str) -> Path:
    """Where a worker wrote; one of several in a process (`name#3`) wrote where its process did."""
    return logs / f"{worker.partition('#')[0]}.log"


def is_running(log: Path) -> bool:
    """Whether the worker of this log lives: it holds the lock."""
    if fcntl is None:
        return True
    with log.open("rb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def last_words(log: Path) -> str:
    """The end of a log, of the last trial only; a crash in C code leaves its Python stack here (faulthandler)."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - _TAIL))
            text = stream.read().decode("utf-8", "replace")
    except OSError as error:
        return f"(the log cannot be read: {error})"
    return re.split(f"^{BEGINS.format('.*')}$", text, flags=re.MULTILINE)[-1].strip()


def _ended(worker: _Worker) -> Ended:
    code = worker.process.returncode
    return Ended(worker.name, code, _how(code), last_words(worker.log), worker.log)


def _how(code: int) -> str:
    if code >= 0:
        return f"It ended with exit code {code}."
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    said = f"It was killed by signal {-code} ({name})"
    if -code == signal.SIGKILL:
        return f"{said}: by somebody, or by the system for want of memory."
    return f"{said}."


def _devices() -> list[str]:
    import torch

    return [f"cuda:{number}" for number in range(torch.cuda.device_count())] or ["cpu"]
