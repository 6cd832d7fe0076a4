"""The file under a ledger: made whole or not at all, opened only if it is ours, never overwritten if it is not.

The database is in WAL mode, so it needs a local disk: SQLite's shared memory does not work over a network.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from steadytune.study.ledger import schema
from steadytune.study.ledger.connection import (
    CANTOPEN,
    CORRUPT,
    NOTADB,
    PERM,
    READONLY,
    WAIT,
    Connection,
    LedgerError,
    explained,
    patiently,
)

_MAGIC = b"SQLite format 3\0"
_SMALLEST = 512  # bytes of the smallest database, one page
_KEEP = "It was left as it is: move it away, or choose another folder."


def create_file(path: Path, sql: str, rows: list[Any]) -> bool:
    """Make the database under a hidden name and give it its name once it is whole; False where one is there."""
    hidden = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
    if path.is_symlink() or path.exists():
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK):
            raise PermissionError(f"{path.parent} is read-only")
        with explained(path, "made"), closing(sqlite3.connect(hidden, isolation_level=None)) as db:
            schema.build_(db)
            db.executemany(sql, rows)
            db.execute("PRAGMA journal_mode = WAL").fetchall()  # last: what was written before is in the file itself
        return _give_name(hidden, path)
    except OSError as error:
        raise LedgerError(f"The ledger {path} could not be made: {error}. Choose a folder you can write to.") from error
    finally:
        for suffix in ("", "-wal", "-shm"):
            with suppress(OSError):
                Path(f"{hidden}{suffix}").unlink(missing_ok=True)


def _give_name(hidden: Path, path: Path) -> bool:
    """A hard link fails where the name is taken, so of many that plan at once one file wins."""
    try:
        os.link(hidden, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        if path.exists():
            return False
        os.rename(hidden, path)
    if hasattr(os, "O_DIRECTORY"):
        folder = os.open(path.parent, os.O_DIRECTORY)
        try:
            os.fsync(folder)  # the name is on the disk, too
        finally:
            os.close(folder)
    return True


def connect(path: Path, readonly: bool) -> Connection:
    """A connection to an existing ledger of the newest schema; an older one is upgraded (a reader: in memory)."""
    _refuse_other_files(path)
    if readonly:
        return Connection(path, _newest_for_reading(path, _connect_for_reading(path)), readonly)
    for place in (path, path.parent):
        if not os.access(place, os.W_OK):
            raise LedgerError(f"The ledger {path} cannot be written: {place} is read-only. Reading it still works.")
    with explained(path, "opened"):
        db = patiently(lambda: _connect(path, "rw"))
        try:
            patiently(lambda: db.execute("PRAGMA journal_mode = WAL").fetchall())
            db.execute("PRAGMA wal_autocheckpoint = 0").fetchall()  # see Connection
            _refuse_what_is_not_ours(path, db)
            if schema.version(db) < schema.VERSION:
                _upgrade_(path, db)
        except BaseException:
            db.close()
            raise
    return Connection(path, db, readonly)


def _refuse_other_files(path: Path) -> None:
    """Before SQLite opens it to write: that can change a file (a journal that was left behind is played back)."""
    try:
        size = path.stat().st_size
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "Is a directory")
        rest = path.read_bytes() if size < _SMALLEST or not os.access(path, os.R_OK) else b""
    except FileNotFoundError:
        raise LedgerError(f"There is no ledger {path}. `steadytune study run` makes one.") from None
    except OSError as error:
        raise LedgerError(f"The ledger {path} cannot be read: {error.strerror}.") from error
    if not size:
        raise LedgerError(f"{path} is empty and not a ledger. {_KEEP}")
    if rest and rest.startswith(_MAGIC[: len(rest)]):
        raise LedgerError(f"{path} is damaged: only {size} bytes of it are left. {_KEEP}")
    if rest or not _is_database(path):
        raise LedgerError(f"{path} is not a ledger: it is not an SQLite database. {_KEEP}")


def _is_database(path: Path) -> bool:
    """Asked through SQLite, in its way that changes nothing; the database of another application is refused here.

    Reading the header ourselves would be shorter, and wrong: when a process closes a file, POSIX takes away all locks
    that it has on it, those of its other connections too. A worker that ended then thought itself the last one, and
    deleted the -wal file under the others (sqlite.org/howtocorrupt.html, 2.2).
    """
    with explained(path, "read"):
        try:
            with closing(sqlite3.connect(_address(path, "immutable"), uri=True)) as db:
                _refuse_other_applications(path, db)
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code not in (NOTADB, CORRUPT):
                raise
            return code == CORRUPT  # or just being written to, which this way does not look at: opening it will tell
    return True


def _address(path: Path, mode: str) -> str:
    return f"{path.absolute().as_uri()}?{'immutable=1' if mode == 'immutable' else f'mode={mode}'}"


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    db = sqlite3.connect(_address(path, mode), uri=True, isolation_level=None, timeout=WAIT / 1000)
    try:
        db.execute("PRAGMA trusted_schema = OFF")  # no function is called because a file says so
        # A claim or a beat may be lost when the power fails, with the worker that made it. What must not be lost is
        # written with FULL (see Ledger): results, failures, plans.
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()  # the first look at the file
    except BaseException:
        db.close()
        raise
    return db


def _connect_for_reading(path: Path) -> sqlite3.Connection:
    """Reading in WAL mode wants to write beside the file. Where it cannot, and no WAL is left, nobody writes either."""
    with explained(path, "read"):
        try:
            return patiently(lambda: _connect(path, "ro"))
        except sqlite3.OperationalError as error:
            wal = Path(f"{path}-wal")
            barred = getattr(error, "sqlite_errorcode", 0) & 0xFF in (PERM, READONLY, CANTOPEN)
            if not barred or (wal.exists() and wal.stat().st_size):
                raise
            return _connect(path, "immutable")


def _newest_for_reading(path: Path, db: sqlite3.Connection) -> sqlite3.Connection:
    with explained(path, "read"):
        try:
            _refuse_what_is_not_ours(path, db)
            if schema.version(db) == schema.VERSION:
                return db
            copy = sqlite3.connect(":memory:", isolation_level=None)
            db.backup(copy)
        except BaseException:
            db.close()
            raise
        db.close()
        schema.upgrade_(copy)
        return copy


def _refuse_other_applications(path: Path, db: sqlite3.Connection) -> None:
    if db.execute("PRAGMA application_id").fetchone()[0] != schema.APPLICATION_ID:
        raise LedgerError(f"{path} is not a ledger: it is the SQLite database of another application. {_KEEP}")


def _refuse_what_is_not_ours(path: Path, db: sqlite3.Connection) -> None:
    _refuse_other_applications(path, db)
    found = schema.version(db)
    if found > schema.VERSION:
        raise LedgerError(
            f"The ledger {path} was written by a newer steadytune (schema {found}; this one knows up to "
            f"{schema.VERSION}). Upgrade steadytune; the file was left as it is."
        )


def _upgrade_(path: Path, db: sqlite3.Connection) -> None:
    """After a copy, in one transaction: whatever happens, there is the old file or the new one."""
    patiently(lambda: db.execute("BEGIN IMMEDIATE"))
    try:
        old = schema.version(db)
        if old < schema.VERSION:  # and nobody else was faster
            _copy(path, Path(f"{path}.schema-{old}.backup"))
            schema.upgrade_(db)
        db.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise


def _copy(path: Path, backup: Path) -> None:
    hidden = backup.with_name(f".{backup.name}.{os.urandom(4).hex()}.tmp")
    try:
        with closing(_connect(path, "ro")) as source, closing(sqlite3.connect(hidden)) as target:
            source.backup(target)
        os.replace(hidden, backup)
    finally:
        hidden.unlink(missing_ok=True)
