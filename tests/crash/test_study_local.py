"""Studies on one machine: whoever is killed, stopped or frozen, no trial is lost and none counts twice."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from steadytune.errors import SteadytuneError
from steadytune.study import local
from steadytune.study.crew import Crew, Slot
from steadytune.study.ledger import Ledger
from steadytune.study.local import Driver, run_local

STUB = [sys.executable, str(Path(__file__).with_name("stub_worker.py"))]
LONG = 60.0  # seconds: nothing here takes as long, except on a machine that hangs


def wait_for(condition, what, seconds=LONG):
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, f"waited in vain for {what}"
        time.sleep(0.01)
    return found


def make(folder, specs, **options):
    """A ledger with these trials, by key."""
    path = folder / "ledger.sqlite"
    with Ledger.create(path, {}, **options) as ledger:
        ledger.plan([(key, json.dumps(spec), rank) for rank, (key, spec) in enumerate(specs.items())])
    return path


def rows(path):
    with Ledger.open(path, readonly=True) as ledger:
        return {row.key: row for row in ledger.rows()}


def results(path):
    with Ledger.open(path, readonly=True) as ledger:
        return {key: outcome.result for key, outcome in ledger.outcomes()}


def squares(count, seconds=0.0):
    return {f"t{number:04d}": {"do": "square", "value": number, "seconds": seconds} for number in range(count)}


def waiting(folder, key="w", **more):
    return {key: {"do": "wait", "begun": str(folder / f"{key}.begun"), "gate": str(folder / f"{key}.gate"), **more}}


def begun(folder, key="w", times=1):
    """The process that is in the middle of this trial now."""
    file = folder / f"{key}.begun"
    wait_for(lambda: file.exists() and len(file.read_text().split("\n")) > times, f"trial {key} to begin")
    return int(file.read_text().split("\n")[times - 1])


@contextmanager
def process(command, **options):
    """A process that does not outlive the test."""
    started = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)
    try:
        yield started
    finally:
        started.kill()
        started.wait(LONG)
        started.stderr.close()


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


# -- killed ---------------------------------------------------------------------------------------------------------


def test_a_hundred_sigkills_lose_and_double_nothing(tmp_path):
    """Here the workers are killed by us and not by their trials, so a trial may end any number of them."""
    path = make(tmp_path, squares(1500, seconds=0.002), deaths_allowed=1000)
    with closing(sqlite3.connect(path)) as db:  # a witness of its own: every time a row becomes finished
        db.executescript(
            "CREATE TABLE witness (key TEXT); CREATE TRIGGER seen AFTER UPDATE ON trials "
            "WHEN NEW.status = 'finished' BEGIN INSERT INTO witness VALUES (NEW.key); END;"
        )
    crew = Crew(path, [Slot("cpu")] * 4, threads=1, lease=5.0, command=STUB)
    killed, moments, over = [], random.Random(4), threading.Event()

    def kill_some():
        """One after every 14 trials or so, at any moment of a worker's life."""
        with Ledger.open(path, readonly=True) as ledger:
            while len(killed) < 100 and not over.is_set():
                if ledger.counts()["finished"] >= 14 * len(killed):
                    time.sleep(moments.uniform(0.0, 0.02))
                    living = [worker for worker in list(crew.workers) if worker.process.poll() is None]
                    if living:
                        victim = moments.choice(living)
                        victim.process.kill()
                        killed.append(victim.name)
                time.sleep(0.001)

    killer = threading.Thread(target=kill_some)
    with Ledger.open(path) as ledger:
        killer.start()
        try:
            assert Driver(ledger, crew).run(threading.Event())
        finally:
            over.set()
            killer.join()
            crew.stop_(LONG)
        ledger.check()
        found = ledger.rows()
        local.sweep(ledger, tmp_path / "trials")
        with closing(sqlite3.connect(path)) as db:
            witnessed = [key for (key,) in db.execute("SELECT key FROM witness ORDER BY key")]
    assert len(killed) == 100
    assert [row.status for row in found] == ["finished"] * 1500
    assert witnessed == [row.key for row in found]  # none lost, none doubled
    assert results(path) == {f"t{n:04d}": {"value": n * n, "best": {"step": 1, "validation": n}} for n in range(1500)}
    assert not list((tmp_path / "trials").glob("*/*"))
    died = sum(row.deaths for row in found)
    assert 0 < died <= 100
    assert sum(row.attempts for row in found) == 1500 + died


