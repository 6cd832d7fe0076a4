"""Makes ledger-1.sqlite and ledger-1.json: a ledger as the first schema wrote it, and what is in it.

The schema is written out here and must not change: there may be such files. It had no `machine` and no `progress`.
Run it again only if the files are lost.
"""

import io
import json
import sqlite3
import zlib
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
SCHEMA_1 = """
CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE trials (
    key TEXT NOT NULL PRIMARY KEY,
    rank INTEGER NOT NULL,
    status TEXT NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'running', 'finished', 'diverged', 'failed')),
    attempts INTEGER NOT NULL DEFAULT 0,
    deaths INTEGER NOT NULL DEFAULT 0,
    worker TEXT,
    token TEXT,
    lease_until REAL,
    started REAL,
    ended REAL,
    seconds REAL,
    best_validation REAL,
    best_test REAL,
    last_validation REAL,
    last_test REAL,
    spec TEXT NOT NULL,
    error TEXT,
    result BLOB,
    arrays BLOB,
    CHECK ((status = 'running') = (token IS NOT NULL)),
    CHECK ((status IN ('finished', 'diverged')) = (result IS NOT NULL))
);
CREATE INDEX trials_in_order ON trials (status, rank, key);
CREATE INDEX trials_of_workers ON trials (worker) WHERE status = 'running';
CREATE TRIGGER results_stay BEFORE UPDATE ON trials WHEN OLD.status IN ('finished', 'diverged')
BEGIN SELECT RAISE(ABORT, 'the result of a trial cannot be changed'); END;
CREATE TRIGGER failed_stays BEFORE UPDATE ON trials WHEN OLD.status = 'failed' AND NEW.status IS NOT 'pending'
BEGIN SELECT RAISE(ABORT, 'a failed trial can only be planned again'); END;
CREATE TRIGGER plans_stay BEFORE UPDATE OF key, spec ON trials
BEGIN SELECT RAISE(ABORT, 'what a trial is cannot be changed'); END;
CREATE TRIGGER trials_stay BEFORE DELETE ON trials WHEN OLD.status IN ('finished', 'diverged', 'failed')
BEGIN SELECT RAISE(ABORT, 'a trial that has ended cannot be deleted'); END;
CREATE TRIGGER keys_stay BEFORE INSERT ON trials WHEN EXISTS (SELECT 1 FROM trials WHERE key = NEW.key)
BEGIN SELECT RAISE(IGNORE); END;
PRAGMA application_id = 0x73746C67;
PRAGMA user_version = 1;
"""


def npz(values):
    stream = io.BytesIO()
    np.savez_compressed(stream, test=np.array(values))
    return stream.getvalue()


def main():
    path = HERE / "ledger-1.sqlite"
    path.unlink(missing_ok=True)
    db = sqlite3.connect(path, isolation_level=None)
    db.executescript(SCHEMA_1)
    db.execute("INSERT INTO meta VALUES ('name', '\"golden\"'), ('deaths_allowed', '3'), ('steadytune', '\"0.1.0\"')")
    expected = {}
    for number in range(12):
        key, spec = f"key{number}", {"value": number, "word": "ä"}
        db.execute("INSERT INTO trials (key, rank, spec) VALUES (?, ?, ?)", (key, 12 - number, json.dumps(spec)))
        status = ["finished", "diverged", "failed", "running", "pending", "finished"][number % 6]
        expected[key] = {"status": status, "spec": spec}
        change = {"status": status}
        if status != "pending":
            change |= {"attempts": 1, "worker": f"w{number}", "started": 1000.0 + number}
        if status == "running":
            change |= {"token": "t", "lease_until": 2000.0}
        if status == "failed":
            change |= {"error": "Traceback: no", "ended": 1500.0, "seconds": 500.0}
            expected[key] |= {"error": "Traceback: no"}
        if status in ("finished", "diverged"):
            result = {"best": {"validation": number / 7}, "losses": [0.1 * number, None]}
            change |= {"result": zlib.compress(json.dumps(result).encode()), "arrays": npz([number, number + 1])}
            change |= {"best_validation": number / 7, "ended": 1500.0, "seconds": 400.0 + number}
            expected[key] |= {"result": result, "test": [number, number + 1], "seconds": 400.0 + number}
        names = ", ".join(f"{name} = :{name}" for name in change)
        db.execute(f"UPDATE trials SET {names} WHERE key = :key", {**change, "key": key})
    db.execute("PRAGMA journal_mode = WAL").fetchall()
    db.close()
    (HERE / "ledger-1.json").write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
