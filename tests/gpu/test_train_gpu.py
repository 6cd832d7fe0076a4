"""The engine on a real GPU: precisions, memory, determinism, resuming, the CPU's numbers.

All device tests: `python -m pytest -m gpu tests/gpu`.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from steadytune import Dropout, Mixout, RDrop, Reinit, Streams
from steadytune.engine.chunk import Chunk
from steadytune.engine.encode import encode
from steadytune.engine.train import train
from steadytune.tasks import acceptability
from tiny_tasks import KINDS, save_model, tiny_data, tiny_recipe, tiny_run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
STREAMS = Streams(init=1, order=2, noise=3)
CALM = Dropout(p=0.0)  # the generators of CPU and GPU draw other dropout masks


@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_of_the_cpu(kind, tmp_path):
    recipe, encoded = tiny_run(kind, tmp_path, methods=(CALM,))
    here, there = (train(recipe, encoded, STREAMS, device=device)[0] for device in ("cpu", "cuda"))
    assert there.status == "finished"
    assert there.losses == pytest.approx(here.losses, rel=2e-3)
    assert there.grad_norms == pytest.approx(here.grad_norms, rel=2e-2, abs=1e-4)
    assert 0 < there.peak_memory < 2**30
    assert there.versions["device"] == torch.cuda.get_device_name()


def test_mixout_draws_the_masks_of_the_cpu(tmp_path):
    recipe, encoded = tiny_run("classification", tmp_path, methods=(Mixout(p=0.6), Reinit(layers=1)))
    here, there = (train(recipe, encoded, STREAMS, device=device)[0] for device in ("cpu", "cuda"))
    assert there.losses == pytest.approx(here.losses, rel=2e-3)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("methods", [(CALM,), (Mixout(p=0.5),), (RDrop(),)], ids=["plain", "mixout", "rdrop"])
def test_low_precision_is_near_full_precision(precision, methods, tmp_path):
    recipe, encoded = tiny_run("classification", tmp_path, methods=methods, steps=20)
    full = train(recipe, encoded, STREAMS, device="cuda")[0]
    low = train(replace(recipe, precision=precision), encoded, STREAMS, device="cuda")[0]
    assert low.status == "finished"
    assert all(np.isfinite(low.losses))
    assert low.losses == pytest.approx(full.losses, rel=0.1)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_resumed_bit_for_bit(precision, tmp_path):
    recipe, encoded = tiny_run("classification", tmp_path, methods=(Mixout(p=0.4, replace_dropout=False),))
    recipe = replace(recipe, precision=precision)
    whole, model = train(recipe, encoded, STREAMS, device="cuda", deterministic=True)
    asked = iter([step == 3 for step in range(20)])
    folder = tmp_path / "run"
    stopped = train(recipe, encoded, STREAMS, folder, "cuda", stop=lambda: next(asked), deterministic=True)[0]
    assert (stopped.status, len(stopped.losses)) == ("stopped", 4)
    again, resumed = train(recipe, encoded, STREAMS, folder, "cuda", deterministic=True)
    assert again.losses == whole.losses
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), resumed.state_dict().values()))


@pytest.mark.parametrize("kind", KINDS)
def test_deterministic_runs_are_the_same_bits(kind, tmp_path):
    recipe, encoded = tiny_run(kind, tmp_path)
    one, other = (train(recipe, encoded, STREAMS, device="cuda", deterministic=True) for _ in range(2))
    assert one[0].losses == other[0].losses
    assert all(torch.equal(a, b) for a, b in zip(one[1].state_dict().values(), other[1].state_dict().values()))


def test_out_of_memory_halves_the_batch(tmp_path):
    save_model("classification", tmp_path, hidden_size=256, intermediate_size=1024)
    recipe = tiny_recipe("classification", tmp_path, batch_size=4096, steps=3, evaluations=1, methods=(CALM,))
    encoded = encode(tiny_data("classification", train=4096), recipe)
    roomy = train(recipe, encoded, STREAMS, device="cuda")[0]
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(0.5 * roomy.peak_memory / total)
    try:
        tight = train(recipe, encoded, STREAMS, device="cuda")[0]
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert any("Out of memory at step 1: batches are cut" in note for note in tight.notes)
    assert tight.losses == pytest.approx(roomy.losses, rel=1e-3)
    assert tight.peak_memory < 0.55 * roomy.peak_memory


@pytest.mark.parametrize("methods", [(CALM,), (RDrop(alpha_schedule="linear"),)], ids=["recorded", "update alone"])
def test_out_of_memory_in_mid_run_leaves_recorded_updates_right(methods, tmp_path, monkeypatch):
    recipe, encoded = tiny_run("classification", tmp_path, methods=methods, steps=16, batch_size=8)
    call, calls = Chunk.__call__, []

    def full_once(self, *args):
        calls.append(args)
        if len(calls) == 7:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return call(self, *args)

    plain = train(recipe, encoded, STREAMS, device="cuda", graphs=False)[0]
    monkeypatch.setattr(Chunk, "__call__", full_once)
    found = train(recipe, encoded, STREAMS, device="cuda")[0]
    assert any("Out of memory at step" in note for note in found.notes)
    assert len(set(found.grad_norms)) == 16  # a recording that reads old gradients says the same again and again
    if methods == (CALM,):
        assert found.losses == pytest.approx(plain.losses, rel=1e-3)


def test_a_diverging_run_is_a_result(tmp_path):
    recipe, encoded = tiny_run("classification", tmp_path, lr=1e30, clip=0.0, steps=40)
    result, model = train(recipe, encoded, STREAMS, device="cuda")
    assert (result.status, model) == ("diverged", None)


def test_fit_and_predict_from_the_command_line(tmp_path):
    data = acceptability.write(tmp_path / "data", 120, 40, 40)
    model = str(save_model("classification", tmp_path))
    command = [sys.executable, "-m", "steadytune", "fit", str(data), "--text", "sentence", "--label", "label"]
    command += ["--model", model, "--seeds", "2", "--steps", "6", "--max-length", "24", "--json", "--out"]
    source = str(Path(__file__).parents[2] / "src")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([*command, str(tmp_path / "out")], capture_output=True, text=True, timeout=200, env=env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "finished"
    asked = [sys.executable, "-m", "steadytune", "predict", str(tmp_path / "out"), str(data / "test.csv")]
    predicted = subprocess.run(asked, capture_output=True, text=True, timeout=200, env=env)
    assert predicted.returncode == 0, predicted.stderr
    assert len(predicted.stdout.splitlines()) == 41
