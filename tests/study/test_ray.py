"""Studies on a real Ray cluster of several nodes, on this machine: nothing lost, nothing doubled, the same numbers.

Most trials here are stubs: functions that behave in one way or another and return a number that is known beforehand.
"""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import yaml

from steadytune.errors import SteadytuneError
from steadytune.study.ledger import Ledger
from steadytune.study.outcome import Outcome, Stopped
from steadytune.study.ray import running as on_ray
from steadytune.study.ray.cargo import Cargo, digest, node_folder, read_files, write_files

try:
    import ray
except ImportError:
    ray = None
else:
    from ray.cluster_utils import Cluster as Machines

    from steadytune.study.ray import cluster as ray_cluster
    from steadytune.study.ray import driver as ray_driver
    from steadytune.study.ray import remote as ray_node

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # nodes cannot import a test file

pytestmark = pytest.mark.ray
STORE = 80 * 2**20
PATIENCE = 120.0  # seconds after which a test that hangs is told to stop


@pytest.fixture(scope="module")
def cluster():
    """A head without room for trials, and two nodes with room for two each. We are connected to it."""
    if ray is None:
        pytest.skip("ray is not installed: pip install 'steadytune[ray]'")
    # Whether nodes live is asked more often than usual, but no less patiently.
    often = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 3}
    place = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # short: sockets lie there, and their paths are limited
    made = Machines()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", place)
        try:
            made.add_node(num_cpus=0, object_store_memory=STORE, include_dashboard=False, _system_config=often)
            for _ in range(2):
                made.add_node(wait=False, num_cpus=2, object_store_memory=STORE)
            made.wait_for_nodes(timeout=PATIENCE)
            ray.init(made.address, log_to_driver=False, logging_level="error")
            yield made
        finally:
            ray.shutdown()
            made.shutdown()
            shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def ledger(tmp_path):
    """Makes ledgers of stub trials: `ledger(a={"do": ...}, b=...)`."""

    def make(**specs):
        with Ledger.create(tmp_path / "ledger.sqlite", {}) as made:
            made.plan([(key, json.dumps({"number": n, **spec}), n) for n, (key, spec) in enumerate(specs.items())])
        return tmp_path / "ledger.sqlite"

    yield make
    with Ledger.open(tmp_path / "ledger.sqlite", readonly=True) as made:
        shutil.rmtree(node_folder(on_ray.study_name(made.meta)), ignore_errors=True)


def drive(path, run, **options):
    """Run stubs on the cluster; told to stop where that takes for ever. A study that has ended leaves nothing."""
    stop = threading.Event()
    with timer(stop):
        ended = on_ray.run_trials(path, Cargo(run=run), stop=stop, **options)
    with Ledger.open(path, readonly=True) as ledger:
        assert not (ended and node_folder(on_ray.study_name(ledger.meta)).exists())
    return ended


@contextmanager
def timer(stop):
    made = threading.Timer(PATIENCE, stop.set)
    made.start()
    try:
        yield
    finally:
        made.cancel()


def rows(path):
    with Ledger.open(path, readonly=True) as ledger:
        ledger.check()
        return {row.key: row for row in ledger.rows()}


def values(path):
    with Ledger.open(path, readonly=True) as ledger:
        return {key: outcome.result["value"] for key, outcome in ledger.outcomes()}


def value_of(spec):
    return {"value": spec["number"] ** 2}


