"""A worker: what becomes of a trial that finishes, raises, is stopped, or is lost. Killing is in tests/crash."""

import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from ledger_stories import plan_specs
from steadytune.errors import SteadytuneError
from steadytune.study import heart, trial_folders
from steadytune.study.ledger import Ledger, LedgerError
from steadytune.study.outcome import Outcome, Stopped
from steadytune.study.replicas import Crowd
from steadytune.study.worker import CANNOT_GO_ON, DiskFull, work

LONG = 60.0  # seconds: nothing here takes as long


def go(path, run, **options):
    return work(path, run, **{"worker": "w", "folder": path.parent / "trials", **options})


def statuses(ledger):
    return [row.status for row in ledger.rows()]


def kept_folders(path):
    return sorted(str(place.relative_to(path.parent / "trials")) for place in (path.parent / "trials").glob("*/*"))


def wait_for(condition):
    until = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


# -- what becomes of a trial ----------------------------------------------------------------------------------------


def test_trials_are_run_in_order_and_recorded(ledger, path):
    plan_specs(ledger, {"x": 1}, {"x": 2}, {"x": 3})
    seen = []

    def run(spec, folder, progress, stop):
        assert folder.is_dir()
        (folder / "checkpoint").touch()
        seen.append((spec, folder.name))
        status = "diverged" if spec["x"] == 2 else "finished"
        return Outcome(status, {"twice": 2 * spec["x"]}, {"test": np.arange(spec["x"])})

    assert go(path, run) == 3
    assert seen == [({"x": 1}, "t0"), ({"x": 2}, "t1"), ({"x": 3}, "t2")]
    assert statuses(ledger) == ["finished", "diverged", "finished"]
    assert [outcome.result["twice"] for _, outcome in ledger.outcomes()] == [2, 4, 6]
    assert [len(outcome.arrays["test"]) for _, outcome in ledger.outcomes(arrays=True)] == [1, 2, 3]
    assert {(row.worker, row.attempts) for row in ledger.rows()} == {("w", 1)}
    assert all(row.machine for row in ledger.rows())
    assert kept_folders(path) == []


def test_a_folder_is_kept_where_the_spec_says_so_and_after_an_error(ledger, path):
    plan_specs(ledger, {"keep": True}, {"keep": False}, {"keep": False, "error": True})

    def run(spec, folder, progress, stop):
        if spec.get("error"):
            raise ValueError
        return Outcome("finished", {})

    assert go(path, run) == 3
    assert kept_folders(path) == ["attempt-1/t0", "attempt-1/t2"]


@pytest.mark.parametrize("error", [ValueError("bad"), SteadytuneError("bad"), SystemExit("bad"), MemoryError("bad")])
def test_an_error_is_recorded_at_once_and_the_next_trial_runs(ledger, path, error):
    plan_specs(ledger, {"x": 1}, {"x": 2})

    def run(spec, folder, progress, stop):
        if spec["x"] == 1:
            raise error
        return Outcome("finished", {})

    assert go(path, run) == 2
    assert statuses(ledger) == ["failed", "finished"]
    failed = ledger.rows()[0]
    assert (failed.attempts, failed.deaths) == (1, 0)
    assert failed.error.startswith("Traceback")
    assert failed.error.rstrip().endswith(f"{type(error).__name__}: bad") or "SteadytuneError: bad" in failed.error


@pytest.mark.parametrize("said", ["CUDA out of memory. Tried to allocate", "CUDA error: out of memory"])
def test_memory_that_ran_out_beside_others_is_no_fault_of_the_trial(ledger, path, said):
    plan_specs(ledger, {"x": 1}, {"x": 2})
    seen = []

    def run(spec, folder, progress, stop):
        seen.append(spec["x"])
        if seen == [1]:
            raise RuntimeError(said)
        return Outcome("finished", {})

    assert go(path, run, crowd=Crowd()) == 2
    assert statuses(ledger) == ["finished", "finished"]
    assert seen == [1, 2, 1]  # again when no other is beside it
    assert (ledger.rows()[0].attempts, ledger.rows()[0].deaths) == (2, 1)


def test_a_trial_without_room_even_alone_fails(ledger, path):
    plan_specs(ledger, {})

    def run(spec, folder, progress, stop):
        raise RuntimeError("CUDA out of memory")

    go(path, run, crowd=Crowd())
    assert statuses(ledger) == ["failed"]
    assert "The memory ran out" in ledger.rows()[0].error
    assert ledger.rows()[0].attempts == 3