def test_a_trial_that_ends_its_workers_fails_after_three_and_the_others_finish(tmp_path):
    specs = {name: {"do": name} for name in ("kill", "segfault", "leave", "error")}
    path = make(tmp_path, {**specs, **squares(5)})
    assert run_local(path, workers=2, devices=["cpu"], command=STUB)
    found = rows(path)
    assert {key: row.status for key, row in found.items()} == {
        **dict.fromkeys(specs, "failed"),
        **dict.fromkeys(squares(5), "finished"),
    }
    assert [found[key].deaths for key in specs] == [3, 3, 3, 0]
    assert [found[key].attempts for key in specs] == [3, 3, 3, 1]
    assert found["kill"].error.count("killed by signal 9 (SIGKILL)") == 4  # three times, and in the last line
    assert "about to die" in found["kill"].error
    assert found["segfault"].error.count("killed by signal 11 (SIGSEGV)") == 4
    assert "in segfault" in found["segfault"].error  # the Python stack of the crash
    assert found["leave"].error.count("It ended with exit code 0.") == 4
    for key in ("kill", "segfault", "leave"):
        assert "This trial ended its worker 3 times, so it is not tried again." in found[key].error.split("\n")[-1]
    assert "RuntimeError: no such thing as a free lunch" in found["error"].error
    assert "Traceback" in found["error"].error


def test_after_an_error_of_the_gpu_the_next_trial_has_a_new_process(tmp_path):
    """CUDA answers every call with the same error from then on: the trials that follow would fail for nothing."""
    path = make(tmp_path, {"a": {"do": "gpu_error"}, "b": {"do": "gpu_error"}, **squares(2)})
    assert run_local(path, workers=1, devices=["cpu"], command=STUB)
    found = rows(path)
    assert [row.status for row in found.values()] == ["failed", "failed", "finished", "finished"]
    assert [row.attempts for row in found.values()] == [1] * 4
    assert len({row.worker for row in found.values()}) == 3
    assert "CUDA error: device-side assert" in found["a"].error


def test_a_worker_that_was_frozen_past_its_lease_is_refused(tmp_path):
    path = make(tmp_path, waiting(tmp_path, deaf=True))
    told = [str(path), "--lease", "0.6", "--worker"]
    with process([*STUB, *told, "frozen"]) as frozen:
        assert begun(tmp_path) == frozen.pid
        frozen.send_signal(signal.SIGSTOP)
        with process([*STUB, *told, "other"]) as other:
            assert begun(tmp_path, times=2) == other.pid  # the lease has run out
            (tmp_path / "w.gate").touch()
            assert other.wait(LONG) == 0
            mine = results(path)
            frozen.send_signal(signal.SIGCONT)
            assert frozen.wait(LONG) == 0
            assert "comes too late" in frozen.stderr.read()
    assert mine == results(path) == {"w": {"value": other.pid, "went_on": False}}
    row = rows(path)["w"]
    assert (row.status, row.worker, row.attempts, row.deaths) == ("finished", "other", 2, 1)
    assert not list((tmp_path / "trials").glob("*/*"))


# -- stopped --------------------------------------------------------------------------------------------------------

