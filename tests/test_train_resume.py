"""A run that was interrupted, wherever and by whatever, ends with the bits of one that was not. For every method."""

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from suite import METHODS, small

from steadytune import CheckpointAverage, Mixout, RDrop, SteadytuneError, Streams
from steadytune.engine.chunk import Chunk
from steadytune.engine.encode import encode
from steadytune.engine.gradients import BatchGradient
from steadytune.engine.train import train
from tiny_tasks import KINDS, tiny_data, tiny_run

STREAMS = Streams(init=11, order=12, noise=13)
PER_EPOCH = 6  # 44 rows in batches of 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


class After:
    """A `stop` that says yes after so many steps of one call."""

    def __init__(self, steps):
        self.left = steps

    def __call__(self):
        self.left -= 1
        return self.left == 0


def record(result):
    """All of a result that must not depend on interruptions."""
    data = result.to_data()
    return {name: value for name, value in data.items() if name not in ("seconds", "peak_memory")}


def assert_same_run(mine, theirs):
    (result_1, model_1), (result_2, model_2) = mine, theirs
    assert record(result_1) == record(result_2)
    a, b = model_1.state_dict(), model_2.state_dict()
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


def in_pieces(recipe, encoded, where, pieces, **options):
    """Stop after each of these numbers of further steps, then run to the end."""
    for steps in pieces:
        result, model = train(recipe, encoded, STREAMS, where, stop=After(steps), **options)
        assert (result.status, model) == ("stopped", None)
        assert result.last is None
    return train(recipe, encoded, STREAMS, where, **options)


@pytest.mark.parametrize("name", METHODS)
def test_stopped_in_mid_epoch_and_at_its_end(name, folder, tmp_path):
    recipe, encoded = tiny_run("regression", folder, methods=(small(name),))  # its metric shows every bit
    per_epoch = 3 if name == "doubled_batch" else PER_EPOCH
    whole = train(recipe, encoded, STREAMS)
    assert whole[0].steps > per_epoch
    assert_same_run(in_pieces(recipe, encoded, tmp_path, (2, per_epoch - 2)), whole)