def test_a_result_that_cannot_be_recorded_fails_its_trial(ledger, path):
    plan_specs(ledger, {}, {})
    outcomes = [Outcome("finished", {"x": object()}), Outcome("finished", {}, {"x": np.array([None])})]
    assert go(path, lambda *_: outcomes.pop()) == 2
    assert statuses(ledger) == ["failed", "failed"]
    assert "holds objects" in ledger.rows()[0].error
    assert "must be plain" in ledger.rows()[1].error


def test_a_run_that_claims_to_have_been_stopped_fails(ledger, path):
    """It would be claimed and stopped for ever."""
    plan_specs(ledger, {})

    def run(spec, folder, progress, stop):
        raise Stopped

    assert go(path, run) == 1
    assert statuses(ledger) == ["failed"]


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        OSError(30, "Read-only file system"),
        RuntimeError("[enforce fail at inline_container.cc:603] . unexpected pos: No space left on device"),
    ],
)
def test_a_full_disk_is_no_trials_fault(ledger, path, error):
    plan_specs(ledger, {}, {})

    def run(spec, folder, progress, stop):
        raise SteadytuneError("The checkpoint could not be written.") from error

    with pytest.raises(DiskFull, match=r"Trial t0 could not write: .*Make room"):
        go(path, run)
    assert statuses(ledger) == ["pending", "pending"]
    assert [row.deaths for row in ledger.rows()] == [0, 0]


def test_a_ledger_that_cannot_be_written_ends_the_worker(ledger, path):
    plan_specs(ledger, {}, {})

    def run(spec, folder, progress, stop):
        path.with_name("ledger.sqlite-wal").unlink()
        return Outcome("finished", {})

    with pytest.raises(LedgerError, match="deleted or replaced"):
        go(path, run)


# -- stop and progress ----------------------------------------------------------------------------------------------


def test_a_stop_gives_the_trial_back_and_ends_the_worker(ledger, path):
    plan_specs(ledger, {}, {})
    stop = threading.Event()

    def run(spec, folder, progress, told):
        (folder / "checkpoint").write_text("half")
        stop.set()
        assert told.wait(LONG)
        raise Stopped

    assert go(path, run, stop=stop) == 0
    assert statuses(ledger) == ["pending", "pending"]
    assert (ledger.rows()[0].attempts, ledger.rows()[0].deaths) == (1, 0)

    def run_on(spec, folder, progress, told):
        return Outcome("finished", {"found": [file.read_text() for file in folder.iterdir()]})

    assert go(path, run_on) == 2
    assert ledger.outcome("t0").result == {"found": ["half"]}
    assert kept_folders(path) == []


def test_a_run_that_ends_although_it_was_told_to_stop_is_recorded(ledger, path):
    plan_specs(ledger, {}, {})
    stop = threading.Event()

    def run(spec, folder, progress, told):
        stop.set()
        return Outcome("finished", {})

    assert go(path, run, stop=stop) == 1
    assert statuses(ledger) == ["finished", "pending"]


def test_ctrl_c_without_a_handler_gives_the_trial_back(ledger, path):
    plan_specs(ledger, {})

    def run(spec, folder, progress, stop):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go(path, run)
    assert statuses(ledger) == ["pending"]


def test_progress_is_seen_and_the_lease_extended_while_a_trial_runs(ledger, path):
    plan_specs(ledger, {})

    def run(spec, folder, progress, stop):
        first = ledger_row(path).lease_until
        progress({"step": 3, "steps": 10, "loss": float("nan")})
        wait_for(lambda: ledger_row(path).progress == {"step": 3, "steps": 10, "loss": None})
        wait_for(lambda: ledger_row(path).lease_until > first)
        return Outcome("finished", {})

    assert go(path, run, lease=0.4) == 1
    assert ledger_row(path).progress == {}


def ledger_row(path):
    with Ledger.open(path, readonly=True) as reader:
        return reader.rows()[0]


