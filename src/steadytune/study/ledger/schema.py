"""The tables of a ledger, and how the older forms of them become this one.

Everything about a trial is one row, so that claim, beat, finish and fail are one statement each. The long columns come
last: SQLite reads a row from its beginning, and only as far as it is asked to.
"""

from __future__ import annotations

import sqlite3

from steadytune.errors import SteadytuneError

APPLICATION_ID = 0x73746C67  # "stlg", in the header of the file: which application it belongs to
VERSION = 2

TABLES = """
CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL  -- JSON
) WITHOUT ROWID;

CREATE TABLE trials (
    key TEXT NOT NULL PRIMARY KEY,
    rank INTEGER NOT NULL,  -- lower ones are claimed first
    status TEXT NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'running', 'finished', 'diverged', 'failed')),
    attempts INTEGER NOT NULL DEFAULT 0,  -- claims so far
    deaths INTEGER NOT NULL DEFAULT 0,  -- workers that ended in the middle of it
    worker TEXT,  -- of the last claim
    machine TEXT,
    token TEXT,  -- of the running claim: whoever has another one has lost the trial
    lease_until REAL,  -- seconds since 1970, as all times
    started REAL,
    ended REAL,
    seconds REAL,
    best_validation REAL,
    best_test REAL,
    last_validation REAL,
    last_test REAL,
    progress TEXT,  -- JSON
    spec TEXT NOT NULL,  -- JSON
    error TEXT,
    result BLOB,  -- JSON, compressed by zlib
    arrays BLOB,  -- a zip of npy files
    CHECK ((status = 'running') = (token IS NOT NULL)),
    CHECK ((status IN ('finished', 'diverged')) = (result IS NOT NULL))
);

CREATE INDEX trials_in_order ON trials (status, rank, key);
CREATE INDEX trials_of_workers ON trials (worker) WHERE status = 'running';
"""

# What has ended stays as it is, whoever asks: also another program that opens the file.
RULES = """
CREATE TRIGGER results_stay BEFORE UPDATE ON trials WHEN OLD.status IN ('finished', 'diverged')
BEGIN SELECT RAISE(ABORT, 'the result of a trial cannot be changed'); END;

CREATE TRIGGER failed_stays BEFORE UPDATE ON trials WHEN OLD.status = 'failed' AND NEW.status IS NOT 'pending'
BEGIN SELECT RAISE(ABORT, 'a failed trial can only be planned again'); END;

CREATE TRIGGER plans_stay BEFORE UPDATE OF key, spec ON trials
BEGIN SELECT RAISE(ABORT, 'what a trial is cannot be changed'); END;

CREATE TRIGGER trials_stay BEFORE DELETE ON trials WHEN OLD.status IN ('finished', 'diverged', 'failed')
BEGIN SELECT RAISE(ABORT, 'a trial that has ended cannot be deleted'); END;

-- INSERT OR REPLACE would delete the old row without asking the rule above.
CREATE TRIGGER keys_stay BEFORE INSERT ON trials WHEN EXISTS (SELECT 1 FROM trials WHERE key = NEW.key)
BEGIN SELECT RAISE(IGNORE); END;
"""

# UPGRADES[n] turns schema n into n + 1.
UPGRADES: dict[int, tuple[str, ...]] = {
    1: ("ALTER TABLE trials ADD COLUMN machine TEXT", "ALTER TABLE trials ADD COLUMN progress TEXT"),
}


def build_(db: sqlite3.Connection) -> None:
    """The tables of the newest schema, in an empty database."""
    db.executescript(f"BEGIN; {TABLES} {RULES}; {_stamp(VERSION)} COMMIT;")


def version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def upgrade_(db: sqlite3.Connection) -> None:
    """All steps from the file's schema to the newest, inside the transaction that the caller has begun."""
    for old in range(version(db), VERSION):
        if old not in UPGRADES:
            raise SteadytuneError(f"There was never a ledger of schema {old}.")
        for statement in UPGRADES[old]:
            db.execute(statement)
    db.execute(f"PRAGMA user_version = {VERSION}")


def _stamp(number: int) -> str:
    return f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {number};"
