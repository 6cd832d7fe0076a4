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
from pathlib import Path

import numpy as np
import pytest
import yaml

from steadytune.errors import SteadytuneError
from steadytune.study import ray as on_ray
from steadytune.study.folder import prepare, read_results
from steadytune.study.ledger import Ledger
from steadytune.study.outcome import Outcome, Stopped
from steadytune.study.ray_cargo import Cargo, different, digest, node_folder, read_files, write_files
from steadytune.study.trial import make_run
from steadytune.study.worker import work
from tiny_text import reviews, save_encoder, write_csv

try:
    import ray
    from ray.cluster_utils import Cluster
except ImportError:
    ray = None
else:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # nodes cannot import a test file

pytestmark = pytest.mark.ray
STORE = 80 * 2**20
PATIENCE = 120.0  # seconds after which a test that hangs is told to stop


@pytest.fixture(scope="module")
def cluster():
    """A head without room for trials, and two nodes with room for two each."""
    if ray is None:
        pytest.skip("ray is not installed: pip install 'steadytune[ray]'")
    place = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # short: sockets lie there, and their paths are limited
    head = {"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False, "temp_dir": place}
    made = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(2):
            made.add_node(num_cpus=2, object_store_memory=STORE)
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

    return make


def drive(path, cluster, run, **options):
    """Run stubs on the cluster; fails where that takes for ever."""
    stop = options.pop("stop", threading.Event())
    timer = threading.Timer(PATIENCE, stop.set)
    timer.start()
    try:
        address = cluster if isinstance(cluster, str) else cluster.address
        return on_ray.run_trials(path, Cargo(run=run), address=address, stop=stop, **options)
    finally:
        timer.cancel()


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
        case "wait":  # for the stop, or for what an earlier attempt has left
            if not (folder / "checkpoint").exists():
                (folder / "checkpoint").write_text(spec["do"])
                stop.wait()
                raise Stopped
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
    folder.mkdir()
    save_encoder(folder / "encoder", head=True)  # a head that is kept: a note tells of it, by the name of the model
    write_csv(folder / "reviews.csv", reviews(80))
    (folder / "study.yaml").write_text(yaml.safe_dump({**STUDY, **changes}, sort_keys=False))
    return prepare(folder / "study.yaml")


def measured(prepared):
    """Everything that was measured, but for times and memory."""
    found = {}
    for trial in read_results(prepared.folder).trials:
        predictions = {split: array.tolist() for split, array in trial.predictions.items()}
        what = (trial.status, trial.best, trial.last, trial.losses, trial.grad_norms, trial.versions, predictions)
        found[trial.key] = (*what, [{**point, "seconds": 0} for point in trial.history])
    return found


def test_the_same_numbers_with_one_and_four_workers_and_without_ray(cluster, tmp_path):
    here = study(tmp_path / "here")
    with Ledger.open(here.ledger, readonly=True) as ledger:
        meta = ledger.meta
    work(here.ledger, make_run(meta, here.folder, "cpu"), worker="here", folder=here.folder / "trials")
    expected = measured(here)
    assert [found[0] for found in expected.values()] == ["finished"] * 4

    for workers in (1, 4):
        there = study(tmp_path / f"there-{workers}", keep_models=workers == 1)

        def hide(there=there):  # the driver has read them: nodes must not need the files
            shutil.rmtree(there.base / "encoder", ignore_errors=True)
            (there.base / "reviews.csv").unlink(missing_ok=True)

        assert on_ray.run_ray(there, address=cluster.address, workers=workers, on_tick=hide)
        assert measured(there) == expected
        notes = {note for trial in read_results(there.folder).trials for note in trial.notes}
        assert any("encoder" in note for note in notes)
        assert not any("steadytune-" in note for note in notes)
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
        if not killed and any(row.progress.get("node") == name for row in rows(path).values() if row.progress):
            cluster.remove_node(victim, allow_graceful=False)
            killed.append(name)

    assert drive(path, cluster, stub, on_tick=kill)
    assert killed
    assert values(path) == {f"t{n}": n**2 for n in range(12)}
    attempts = [row.attempts for row in rows(path).values()]
    assert set(attempts) == {1, 2}  # those on the node were run again, and only those
    assert attempts.count(2) <= 2
    assert not any(row.deaths for row in rows(path).values())


def test_trials_that_end_their_process_or_raise(cluster, ledger):
    doings = {"kill": "kill", "crash": "crash", "exit": "exit", "raise": "raise", "diverge": "diverge"}
    path = ledger(**{key: {"do": do} for key, do in doings.items()}, big={"do": "arrays"}, a={}, b={}, c={})
    assert drive(path, cluster, stub)
    found = rows(path)
    states = {key: (row.status, row.attempts, row.deaths) for key, row in found.items()}
    well = ("finished", 1, 0)
    assert states == {
        **{key: ("failed", 3, 3) for key in ("kill", "crash")},
        **{key: ("failed", 1, 0) for key in ("exit", "raise")},
        **{"diverge": ("diverged", 1, 0), "big": well, "a": well, "b": well, "c": well},
    }
    assert "ended its worker 3 times" in found["kill"].error
    assert "Its process died" in found["kill"].error
    assert "Segmentation fault" in found["crash"].error
    assert "Odd: this and that" in found["raise"].error
    assert "Traceback" in found["raise"].error
    assert "SystemExit: 3" in found["exit"].error
    with Ledger.open(path, readonly=True) as ledger_:
        assert ledger_.outcome("big").arrays["test"].sum() == 300_000 * 299_999 // 2


def test_a_driver_that_is_killed(cluster, ledger, tmp_path):
    path = ledger(**{f"t{n}": {"do": "wait"} for n in range(3)}, last={})
    code = f"import test_ray as t; t.drive(t.Path({str(path)!r}), {cluster.address!r}, t.stub)"
    where = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parent.parent)])
    driver = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": where})
    try:
        wait_until(lambda: [bool(row.progress) for row in rows(path).values()].count(True) == 3, driver)
        pids = [row.progress["pid"] for row in rows(path).values() if row.progress]
    finally:
        driver.kill()
        driver.wait()
    assert [row.status for row in rows(path).values()] == ["running"] * 3 + ["finished"]
    began = time.monotonic()
    assert drive(path, cluster, stub, lease=1000.0)  # nobody waits for a lease; what was left on the node is taken over
    assert time.monotonic() - began < 100
    assert values(path) == {"t0": 0, "t1": 1, "t2": 4, "last": 9}
    assert {key: (row.attempts, row.deaths) for key, row in rows(path).items()} == {
        **{f"t{n}": (2, 0) for n in range(3)},
        "last": (1, 0),
    }
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))  # Ray has ended its tasks


