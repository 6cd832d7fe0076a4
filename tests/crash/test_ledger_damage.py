"""A ledger's file, damaged or foreign: a sentence that names it, no other numbers, and never a byte of it changed."""

import contextlib
import json
import os
import random
import shutil
import sqlite3
from contextlib import closing
from hashlib import sha256

import numpy as np
import pytest

from steadytune.study.ledger import Ledger, LedgerError
from steadytune.study.ledger.connection import Connection
from steadytune.study.ledger.schema import APPLICATION_ID
from steadytune.study.outcome import Outcome

TRIALS = 30


def result(number):
    return {"value": number, "noise": sha256(bytes([number])).hexdigest() * (number * 8)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a ledger with small and long results."""
    path = tmp_path_factory.mktemp("whole") / "ledger.sqlite"
    with Ledger.create(path, {"name": "whole"}) as ledger:
        ledger.plan([(f"key{number}", json.dumps({"is": number}), number) for number in range(TRIALS + 5)])
        for number in range(TRIALS):
            arrays = {"test": np.random.default_rng(number).random(100 * (number % 3))}
            ledger.finish(ledger.claim("w", 60.0), Outcome("finished", result(number), arrays))
    return path.read_bytes()


def read_all(path, readonly):
    with Ledger.open(path, readonly=readonly) as ledger:
        ledger.counts()
        ledger.rows()
        return dict(ledger.outcomes(arrays=True))


def is_right(found):
    """Every number that came back is one that was written."""
    for key, outcome in found.items():
        number = int(key.removeprefix("key"))
        assert outcome.result == result(number)
        assert np.array_equal(outcome.arrays["test"], np.random.default_rng(number).random(100 * (number % 3)))


def refused(path, said):
    """Whoever opens it, or makes one in its place, gets a sentence, and the file stays as it is."""
    before = path.read_bytes()
    for readonly in (True, False):
        with pytest.raises(LedgerError, match=said) as error:
            read_all(path, readonly)
        assert str(path) in str(error.value)
    with pytest.raises(LedgerError, match="already something"):
        Ledger.create(path, {})
    with pytest.raises(LedgerError, match=said):
        Ledger.ensure(path, {}).check()
    assert path.read_bytes() == before


def test_the_whole_file_is_read(tmp_path, whole):
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(whole)
    found = read_all(path, True)
    assert len(found) == TRIALS
    is_right(found)


@pytest.mark.parametrize("size", [1, 15, 16, 50, 99, 100, 101, 511, 512, 1023, 4095, 4096, 4097, 8192, 12_288])
def test_a_short_file_is_refused(tmp_path, whole, size):
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(whole[:size])
    refused(path, r"damaged|not a ledger")


@pytest.mark.parametrize("part", [0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1.0])
@pytest.mark.parametrize("off", [0, 1, 2048])
def test_a_torn_file_is_refused(tmp_path, whole, part, off):
    """Cut at the end of a page, and in the middle of one."""
    size = int(part * len(whole)) // 4096 * 4096 - off
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(whole[:size])
    if off == 1 and part == 1.0:
        with contextlib.suppress(LedgerError):  # SQLite fills up the last page; what is not right is told by its sum
            is_right(read_all(path, True))
    elif size < len(whole):
        refused(path, "is damaged")


def test_flipped_bits_never_become_other_numbers(tmp_path, whole):
    """Of 150 files with a damaged stretch: an error, or exactly what was written."""
    path, dice, errors, fine = tmp_path / "ledger.sqlite", random.Random(0), 0, 0
    for _ in range(150):
        start = dice.randrange(100, len(whole))
        stretch = min(dice.choice([1, 1, 20, 500, 4096]), len(whole) - start)
        damaged = bytearray(whole)
        for place in range(start, start + stretch):
            damaged[place] ^= 1 << dice.randrange(8)
        path.write_bytes(damaged)
        try:
            found = read_all(path, True)
        except LedgerError:
            errors += 1
        else:
            fine += 1
            is_right({key: outcome for key, outcome in found.items() if key.removeprefix("key").isdecimal()})
        for suffix in ("-wal", "-shm"):
            path.with_name(f"{path.name}{suffix}").unlink(missing_ok=True)
    assert errors > 30
    assert fine > 10


def test_zeroed_pages_never_become_other_numbers(tmp_path, whole):
    path = tmp_path / "ledger.sqlite"
    for page in range(1, len(whole) // 4096):
        path.write_bytes(whole[: page * 4096] + bytes(4096) + whole[(page + 1) * 4096 :])
        try:
            found = read_all(path, True)
        except LedgerError:
            continue
        is_right(found)


def test_random_bytes_are_not_a_ledger(tmp_path):
    path = tmp_path / "ledger.sqlite"
    for seed, size in enumerate([1, 100, 4096, 100_000]):
        path.write_bytes(random.Random(seed).randbytes(size))
        refused(path, "not a ledger: it is not an SQLite database.*left as it is")


def test_random_bytes_behind_our_header_are_damage(tmp_path, whole):
    path = tmp_path / "ledger.sqlite"
    path.write_bytes(whole[:100] + random.Random(0).randbytes(len(whole) - 100))
    refused(path, "damaged")


def test_an_empty_file_is_not_a_ledger(tmp_path):
    path = tmp_path / "ledger.sqlite"
    path.touch()
    refused(path, "is empty and not a ledger")


def test_the_database_of_another_application_is_not_touched(tmp_path):
    path = tmp_path / "ledger.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("CREATE TABLE trials (key TEXT)")
        refused(path, "the SQLite database of another application")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID + 1}")
        refused(path, "the SQLite database of another application")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute("PRAGMA user_version = 2")
        db.execute("PRAGMA journal_mode = WAL").fetchall()
    refused(path, "could not be read: no such table: meta")
    assert os.listdir(tmp_path) == ["ledger.sqlite"]


def test_a_directory_a_missing_file_and_a_loop(tmp_path):
    for readonly in (True, False):
        with pytest.raises(LedgerError, match=r"Is a directory"):
            Ledger.open(tmp_path, readonly=readonly)
        with pytest.raises(LedgerError, match=r"There is no ledger .*nothing\.sqlite"):
            Ledger.open(tmp_path / "nothing.sqlite", readonly=readonly)
        (tmp_path / "loop").unlink(missing_ok=True)
        (tmp_path / "loop").symlink_to(tmp_path / "loop")
        with pytest.raises(LedgerError, match="cannot be read"):
            Ledger.open(tmp_path / "loop", readonly=readonly)
    with pytest.raises(LedgerError, match="already something"):
        Ledger.create(tmp_path, {})
    (tmp_path / "file").touch()
    with pytest.raises(LedgerError, match="could not be made"):
        Ledger.create(tmp_path / "file" / "ledger.sqlite", {})


def test_a_link_to_nowhere_is_not_replaced(tmp_path):
    (tmp_path / "ledger.sqlite").symlink_to(tmp_path / "nowhere")
    with pytest.raises(LedgerError, match="already something"):
        Ledger.create(tmp_path / "ledger.sqlite", {})
    assert os.listdir(tmp_path) == ["ledger.sqlite"]


def test_odd_names_of_folders(tmp_path):
    folder = tmp_path / "100% ä #1?mode=ro&x=[y] ' \""
    with Ledger.create(folder / "ledger.sqlite", {"name": "odd"}) as ledger:
        ledger.plan([("a", "{}", 0)])
    with Ledger.open(folder / "ledger.sqlite", readonly=True) as ledger:
        assert ledger.meta["name"] == "odd"
    assert os.listdir(tmp_path) == [folder.name]


def test_a_wal_that_is_not_its_own_is_ignored_or_refused(tmp_path, whole):
    """Somebody mixed the files of two studies."""
    path = tmp_path / "ledger.sqlite"
    for seed in range(5):
        path.write_bytes(whole)
        path.with_name("ledger.sqlite-wal").write_bytes(random.Random(seed).randbytes(50_000))
        is_right(read_all(path, True))
        path.with_name("ledger.sqlite-wal").unlink(missing_ok=True)


def test_a_torn_wal_loses_at_most_its_end(tmp_path, whole, monkeypatch):
    path, copy = tmp_path / "ledger.sqlite", tmp_path / "copy" / "ledger.sqlite"
    path.write_bytes(whole)
    copy.parent.mkdir()
    monkeypatch.setattr(Connection, "_empty_wal", lambda self: None)  # as when a reader is in the way
    with Ledger.open(path) as ledger:
        for number in range(TRIALS, TRIALS + 5):
            ledger.finish(ledger.claim("w", 60.0), Outcome("finished", result(number), {"test": np.zeros(0)}))
        wal = path.with_name("ledger.sqlite-wal").read_bytes()
        shutil.copy(path, copy)
    seen = set()
    for cut in range(0, len(wal), 1777):
        copy.write_bytes(whole)
        copy.with_name("ledger.sqlite-wal").write_bytes(wal[:cut])
        copy.with_name("ledger.sqlite-shm").unlink(missing_ok=True)
        with Ledger.open(copy) as ledger:
            ledger.check()
            found = {key: outcome.result for key, outcome in ledger.outcomes()}
        assert len(found) >= TRIALS
        assert found == {f"key{number}": result(number) for number in range(len(found))}
        seen.add(len(found))
    assert len(seen) > 3
