"""The ledger: what a trial can become, who may say so, and what is kept. Damage and crashes are in tests/crash."""

import json
import math
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger_stories import DONE, Clock, plan, row
from steadytune import __version__
from steadytune.errors import SteadytuneError
from steadytune.study.ledger import Ledger, LedgerError
from steadytune.study.ledger import values as ledger_values
from steadytune.study.outcome import Outcome


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def ledger(path, clock):
    Ledger.create(path, {"name": "a study", "text": "ä: 1\n"}).close()
    with Ledger.open(path, clock=clock.time, steady=clock.steady) as opened:
        yield opened


# -- planning -------------------------------------------------------------------------------------------------------


def test_planning_twice_gives_the_same_rows(ledger):
    assert plan(ledger, "a", "b") == 2
    assert plan(ledger, "b", "a", "c") == 1
    assert [(found.key, found.rank, found.status, found.spec) for found in ledger.rows()] == [
        ("a", 0, "pending", {"is": "a"}),
        ("b", 1, "pending", {"is": "b"}),
        ("c", 2, "pending", {"is": "c"}),
    ]
    assert ledger.plan([]) == 0


def test_planning_again_leaves_what_has_ended(ledger):
    plan(ledger, "a")
    ledger.finish(ledger.claim("w", 60.0), DONE)
    before = row(ledger)
    assert plan(ledger, "a", "b") == 1
    assert row(ledger) == before
    assert ledger.outcome("a").result == {"value": 1}


@pytest.mark.parametrize("key", ["", "../x", "a/b", "a b", "ä", "x" * 129, "a\n"])
def test_a_key_is_also_a_folder(ledger, key):
    with pytest.raises(SteadytuneError, match="cannot be the key"):
        plan(ledger, "good", key)
    assert ledger.rows() == []


def test_what_the_study_is(ledger, path):
    ledger.set_meta("tasks", {"RTE": [1, None]})
    ledger.set_meta("name", "renamed")
    with Ledger.open(path, readonly=True) as reader:
        meta = reader.meta
    assert meta["name"] == "renamed"
    assert meta["text"] == "ä: 1\n"
    assert meta["tasks"] == {"RTE": [1, None]}
    assert meta["steadytune"] == __version__
    assert abs(meta["created"] - time.time()) < 3600


def test_creating_is_refused_where_something_is_and_ensuring_takes_it(ledger, path):
    plan(ledger, "a")
    with pytest.raises(LedgerError, match="already something"):
        Ledger.create(path, {})
    with Ledger.ensure(path, {"name": "another"}) as same:
        assert same.meta["name"] == "a study"
        assert [found.key for found in same.rows()] == ["a"]
    with Ledger.ensure(path.with_name("new.sqlite"), {"name": "another"}) as new:
        assert new.meta["name"] == "another"
    assert sorted(file.name for file in path.parent.iterdir() if file.name.startswith(".")) == []


# -- a trial's life -------------------------------------------------------------------------------------------------


def test_trials_are_claimed_in_the_order_of_their_rank(ledger):
    ledger.plan([("z", "{}", 0), ("y", "{}", 2), ("x", "{}", 1), ("w", "{}", 1)])
    claims = [ledger.claim(f"worker {n}", 60.0) for n in range(5)]
    assert [claim and claim.key for claim in claims] == ["z", "w", "x", "y", None]
    assert len({claim.token for claim in claims[:4]}) == 4


def test_a_claim_says_who_where_and_since_when(ledger, clock):
    plan(ledger, "a")
    claim = ledger.claim("gpu 3", 60.0, "bigbox")
    assert (claim.spec, claim.attempts) == ({"is": "a"}, 1)
    found = row(ledger)
    assert (found.status, found.worker, found.machine) == ("running", "gpu 3", "bigbox")
    assert (found.started, found.lease_until) == (clock.now, clock.now + 60.0)
    clock.now += 50.0
    assert ledger.beat(claim, 60.0, {"step": 3, "steps": 10, "loss": math.nan})
    assert row(ledger).lease_until == clock.now + 60.0
    assert row(ledger).progress == {"step": 3, "steps": 10, "loss": None}
    assert ledger.beat(claim, 60.0)
    assert row(ledger).progress["step"] == 3  # a beat that says nothing new keeps it