def stub(spec, folder, progress, stop):
    """Does what its spec says."""
    progress({"node": ray.get_runtime_context().get_node_id(), "pid": os.getpid()})
    match spec.get("do"):
        case "kill":
            print("these are my last words", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        case "crash":
            ctypes.string_at(0)
        case "exit":
            sys.exit(3)
        case "raise":

            class Odd(Exception):  # nobody else can unpickle it
                def __init__(self, one, two):
                    super().__init__(f"{one} and {two}")

            raise Odd("this", "that")
        case "full":
            raise OSError(28, "No space left on device")
        case "diverge":
            return Outcome("diverged", value_of(spec))
        case "arrays":
            return Outcome("finished", value_of(spec), {"test": np.arange(300_000)})  # too big to come inline
        case "node":  # until the node dies that it is about
            while ray.get_runtime_context().get_node_id() == spec["node"]:
                time.sleep(0.05)
        case "wait":  # for the stop; the third attempt finds what those before it have left
            with (folder / "checkpoint").open("a") as file:
                file.write("an attempt\n")
            if len((folder / "checkpoint").read_text().splitlines()) < spec["attempts"]:
                stop.wait()
                raise Stopped
        case "count":
            for number in range(10**9):
                progress({"count": number})
                if stop.wait(0.02):
                    raise Stopped
        case "gpu":  # until as many as there are places for have met
            Path(spec["place"], spec["key"]).touch()
            while len(list(Path(spec["place"]).iterdir())) < spec["together"]:
                time.sleep(0.02)
            return Outcome("finished", {"value": ray_node._device(True), "pid": os.getpid()})
    return Outcome("finished", value_of(spec))


# -- the same numbers --------------------------------------------------------------------------------------------------

STUDY = {
    "study": "tiny",
    "base": {"preset": "standard", "model": "encoder", "steps": 8, "lr": 3e-3, "max_length": 32, "evaluations": 2},
    "tasks": {"reviews": {"file": "reviews.csv"}},
    "variants": {"standard": {}, "mixout": {"add": [{"method": "mixout", "p": 0.3}]}},
    "seeds": 2,
}


def study(folder, **changes):
    from steadytune.study.folder import prepare
    from tiny_text import reviews, save_encoder, write_csv

    folder.mkdir()
    save_encoder(folder / "encoder", head=True)  # a head that is kept: a note tells of it, by the name of the model
    write_csv(folder / "reviews.csv", reviews(80))
    (folder / "study.yaml").write_text(yaml.safe_dump({**STUDY, **changes}, sort_keys=False))
    return prepare(folder / "study.yaml")


def measured(prepared):
    """Everything that was measured, but for times and memory."""
    from steadytune.study.folder import read_results

    found, notes = {}, set()
    for trial in read_results(prepared.folder).trials:
        predictions = {split: array.tolist() for split, array in trial.predictions.items()}
        what = (trial.status, trial.best, trial.last, trial.losses, trial.grad_norms, trial.versions, predictions)
        found[trial.key] = (*what, [{**point, "seconds": 0} for point in trial.history])
        notes |= set(trial.notes)
    return found, notes


def test_the_same_numbers_with_four_workers_and_with_one_and_without_ray(cluster, tmp_path):
    from steadytune.study.trial import make_run
    from steadytune.study.worker import work

    here = study(tmp_path / "here")
    with Ledger.open(here.ledger, readonly=True) as ledger:
        meta = ledger.meta
    work(here.ledger, make_run(meta, here.folder, "cpu"), worker="here", folder=here.folder / "trials")
    expected, said = measured(here)
    assert [found[0] for found in expected.values()] == ["finished"] * 4
    assert any("encoder" in note for note in said)
    for workers in (4, 1):
        there = study(tmp_path / f"there-{workers}", keep_models=workers == 1)

        def hide(there=there):  # the driver has read them: nodes must not need the files
            shutil.rmtree(there.base / "encoder", ignore_errors=True)
            (there.base / "reviews.csv").unlink(missing_ok=True)

        assert on_ray.run_ray(there, workers=workers, on_tick=hide)
        found, notes = measured(there)
        assert found == expected
        assert {note.partition("and was kept")[2] for note in notes} == {
            note.partition("and was kept")[2] for note in said
        }
        assert not any("steadytune-" in note for note in notes), "a note names the copy of a node"
        kept = sorted(path.parent.name for path in there.folder.glob("models/*/model.safetensors"))
        assert kept == (sorted(expected) if workers == 1 else [])
        assert not (there.folder / "workers").exists()


# -- whatever dies -----------------------------------------------------------------------------------------------------


def test_a_lost_node(cluster, ledger):
    victim = cluster.add_node(num_cpus=2, object_store_memory=STORE)
    name = victim.node_id
    path = ledger(**{f"t{n}": {"do": "node", "node": name} for n in range(12)})
    killed = []

    def kill():
        if not killed and any(row.progress.get("node") == name for row in rows(path).values()):
            cluster.remove_node(victim, allow_graceful=False)
            killed.append(name)

    assert drive(path, stub, on_tick=kill)
    assert killed
    assert values(path) == {f"t{n}": n**2 for n in range(12)}
    attempts = [row.attempts for row in rows(path).values()]
    assert set(attempts) == {1, 2}  # those on the node were run again, and only those
    assert attempts.count(2) <= 2
    assert not any(row.deaths for row in rows(path).values())


def test_trials_that_end_their_process_or_raise(cluster, ledger):
    doings = ("kill", "crash", "exit", "raise", "diverge")
    path = ledger(**{do: {"do": do} for do in doings}, big={"do": "arrays"}, a={}, b={}, c={})
    assert drive(path, stub)
    found = rows(path)
    states = {key: (row.status, row.attempts, row.deaths) for key, row in found.items()}
    assert states == {
        **dict.fromkeys(("kill", "crash"), ("failed", 3, 3)),
        **dict.fromkeys(("exit", "raise"), ("failed", 1, 0)),
        **dict.fromkeys(("big", "a", "b", "c"), ("finished", 1, 0)),
        "diverge": ("diverged", 1, 0),
    }
    assert "ended its worker 3 times" in found["kill"].error
    assert found["kill"].error.count("Its process died") >= 3
    assert found["kill"].error.count("these are my last words") == 3
    assert "Segmentation fault" in found["crash"].error
    assert "Odd: this and that" in found["raise"].error
    assert "Traceback" in found["raise"].error
    assert "SystemExit: 3" in found["exit"].error
    with Ledger.open(path, readonly=True) as made:
        assert made.outcome("big").arrays["test"].sum() == 300_000 * 299_999 // 2


@contextmanager
def driver(path, address):
    """Another process that runs the stubs of a ledger, and prints what came of it."""
    code = (
        "import test_ray as t; from steadytune.study import ray; "
        f"print(ray.run_trials(t.Path({str(path)!r}), t.Cargo(run=t.stub), address={address!r}))"
    )
    where = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    made = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": where}, stdout=subprocess.PIPE, text=True
    )
    try:
        yield made
    finally:
        made.kill()
        made.communicate()


