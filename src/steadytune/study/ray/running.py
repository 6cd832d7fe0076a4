"""Running a study on a Ray cluster: `run_ray`.

Only the driver has the ledger, so the nodes need no file system in common: data and models travel through Ray's object
store, and results come back the same way. How trials are sent and what becomes of them is in driver.py; what a node
does, in remote.py. Trials are Ray Core tasks: fractional GPUs, and as many at a time as there is room for.

What a driver that was killed had out is known by its log: the file is locked for as long as a driver lives. A later run
takes these trials back at once, uncounted. Ray ends the tasks of a driver that is gone.
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from steadytune.errors import SteadytuneError
from steadytune.signals import stop_on_signals
from steadytune.study.crew import fcntl, is_running
from steadytune.study.ledger import Ledger, LedgerError
from steadytune.study.local import take_back
from steadytune.study.ray.cargo import Cargo, cargo_of
from steadytune.study.worker import LEASE

if TYPE_CHECKING:
    from steadytune.study.folder import Prepared

_NAME = "ray-"  # how the names of drivers begin, and so those of their workers


def run_ray(
    prepared: Prepared,
    *,
    address: str | None = None,
    workers: int | None = None,
    per_gpu: int | None = None,
    threads: int = 1,
    deterministic: bool = False,
    on_tick: Callable[[], object] | None = None,
    stop: threading.Event | None = None,
) -> bool:
    """Run all trials of a study. True when all have ended, False when it was asked to stop before.

    address   of the cluster; without it what Ray takes by itself: RAY_ADDRESS, a cluster that runs on this machine, or
              a new one on this machine's cores
    workers   trials at a time; by default as many as the cluster has room for
    per_gpu   trials at a time on each GPU, 1 by default; on a cluster without GPUs a trial gets `threads` CPUs
    on_tick   called about once a second and before the end; may plan more trials, and then returns something true
    stop      set it to stop; without it Ctrl-C and SIGTERM do that (twice: without waiting for checkpoints)
    """
    return run_trials(
        prepared.ledger,
        cargo_of(prepared),
        address=address,
        workers=workers,
        per_gpu=per_gpu,
        threads=threads,
        deterministic=deterministic,
        on_tick=on_tick,
        stop=stop,
    )


def run_trials(
    ledger_path: Path,
    cargo: Cargo,
    *,
    address: str | None = None,
    workers: int | None = None,
    per_gpu: int | None = None,
    threads: int = 1,
    deterministic: bool = False,
    on_tick: Callable[[], object] | None = None,
    stop: threading.Event | None = None,
    lease: float = LEASE,
    grace: float = 60.0,
    patience: float = 600.0,
) -> bool:
    """The trials of a ledger, with what the nodes need for them.

    grace     seconds that trials have for their checkpoint when they are stopped
    patience  seconds to wait for a node that trials fit on
    """
    with _connected(address), Ledger.open(ledger_path) as ledger, _at_work(ledger_path.parent / "workers") as name:
        from steadytune.study.ray.cluster import Cluster
        from steadytune.study.ray.driver import Driver

        _take_back(ledger, ledger_path.parent / "workers")
        take_back(ledger, ledger_path.parent / "workers")  # of local runs
        meta = ledger.meta
        cluster = Cluster(
            study_name(meta),
            meta,
            cargo,
            workers=workers,
            per_gpu=per_gpu,
            threads=threads,
            deterministic=deterministic,
            patience=patience,
        )
        driver = Driver(ledger, cluster, name, lease, ledger_path.parent / "models", on_tick)
        with nullcontext(stop) if stop is not None else stop_on_signals() as stop:
            try:
                ended = driver.run(stop)
            except BaseException as error:
                lasting = isinstance(error, SteadytuneError) and not isinstance(error, LedgerError)
                with suppress(SteadytuneError):  # trials that run well may still write their checkpoints
                    driver.stop_(grace if lasting else 0.0)
                raise
            driver.stop_(grace)
        if ended:
            cluster.forget(driver.nodes)
        return ended


def study_name(meta: Mapping[str, Any]) -> str:
    """What the study's folder on the nodes is called: a later driver finds it there, and another study does not."""
    return hashlib.sha256(f"{meta['created']} {meta.get('name', '')}".encode()).hexdigest()[:16]


@contextmanager
def _connected(address: str | None) -> Iterator[None]:
    """With Ray; as it was found afterwards. A connection that the caller has made is used and stays."""
    try:
        import ray
    except ImportError as error:
        raise SteadytuneError(
            "Ray is not installed here: `pip install steadytune[ray]`, on this machine and on the nodes."
        ) from error
    if ray.is_initialized():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)  # Ray takes it
    with _own_stdout():
        _connect(address)
        try:
            yield
        finally:
            with redirect_stdout(sys.stderr):  # Ray prints the rest of its messages
                ray.shutdown()  # ends no cluster but one that init has started
            if before is not None and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, before)


def _connect(address: str | None) -> None:
    import ray

    try:
        _knock(address)
        ray.init(address, include_dashboard=False, log_to_driver=False, logging_level="error")
    except (ImportError, OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise SteadytuneError(f"No connection to Ray{f' at {address}' if address else ''}: {error}") from error


def _knock(address: str | None) -> None:
    """Ray itself takes minutes to find out that nobody answers."""
    host, colon, port = (address or "").rpartition(":")
    if colon and port.isdecimal() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10.0).close()


@contextmanager
def _own_stdout() -> Iterator[None]:
    """Ray's threads print what the cluster reports; it goes to stderr, because others read our stdout (`--json`)."""
    stream = sys.stdout
    sys.stdout = _WithoutRay(stream)
    try:
        yield
    finally:
        sys.stdout = stream


class _WithoutRay:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def _chosen(self) -> TextIO:
        return sys.stderr if threading.current_thread().name.startswith("ray_") else self._stream

    def write(self, text: str) -> int:
        return self._chosen().write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chosen(), name)


@contextmanager
def _at_work(logs: Path) -> Iterator[str]:
    """A name for a driver, and a locked file of this name: it tells others that the driver lives."""
    name = _NAME + os.urandom(4).hex()
    logs.mkdir(parents=True, exist_ok=True)
    path = logs / f"{name}.log"
    with path.open("wb") as stream:
        if fcntl is not None:
            fcntl.flock(stream, fcntl.LOCK_EX)
        try:
            yield name
        finally:
            path.unlink(missing_ok=True)
    with suppress(OSError):
        logs.rmdir()


def _take_back(ledger: Ledger, logs: Path) -> None:
    """Trials of drivers that were killed. It was not the trials' fault, so it does not count."""
    for row in ledger.rows(status="running"):
        driver = (row.worker or "").rpartition("-")[0]
        log = logs / f"{driver}.log"
        if row.worker and driver.startswith(_NAME) and log.is_file() and not is_running(log):
            ledger.died(row.worker, "", counted=False)
