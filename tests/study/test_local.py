"""The local runner: places for workers, when it ends, and what it finds of earlier runs. Killing is in tests/crash."""

import fcntl
import json
import os
import sys
import threading
from pathlib import Path

import pytest

from steadytune.study import local, trial_folders
from steadytune.study.crew import Crew, Slot, is_running, last_words, slots
from steadytune.study.local import run_local
from steadytune.study.outcome import Outcome

STUB = [sys.executable, str(Path(__file__).parent.parent / "crash" / "stub_worker.py")]


def plan(ledger, *numbers):
    return ledger.plan([(f"t{n}", json.dumps({"do": "square", "value": n}), n) for n in numbers])


# -- places ---------------------------------------------------------------------------------------------------------


def test_on_a_cpu_there_is_one_worker_per_core(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 5}, raising=False)
    assert slots(None, ["cpu"], None) == [Slot("cpu")] * 3
    assert slots(7, ["cpu"], 4) == [Slot("cpu")] * 7


def test_on_gpus_each_worker_sees_one(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert slots(None, ["cuda:0", "cuda:1"], None) == [Slot("cuda", 1, "0"), Slot("cuda", 1, "1")]
    assert slots(None, ["cuda:0", "cuda:1"], 3) == [Slot("cuda", 3, "0"), Slot("cuda", 3, "1")]
    assert [slot.visible for slot in slots(3, ["cuda:0", "cuda:2"], None)] == ["0", "2", "0"]
    assert slots(None, ["cuda"], 2) == [Slot("cuda", 2, "0")]


def test_many_trials_on_a_gpu_are_spread_over_processes(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for trials in range(1, 40):
        shares = [slot.replicas for slot in slots(None, ["cuda"], trials)]
        assert sum(shares) == trials
        assert max(shares) <= 6
        assert max(shares) - min(shares) <= 1
        assert len(shares) == -(-trials // 6)
    assert slots(None, ["cuda:0", "cuda:1"], 7) == [Slot("cuda", n, gpu) for gpu in "01" for n in (4, 3)]
    assert slots(1, ["cuda"], 8) == [Slot("cuda", 8, "0")], "who says how many processes gets them"


def test_of_the_gpus_that_were_given_to_us(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-abc")
    assert [slot.visible for slot in slots(None, ["cuda:0", "cuda:1"], 1)] == ["3", "GPU-abc"]


def told(path, **options):
    """Arguments and environment of the one worker of a run."""
    tell = path.with_name("tell.py")
    tell.write_text(
        "import json, os, sys; from pathlib import Path\n"
        "Path(sys.argv[1]).with_name('told').write_text(json.dumps([sys.argv[2:], dict(os.environ)]))\n"
        "sys.path.insert(0, sys.argv[0].rpartition('/')[0])\n"
        f"os.execv(sys.executable, {STUB!r} + sys.argv[1:])\n"
    )
    assert run_local(path, command=[sys.executable, str(tell)], **options)
    return json.loads(path.with_name("told").read_text())


def test_a_worker_is_told_where_it_runs(ledger, path):
    plan(ledger, 1)
    arguments, environment = told(path, devices=["cuda:5"], threads=3, lease=7.5)
    given = dict(zip(arguments[::2], arguments[1::2]))
    assert (given["--device"], given["--threads"], given["--lease"]) == ("cuda", "3", "7.5")
    assert given["--parent"] == str(os.getpid())
    assert environment["CUDA_VISIBLE_DEVICES"] == "5"
    assert environment["OMP_NUM_THREADS"] == "3"
    assert ledger.rows()[0].worker == given["--worker"]


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_worker_is_told_whether_bits_are_to_be_the_same_every_time(ledger, path, deterministic):
    plan(ledger, 1)
    arguments, _ = told(path, devices=["cpu"], workers=1, deterministic=deterministic)
    assert ("--deterministic" in arguments) is deterministic


# -- when it ends ---------------------------------------------------------------------------------------------------


def test_a_study_without_trials_ends_at_once(ledger, path):
    assert run_local(path, workers=2, devices=["cpu"], command=["no-such-program"])
    assert not (path.parent / "workers").exists()


def test_more_trials_may_come_while_it_runs(ledger, path):
    """As when settings are chosen on tuning runs, and the reported runs are planned after that."""
    plan(ledger, 1, 2)
    asked = []

    def on_tick():
        ended = ledger.counts()["finished"]
        asked.append(ended)
        return plan(ledger, 3, 4, 5) if ended == 2 else 0

    assert run_local(path, workers=2, devices=["cpu"], command=STUB, on_tick=on_tick)
    assert ledger.counts()["finished"] == 5
    assert asked[-1] == 5


def test_it_does_not_end_while_more_is_promised(ledger, path):
    promises = [True, True, False]
    assert run_local(path, workers=1, devices=["cpu"], command=STUB, on_tick=lambda: promises.pop(0))
    assert promises == []


def test_an_error_while_planning_stops_the_workers(ledger, path):
    plan(ledger, *range(2000))

    def on_tick():
        if ledger.counts()["finished"]:
            raise RuntimeError("a mistake in the plan")

    with pytest.raises(RuntimeError, match="a mistake in the plan"):
        run_local(path, workers=2, devices=["cpu"], command=STUB, on_tick=on_tick)
    counts = ledger.counts()
    assert counts["running"] == counts["failed"] == 0
    assert counts["pending"] > 0
    assert list((path.parent / "workers").iterdir()) == []


def test_there_are_no_more_workers_than_trials(ledger, path):
    plan(ledger, 1, 2)
    assert run_local(path, workers=50, devices=["cpu"], command=STUB)
    assert len({row.worker for row in ledger.rows()}) <= 2


def test_a_stop_that_was_set_before_starts_nothing(ledger, path):
    plan(ledger, 1)
    stop = threading.Event()
    stop.set()
    assert not run_local(path, workers=1, devices=["cpu"], command=["no-such-program"], stop=stop)
    assert ledger.counts()["pending"] == 1


# -- what earlier runs left -----------------------------------------------------------------------------------------


def test_trials_of_dead_workers_are_taken_back_and_those_of_living_ones_not(ledger, tmp_path):
    plan(ledger, 1, 2, 3, 4)
    crew = Crew(ledger.path, [], threads=1, lease=60.0)
    ours = f"{crew._run}-1"
    for name in ("dead", "living", "elsewhere", ours):
        ledger.claim(name, 3600.0)
    logs = tmp_path / "workers"
    logs.mkdir()
    (logs / f"{ours}.log").touch()  # it has died just now, and how is about to be told
    (logs / "dead.log").write_text("--- trial t0 ---\nold\n--- trial t1 ---\nfatal: out of luck\n")
    (logs / "living.log").touch()
    with (logs / "living.log").open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert is_running(logs / "living.log")
        assert local.take_back(ledger, logs, crew) == ["t1"]
    assert [row.status for row in ledger.rows()] == ["pending", "running", "running", "running"]
    assert ledger.rows()[0].deaths == 1
    assert "It is gone, with the run that had started it" in ledger.rows()[0].error
    assert "fatal: out of luck" in ledger.rows()[0].error
    assert "old" not in ledger.rows()[0].error


def test_checkpoints_of_what_has_ended_are_swept(ledger, tmp_path):
    ledger.plan([("done", "{}", 0), ("kept", '{"keep": true}', 1), ("failed", "{}", 2), ("pending", "{}", 3)])
    for key in ("done", "kept", "failed", "pending", "unknown"):
        trial_folders.take_over(tmp_path, key, 1)
    for _ in range(2):
        ledger.finish(ledger.claim("w", 60.0), Outcome("finished", {}))
    ledger.fail(ledger.claim("w", 60.0), "x")
    local.sweep(ledger, tmp_path)
    assert trial_folders.keys(tmp_path) == {"kept", "failed", "pending", "unknown"}


def test_last_words_are_short_and_always_text(tmp_path):
    log = tmp_path / "w.log"
    log.write_bytes(b"x" * 100_000 + b"\xff\xfe end")
    assert len(last_words(log)) < 5000
    assert last_words(log).endswith("end")
    assert "cannot be read" in last_words(tmp_path / "nothing")
