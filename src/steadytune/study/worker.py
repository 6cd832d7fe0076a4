"""A worker: claims the trials of a study one after another, runs them, and records what came out.

    claim -> run(spec, folder, progress, stop) -> finish | fail | release

    python -m steadytune.study.worker LEDGER --worker NAME [--device cuda] [--replicas 4] [--threads 1] [--lease 60]
                                     [--deterministic]

One process runs many trials, so that imports, data and tokens are paid for once. A thread beside the run extends its
lease. An error inside a trial is recorded with its traceback, and the next trial begins. A full disk or a broken
ledger is no trial's fault and ends the worker; so does an error after which the GPU is lost to its process. SIGTERM
and Ctrl-C: the run writes a checkpoint, the trial is given back without a mark against it, and the worker ends.
"""

from __future__ import annotations

import argparse
import errno
import faulthandler
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from steadytune.errors import SteadytuneError
from steadytune.study import trial_folders as folders
from steadytune.study.heart import Heart
from steadytune.study.ledger import Claim, Ledger, LedgerError
from steadytune.study.outcome import Outcome, Run, Stopped
from steadytune.study.replicas import Crowd, side_by_side

__all__ = ["CANNOT_GO_ON", "LEASE", "DeviceLost", "DiskFull", "Options", "Outcome", "Run", "Stopped", "main", "work"]

LEASE = 60.0  # seconds after which a worker that says nothing is taken for dead
CANNOT_GO_ON = 3  # the exit code where no other worker would fare better
BEGINS = "--- trial {} ---"  # in the worker's log, so that it can be told what belongs to which trial
_POLL = 0.2  # seconds between two looks for work
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}


class DiskFull(SteadytuneError):
    """A trial could not write, and no other one could."""


class DeviceLost(SteadytuneError):
    """The GPU refuses everything from this process after an error; the next trial needs another one."""


def work(
    ledger_path: str | Path,
    run: Run,
    *,
    worker: str,
    folder: str | Path,
    lease: float = LEASE,
    stop: threading.Event | None = None,
    stay: bool = False,
    parent: int | None = None,
    crowd: Crowd | None = None,
) -> int:
    """Run trials until none is left (or, to `stay`, until told to stop); returns how many this worker has ended.

    `worker` is a name that no other worker of the study ever had. `folder` is for checkpoints. With `parent`, a process
    id, the worker stops when it is not the child of that process any more. `crowd`: who else runs in this process.
    """
    stop = stop or threading.Event()
    ended = 0
    with Ledger.open(ledger_path) as ledger, Heart(ledger_path, lease, stop, parent) as heart:
        while not stop.is_set():

            def ask(untroubled: bool) -> Claim | None:
                return ledger.claim(worker, lease, socket.gethostname(), untroubled)

            claim = ask(False) if crowd is None else crowd.claim(ask)
            if claim is not None:
                ended += _run_one(ledger, run, claim, heart, Path(folder), worker, alone=crowd is None)
                if crowd is not None:
                    crowd.left()
                continue
            counts = ledger.counts()
            if not stay and not counts["pending"] and not counts["running"]:
                break
            stop.wait(_POLL)  # what others are running may come back
    return ended


def _run_one(ledger: Ledger, run: Run, claim: Claim, heart: Heart, folder: Path, worker: str, alone: bool) -> bool:
    """Whether the trial has ended, by our hand."""
    print(BEGINS.format(claim.key), file=sys.stderr, flush=True)
    with heart.beats_for(claim) as pulse:
        try:
            spec = claim.spec
            outcome = run(spec, folders.take_over(folder, claim.key, claim.attempts), pulse.say, pulse.stop)
            ours = ended = ledger.finish(claim, outcome)
        except BaseException as error:  # SystemExit too: a trial does not end its worker
            crowded = not alone and ran_out_of_memory(error)
            spec, ended = {"keep": True}, not crowded and not _is_a_stop(error, pulse.stop)
            if crowded:  # others had the room: it runs again by itself, and fails if that does not help
                ours = bool(ledger.died(worker, "The memory ran out, beside other trials of its process.", str(error)))
            else:
                ours = _record_error(ledger, claim, error, alone) if ended else ledger.release(claim)
            if isinstance(error, KeyboardInterrupt):
                raise
    if not ours:
        print(f"What trial {claim.key} says comes too late: another has it now.", file=sys.stderr, flush=True)
        folders.delete(folder, claim.key, claim.attempts)
    elif not spec.get("keep"):  # after an error or a stop it may go on from there
        folders.delete(folder, claim.key)
    return ours and ended


