"""Processes side by side on a GPU: the daemon's life, with a stand-in for it; the real one is in tests/gpu."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from steadytune.study import local, mps
from steadytune.study.crew import Crew, Slot, shared_gpus, slots
from steadytune.study.local import run_local
from steadytune.study.mps import side_by_side

works = mps._works
HANGING = """#!/bin/sh
echo $$ >> {log}
sleep 60
"""
CONTROL = """#!/bin/sh
said=$(cat)
if [ "$said" = get_server_list ]; then
    [ -d "$CUDA_MPS_PIPE_DIRECTORY/log" ] && exit 0
    echo "Cannot find MPS control daemon process"
    exit 1
fi
echo "$1 gpu=$CUDA_VISIBLE_DEVICES $said" >> {log}
[ -z "{broken}" ] || exit 1
mkdir -p "$CUDA_MPS_PIPE_DIRECTORY/log"
"""


@pytest.fixture
def daemon(tmp_path, monkeypatch):
    """Puts a stand-in on the path, whose log is returned."""
    log = tmp_path / "log"

    def put(broken=False, works=True):
        file = tmp_path / mps.CONTROL
        file.write_text(CONTROL.format(log=log, broken="1" if broken else ""))
        file.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        monkeypatch.setattr(mps, "_works", lambda served: works)
        return log

    monkeypatch.setattr(mps, "_USUAL", tmp_path / "nowhere")
    for name in (mps.SWITCH, mps._PIPE):
        monkeypatch.delenv(name, raising=False)
    return put


def test_each_gpu_has_a_daemon_that_sees_no_other_and_quits(daemon):
    log = daemon()
    with side_by_side(["2", "2", "GPU-ab"]) as served:
        assert list(served) == ["2", "GPU-ab"]
        places = [environment[mps._PIPE] for environment in served.values()]
        assert len({*places}) == 2
        assert all(os.path.isdir(place) for place in places)
        assert {environment["CUDA_VISIBLE_DEVICES"] for environment in served.values()} == {"0"}
        assert log.read_text().split("\n")[:2] == ["-d gpu=2 ", "-d gpu=GPU-ab "]
    assert sorted(log.read_text().splitlines()[2:]) == [" gpu=2 quit", " gpu=GPU-ab quit"]
    assert not any(os.path.exists(place) for place in places)


@pytest.mark.parametrize("fault", ["no daemon", "does not start", "serves nobody", "MIG", "off", "no room"])
def test_where_none_can_be_had_nothing_is_served_and_nothing_left(daemon, fault, monkeypatch, tmp_path):
    monkeypatch.setattr(mps, "_PLACE", str(tmp_path / "nowhere" if fault == "no room" else tmp_path))
    if fault != "no daemon":
        daemon(broken=fault == "does not start", works=fault != "serves nobody")
    if fault == "off":
        monkeypatch.setenv(mps.SWITCH, "0")
    with side_by_side(["MIG-1/2/0" if fault == "MIG" else "0"]) as served:
        assert served == {}
    assert not list(tmp_path.glob("steadytune-mps-*"))


def test_a_daemon_that_never_answers_is_given_up(daemon, monkeypatch, tmp_path):
    log = daemon()
    (tmp_path / mps.CONTROL).write_text(HANGING.format(log=log))
    monkeypatch.setattr(mps, "_PATIENCE", 0.5)
    begun = time.monotonic()
    with side_by_side(["0"]) as served:
        assert served == {}
    assert time.monotonic() - begun < 20
    for pid in log.read_text().split():
        assert not is_alive(pid)


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_one_that_is_there_is_used_as_it_is(daemon, monkeypatch, tmp_path):
    log = daemon()
    (tmp_path / "somewhere" / "log").mkdir(parents=True)
    monkeypatch.setenv(mps._PIPE, str(tmp_path / "somewhere"))
    with side_by_side(["0", "1"]) as served:
        assert served == {"0": {}, "1": {}}
    assert not log.exists()
    monkeypatch.setenv("PATH", "")  # in a container that is only given the pipe
    with side_by_side(["0"]) as served:
        assert served == {"0": {}}


@pytest.mark.parametrize("where", ["as it was told", "where it usually is"])
def test_one_that_has_gone_is_not_taken_for_one(daemon, monkeypatch, tmp_path, where):
    """Its directory may outlive it. Programs that find nobody there go on in turns, without a word."""
    daemon()
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "control").touch()
    if where == "as it was told":
        monkeypatch.setenv(mps._PIPE, str(tmp_path / "gone"))
    else:
        monkeypatch.setattr(mps, "_USUAL", tmp_path / "gone")
    with side_by_side(["0"]) as served:
        assert served["0"][mps._PIPE].startswith("/tmp/steadytune-mps-")


def test_a_daemon_that_ends_after_it_has_started_serves_nobody(daemon, monkeypatch, tmp_path):
    """Then a program gets on a GPU, but on that which has number 0 without the daemon."""
    daemon()
    file = tmp_path / mps.CONTROL
    file.write_text(file.read_text().replace("mkdir", ": mkdir"))
    monkeypatch.setattr(mps, "_works", works)
    monkeypatch.setattr(mps, "_TRY", "")
    with side_by_side(["1"]) as served:
        assert served == {}


def test_a_killed_study_leaves_no_daemon(daemon, tmp_path):
    log = daemon()
    code = """
        import time
        from pathlib import Path
        from steadytune.study import mps
        mps._works, mps._USUAL = lambda served: True, Path("nowhere")
        with mps.side_by_side(["0"]) as served:
            print(served["0"][mps._PIPE], flush=True)
            time.sleep(60)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    place = process.stdout.readline().strip()
    assert os.path.isdir(place)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    until = time.monotonic() + 10
    while os.path.exists(place) and time.monotonic() < until:
        time.sleep(0.02)
    assert not os.path.exists(place)
    assert log.read_text().endswith("quit\n")


