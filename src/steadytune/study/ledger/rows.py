"""The rows of a ledger as frozen records."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steadytune.study.ledger import values
from steadytune.study.ledger.connection import LedgerError
from steadytune.study.outcome import Outcome

if TYPE_CHECKING:
    from steadytune.study.results import Status

Read = Callable[[str, Any], list[Any]]
_AT_ONCE = 200  # results per query: a reader that takes its time is in nobody's way


@dataclass(frozen=True)
class Claim:
    """A trial that is somebody's for now."""

    key: str
    spec_text: str
    token: str
    attempts: int  # with this one

    @property
    def spec(self) -> dict[str, Any]:
        return _plain(self.spec_text, self.key)


@dataclass(frozen=True)
class TrialRow:
    """A trial without its result."""

    key: str
    rank: int
    status: Status
    attempts: int
    deaths: int  # workers that ended in the middle of it
    worker: str | None
    machine: str | None
    lease_until: float | None
    started: float | None  # of the last attempt
    ended: float | None
    seconds: float | None
    best_validation: float | None
    best_test: float | None
    last_validation: float | None
    last_test: float | None
    progress_text: str | None
    spec_text: str
    error: str

    @cached_property
    def spec(self) -> dict[str, Any]:
        return _plain(self.spec_text, self.key)

    @cached_property
    def progress(self) -> dict[str, Any]:
        """What a running trial last said: step, steps, loss, ..."""
        return _plain(self.progress_text, self.key) if self.progress_text else {}


def _plain(text: str, key: str) -> dict[str, Any]:
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise LedgerError(f"The ledger is damaged: what it says about trial {key} is not JSON ({error}).") from error


_COLUMNS = (
    "key, rank, status, attempts, deaths, worker, machine, lease_until, started, ended, seconds, best_validation, "
    "best_test, last_validation, last_test, progress, spec, coalesce(error, '')"
)


def read_rows(read: Read, status: str | None, keys: Iterable[str] | None) -> list[TrialRow]:
    chosen = None if keys is None else json.dumps(list(keys))
    where = "TRUE" if status is None else "status = :status"
    if chosen is not None:
        where += " AND key IN (SELECT value FROM json_each(:keys))"
    sql = f"SELECT {_COLUMNS} FROM trials WHERE {where} ORDER BY rank, key"
    return [TrialRow(*row) for row in read(sql, {"status": status, "keys": chosen})]


def read_outcomes(path: Path, read: Read, key: str | None, arrays: bool) -> Iterator[tuple[str, Outcome]]:
    """In the order in which they were planned."""
    which = "rowid > :after" if key is None else "rowid > :after AND key = :key"
    sql = f"""SELECT rowid, key, status, result, {"arrays" if arrays else "NULL"} FROM trials
        WHERE {which} AND result IS NOT NULL ORDER BY rowid LIMIT {_AT_ONCE}"""
    after = -1
    while rows := read(sql, {"after": after, "key": key}):
        after = rows[-1][0]
        for _, found, status, result, blob in rows:
            try:
                yield found, Outcome(status, values.unpack(result), values.unpack_arrays(blob))
            except (ValueError, TypeError) as error:
                raise LedgerError(
                    f"The ledger {path} is damaged: the result of trial {found} is not what was written ({error}). Put "
                    "a copy of the file back, or move it away, and the study starts over."
                ) from error
