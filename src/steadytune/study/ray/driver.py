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

import math
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
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
from steadytune.study.outcome import Outcome
from steadytune.study.ray.cargo import Files, write_files
from steadytune.study.ray.cluster import Cluster
from steadytune.study.ray.remote import News, Returned, Work

_LOST = (NodeDiedError, LocalRayletDiedError, ObjectLostError)
_DIED = (WorkerCrashedError, OutOfMemoryError)
_LOSSES_FORGIVEN = 10  # attempts
_STRANGE_ALLOWED = 3
_GLANCE = 0.1  # seconds to wait for something to happen
_TICK = 1.0
_LOG_WITHIN = 30.0  # seconds that a node has to hand over a log


@dataclass(eq=False)
class Flight:
    """A trial that is out on the cluster."""

    claim: Claim
    worker: str
    beat_at: float
    news: News | None = None
    death: str = ""  # a sentence, once its process has died: then what is out are questions about it
    log_by: float = math.inf  # when they are given up


class Driver:
    """Keeps a cluster at work. `name` is one that no other driver of the study ever had."""

    def __init__(
        self,
        ledger: Ledger,
        cluster: Cluster,
        name: str,
        lease: float,
        models: Path,
        on_tick: Callable[[], object] | None,
    ) -> None:
        self.ledger, self.cluster, self.name, self.lease, self.models = ledger, cluster, name, lease, models
        self.on_tick = on_tick
        self.flights: dict[Any, Flight] = {}  # by the reference of what is to come back
        self.nodes: set[str] = set()  # where trials have been
        self._started, self._stopping = 0, False
        self._tick_at, self._was_idle, self._more = 0.0, False, False
        self._strange = 0  # errors of Ray in a row that are about no trial

    def run(self, stop: threading.Event) -> bool:
        """True when all trials have ended, False when it was asked to stop."""
        while not stop.is_set():
            counts = self.ledger.counts()
            left = counts["pending"] + counts["running"]
            if not self._more_to_come(idle=not left) and not left:
                return True
            room = self.cluster.room() - len(self.flights)
            if counts["pending"]:
                self._send_(room)
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
                self.cluster.kill(ref)
                with suppress(SteadytuneError):  # then its lease runs out
                    self.ledger.release(flight.claim)
            self.flights.clear()

    def _more_to_come(self, idle: bool) -> bool:
        """What `on_tick` says; asked about once a second, and at once when there is nothing left to do."""
        if time.monotonic() >= self._tick_at or (idle and not self._was_idle):
            self._tick_at = time.monotonic() + _TICK
            self.ledger.expire(self.lease)  # of other drivers, that may be gone
            self._more = self.on_tick is not None and bool(self.on_tick())
        self._was_idle = idle
        return self._more

    # -- out ----------------------------------------------------------------------------------------------------------

    def _send_(self, room: int) -> None:
        """Claim as many trials as there is room for, and send them out."""
        for _ in range(room):
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
        news = self.cluster.news([each.claim.token for each in self.flights.values()] if self._stopping else [])
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
                self.cluster.kill(ref)
                if flight.death:
                    self._bury(flight, "")

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
            self._examine(ref, flight)
            return
        try:
            returned: Returned = ray.get(ref)
        except _LOST as error:
            counted = flight.claim.attempts >= _LOSSES_FORGIVEN
            self.ledger.died(flight.worker, "Its node was lost.", str(error), counted)
        except _DIED as error:
            self._died(flight, error)
        except TaskCancelledError:
            self.ledger.release(flight.claim)
        except RayError as error:  # run_task itself raises nothing: it could not begin, or its answer not be sent
            self._strange += 1
            lasting = self._strange >= _STRANGE_ALLOWED
            self.ledger.died(flight.worker, "Its node could not run it.", str(error), counted=not lasting)
            if lasting:
                raise SteadytuneError(
                    f"The nodes of the Ray cluster cannot run trials. Is this steadytune installed there?\n{error}"
                ) from error
        else:
            self._strange = 0
            self.nodes.add(returned.node)
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
            self._finish(claim, returned.outcome, returned.model)

    def _finish(self, claim: Claim, outcome: Outcome, model: Files) -> None:
        try:
            if model:
                shutil.rmtree(self.models / claim.key, ignore_errors=True)  # of an attempt that was cut short
                write_files(model, self.models / claim.key)
            self.ledger.finish(claim, outcome)
        except LedgerError:
            raise
        except OSError as error:
            self.ledger.release(claim)
            raise SteadytuneError(
                f"The model of trial {claim.key} could not be written: {error}. Make room, then run the same command "
                "again."
            ) from error
        except SteadytuneError as error:  # a result that cannot be recorded
            self.ledger.fail(claim, str(error))

    # -- what became of a process --------------------------------------------------------------------------------------

    def _died(self, flight: Flight, error: RayError) -> None:
        """Ask where it was, and then its node for what it said last. It is recorded when the answers are there."""
        if isinstance(error, OutOfMemoryError):
            flight.death = f"Ray ended its process, because its node ran out of memory. {error}"
        else:
            flight.death = "Its process died: it crashed, or was killed, perhaps by the system for want of memory."
        flight.log_by = time.monotonic() + _LOG_WITHIN
        self.flights[self.cluster.board.about.remote(flight.claim.token)] = flight

    def _examine(self, ref: Any, flight: Flight) -> None:
        answer = None
        with suppress(RayError):
            answer = ray.get(ref)
        if isinstance(answer, News):
            flight.news = answer
            self.nodes.add(answer.node)
            self.flights[self.cluster.ask_for_log(answer)] = flight
        else:
            self._bury(flight, answer or "")

    def _bury(self, flight: Flight, log: str) -> None:
        where = "" if flight.news is None else f" It was process {flight.news.pid} on node {flight.news.address}."
        self.ledger.died(flight.worker, flight.death + where, log)
