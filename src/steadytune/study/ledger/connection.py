"""One process's way to a ledger's file: reads, writes that wait their turn, and errors that are sentences."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from steadytune.errors import SteadytuneError

PATIENCE = 60.0  # seconds to wait for other processes; a write takes milliseconds
BUSY, LOCKED = 5, 6  # SQLite's primary result codes, https://sqlite.org/rescode.html
PERM, READONLY, CANTOPEN = 3, 8, 14
IOERR, FULL = 10, 13
CORRUPT, NOTADB = 11, 26

WAIT = 5000  # milliseconds that SQLite itself waits for others; `patiently` goes on from there
_FOR_READERS = 1000  # milliseconds to wait for readers before the WAL stays as it is
_WAL_LIMIT = 4 << 20  # bytes; beats of long trials add up

Answer = TypeVar("Answer")


class LedgerError(SteadytuneError):
    """The ledger's file cannot be read or written. Nothing that was recorded has changed; no trial is to blame."""


class Connection:
    """An open ledger file. Every statement is its own transaction, except between BEGIN and COMMIT."""

    def __init__(self, path: Path, db: sqlite3.Connection, readonly: bool) -> None:
        self.path, self.wal, self.db, self.readonly = path, f"{path}-wal", db, readonly
        self._place = None if readonly else self._where()

    def close(self) -> None:
        self.db.close()

    def read(self, sql: str, parameters: Any = ()) -> list[Any]:
        with explained(self.path, "read"):
            return patiently(lambda: self.db.execute(sql, parameters).fetchall())

    def write(self, sql: str, parameters: Any = ()) -> list[Any]:
        self.check_in_place()
        with explained(self.path, "written"):
            rows = patiently(lambda: self.db.execute(sql, parameters).fetchall())
        if not self.db.in_transaction and os.path.exists(self.wal) and os.path.getsize(self.wal) > _WAL_LIMIT:
            self._empty_wal()
        return rows

    def write_many(self, sql: str, rows: list[Any]) -> int:
        """The same statement for all rows, in one transaction; how many rows of the file that has changed."""
        before = self.db.total_changes
        self.write("BEGIN IMMEDIATE")
        with explained(self.path, "written"):
            try:
                self.db.executemany(sql, rows)
                self.db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self.db.execute("ROLLBACK")
                raise
        return self.db.total_changes - before

    @contextmanager
    def durably(self) -> Iterator[None]:
        """What is written inside is on the disk afterwards, and in the file itself: also somebody who deletes the -wal
        file of an interrupted study does not lose results."""
        with explained(self.path, "written"):
            self.db.execute("PRAGMA synchronous = FULL")
            try:
                yield
            finally:
                self.db.execute("PRAGMA synchronous = NORMAL")
        self._empty_wal()

    def _empty_wal(self) -> None:
        """Move what is in the WAL into the file itself, if no reader is in the way for long.

        TRUNCATE keeps writers out meanwhile. SQLite's automatic checkpoints do not, and before 3.51.3 they could lose a
        page when another process wrote at the wrong moment (sqlite.org/wal.html#walresetbug); so they are off.
        """
        with suppress(sqlite3.Error):  # what was written is safe in the WAL
            self.db.execute(f"PRAGMA busy_timeout = {_FOR_READERS}").fetchall()
            self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self.db.execute(f"PRAGMA busy_timeout = {WAIT}").fetchall()

    def check_in_place(self) -> None:
        if self.readonly:
            raise LedgerError(f"The ledger {self.path} was opened for reading only.")
        if self._where() != self._place:
            raise LedgerError(
                f"The ledger {self.path}, or the -wal file beside it, was deleted or replaced while it was in use. "
                "Stop every run of this study, then run the same command again."
            )

    def _where(self) -> list[tuple[int, int] | None]:
        """Which files these are: a connection goes on with a file that was deleted, and would write into nothing."""
        found: list[tuple[int, int] | None] = []
        for name in (str(self.path), self.wal):
            try:
                there = os.stat(name)
                found.append((there.st_dev, there.st_ino))
            except OSError:
                found.append(None)
        return found


@contextmanager
def explained(path: Path, done: str) -> Iterator[None]:
    """SQLite's errors as sentences: what, which file, what to do."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", None)
        if code is None and not isinstance(error, sqlite3.OperationalError):
            raise  # a mistake in this program, not something about the file
        code = CORRUPT if code is None else code  # a text that is not UTF-8
        raise LedgerError(f"The ledger {path} could not be {done}: {error}. {_advice(path, code & 0xFF)}") from error
    except OSError as error:
        raise LedgerError(f"The ledger {path} could not be {done}: {error}. {_advice(path, IOERR)}") from error


def patiently(attempt: Callable[[], Answer]) -> Answer:
    """Do it again while another process holds the file: SQLite itself waits in most of these cases, but not in all."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code not in (BUSY, LOCKED) or time.monotonic() > until:
                raise
            time.sleep(0.01)


def _advice(path: Path, code: int) -> str:
    if code in (CORRUPT, NOTADB):
        return (
            "The file is damaged; it was left as it is. Put a copy of it back; or rescue what is in it with "
            f"`sqlite3 {path.name} .recover`; or move it away, and the study starts over."
        )
    if code in (IOERR, FULL):
        return (
            "What was recorded before is as it was. See that the disk has room and is in order, then run the same "
            "command again."
        )
    if code in (PERM, READONLY, CANTOPEN):
        return (
            "Its folder cannot be written to. To read a study there whose last run was interrupted, copy the whole "
            "folder to a place where you can write."
        )
    if code in (BUSY, LOCKED):
        return f"Another process has held it for {PATIENCE:.0f} seconds: end that one, then run the same command again."
    return "Nothing was recorded."
