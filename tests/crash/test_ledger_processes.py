"""The ledger among processes: many at once, a full disk, no right to write, files deleted under it, a kill."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import ledger_processes
import numpy as np
import pytest
from ledger_processes import LONG, rows

from steadytune.study.ledger import Ledger, LedgerError
from steadytune.study.ledger.connection import Connection
from steadytune.study.outcome import Outcome

GOLDEN = Path(__file__).parent.parent / "study" / "golden"


def start(*arguments):
    """Run one of the scripts; returns the lines it printed."""
    command = [sys.executable, ledger_processes.__file__, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def make(path, count=5):
    """A ledger with finished trials, one that runs, and some to do; returns the running one's claim."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with Ledger.create(path, {"name": "old"}) as ledger:
        ledger.plan([(f"done{n}", "{}", n) for n in range(count)])
        for number in range(count):
            arrays = {"test": np.arange(300) + number}
            ledger.finish(ledger.claim("w", 60.0), Outcome("finished", {"value": number}, arrays))
        ledger.plan([("running", "{}", 0), *((f"to-do{n}", "{}", n + 1) for n in range(3))])
        return ledger.claim("w", 3600.0)


def old_results_are_there(path, count=5):
    with Ledger.open(path) as ledger:
        ledger.check()
        found = dict(ledger.outcomes(arrays=True))
        for number in range(count):
            assert found[f"done{number}"].result == {"value": number}
            assert found[f"done{number}"].arrays["test"].tolist() == list(range(number, 300 + number))
        assert ledger.meta["name"] == "old"
        return {row.key: row for row in ledger.rows()}, found


def test_64_planners_at_once_make_one_row_per_key(tmp_path):
    path = tmp_path / "study" / "ledger.sqlite"
    added = start("planners", path, 64, 300)
    assert len(added) == 64
    assert sum(map(int, added)) == 300  # each row was new to exactly one of them
    with Ledger.open(path) as ledger:
        ledger.check()
        assert [(row.key, row.spec_text, row.rank) for row in ledger.rows()] == rows(300)
    assert [file.name for file in path.parent.iterdir()] == ["ledger.sqlite"]


# -- a full disk ----------------------------------------------------------------------------------------------------

SIZES = [0, 1, 512, 4096, 4097, 12_288, 24_576, 32_768, 36_864, 45_056, 65_536, 90_112, 131_072, 200_000, 1_000_000]


def try_all(tmp_path, operation):
    """(size, what it said) for each size; afterwards the ledgers are in tmp_path/SIZE."""
    found = [json.loads(line) for line in start("full", operation, tmp_path, *SIZES)]
    assert [size for size, _ in found] == SIZES
    for _, said in found:
        if said is not None:
            assert "sqlite could not be" in said
            assert "the same command again" in said or "Choose a folder" in said
    assert found[0][1] is not None  # something went wrong where there was no room at all
    assert found[-1][1] is None  # and nothing where there was plenty
    return found


@pytest.mark.parametrize("operation", ["plan", "claim", "beat", "finish", "fail"])
def test_a_full_disk_loses_nothing_that_was_recorded(tmp_path, operation):
    claim = make(tmp_path / "base" / "ledger.sqlite")
    (tmp_path / "base" / "token").write_text(claim.token)
    for size, said in try_all(tmp_path, operation):
        now, found = old_results_are_there(tmp_path / str(size) / "ledger.sqlite")
        done = {
            "plan": "key00499" in now,
            "claim": now["to-do0"].status == "running",
            "beat": bool(now["running"].progress),
            "finish": now["running"].status == "finished",
            "fail": now["running"].status == "failed",
        }
        assert done.pop(operation) is (said is None)  # what it said is what is there
        assert not any(done.values())
        assert len(now) == (509 if operation == "plan" and said is None else 9)
        if operation == "finish" and said is None:
            assert found["running"].result["value"] == 42
            assert len(found["running"].result["noise"]) == len(LONG.result["noise"])
        with Ledger.open(tmp_path / str(size) / "ledger.sqlite") as ledger:  # and with room again it goes on
            if operation == "finish" and said is not None:
                assert ledger.finish(claim, LONG)
            assert ledger.plan(rows(10)) == (0 if operation == "plan" and said is None else 10)


def test_a_full_disk_makes_no_half_ledger(tmp_path):
    make(tmp_path / "base" / "ledger.sqlite")
    for size, said in try_all(tmp_path, "create"):
        old_results_are_there(tmp_path / str(size) / "ledger.sqlite")
        there = {file.name for file in (tmp_path / str(size)).iterdir()}
        assert there == {"ledger.sqlite"} | ({"new.sqlite"} if said is None else set())
        if said is None:
            with Ledger.open(tmp_path / str(size) / "new.sqlite") as ledger:
                ledger.check()
                assert ledger.meta["text"] == "x" * 20_000