def test_a_result_comes_back_bit_for_bit(ledger, path):
    plan(ledger, "a")
    result = {
        "best": {"step": 2, "validation": 0.1 + 0.2, "test": None},
        "last": {"step": 9, "validation": math.nan, "test": np.float64(1 / 3)},
        "losses": [1 / 3, math.inf, 5e-324, np.float32(0.1)],
        "words": "ä ‮ \0 🦆 <script>",
        "nested": {"none": None, "list": (1, 2), "array": np.arange(3)},
        "seconds": 12.5,
    }
    arrays = {
        "test": np.array([0, 1, 1], dtype=np.int8),
        "test probabilities": np.array([[0.1, np.nan]], dtype=np.float32),
        "file": np.array(3.5),
        "../x": np.zeros((0, 3)),
        "words": np.array(["ä", "b"]),
    }
    assert ledger.finish(ledger.claim("w", 60.0), Outcome("finished", result, arrays))
    with Ledger.open(path, readonly=True) as reader:
        found, summary = reader.outcome("a"), row(reader)
    expected = {
        **result,
        "last": {"step": 9, "validation": None, "test": 1 / 3},
        "losses": [1 / 3, None, 5e-324, float(np.float32(0.1))],
        "nested": {"none": None, "list": [1, 2], "array": [0, 1, 2]},
    }
    assert found.result == expected
    assert found.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(found.arrays[name], array)
    assert (summary.best_validation, summary.best_test) == (0.1 + 0.2, None)
    assert (summary.last_validation, summary.last_test) == (None, 1 / 3)
    assert (summary.status, summary.seconds, summary.error) == ("finished", 12.5, "")


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(), json_values))
def test_any_plain_data_can_be_a_result(data):
    assert ledger_values.unpack(ledger_values.pack(data)) == data


@pytest.mark.parametrize("result", [{"x": object()}, {"x": {1, 2}}, {"x": b"bytes"}])
def test_what_is_not_plain_is_refused_and_nothing_is_recorded(ledger, result):
    plan(ledger, "a")
    claim = ledger.claim("w", 60.0)
    with pytest.raises(SteadytuneError, match="must be plain"):
        ledger.finish(claim, Outcome("finished", result))
    with pytest.raises(SteadytuneError, match="holds objects"):
        ledger.finish(claim, Outcome("finished", {}, {"x": np.array([object()])}))
    assert row(ledger).status == "running"
    assert ledger.finish(claim, DONE)


def test_a_diverged_run_is_a_result_and_stays(ledger):
    plan(ledger, "a")
    assert ledger.finish(ledger.claim("w", 60.0), Outcome("diverged", {"losses": [math.nan]}))
    assert row(ledger).status == "diverged"
    assert ledger.retry_failed() == []
    assert ledger.claim("w", 60.0) is None
    assert [(key, found.status) for key, found in ledger.outcomes()] == [("a", "diverged")]


def test_without_seconds_in_the_result_the_attempt_is_timed(ledger, clock):
    plan(ledger, "a", "b")
    one, two = ledger.claim("w", 60.0), ledger.claim("v", 60.0)
    clock.now += 7.0
    ledger.finish(one, DONE)
    ledger.fail(two, "Traceback")
    assert [(found.seconds, found.ended) for found in ledger.rows()] == [(7.0, clock.now)] * 2


def test_an_error_fails_a_trial_at_once_until_it_is_planned_again(ledger):
    plan(ledger, "a", "b")
    for name in ("w", "v"):
        assert ledger.fail(ledger.claim(name, 60.0), f"Traceback of {name}")
    assert [(found.status, found.error) for found in ledger.rows()] == [
        ("failed", "Traceback of w"),
        ("failed", "Traceback of v"),
    ]
    assert ledger.claim("w", 60.0) is None
    assert ledger.retry_failed(["b", "no such key"]) == ["b"]
    assert (row(ledger, "b").status, row(ledger, "b").error) == ("pending", "")
    assert ledger.claim("w", 60.0).attempts == 2
    assert ledger.retry_failed() == ["a"]


