"""The driver of a study on Ray: claims trials, sends them to the cluster as tasks, and records what comes back.

It alone opens the ledger, and beats for every trial that is out. Ray's own retries are off: what has become of a trial
is decided here, where it is recorded.

    the trial raised an error      failed, with the traceback of the node
    its process died               counted; the third time the trial has failed
    its node was lost              run again, and not counted: losing machines is a cluster's everyday life. Only from
                                   the tenth attempt on it is, or a trial that takes its node down would go on for ever
    it was asked to stop           given back
    the lease was lost             its process is ended: another driver has the trial

A trial goes on from its last checkpoint where it comes back to a node that has it, and else from its start.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import (
    LocalRayletDiedError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayError,
    TaskCancelledError,
    WorkerCrashedError,
)

from steadytune.errors import SteadytuneError
from steadytune.study.ledger import Claim, Ledger, LedgerError
from steadytune.study.ray_cargo import write_files
from steadytune.study.ray_cluster import Cluster
from steadytune.study.ray_node import News, Returned, Work

_LOST = (NodeDiedError, LocalRayletDiedError, ObjectLostError)
_DIED = (WorkerCrashedError, OutOfMemoryError)
_LOSSES_FORGIVEN = 10  # attempts
_GLANCE = 0.1  # seconds to wait for something to happen
_TICK = 1.0  # also between two looks at the board
_LOG_WITHIN = 30.0  # seconds that a node has to hand over a log


@dataclass(eq=False)
class Flight:
    """A trial that is out on the cluster."""

    claim: Claim
    worker: str
    beat_at: float
    news: News | None = None
    death: str = ""  # a sentence, once its process has died: then what is out is the question for its log
    log_by: float = field(default=float("inf"))


class Driver:
    """Keeps a cluster at work. `name` is one that no other driver of the study ever had."""

    def __init__(
        self,
        ledger: Ledger,
        cluster: Cluster,
        name: str,
        *,
        lease: float,
        models: Path,
        on_tick: Callable[[], object] | None = None,
    ) -> None:
        self.ledger, self.cluster, self.name, self.lease, self.models = ledger, cluster, name, lease, models
        self.on_tick = on_tick
        self.flights: dict[Any, Flight] = {}  # by the reference of what is to come back
        self.nodes: set[str] = set()  # where trials have been
        self._started, self._stopping = 0, False
        self._tick_at, self._was_idle, self._more = 0.0, False, False
        self._asked: Any = None  # the reference of the board's answer
        self._ask_at = 0.0

    def run(self, stop: threading.Event) -> bool:
        """True when all trials have ended, False when it was asked to stop."""
        while not stop.is_set():
            counts = self.ledger.counts()
            left = counts["pending"] + counts["running"]
            if not self._more_to_come(idle=not left) and not left:
                return True
            if counts["pending"] or counts["running"] > len(self.flights):  # leases of others may run out
                self._send_()
            self._hear()
            if not self._land_(_GLANCE):
                stop.wait(_GLANCE)
        return False

    def stop_(self, grace: float) -> None:
        """Ask all trials to stop, wait for their checkpoints, record what comes in, and give the others back."""
        self._stopping, until = True, time.monotonic() + grace
        try:
            for ref, flight in self.flights.items():
                if flight.news is None:
                    ray.cancel(ref)  # it waits for room, or has only begun
            while self.flights and time.monotonic() < until:
                self._hear()
                self._land_(_GLANCE)
        finally:  # a second Ctrl-C comes here too
            for ref, flight in self.flights.items():
                with suppress(RayError):
                    ray.cancel(ref, force=True)
                with suppress(SteadytuneError):  # then its lease runs out
                    self.ledger.release(flight.claim)
            self.flights.clear()

    def _more_to_come(self, idle: bool) -> bool:
        """What `on_tick` says; asked about once a second, and at once when there is nothing left to do."""
        if self.on_tick is not None and (time.monotonic() >= self._tick_at or (idle and not self._was_idle)):
            self._tick_at = time.monotonic() + _TICK
            self._more = bool(self.on_tick())
        self._was_idle = idle
        return self._more

    # -- out ----------------------------------------------------------------------------------------------------------

    def _send_(self) -> None:
        """Claim as many trials as the cluster has room for."""
        for _ in range(self.cluster.room() - len(self.flights)):
            worker = f"{self.name}-{self._started}"
            claim = self.ledger.claim(worker, self.lease, "a Ray cluster")
            if claim is None:
                return
            self._started += 1
            ref = self.cluster.send(Work(claim.key, claim.spec, claim.attempts, claim.token))
            self.flights[ref] = Flight(claim, worker, time.monotonic() + self.lease / 4)

    def _hear(self) -> None:
        """Take what the board has, and beat for all that are out. Never waits: the board may be starting again."""
        now = time.monotonic()
        news = self._look(now)
        for ref, flight in list(self.flights.items()):
            said = news.get(flight.claim.token)
            if said is not None:
                flight.news = said
                self.nodes.add(said.node)
            if said is None and now < flight.beat_at:
                continue
            flight.beat_at = now + self.lease / 4
            progress = None if said is None else said.progress
            if now > flight.log_by or not self.ledger.beat(flight.claim, self.lease, progress):
                del self.flights[ref]
                with suppress(RayError):
                    ray.cancel(ref, force=True)
                if flight.death:
                    self.ledger.died(flight.worker, flight.death)

    def _look(self, now: float) -> dict[str, News]:
        if self._asked is None:
            if now < self._ask_at:
                return {}
            stops = frozenset(flight.claim.token for flight in self.flights.values() if self._stopping)
            self._asked = self.cluster.board.look.remote(stops)
        if not ray.wait([self._asked], timeout=0)[0]:
            return {}
        answer, self._asked, self._ask_at = self._asked, None, now + (_GLANCE if self._stopping else _TICK)
        try:
            return dict(ray.get(answer))
        except RayError:
            return {}

    # -- back ---------------------------------------------------------------------------------------------------------

    def _land_(self, timeout: float) -> bool:
        """Record what has come back, waiting for something to; False where nothing is out."""
        refs = list(self.flights)
        if refs and ray.wait(refs, timeout=timeout)[0]:
            for ref in ray.wait(refs, num_returns=len(refs), timeout=0)[0]:
                self._record(ref, self.flights.pop(ref))
        return bool(refs)

    def _record(self, ref: Any, flight: Flight) -> None:
        if flight.death:
            log = ""
            with suppress(RayError):
                log = ray.get(ref)
            self.ledger.died(flight.worker, flight.death, log)
            return
        try:
            returned: Returned = ray.get(ref)
        except _LOST as error:
            counted = flight.claim.attempts >= _LOSSES_FORGIVEN
            self.ledger.died(flight.worker, f"Its node was lost. {_first_line(error)}", counted=counted)
        except _DIED as error:
            self._died(flight, error)
        except TaskCancelledError:
            self.ledger.release(flight.claim)
        except RayError as error:  # run_task itself raises nothing
            self.ledger.release(flight.claim)
            raise SteadytuneError(
                f"A node of the Ray cluster could not begin a trial. Is this steadytune installed there?\n{error}"
            ) from error
        else:
            self._returned(flight.claim, returned)

    def _returned(self, claim: Claim, returned: Returned) -> None:
        if returned.kind == "failed":
            self.ledger.fail(claim, returned.text)
        elif returned.kind == "stopped":
            self.ledger.release(claim)
        elif returned.outcome is None:  # full or unfit: other trials would come to nothing there, one after another
            self.ledger.release(claim)
            advice = "Make room there" if returned.kind == "full" else "Install what the driver has"
            raise SteadytuneError(f"{returned.text} {advice}, then run the same command again.")
        else:
            try:
                if returned.model:
                    write_files(returned.model, self.models / claim.key)
                self.ledger.finish(claim, returned.outcome)
            except LedgerError:
                raise
            except SteadytuneError as error:  # a result that cannot be recorded
                self.ledger.fail(claim, str(error))

    def _died(self, flight: Flight, error: RayError) -> None:
        """Its process is no more. Ask the node for what it said last, and record it when the answer is there."""
        if isinstance(error, OutOfMemoryError):
            how = f"Ray ended its process, because its node ran out of memory. {_first_line(error)}"
        else:
            how = "Its process died: it crashed, or was killed, perhaps by the system for want of memory."
        if flight.news is None:
            self.ledger.died(flight.worker, how)
            return
        news = flight.news
        flight.death = f"{how} It was process {news.pid} on node {news.address}, and its log there is {news.log}."
        flight.log_by = time.monotonic() + _LOG_WITHIN
        self.flights[self.cluster.ask_for_log(news)] = flight


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