def test_a_full_disk_leaves_an_older_ledger_as_it_was(tmp_path):
    (tmp_path / "base").mkdir()
    shutil.copy(GOLDEN / "ledger-1.sqlite", tmp_path / "base" / "ledger.sqlite")
    expected = json.loads((GOLDEN / "ledger-1.json").read_text(encoding="utf-8"))
    results = {key: right["result"] for key, right in expected.items() if "result" in right}
    for size, said in try_all(tmp_path, "upgrade"):
        path = tmp_path / str(size) / "ledger.sqlite"
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("PRAGMA user_version").fetchone() == (1 if said else 2,)
        with Ledger.open(path) as ledger:
            assert {key: outcome.result for key, outcome in ledger.outcomes()} == results


# -- files and folders ----------------------------------------------------------------------------------------------


@pytest.fixture
def shared():
    """A folder that other users may look into, which pytest's are not."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def protect(folder):
    for file in folder.iterdir():
        file.chmod(0o644)
    folder.chmod(0o555)


RESULTS = {f"done{number}": {"value": number} for number in range(5)}


def test_a_study_in_a_read_only_folder_can_be_read(shared):
    make(shared / "ledger.sqlite")
    protect(shared)
    ((read, write, new),) = map(json.loads, start("reader", shared))
    assert read == RESULTS
    assert "cannot be written" in write
    assert "is read-only" in write
    assert "could not be made" in new
    assert "Choose a folder you can write to" in new
    assert os.listdir(shared) == ["ledger.sqlite"]


@pytest.mark.parametrize("left", [("-wal",), ("-wal", "-shm")])
def test_an_interrupted_study_in_a_read_only_folder_is_read_whole_or_not_at_all(shared, tmp_path, left, monkeypatch):
    claim = make(path := tmp_path / "ledger.sqlite")
    monkeypatch.setattr(Connection, "_empty_wal", lambda self: None)  # as when a reader is in the way
    with Ledger.open(path) as ledger:
        assert ledger.finish(claim, Outcome("finished", {"value": 42}))
        for suffix in ("", *left):
            shutil.copy(f"{path}{suffix}", shared)
    protect(shared)
    ((read, write, _),) = map(json.loads, start("reader", shared))
    assert read == {**RESULTS, "running": {"value": 42}} or "copy the whole folder" in read
    assert "cannot be written" in write


def test_an_older_study_in_a_read_only_folder_can_be_read(shared):
    shutil.copy(GOLDEN / "ledger-1.sqlite", shared / "ledger.sqlite")
    protect(shared)
    ((read, write, _),) = map(json.loads, start("reader", shared))
    expected = json.loads((GOLDEN / "ledger-1.json").read_text(encoding="utf-8"))
    assert read == {key: right["result"] for key, right in expected.items() if "result" in right}
    assert "is read-only" in write


@pytest.mark.parametrize("deleted", [("-wal", "-shm"), ("-wal",), ("-shm",)])
def test_who_deletes_the_wal_of_an_interrupted_study_loses_no_result(tmp_path, deleted):
    path = tmp_path / "ledger.sqlite"
    with Ledger.create(path, {}) as ledger:
        ledger.plan(rows(10))
    start("killed", path, 6)
    assert Path(f"{path}-wal").stat().st_size > 0
    for suffix in deleted:
        Path(f"{path}{suffix}").unlink()
    with Ledger.open(path) as ledger:
        ledger.check()
        assert [key for key, _ in ledger.outcomes(arrays=True)] == [key for key, _, _ in rows(6)]
        counts = ledger.counts()
        assert counts["finished"] == 6
        assert counts["pending"] + counts["running"] == 4


def test_a_reader_that_takes_its_time_is_in_nobodys_way(tmp_path):
    claim = make(path := tmp_path / "ledger.sqlite")
    with Ledger.open(path) as ledger, closing(sqlite3.connect(path)) as slow:
        slow.execute("BEGIN")
        assert slow.execute("SELECT count(*) FROM trials WHERE status = 'finished'").fetchone() == (5,)
        assert ledger.finish(claim, LONG)
        assert ledger.finish(ledger.claim("w", 60.0), Outcome("finished", {"value": 43}))
        assert slow.execute("SELECT count(*) FROM trials WHERE status = 'finished'").fetchone() == (5,)
    _, found = old_results_are_there(path)
    assert [found[key].result["value"] for key in ("running", "to-do0")] == [42, 43]


@pytest.mark.parametrize("gone", ["", "-wal"])
def test_a_file_that_is_deleted_under_an_open_ledger_is_noticed(tmp_path, gone):
    path = tmp_path / "ledger.sqlite"
    claim = make(path)
    with Ledger.open(path) as ledger:
        Path(f"{path}{gone}").unlink()
        with pytest.raises(LedgerError, match=r"deleted or replaced while it was in use.*run the same command again"):
            ledger.finish(claim, LONG)
    if gone:
        now, _ = old_results_are_there(path)
        assert now["running"].status == "running"