def test_drivers_that_are_killed_or_asked_to_stop(cluster, ledger):
    path = ledger(**{f"t{n}": {"do": "wait", "attempts": 3} for n in range(2)}, last={})
    waiting = ["t0", "t1"]

    def all_wait():
        return all(rows(path)[key].progress for key in waiting)

    with driver(path, cluster.address) as first:
        wait_until(all_wait, first)
        wait_until(lambda: rows(path)["last"].ended, first)
        pids = [rows(path)[key].progress["pid"] for key in waiting]
        first.kill()
    assert [rows(path)[key].status for key in waiting] == ["running"] * 2
    with driver(path, cluster.address) as second:  # it does not wait for leases
        wait_until(lambda: all(rows(path)[key].attempts == 2 for key in waiting) and all_wait(), second)
        second.terminate()
        assert second.communicate(timeout=PATIENCE)[0] == "False\n"
    assert {(rows(path)[key].status, rows(path)[key].attempts) for key in waiting} == {("pending", 2)}
    assert drive(path, stub)
    assert values(path) == {"t0": 0, "t1": 1, "last": 4}
    assert {key: (row.attempts, row.deaths) for key, row in rows(path).items()} == {
        **dict.fromkeys(waiting, (3, 0)),
        "last": (1, 0),
    }
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))  # Ray ended the tasks of the first