def test_a_trial_that_is_given_back_has_no_mark_against_it(ledger):
    plan(ledger, "a")
    for number in range(5):
        claim = ledger.claim("w", 60.0)
        assert claim.attempts == number + 1
        assert ledger.release(claim)
        assert not ledger.release(claim)
    assert (row(ledger).status, row(ledger).deaths) == ("pending", 0)


# -- leases and deaths ----------------------------------------------------------------------------------------------


def test_a_lease_that_ran_out_is_anothers_and_the_late_result_is_refused(ledger, clock):
    plan(ledger, "a")
    late = ledger.claim("late", 60.0)
    clock.now += 59.0
    assert ledger.claim("eager", 60.0) is None
    clock.now += 2.0
    other = ledger.claim("other", 60.0)
    assert (other.key, other.attempts) == ("a", 2)
    for refused in (ledger.beat(late, 60.0), ledger.release(late), ledger.fail(late, "x"), ledger.finish(late, DONE)):
        assert refused is False
    assert (row(ledger).status, row(ledger).worker, row(ledger).deaths) == ("running", "other", 1)
    assert ledger.finish(other, Outcome("finished", {"value": 2}))
    assert ledger.finish(late, DONE) is False
    assert ledger.finish(other, DONE) is False  # also to itself
    assert ledger.outcome("a").result == {"value": 2}


def test_a_beat_in_time_keeps_a_trial_and_one_just_too_late_too_if_nobody_asked(ledger, clock):
    plan(ledger, "a")
    claim = ledger.claim("w", 60.0)
    for _ in range(10):
        clock.now += 59.0
        assert ledger.beat(claim, 60.0)
        assert ledger.claim("other", 60.0) is None
    clock.now += 1000.0
    assert ledger.beat(claim, 60.0)
    assert ledger.finish(claim, DONE)


def test_three_lost_leases_fail_a_trial(ledger, clock):
    plan(ledger, "a", "b")
    for number in range(3):
        claim = ledger.claim(f"w{number}", 60.0, "box")
        ledger.beat(claim, 60.0, {"step": number})
        clock.now += 61.0
    assert ledger.claim("w3", 60.0).key == "b"
    found = row(ledger)
    assert (found.status, found.attempts, found.deaths, found.ended) == ("failed", 3, 3, clock.now)
    for number in range(3):
        assert f"Attempt {number + 1}, worker w{number} on box: It gave no sign of life" in found.error
        assert f'It had last said: {{"step":{number}}}' in found.error
    assert found.error.splitlines()[-1].startswith("This trial ended its worker 3 times, so it is not tried again.")
    assert ledger.retry_failed() == ["a"]
    assert (row(ledger).deaths, row(ledger).error, row(ledger).attempts) == (0, "", 3)


def test_three_deaths_fail_a_trial_with_all_that_is_known(ledger):
    plan(ledger, "a")
    for number in range(3):
        ledger.claim(f"w{number}", 60.0)
        assert ledger.died("another", "It is fine.") == []
        assert ledger.died(f"w{number}", "It was killed by signal 11 (SIGSEGV).", f"stack {number}") == ["a"]
        assert ledger.died(f"w{number}", "again") == []
    error = row(ledger).error
    assert row(ledger).status == "failed"
    assert all(f"The end of its log:\nstack {number}" in error for number in range(3))
    assert error.endswith("so it is not tried again. It was killed by signal 11 (SIGSEGV).")


def test_a_worker_that_was_stopped_on_purpose_does_not_count(ledger):
    plan(ledger, "a")
    for _ in range(4):
        ledger.claim("w", 60.0)
        assert ledger.died("w", "", counted=False) == ["a"]
    assert (row(ledger).status, row(ledger).deaths) == ("pending", 0)


def test_how_many_deaths_are_too_many_is_the_studys(path):
    with Ledger.create(path, {}, deaths_allowed=1) as ledger:
        plan(ledger, "a")
        ledger.claim("w", 60.0)
        ledger.died("w", "x")
        assert row(ledger).status == "failed"