@pytest.mark.parametrize("name", METHODS)
def test_killed_in_the_middle_of_an_accumulation(name, folder, tmp_path, monkeypatch):
    recipe, encoded = tiny_run("classification", folder, methods=(small(name),), micro_batches=3)
    whole = train(recipe, encoded, STREAMS)
    plain, calls = Chunk._loss, []

    def failing(self, batch, moment):
        calls.append(moment.step)
        if calls.count(4) == 2:  # the second chunk of the fifth step
            raise KeyboardInterrupt
        return plain(self, batch, moment)

    with monkeypatch.context() as patch:
        patch.setattr(Chunk, "_loss", failing)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, encoded, STREAMS, tmp_path, save_every=0.0)
    assert len(calls) >= 4 * 3 + 2
    assert_same_run(train(recipe, encoded, STREAMS, tmp_path), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_task(kind, folder, tmp_path):
    methods = (Mixout(p=0.5, layers="linear"), RDrop())
    recipe, encoded = tiny_run(kind, folder, other=3, evaluations=2, methods=methods, steps=5)
    assert_same_run(in_pieces(recipe, encoded, tmp_path, (2, 2)), train(recipe, encoded, STREAMS))


@pytest.mark.parametrize(
    "changes", [{"precision": "bf16"}, {"precision": "fp16"}, {"clip": 0.0}, {"patience": 1, "steps": 20}]
)
def test_other_settings(changes, folder, tmp_path):
    recipe, encoded = tiny_run("classification", folder, **changes)
    assert_same_run(in_pieces(recipe, encoded, tmp_path, (1, 3)), train(recipe, encoded, STREAMS))


def test_stopped_after_every_single_step(folder, tmp_path):
    recipe, encoded = tiny_run("classification", folder, methods=(Mixout(p=0.7), CheckpointAverage(last=3)), steps=6)
    assert_same_run(in_pieces(recipe, encoded, tmp_path, (1,) * 5), train(recipe, encoded, STREAMS))


def test_after_memory_ran_out(folder, tmp_path, monkeypatch):
    recipe, encoded = tiny_run("classification", folder)
    plain = Chunk._loss

    def small_memory(self, batch, moment):
        if batch["input_ids"].numel() > 60:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(self, batch, moment)

    monkeypatch.setattr(Chunk, "_loss", small_memory)
    whole = train(recipe, encoded, STREAMS)
    assert len(whole[0].notes) == 2  # halved, and halved again
    assert_same_run(in_pieces(recipe, encoded, tmp_path, (4,)), whole)


def test_an_event_stops_too(folder, tmp_path):
    recipe, encoded = tiny_run("classification", folder)
    event = threading.Event()
    result, _ = train(
        recipe, encoded, STREAMS, tmp_path, stop=event, progress=lambda news: event.set() if news.step == 3 else None
    )
    assert (result.status, len(result.losses)) == ("stopped", 4)  # asked after a step, before it is told


def test_a_finished_run_is_returned_as_it_is(folder, tmp_path, monkeypatch):
    recipe, encoded = tiny_run("classification", folder)
    first = train(recipe, encoded, STREAMS, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000009"]
    monkeypatch.setattr(BatchGradient, "__call__", lambda *_: pytest.fail("it trained again"))
    again = train(recipe, encoded, STREAMS, tmp_path)
    assert again[0].seconds == first[0].seconds
    assert_same_run(again, first)


def test_another_run_in_the_folder_is_refused(folder, tmp_path):
    recipe, encoded = tiny_run("classification", folder)
    train(recipe, encoded, STREAMS, tmp_path, stop=After(2))
    with pytest.raises(SteadytuneError, match=r"holds a run with another recipe \(lr 0\.001 instead of 0\.5\)"):
        train(dataclasses.replace(recipe, lr=0.5), encoded, STREAMS, tmp_path)
    with pytest.raises(SteadytuneError, match="holds a run with other streams"):
        train(recipe, encoded, Streams(init=1), tmp_path)
    data = tiny_data("classification")
    other = encode(dataclasses.replace(data, train=data.train.take(np.arange(40))), recipe)
    with pytest.raises(SteadytuneError, match="holds a run with other data"):
        train(recipe, other, STREAMS, tmp_path)


def test_a_damaged_checkpoint_falls_back_to_the_one_before(folder, tmp_path):
    recipe, encoded = tiny_run("classification", folder)
    whole = train(recipe, encoded, STREAMS)
    train(recipe, encoded, STREAMS, tmp_path, stop=After(4), save_every=0.0)
    newest = max(tmp_path.iterdir())
    assert newest.name == "step-000004"
    weights = bytearray((newest / "model.safetensors").read_bytes())
    weights[-5] ^= 1
    (newest / "model.safetensors").write_bytes(weights)
    result, model = train(recipe, encoded, STREAMS, tmp_path)
    assert "model.safetensors" in result.notes[0]
    assert_same_run((dataclasses.replace(result, notes=whole[0].notes), model), whole)


def test_a_resumed_run_on_other_software_says_so(folder, tmp_path, monkeypatch):
    recipe, encoded = tiny_run("classification", folder)
    train(recipe, encoded, STREAMS, tmp_path, stop=After(2))
    monkeypatch.setattr("torch.__version__", "9.9.9")
    result, _ = train(recipe, encoded, STREAMS, tmp_path)
    assert "Resumed at step 2 with torch 9.9.9" in result.notes[0]


CHILD = """
import sys, time
sys.path[:0] = {path!r}
import torch
torch.set_num_threads({threads})
from pathlib import Path
from tiny_tasks import tiny_run
from steadytune import Mixout, Reinit, Streams
from steadytune.engine.train import train
methods = (Reinit(layers=1), Mixout(p=0.7))
recipe, encoded = tiny_run("classification", Path({models!r}), methods=methods, micro_batches=2)
def slowly(news):
    print(news.step, flush=True)
    time.sleep(0.2)
train(recipe, encoded, Streams(11, 12, 13), {folder!r}, save_every=0.0, progress=slowly)
"""


def test_sigkill(folder, tmp_path):
    recipe, encoded = tiny_run(
        "classification", folder, methods=(METHODS["reinit"](layers=1), Mixout(p=0.7)), micro_batches=2
    )
    here = [str(Path(__file__).parent), str(Path(__file__).parent / "contract")]
    names = {"path": here, "threads": torch.get_num_threads(), "models": str(folder), "folder": str(tmp_path / "run")}
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD.format(**names)], stdout=subprocess.PIPE, text=True, env=environment
    )
    guard = threading.Timer(60, child.kill)
    guard.start()
    try:
        steps = []
        for line in child.stdout:
            steps.append(int(line))
            if len(steps) == 4:
                time.sleep(0.21)  # somewhere in the next step or its checkpoint
                child.send_signal(signal.SIGKILL)
                break
    finally:
        child.kill()
        assert child.wait(timeout=10) == -signal.SIGKILL
        child.stdout.close()
        guard.cancel()
    assert steps == [1, 2, 3, 4]
    assert_same_run(train(recipe, encoded, STREAMS, tmp_path / "run"), train(recipe, encoded, STREAMS))