def test_a_board_that_dies_and_a_lease_that_is_lost(cluster, ledger, tmp_path):
    path = ledger(one={"do": "count"}, two={"do": "wait", "attempts": 2})
    stop, steps, seen = threading.Event(), ["kill the board", "take the trial away", "stop"], {}
    with Ledger.open(path) as mine, Ledger.open(path) as other, timer(stop):
        machines = ray_cluster.Cluster("0" * 16, mine.meta, Cargo(run=stub), workers=3, per_gpu=None, threads=1)

        def tick():
            one, two = rows(path).values()
            if not one.progress or not (two.progress or two.ended):
                return
            if steps[0] == "kill the board":
                seen.update(count=one.progress["count"], pid=two.progress["pid"])
                ray.kill(machines.board, no_restart=False)
            elif steps[0] == "take the trial away" and one.progress["count"] > seen["count"] + 100:
                assert other.died(two.worker, "", counted=False) == ["two"]
            elif steps[0] == "stop" and two.ended:
                stop.set()
            else:
                return
            steps.pop(0)

        driver = ray_driver.Driver(mine, machines, "ray-test", 8.0, tmp_path, tick)
        assert not driver.run(stop)
        assert not steps
        driver.stop_(PATIENCE)
        machines.forget(driver.nodes)
    one, two = rows(path).values()
    assert (one.status, one.attempts, one.deaths) == ("pending", 1, 0)  # it was stopped, by the new board
    assert (two.status, two.attempts, two.deaths) == ("finished", 2, 0)
    assert not Path(f"/proc/{seen['pid']}").exists()  # it had lost its trial to another
    assert not node_folder("0" * 16).exists()


class _Says:
    """Stands for Ray, where asking for a result raises an error."""

    def __init__(self, error):
        self.error = error

    def get(self, ref):
        raise self.error


def test_a_trial_that_takes_its_node_down_every_time(ledger, monkeypatch, tmp_path):
    pytest.importorskip("ray")
    path = ledger(one={})
    monkeypatch.setattr(ray_driver, "ray", _Says(ray.exceptions.NodeDiedError("no heartbeat")))
    with Ledger.open(path) as mine:
        driver = ray_driver.Driver(mine, None, "ray-test", 60.0, tmp_path, None)
        while claim := mine.claim("w", 60.0):
            driver._record(None, ray_driver.Flight(claim, "w", 0.0))
    one = rows(path)["one"]
    assert (one.status, one.attempts, one.deaths) == ("failed", 12, 3)  # ten attempts, then it counts
    assert "Its node was lost." in one.error
    assert "no heartbeat" in one.error


def test_nodes_that_cannot_run_anything(ledger, monkeypatch, tmp_path):
    pytest.importorskip("ray")
    path = ledger(**{f"t{n}": {} for n in range(5)})
    error = ray.exceptions.RaySystemError("No module named 'steadytune'")
    monkeypatch.setattr(ray_driver, "ray", _Says(error))
    with Ledger.open(path) as mine:
        driver = ray_driver.Driver(mine, None, "ray-test", 60.0, tmp_path, None)
        for _ in range(2):
            driver._record(None, ray_driver.Flight(mine.claim("w", 60.0), "w", 0.0))
        with pytest.raises(SteadytuneError, match="Is this steadytune installed there"):
            driver._record(None, ray_driver.Flight(mine.claim("w", 60.0), "w", 0.0))
    assert {row.status for row in rows(path).values()} == {"pending"}  # the study was not burnt


# -- places ------------------------------------------------------------------------------------------------------------