def test_a_driver_that_is_asked_to_stop(cluster, ledger):
    path = ledger(one={"do": "wait"}, two={})
    code = (
        "import test_ray as t; from steadytune.study import ray; "
        f"print(ray.run_trials(t.Path({str(path)!r}), t.Cargo(run=t.stub), address={cluster.address!r}, workers=1))"
    )
    where = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parent.parent)])
    driver = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": where}, stdout=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: rows(path)["one"].progress, driver)
        driver.terminate()
        said, _ = driver.communicate(timeout=PATIENCE)
    finally:
        driver.kill()
    assert said == "False\n"
    assert {key: (row.status, row.attempts) for key, row in rows(path).items()} == {
        "one": ("pending", 1),
        "two": ("pending", 0),
    }
    assert drive(path, cluster, stub)  # from the checkpoint
    assert values(path) == {"one": 0, "two": 1}
    assert not any(row.deaths for row in rows(path).values())


def test_a_board_that_dies_and_a_lease_that_is_lost(cluster, ledger, monkeypatch):
    from steadytune.study import ray_cluster, ray_driver

    made = []
    monkeypatch.setattr(ray_driver, "Cluster", None)
    build = ray_cluster.Cluster.__init__
    monkeypatch.setattr(
        ray_cluster.Cluster, "__init__", lambda self, *args, **options: (build(self, *args, **options), made.append(self))[0]
    )
    path = ledger(one={"do": "wait"}, two={"do": "wait"})
    state = {"killed": False}

    def tick():
        found = rows(path)
        if not state["killed"] and found["one"].progress:
            ray.kill(made[0].board, no_restart=False)
            with Ledger.open(path) as other:  # as if another driver had it
                assert other.died(found["one"].worker, "", counted=False) == ["one"]
            state["killed"] = True

    assert drive(path, cluster, stub, on_tick=tick, lease=4.0, workers=1)


# -- places ------------------------------------------------------------------------------------------------------------


def test_without_ray(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SteadytuneError, match=r"pip install steadytune\[ray\]"):
        on_ray.run_trials(tmp_path / "ledger.sqlite", Cargo())


def wait_until(true, process=None):
    until = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < until
        assert process is None or process.poll() is None
        time.sleep(0.05)