def _is_a_stop(error: BaseException, stop: threading.Event) -> bool:
    """A run that claims to have been stopped, and was not, would be claimed and stopped for ever."""
    return isinstance(error, KeyboardInterrupt) or (isinstance(error, Stopped) and stop.is_set())


def _record_error(ledger: Ledger, claim: Claim, error: BaseException, alone: bool) -> bool:
    """The trial has failed, and would again; unless the error is about the machine, which then ends the worker."""
    if isinstance(error, LedgerError):
        raise error
    if disk_is_full(error):
        ledger.release(claim)
        raise DiskFull(f"Trial {claim.key} could not write: {error}. Make room, then run the same command again.")
    lost = "CUDA error" in str(error) and not ran_out_of_memory(error)  # after which all is well again
    if lost and not alone:
        raise DeviceLost(f"The GPU takes nothing more from this process, as trial {claim.key} saw: {error}") from error
    recorded = ledger.fail(claim, "".join(traceback.format_exception(error)))
    if lost:
        raise DeviceLost(f"Trial {claim.key} has failed, and the GPU takes nothing more from its process: {error}")
    return recorded


def disk_is_full(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL:
            return True
        if "No space left on device" in str(error):  # safetensors and torch have errors of their own
            return True
        error = error.__cause__ or error.__context__
    return False


def ran_out_of_memory(error: BaseException) -> bool:
    """In torch's words, in CUDA's or in ours; torch itself is not imported here."""
    return "out of memory" in str(error).lower()


# -- as a process -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Options:
    """What a worker process is told on its command line."""

    ledger: Path
    worker: str
    device: str | None
    threads: int
    lease: float
    parent: int | None
    replicas: int = 1
    deterministic: bool = False

    @property
    def folder(self) -> Path:
        return self.ledger.parent / "trials"


def main(arguments: Sequence[str] | None = None, make_run: Callable[[Options], Run] | None = None) -> int:
    """The worker process; returns its exit code. `make_run` is called once, before the first claim."""
    options = _parse(arguments)
    faulthandler.enable()  # a crash in C code says where it was
    stop, signals = threading.Event(), []

    def asked(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, asked)
    try:
        run = (make_run or _trials)(options)

        crowd = Crowd() if options.replicas > 1 else None

        def work_as(name: str) -> int:
            return work(
                options.ledger,
                run,
                worker=name,
                folder=options.folder,
                lease=options.lease,
                stop=stop,
                stay=options.parent is not None,
                parent=options.parent,
                crowd=crowd,
            )

        if options.replicas == 1:
            work_as(options.worker)
        else:
            side_by_side(work_as, options.worker, options.replicas, stop, fatal=DeviceLost)
    except (LedgerError, DiskFull) as error:
        print(error, file=sys.stderr, flush=True)
        return CANNOT_GO_ON
    except DeviceLost as error:
        print(error, file=sys.stderr, flush=True)
        return 1  # whoever started us starts another
    return 128 + signals[0] if signals else 0


def _trials(options: Options) -> Run:
    """Real trials. Everything heavy is imported here, before a trial could be blamed for it."""
    import torch

    from steadytune.study.trial import make_run

    torch.set_num_threads(options.threads)  # numbers must not depend on how many workers there are
    if options.replicas > 1:
        # A trial that replays its steps needs Python for some microseconds at a time, many times a step; whoever
        # builds or records beside it must not keep it waiting for Python's usual 5 ms each time.
        sys.setswitchinterval(0.0002)
    with Ledger.open(options.ledger, readonly=True) as ledger:
        return make_run(
            ledger.meta,
            options.ledger.parent,
            options.device,
            replicas=options.replicas,
            deterministic=options.deterministic,
        )


def _parse(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(prog="steadytune.study.worker", description="Runs trials of a study.")
    parser.add_argument("ledger", type=Path)
    parser.add_argument("--worker", default=f"{socket.gethostname()}-{os.getpid()}-{time.time_ns():x}")
    parser.add_argument("--device", help="cpu, cuda, cuda:1; by default what is there")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--replicas", type=int, default=1, help="trials at a time in this process")
    parser.add_argument("--deterministic", action="store_true", help="on a GPU: the same bits every time")
    parser.add_argument("--lease", type=float, default=LEASE)
    parser.add_argument("--parent", type=int, help="stay until stopped, or until this process has ended")
    return Options(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