def test_a_finished_trial_keeps_no_error_of_an_earlier_attempt(ledger):
    plan(ledger, "a")
    ledger.claim("w", 60.0)
    ledger.died("w", "x")
    assert row(ledger).error
    ledger.finish(ledger.claim("v", 60.0), DONE)
    assert (row(ledger).error, row(ledger).deaths, row(ledger).attempts) == ("", 1, 2)


def test_after_the_machine_slept_workers_have_time_to_say_that_they_live(ledger, clock):
    plan(ledger, "a", "b")
    alive, dead = ledger.claim("alive", 60.0), ledger.claim("dead", 60.0)
    clock.sleep(3600.0)
    assert ledger.claim("other", 60.0) is None  # both leases ran out while nobody could do anything
    clock.now += 30.0
    assert ledger.beat(alive, 60.0)
    assert ledger.claim("other", 60.0) is None
    clock.now += 31.0
    assert ledger.claim("other", 60.0).key == dead.key
    assert ledger.finish(alive, DONE)
    assert (row(ledger, "a").deaths, row(ledger, "b").deaths) == (0, 1)


# -- readers --------------------------------------------------------------------------------------------------------


def test_a_reader_writes_nothing_and_sees_what_others_write(ledger, path):
    plan(ledger, "a", "b")
    with Ledger.open(path, readonly=True) as reader:
        for change in (lambda: plan(reader, "c"), lambda: reader.set_meta("a", 1), reader.retry_failed):
            with pytest.raises(LedgerError, match="for reading only"):
                change()
        assert reader.counts() == {"pending": 2, "running": 0, "finished": 0, "diverged": 0, "failed": 0}
        ledger.finish(ledger.claim("w", 60.0), DONE)
        assert reader.counts()["finished"] == 1
        assert [found.key for found in reader.rows(status="finished")] == ["a"]
        assert reader.outcome("b") is None
        assert reader.outcome("no such key") is None


def test_beats_do_not_pile_up(ledger, path):
    """A trial of many hours says thousands of times that it is alive."""
    plan(ledger, "a")
    claim = ledger.claim("w", 60.0)
    wal = path.with_name("ledger.sqlite-wal")
    most = 0
    for number in range(1500):
        assert ledger.beat(claim, 60.0, {"step": number})
        most = max(most, wal.stat().st_size)
    assert 1 << 20 < most <= 4 << 20
    assert ledger.finish(claim, DONE)
    assert wal.stat().st_size == 0  # a result is in the file itself


def test_another_connection_of_a_process_does_not_take_its_locks_away(ledger, path):
    """Otherwise a worker that ends thinks that it was the last one, and deletes the -wal file under the others."""
    plan(ledger, "a", "b")
    with Ledger.open(path), Ledger.open(path, readonly=True):
        pass
    worker = f"from steadytune.study.ledger import Ledger; Ledger.open({str(path)!r}).close()"
    subprocess.run([sys.executable, "-c", worker], check=True)
    assert ledger.finish(ledger.claim("w", 60.0), DONE)
    assert ledger.counts()["finished"] == 1


# -- speed ----------------------------------------------------------------------------------------------------------


def test_ten_thousand_trials(path):
    spec = json.dumps({"content": {"recipe": {f"setting {n}": n / 7 for n in range(40)}}})
    rows = [(f"{number:064x}", spec, number) for number in range(10_000)]
    with Ledger.create(path, {}) as ledger:
        started = time.perf_counter()
        assert ledger.plan(rows) == 10_000
        assert ledger.plan(rows) == 0
        assert time.perf_counter() - started < 5.0
        took, claims = [], []
        for number in range(100):
            started = time.perf_counter()
            claims.append(ledger.claim(f"w{number}", 60.0))
            took.append(time.perf_counter() - started)
        outcome = Outcome("finished", {"best": {"validation": 0.5}, "losses": [n / 7 for n in range(200)]})
        for claim in claims[:50]:
            assert ledger.finish(claim, outcome)
        assert sorted(took)[50] < 0.005
        started = time.perf_counter()
        with Ledger.open(path, readonly=True) as reader:
            assert reader.counts()["pending"] == 9_900
            assert len(reader.rows()) == 10_000
        assert time.perf_counter() - started < 1.0