DRIVER = """
import sys
from steadytune.errors import SteadytuneError
from steadytune.study.local import run_local
try:
    done = run_local(sys.argv[1], workers=2, devices=["cpu"], command=sys.argv[2:])
except SteadytuneError as error:
    sys.exit(str(error))
sys.exit(0 if done else 130)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_gives_its_trials_back_and_goes_on_later(tmp_path, number):
    path = make(tmp_path, {**waiting(tmp_path, "a"), **waiting(tmp_path, "b")})
    with process([sys.executable, "-c", DRIVER, str(path), *STUB]) as driver:
        pids = [begun(tmp_path, key) for key in "ab"]
        driver.send_signal(number)
        assert driver.wait(LONG) == 130
        assert driver.stderr.read() == ""
    assert not any(alive(pid) for pid in pids)
    assert [(row.status, row.deaths, row.error) for row in rows(path).values()] == [("pending", 0, "")] * 2
    assert not list((tmp_path / "workers").iterdir())
    for key in "ab":
        (tmp_path / f"{key}.gate").touch()
    assert run_local(path, workers=1, devices=["cpu"], command=STUB)
    assert [result["went_on"] for result in results(path).values()] == [True, True]  # from where it had stopped


def test_workers_end_when_their_driver_is_killed(tmp_path):
    path = make(tmp_path, {**waiting(tmp_path, "a"), **waiting(tmp_path, "b")})
    with process([sys.executable, "-c", DRIVER, str(path), *STUB]) as driver:
        pids = [begun(tmp_path, key) for key in "ab"]
        driver.kill()
        driver.wait(LONG)
    wait_for(lambda: not any(alive(pid) for pid in pids), "the workers to end")
    assert [(row.status, row.deaths) for row in rows(path).values()] == [("pending", 0)] * 2


def test_a_worker_that_does_not_listen_is_killed_and_its_trial_given_back(tmp_path):
    path = make(tmp_path, waiting(tmp_path, deaf=True))
    stop = threading.Event()

    def stop_when_begun():
        stop.set() if (tmp_path / "w.begun").exists() else None

    assert not run_local(path, workers=1, devices=["cpu"], command=STUB, stop=stop, on_tick=stop_when_begun, grace=0.3)
    assert not alive(begun(tmp_path))
    assert [(row.status, row.deaths) for row in rows(path).values()] == [("pending", 0)]


def test_a_second_ctrl_c_does_not_wait(tmp_path):
    path = make(tmp_path, waiting(tmp_path, deaf=True))
    with process([sys.executable, "-c", DRIVER, str(path), *STUB]) as driver:
        pid = begun(tmp_path)
        driver.send_signal(signal.SIGINT)
        wait_for((tmp_path / "w.begun.told").exists, "the worker to be told")
        driver.send_signal(signal.SIGINT)
        assert driver.wait(30.0) == 130  # half of what it would have waited
    assert not alive(pid)
    assert [(row.status, row.deaths) for row in rows(path).values()] == [("pending", 0)]


def test_when_all_were_killed_at_once_the_next_run_need_not_wait_for_leases(tmp_path):
    path = make(tmp_path, {**waiting(tmp_path, "a"), **waiting(tmp_path, "b")})
    with process([sys.executable, "-c", DRIVER, str(path), *STUB]) as driver:
        for pid in (driver.pid, *(begun(tmp_path, key) for key in "ab")):
            os.kill(pid, signal.SIGKILL)
        driver.wait(LONG)
    for key in "ab":
        (tmp_path / f"{key}.gate").touch()
    started = time.monotonic()
    assert run_local(path, workers=2, devices=["cpu"], command=STUB, lease=600.0)
    assert time.monotonic() - started < local.LEASE
    assert [(row.status, row.deaths, row.attempts) for row in rows(path).values()] == [("finished", 1, 2)] * 2


def test_a_second_run_adds_its_workers(tmp_path):
    path = make(tmp_path, {**waiting(tmp_path, "a"), **waiting(tmp_path, "b"), **waiting(tmp_path, "c")})
    driver = [sys.executable, "-c", DRIVER, str(path), *STUB]
    with process(driver) as one:
        pids = {begun(tmp_path, "a"), begun(tmp_path, "b")}
        with process(driver) as two:
            assert begun(tmp_path, "c") not in pids  # and it left the trials of the first run alone
            for key in "abc":
                (tmp_path / f"{key}.gate").touch()
            assert one.wait(LONG) == two.wait(LONG) == 0
    assert [(row.status, row.attempts) for row in rows(path).values()] == [("finished", 1)] * 3


# -- nothing can go on ----------------------------------------------------------------------------------------------


def test_a_full_disk_stops_the_study_and_fails_no_trial(tmp_path):
    path = make(tmp_path, {"full": {"do": "no_room"}, **squares(3)})
    with pytest.raises(SteadytuneError, match=r"had to give up.*No space left on device.*Make room"):
        run_local(path, workers=1, devices=["cpu"], command=STUB)
    assert {row.status for row in rows(path).values()} == {"pending"}
    assert rows(path)["full"].deaths == 0


def test_workers_that_cannot_start_stop_the_study(tmp_path):
    path = make(tmp_path, squares(3))
    broken = [sys.executable, "-c", "raise SystemExit('there is no torch')"]
    with pytest.raises(SteadytuneError, match=r"(?s)before they have begun a trial.*exit code 1.*there is no torch"):
        run_local(path, workers=2, devices=["cpu"], command=broken)
    assert {row.status for row in rows(path).values()} == {"pending"}
    with pytest.raises(SteadytuneError, match="could not be started"):
        run_local(path, workers=2, devices=["cpu"], command=["no-such-program"])


def test_a_ledger_that_is_replaced_under_a_run_ends_it(tmp_path):
    path = make(tmp_path, waiting(tmp_path))
    with process([sys.executable, "-c", DRIVER, str(path), *STUB]) as driver:
        begun(tmp_path)
        path.rename(tmp_path / "old.sqlite")
        (tmp_path / "w.gate").touch()
        assert driver.wait(LONG) == 1
        assert "was deleted or replaced" in driver.stderr.read()