def test_shares_of_gpus(cluster, ledger, tmp_path, monkeypatch):
    """Two GPUs that are not there: stubs do not use them. Their names are those that the node was given."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    node = cluster.add_node(num_cpus=1, num_gpus=2, object_store_memory=STORE)
    (tmp_path / "met").mkdir()
    spec = {"do": "gpu", "place": str(tmp_path / "met"), "together": 4}
    path = ledger(**{f"t{n}": {**spec, "key": f"t{n}"} for n in range(7)})
    try:
        assert drive(path, stub, per_gpu=2)
    finally:
        cluster.remove_node(node)
    with Ledger.open(path, readonly=True) as made:
        found = [outcome.result for _, outcome in made.outcomes()]
    assert sorted(each["value"] for each in found[:4]) == ["cuda:0", "cuda:0", "cuda:1", "cuda:1"]
    assert len(found) == 7
    assert len({each["pid"] for each in found}) == 4  # a process stays for its next trial


@pytest.mark.parametrize("per_gpu", [1, 2, 3, 6, 7, 9, 11, 13, 64, 3000])
def test_a_gpu_has_room_for_as_many_as_were_asked_for(per_gpu):
    pytest.importorskip("ray")
    units = round(ray_cluster.share(per_gpu) * 10_000)  # as Ray counts
    assert units * per_gpu <= 10_000 < (units + 1) * per_gpu
    assert ray_cluster.places({"GPU": 2.0, "CPU": 1.0}, per_gpu, 1) == 2 * per_gpu
    assert ray_cluster.places({"CPU": 7.0}, per_gpu, 1) == 0
    assert ray_cluster.places({"CPU": 7.0}, 0, 2) == 3


def test_no_place_for_trials(cluster, ledger, monkeypatch, capsys):
    path = ledger(one={}, full={"do": "full"})
    with pytest.raises(SteadytuneError, match="No node of the Ray cluster has 64 CPUs"):
        drive(path, stub, threads=64, patience=0.5)
    assert "Waiting for one" in capsys.readouterr().err
    assert rows(path)["one"].status == "pending"
    with pytest.raises(SteadytuneError, match=r"could not write on node .* Make room there"):
        drive(path, stub, workers=1)
    assert {key: (row.status, row.deaths) for key, row in rows(path).items()} == {
        "one": ("finished", 0),
        "full": ("pending", 0),
    }
    monkeypatch.setattr(ray_cluster, "versions", lambda: {"torch": "1.0.0"})
    with pytest.raises(SteadytuneError, match=r"has torch .* instead of 1.0.0. Install what the driver has"):
        drive(path, stub)
    assert rows(path)["full"].status == "pending"


def test_nobody_answers(tmp_path):
    pytest.importorskip("ray")
    for address, why in (("127.0.0.1:1", "refused"), ("nonsense", "format")):
        with pytest.raises(SteadytuneError, match=f"No connection to Ray at {address}: .*{why}"):
            on_ray._connect(address)


def test_without_ray(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SteadytuneError, match=r"pip install steadytune\[ray\]"):
        on_ray.run_trials(tmp_path / "ledger.sqlite", Cargo())


def test_what_ray_prints_is_not_in_our_output(capsys):
    with on_ray._own_stdout():
        talk = threading.Thread(target=print, args=("a node died",), name="ray_listen_error_messages")
        talk.start()
        talk.join()
        print("ours")
    assert capsys.readouterr() == ("ours\n", "a node died\n")


# -- folders that travel -----------------------------------------------------------------------------------------------


def test_a_folder_arrives_as_it_was(tmp_path):
    made = tmp_path / "made"
    (made / "inner" / ".cache").mkdir(parents=True)
    for name in ("config.json", "inner/vocab.txt", "empty", "model.bin", ".hidden", "inner/.cache/x"):
        (made / name).write_bytes(name.encode() * (name != "empty"))
    files = read_files(made)
    assert set(files) == {"config.json", "inner/vocab.txt", "empty"}  # no pickles, nothing hidden
    write_files(files, tmp_path / "copy")
    write_files(files, tmp_path / "copy")  # another process was quicker
    again = read_files(tmp_path / "copy")
    assert digest(again) == digest(files)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    changed = {**files, "config.json": files["config.json"][::-1].copy()}
    assert digest(changed) != digest(files)
    assert digest({"a": np.frombuffer(b"bc", np.uint8)}) != digest({"ab": np.frombuffer(b"c", np.uint8)})


def test_a_folder_of_others_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place = node_folder("study")
    assert place.parent.stat().st_mode & 0o077 == 0
    place.parent.chmod(0o777)
    with pytest.raises(SteadytuneError, match="can be changed by other users"):
        node_folder("study")


def wait_until(true, process=None):
    until = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < until
        assert process is None or process.poll() is None
        time.sleep(0.05)