def test_a_lost_lease_stops_the_run_and_its_result_is_refused(ledger, path, capsys):
    """As after a freeze: while this worker knew nothing, the trial was given to another one, which has finished it."""
    plan_specs(ledger, {})
    told = []

    def run(spec, folder, progress, stop):
        with Ledger.open(path) as others:
            others.died("w", "It is thought to be dead.")
            assert others.finish(others.claim("other", 60.0), Outcome("finished", {"by": "other"}))
        told.append(stop.wait(LONG))
        return Outcome("finished", {"by": "late"})

    assert go(path, run, lease=0.4) == 0
    assert "comes too late" in capsys.readouterr().err
    assert told == [True]
    assert ledger.outcome("t0").result == {"by": "other"}
    assert kept_folders(path) == []


def test_a_worker_waits_for_what_others_run(ledger, path):
    """Their trials may come back."""
    plan_specs(ledger, {})
    claim = ledger.claim("other", 60.0)
    done = []
    worker = threading.Thread(target=lambda: done.append(go(path, lambda *_: Outcome("finished", {}))))
    worker.start()
    try:
        assert not done
        ledger.release(claim)
    finally:
        worker.join(LONG)
    assert done == [1]


def test_a_worker_that_stays_ends_with_its_parent(ledger, path, monkeypatch):
    plan_specs(ledger, {})
    parents = [1234]
    monkeypatch.setattr(heart.os, "getppid", lambda: parents[0])
    worker = threading.Thread(
        target=lambda: go(path, lambda *_: Outcome("finished", {}), stay=True, parent=1234), daemon=True
    )
    worker.start()
    wait_for(lambda: statuses(ledger) == ["finished"])
    ledger.plan([("more", "{}", 9)])
    wait_for(lambda: statuses(ledger) == ["finished"] * 2)
    assert worker.is_alive()
    parents[0] = 1
    worker.join(LONG)
    assert not worker.is_alive()


# -- folders --------------------------------------------------------------------------------------------------------


def test_an_attempt_takes_over_what_the_one_before_left(tmp_path):
    first = trial_folders.take_over(tmp_path, "key", 1)
    (first / "checkpoint").write_text("1")
    third = trial_folders.take_over(tmp_path, "key", 3)
    assert not first.exists()
    assert (third / "checkpoint").read_text() == "1"
    assert third.name == "key"
    first.mkdir()  # the first worker was frozen, and goes on
    assert trial_folders.take_over(tmp_path, "key", 3) == third
    assert (third / "checkpoint").read_text() == "1"
    late = trial_folders.take_over(tmp_path, "key", 2)  # frozen between claim and start: it takes nothing away
    assert list(late.iterdir()) == []
    assert (third / "checkpoint").exists()
    assert trial_folders.keys(tmp_path) == {"key"}
    trial_folders.delete(tmp_path, "key", 2)
    assert third.exists()
    trial_folders.delete(tmp_path, "key")
    assert trial_folders.keys(tmp_path) == set()
    assert trial_folders.keys(tmp_path / "nothing") == set()


@pytest.mark.parametrize("key", ["..", "../x", "/", "", "a/b"])
def test_no_key_leads_out_of_the_folder(tmp_path, key):
    for use in (trial_folders.take_over, trial_folders.delete):
        with pytest.raises(SteadytuneError, match="not the key of a trial"):
            use(tmp_path / "trials", key, 1)


# -- as a process ---------------------------------------------------------------------------------------------------


def test_a_worker_is_light_until_it_runs_trials():
    code = (
        "import sys, steadytune.study.local; print([m for m in ('torch', 'numpy', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=LONG)
    assert done.stdout.strip() == "[]"


MAIN = """
import sys
from steadytune.study.ledger import Ledger
from steadytune.study.outcome import Outcome
from steadytune.study.worker import main

def make_run(options):
    with Ledger.open(options.ledger) as ledger:
        print(options.device, options.threads, options.folder.name, ledger.counts()["pending"])
    return lambda *_: Outcome("finished", {})

sys.exit(main(make_run=make_run))
"""


def test_the_run_is_made_once_before_the_first_claim(ledger, path):
    plan_specs(ledger, {}, {})
    command = [sys.executable, "-c", MAIN, str(path), "--device", "cpu", "--threads", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LONG)
    assert done.stdout == "cpu 2 trials 2\n"
    assert statuses(ledger) == ["finished", "finished"]
    assert len({row.worker for row in ledger.rows()}) == 1


def test_a_worker_without_a_ledger_says_so(tmp_path):
    command = [sys.executable, "-c", MAIN, str(tmp_path / "nothing.sqlite")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == CANNOT_GO_ON
    assert done.stderr.startswith("There is no ledger")
