"""What has ended stays, in ledgers of every schema; and no code runs from a ledger."""

import io
import json
import pickle
import shutil
import sqlite3
import zipfile
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest

from ledger_stories import DONE, plan
from steadytune.study.ledger import Ledger, LedgerError
from steadytune.study.ledger import values as ledger_values
from steadytune.study.ledger.schema import APPLICATION_ID, UPGRADES, VERSION
from steadytune.study.outcome import Outcome

GOLDEN = Path(__file__).parent / "golden"


# -- what has ended stays -------------------------------------------------------------------------------------------

ATTACKS = [
    "UPDATE trials SET status = 'pending', token = NULL, result = NULL",
    "UPDATE trials SET result = x'00'",
    "UPDATE trials SET best_test = 1.0",
    "UPDATE OR REPLACE trials SET key = 'other'",
    "DELETE FROM trials",
    "INSERT OR REPLACE INTO trials (key, spec, rank) VALUES ('KEY', '{}', 0)",
    "REPLACE INTO trials (key, spec, rank, status, result) VALUES ('KEY', '{}', 0, 'finished', x'00')",
    "INSERT INTO trials (key, spec, rank) VALUES ('KEY', '{}', 0) ON CONFLICT DO UPDATE SET status = 'pending'",
]


def everything(path):
    with closing(sqlite3.connect(path)) as db:
        return db.execute("SELECT * FROM trials ORDER BY key").fetchall()


@pytest.mark.parametrize("sql", ATTACKS)
@pytest.mark.parametrize("status", ["finished", "diverged", "failed"])
def test_no_sql_changes_what_has_ended(ledger, path, status, sql):
    plan(ledger, "KEY")
    claim = ledger.claim("w", 60.0)
    ledger.fail(claim, "x") if status == "failed" else ledger.finish(claim, Outcome(status, {"value": 1}))
    before = everything(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as db, suppress(sqlite3.IntegrityError):
        db.execute(sql)
    planned_again = status == "failed" and sql.startswith("UPDATE trials SET status = 'pending'")
    assert (everything(path) == before) is not planned_again


def test_the_plan_of_a_pending_trial_stays_too(ledger, path):
    plan(ledger, "a")
    with (
        closing(sqlite3.connect(path)) as db,
        pytest.raises(sqlite3.IntegrityError, match="what a trial is cannot be changed"),
    ):
        db.execute("UPDATE trials SET spec = '{}'")


class Bomb:
    def __reduce__(self):
        return Path.mkdir, (Path("exploded"),)


def test_no_code_runs_from_a_ledger(ledger, path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bomb = ledger_values.pack_arrays({"x": np.zeros(1)})
    objects = np.array([Bomb()], dtype=object)
    np.save("bomb.npy", objects, allow_pickle=True)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("x.npy", Path("bomb.npy").read_bytes())
    for blob in (pickle.dumps(Bomb()), stream.getvalue(), bomb[:-30]):
        plan(ledger, key := f"k{len(blob)}")
        with closing(sqlite3.connect(path)) as db, db:
            db.execute(
                "UPDATE trials SET status = 'finished', result = ?, arrays = ? WHERE key = ?",
                (ledger_values.pack({}), blob, key),
            )
        with pytest.raises(LedgerError, match=f"the result of trial {key} is not what was written"):
            ledger.outcome(key)
    assert not Path("exploded").exists()


# -- schemas --------------------------------------------------------------------------------------------------------


def golden(tmp_path, number):
    target = tmp_path / "ledger.sqlite"
    shutil.copy(GOLDEN / f"ledger-{number}.sqlite", target)
    return target, json.loads((GOLDEN / f"ledger-{number}.json").read_text(encoding="utf-8"))


def holds_all(ledger, expected):
    outcomes = dict(ledger.outcomes(arrays=True))
    assert ledger.meta["name"] == "golden"
    assert {found.key for found in ledger.rows()} == expected.keys()
    for found in ledger.rows():
        right = expected[found.key]
        assert (found.status, found.spec, found.error) == (right["status"], right["spec"], right.get("error", ""))
        if "result" in right:
            assert found.seconds == right["seconds"]
            assert outcomes[found.key].result == right["result"]
            assert outcomes[found.key].arrays["test"].tolist() == right["test"]
    assert len(outcomes) == sum("result" in right for right in expected.values())


def schema(path):
    with closing(sqlite3.connect(path)) as db:
        found = db.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name").fetchall()
        return found, db.execute("PRAGMA user_version").fetchone(), db.execute("PRAGMA application_id").fetchone()


@pytest.mark.parametrize("number", range(1, VERSION + 1))
def test_a_ledger_of_every_schema_is_read_and_gone_on_with(tmp_path, number):
    path, expected = golden(tmp_path, number)
    before = path.read_bytes()
    with Ledger.open(path, readonly=True) as reader:
        holds_all(reader, expected)
    assert path.read_bytes() == before  # a reader upgrades nothing
    with Ledger.open(path) as ledger:
        holds_all(ledger, expected)
        ledger.check()
        assert ledger.finish(ledger.claim("new", 60.0, "box"), DONE)
    with Ledger.open(path) as ledger:
        assert len(list(ledger.outcomes())) == sum("result" in right for right in expected.values()) + 1
    backup = tmp_path / f"ledger.sqlite.schema-{number}.backup"
    assert backup.exists() is (number < VERSION)
    if number < VERSION:
        assert schema(backup)[1] == (number,)
        shutil.copy(backup, tmp_path / "restored.sqlite")
        with Ledger.open(tmp_path / "restored.sqlite") as ledger:
            holds_all(ledger, expected)
    assert {file.name for file in tmp_path.iterdir() if file.name.startswith(".")} == set()


def test_what_has_ended_stays_in_an_upgraded_ledger_too(tmp_path):
    path, _ = golden(tmp_path, 1)
    Ledger.open(path).close()
    with closing(sqlite3.connect(path)) as db, pytest.raises(sqlite3.IntegrityError, match="cannot be changed"):
        db.execute("UPDATE trials SET machine = 'x' WHERE status = 'finished'")


def test_the_schema_is_that_of_its_golden_file(path):
    """Whoever changes the tables raises VERSION, adds a step to UPGRADES, and keeps a golden file of the old ones."""
    Ledger.create(path, {}).close()
    assert schema(path) == schema(GOLDEN / f"ledger-{VERSION}.sqlite")
    assert schema(path)[1:] == ((VERSION,), (APPLICATION_ID,))
    assert sorted(UPGRADES) == list(range(1, VERSION))


def test_an_upgrade_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path, expected = golden(tmp_path, 1)
    monkeypatch.setitem(UPGRADES, 1, (*UPGRADES[1], "ALTER TABLE no_such_table ADD COLUMN x"))
    with pytest.raises(LedgerError, match="could not be opened"):
        Ledger.open(path)
    monkeypatch.undo()
    assert schema(path) == schema(GOLDEN / "ledger-1.sqlite")
    with Ledger.open(path) as ledger:
        holds_all(ledger, expected)


def test_a_newer_schema_is_refused(tmp_path):
    path, _ = golden(tmp_path, VERSION)
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {VERSION + 1}")
    before = path.read_bytes()
    for readonly in (True, False):
        with pytest.raises(LedgerError, match=rf"newer steadytune \(schema {VERSION + 1}.*Upgrade steadytune"):
            Ledger.open(path, readonly=readonly)
    assert path.read_bytes() == before
