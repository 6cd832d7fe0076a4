"""The ledger of a study: one SQLite file that knows every trial, who runs it, and what came out.

    pending --claim--> running --finish--> finished | diverged
       ^                  |------fail----> failed
       |---release--------|
       |---died, expired--|  (the third time: failed)

Any number of processes may have it open. Claim, beat, finish, fail and release are one atomic statement each. A claim
carries a random token and a lease; whoever's lease ran out and was given to another has a stale token, and what it
says later is refused. What has ended is never changed, which the file itself enforces (`schema.RULES`).

A ledger object belongs to one thread of one process: open another one elsewhere, and after a fork.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steadytune import __version__
from steadytune.errors import SteadytuneError
from steadytune.study.ledger import values
from steadytune.study.ledger.connection import Connection, LedgerError
from steadytune.study.ledger.file import connect, create_file
from steadytune.study.ledger.rows import Claim, TrialRow, read_outcomes, read_rows
from steadytune.study.ledger.statements import (
    BEAT,
    CLAIM,
    DIED,
    DROP,
    FAIL,
    FINISH,
    GIVE_BACK,
    OF_WORKER,
    RELEASE,
    RETRY,
    TAKE_OVER,
)
from steadytune.study.outcome import Outcome
from steadytune.study.trial_folders import KEY

if TYPE_CHECKING:
    from steadytune.study.results import Status

DEATHS_ALLOWED = 3  # a trial that ended so many workers is not tried again
_JUMP = 1.0  # seconds by which a clock may be off before we say that it jumped


class Ledger:
    """See the module. `clock` tells the time of day, `steady` the time that a sleeping machine does not count."""

    def __init__(self, file: Connection, clock: Callable[[], float], steady: Callable[[], float]) -> None:
        self.path, self._file = file.path, file
        self._clock, self._steady = clock, steady
        self._drift, self._trust_after = clock() - steady(), steady()
        self._allowed = int(self.meta.get("deaths_allowed", DEATHS_ALLOWED))

    # -- the file ---------------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, path: str | Path, meta: Mapping[str, Any], *, deaths_allowed: int = DEATHS_ALLOWED) -> Ledger:
        """A new ledger. `meta` is what the study is, as plain data; refuses to touch a file that is there."""
        if not _create(Path(path), meta, deaths_allowed):
            raise LedgerError(f"There is already something at {path}; it was left as it is.")
        return cls.open(path)

    @classmethod
    def ensure(cls, path: str | Path, meta: Mapping[str, Any], *, deaths_allowed: int = DEATHS_ALLOWED) -> Ledger:
        """The ledger that is there, or a new one: of many that ask at once, one makes it and all get the same."""
        _create(Path(path), meta, deaths_allowed)
        return cls.open(path)

    @classmethod
    def open(
        cls,
        path: str | Path,
        readonly: bool = False,
        *,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> Ledger:
        """An existing ledger; an older schema is upgraded first, after a copy. A reader changes nothing."""
        file = connect(Path(path), readonly)
        try:
            return cls(file, clock, steady)
        except BaseException:
            file.close()
            raise

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(self) -> None:
        """Reads the whole file; an error where SQLite finds anything wrong with it."""
        found = [str(row[0]) for row in self._file.read("PRAGMA integrity_check")]
        if found != ["ok"]:
            raise LedgerError(f"The ledger {self.path} is damaged: {'; '.join(found[:3])}.")

    # -- what the study is ------------------------------------------------------------------------------------------

    @property
    def meta(self) -> dict[str, Any]:
        rows = self._file.read("SELECT name, value FROM meta")
        try:
            return {str(name): json.loads(text) for name, text in rows}
        except (ValueError, TypeError) as error:
            raise LedgerError(f"The ledger {self.path} is damaged: its table meta is not JSON ({error}).") from error

    def set_meta(self, name: str, value: Any) -> None:
        with self._file.durably():
            self._file.write("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, json.dumps(value)))

    def plan(self, rows: Iterable[tuple[str, str, int]]) -> int:
        """Add (key, spec as JSON, rank); a key that is there stays as it is. Returns how many were new."""
        rows = list(rows)
        for key, spec, _ in rows:
            if not KEY.fullmatch(key):
                raise SteadytuneError(f"{key!r:.200} cannot be the key of a trial: use letters, digits, - and _.")
            if not isinstance(spec, str):
                raise SteadytuneError(f"The spec of trial {key} must be JSON text.")
        with self._file.durably():
            return self._file.write_many("INSERT OR IGNORE INTO trials (key, spec, rank) VALUES (?, ?, ?)", rows)

    def drop_pending(self, wanted: Iterable[str]) -> int:
        """Take back trials that wait and are not `wanted`; planned again, they wait again. Returns how many."""
        with self._file.durably():
            return len(self._file.write(DROP, {"keys": json.dumps(list(wanted))}))

    def retry_failed(self, keys: Iterable[str] | None = None) -> list[str]:
        """Plan failed trials again, with a clean record: those of `keys`, or all. Returns which."""
        chosen = None if keys is None else json.dumps(list(keys))
        with self._file.durably():
            return [row[0] for row in self._file.write(RETRY, {"keys": chosen})]

    def take_over(self, known: Iterable[tuple[str, Outcome]], origin: str) -> int:
        """Record what came out elsewhere, at `origin`, of trials that wait here; others stay. Returns how many."""
        about = {"now": self._clock(), "origin": origin}
        rows = [{"key": key, **_columns(outcome), **about} for key, outcome in known]
        if not rows:
            return 0
        with self._file.durably():
            return self._file.write_many(TAKE_OVER, rows)

    # -- what workers say -------------------------------------------------------------------------------------------

    def claim(self, worker: str, lease: float, machine: str = "", untroubled: bool = False) -> Claim | None:
        """The next trial, for `lease` seconds; None where none is free. `worker` is a name that no other one has.

        `untroubled`: only a trial whose worker has never died.
        """
        self.expire(lease)
        token = os.urandom(16).hex()
        who = {"worker": worker, "machine": machine or None, "token": token, "lease": lease, "now": self._clock()}
        who |= {"most": 0 if untroubled else self._allowed}
        for key, spec, attempts in self._file.write(CLAIM, who):
            return Claim(key, spec, token, attempts)
        return None

    def beat(self, claim: Claim, lease: float, progress: Mapping[str, Any] | None = None) -> bool:
        """Still at it: the lease begins anew. False where the trial is not this claim's any more."""
        said = None if progress is None else values.to_json(progress)
        return self._say(BEAT, claim, lease=lease, progress=said)

    def finish(self, claim: Claim, outcome: Outcome) -> bool:
        """Record what came out. False where the trial is not this claim's any more: then nothing is recorded."""
        columns = _columns(outcome)
        with self._file.durably():
            return self._say(FINISH, claim, **columns)

    def fail(self, claim: Claim, error: str) -> bool:
        """The trial raised an error and would raise it again. False as in `finish`."""
        with self._file.durably():
            return self._say(FAIL, claim, error=error)

    def release(self, claim: Claim) -> bool:
        """Give the trial back, as one that was asked to stop: it does not count against it."""
        return self._say(RELEASE, claim)

    # -- what is said about workers ---------------------------------------------------------------------------------

    def died(self, worker: str, reason: str, log: str = "", counted: bool = True) -> list[str]:
        """A worker has ended. Its trial, if it had one, is free again; the third time it has failed. Returns which.

        `worker` also stands for those in its process, whose names are its own, `#` and a number.
        `reason` is a sentence; `log` is what the worker said last. Not `counted`: somebody stopped it on purpose.
        """
        if not counted:
            return [row[0] for row in self._file.write(GIVE_BACK, {"worker": worker})]
        about = {"worker": worker, "reason": reason, "log": log, "allowed": self._allowed, "now": self._clock()}
        with self._file.durably():
            return [row[0] for row in self._file.write(DIED.format(which=OF_WORKER), about)]

    def expire(self, lease: float) -> list[str]:
        """Trials whose worker let its lease run out are free again, as after `died`. Every claim does this first.

        When the machine slept, or its clock was set, all leases seem to have run out at once. Then workers get the
        time of a lease to say that they are alive.
        """
        drift = self._clock() - self._steady()
        if abs(drift - self._drift) > _JUMP:
            self._drift, self._trust_after = drift, self._steady() + lease
        if self._steady() < self._trust_after:
            return []
        over, now = "lease_until < :now", {"now": self._clock()}
        if not self._file.read(f"SELECT 1 FROM trials WHERE status = 'running' AND {over} LIMIT 1", now):
            return []  # the usual case, without waiting for the right to write
        reason = "It gave no sign of life until its lease ran out: it was killed, or its machine was."
        with self._file.durably():
            about = {"reason": reason, "log": "", "allowed": self._allowed, **now}
            return [row[0] for row in self._file.write(DIED.format(which=over), about)]

    # -- what readers ask -------------------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        found = dict(self._file.read("SELECT status, count(*) FROM trials GROUP BY status"))
        return {status: found.get(status, 0) for status in ("pending", "running", "finished", "diverged", "failed")}

    def attempts(self) -> int:
        """All claims so far: grows whenever a worker does anything."""
        return int(self._file.read("SELECT coalesce(sum(attempts), 0) FROM trials")[0][0])

    def rows(self, status: Status | None = None, keys: Iterable[str] | None = None) -> list[TrialRow]:
        """The trials in the order of their rank, without what came out; all, or those of a status, or of `keys`."""
        return read_rows(self._file.read, status, keys)

    def outcomes(self, arrays: bool = False) -> Iterator[tuple[str, Outcome]]:
        """(key, what came out) of all that finished or diverged; without the arrays unless asked for."""
        return read_outcomes(self.path, self._file.read, None, arrays)

    def outcome(self, key: str) -> Outcome | None:
        """What came out of one trial, with its arrays."""
        return next((found for _, found in read_outcomes(self.path, self._file.read, key, True)), None)

    def _say(self, sql: str, claim: Claim, **said: Any) -> bool:
        about = {"key": claim.key, "token": claim.token, "now": self._clock(), **said}
        return bool(self._file.write(sql, about))


def _columns(outcome: Outcome) -> dict[str, Any]:
    """An outcome as a row has it."""
    result = outcome.result
    scores = {f"{a}_{b}": values.score(result, a, b) for a in ("best", "last") for b in ("validation", "test")}
    packed = {"result": values.pack(result), "arrays": values.pack_arrays(outcome.arrays)}
    return {"status": outcome.status, "seconds": values.finite(result.get("seconds")), **scores, **packed}


def _create(path: Path, meta: Mapping[str, Any], deaths_allowed: int) -> bool:
    whole = {**meta, "deaths_allowed": deaths_allowed, "created": time.time(), "steadytune": __version__}
    rows = [(name, json.dumps(value)) for name, value in whole.items()]
    return create_file(path, "INSERT INTO meta VALUES (?, ?)", rows)