def test_what_a_gpu_that_is_no_gpu_says(daemon, monkeypatch):
    monkeypatch.undo()
    assert not mps._works({"CUDA_VISIBLE_DEVICES": ""}), "no process gets on a GPU that it does not see"


# -- in a study ---------------------------------------------------------------------------------------------------


def test_fewer_trials_a_process_where_processes_need_no_turns(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [slot.replicas for slot in slots(None, ["cuda"], 8)] == [4, 4]
    assert [slot.replicas for slot in slots(None, ["cuda"], 8, side_by_side=True)] == [3, 3, 2]
    assert shared_gpus(slots(None, ["cuda:0", "cuda:1"], 7)) == ["0", "1"]
    assert shared_gpus(slots(None, ["cuda:0", "cuda:1"], 6)) == []
    assert shared_gpus(slots(3, ["cuda:0", "cuda:1"], 2)) == ["0"]
    assert shared_gpus([Slot("cpu")] * 3) == []


def test_workers_of_a_study_share_their_gpu_until_one_has_lost_it(ledger, path, daemon, monkeypatch, tmp_path):
    """The stub tells its environment; the first to run a trial ends as one does whose GPU is gone."""
    log = daemon()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    ledger.plan([(f"t{n}", '{"do": "square", "value": 2}', n) for n in range(6)])
    stub = os.path.join(os.path.dirname(__file__), "..", "crash", "stub_worker.py")
    tell = tmp_path / "tell.py"
    tell.write_text(
        "import os, sys, time\n"
        f"open({str(tmp_path / 'told')!r}, 'a').write(os.environ.get({mps._PIPE!r}, 'none')[:19] + chr(10))\n"
        f"try: os.close(os.open({str(tmp_path / 'lost')!r}, os.O_CREAT | os.O_EXCL)); sys.exit(1)\n"
        "except FileExistsError: pass\n"
        f"os.execv(sys.executable, [sys.executable, {stub!r}] + sys.argv[1:])\n"
    )
    said = []
    command = [sys.executable, str(tell)]
    assert run_local(path, workers=2, devices=["cuda:0"], command=command, say=said.append)
    assert ledger.counts()["finished"] == 6
    assert said == ["2 processes run on 1 GPU, side by side, by NVIDIA's MPS."]
    told = (tmp_path / "told").read_text().splitlines()
    assert told[:2] == ["/tmp/steadytune-mps"] * 2
    assert told[2:] == ["none"] * len(told[2:])
    assert len(told) >= 3
    assert log.read_text().endswith("quit\n")


def test_a_worker_that_starts_after_the_mps_has_gone_runs_on_its_own_gpu(ledger, path, daemon, tmp_path):
    """GPU 2 has number 0 where the daemon is; without the daemon that is another one."""
    daemon()
    tell = tmp_path / "tell.py"
    tell.write_text(
        f"import os\nopen({str(tmp_path / 'told')!r}, 'a').write(os.environ['CUDA_VISIBLE_DEVICES'] + chr(10))\n"
    )
    with side_by_side(["2"]) as served:
        crew = Crew(
            path, [Slot("cuda", 1, "2")], threads=1, lease=1, command=[sys.executable, str(tell)], served=served
        )
        _start_one(crew)
        os.rmdir(os.path.join(served["2"][mps._PIPE], "log"))  # which the stand-in answers by
        _start_one(crew)
    assert (tmp_path / "told").read_text().split() == ["0", "2"]


def _start_one(crew):
    crew.start_(1)
    crew.workers[0].process.wait()
    assert len(crew.reap_()) == 1


def test_in_turns_where_there_is_no_mps(ledger, path, monkeypatch):
    monkeypatch.setenv(mps.SWITCH, "0")
    ledger.plan([(f"t{n}", "{}", n) for n in range(2)])
    places, said = [], []
    monkeypatch.setattr(
        local, "Crew", lambda path, slots, **_: places.append(slots) or Crew(path, [], threads=1, lease=1)
    )
    monkeypatch.setattr(local.Driver, "run", lambda *_: True)
    assert run_local(path, devices=["cuda"], per_gpu=8, say=said.append)
    assert [slot.replicas for slot in places[0]] == [4, 4]
    assert said == ["2 processes run on 1 GPU, in turns."]


def test_a_study_whose_trials_are_all_known_starts_no_daemon(ledger, path, daemon):
    log = daemon()
    said = []
    assert run_local(path, devices=["cuda"], per_gpu=24, say=said.append)
    assert not log.exists()
    assert not said
