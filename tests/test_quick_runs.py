"""Whole runs through the quick layers, on a CPU in plain torch: near the numbers of plain autocast, and the same bits
however a run is cut and stopped."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from quick_helpers import on_the_cpu
from steadytune import Mixout, RDrop, apply_, remove_
from steadytune.engine.batches import collate
from steadytune.engine.chunk import Chunk
from steadytune.engine.quick import quicken_, unquicken_
from steadytune.engine.quick_linear import quick_layers
from steadytune.engine.quick_norm import quick_norms
from steadytune.engine.train import train
from steadytune.kernels import linear, norm
from steadytune.kernels.handed_on import SharedCast
from steadytune.methods import mixed_layers
from steadytune.methods.mask_pool import MaskPool, column_layers, use_kept_columns_
from steadytune.models import load_model
from steadytune.rng import Streams
from tiny_tasks import KINDS, tiny_run

STREAMS = Streams(3, 4, 5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def quick(monkeypatch):
    """Switch the quick layers on, and say how many products went through them."""
    made = []

    def switch_on():
        for module in (linear, norm):
            on_the_cpu(monkeypatch, module)
        apply = linear._QuickLinears.apply
        monkeypatch.setattr(linear._QuickLinears, "apply", lambda *call: made.append(call[4]) or apply(*call))
        return made

    return switch_on


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_that_of_plain_autocast(kind, folder, quick):
    recipe, encoded = tiny_run(kind, folder, other=3, evaluations=2, steps=6, precision="bf16")
    plain, _ = train(recipe, encoded, STREAMS)
    made = quick()
    found, model = train(recipe, encoded, STREAMS)
    assert len(made) >= 6 * (1 if kind == "language-model" else 4)  # GPT-2 has no nn.Linear but its head
    assert found.losses != plain.losses
    assert np.allclose(found.losses, plain.losses, rtol=0.02, atol=0.02)
    assert not [*quick_layers(model), *quick_norms(model)]


def test_a_norm_hands_its_output_to_the_layer_behind_it(folder, quick, monkeypatch):
    found, get = [], SharedCast.get
    monkeypatch.setattr(SharedCast, "get", lambda *call: found.append(get(*call)) or found[-1])
    recipe, encoded = tiny_run("classification", folder, steps=1, precision="bf16")
    quick()
    train(recipe, encoded, STREAMS, bucket=False)
    blocks = sum(
        "attention.output.LayerNorm.weight" in name for name in load_file(Path(recipe.model, "model.safetensors"))
    )
    taken = sum(low is not None for low in found)
    assert taken == 2 * blocks - 1  # into attention and feed-forward; behind the embeddings comes dropout
    assert len(found) == 4 * blocks + 2  # products; the rest read what no norm has made


def test_a_norm_hands_its_output_to_mixed_layers(folder, quick, monkeypatch):
    """On the device's way: query, key and value together, and the first layer of the feed-forward part; to the second
    its GELU does."""
    monkeypatch.setattr(mixed_layers, "COLUMN_DEVICES", {"cpu"})
    recipe, encoded = tiny_run("classification", folder, precision="bf16")
    batch = collate(encoded.encoder, encoded.splits["train"], np.arange(4), torch.device("cpu"))
    quick()
    found, get, runs = [], SharedCast.get, []
    monkeypatch.setattr(SharedCast, "get", lambda *call: found.append(get(*call)) or found[-1])
    for is_quick in (False, True):
        model, _ = load_model(recipe, encoded.task, 0)
        apply_(model.train(), Mixout(p=0.5, layers="linear"), streams=STREAMS)
        pool = MaskPool(model)
        use_kept_columns_(model, True)
        pool.draw_()
        if is_quick:
            assert quicken_(model, torch.bfloat16) is None  # no plain linear layer is left
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(**batch).loss
        runs.append([loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))])
    blocks = model.config.num_hidden_layers
    assert sum(low is not None for low in found) == 3 * blocks  # no dropout stands behind the embeddings
    for one, other in zip(*runs, strict=True):
        assert (one - other).norm() <= 0.05 * other.norm() + 1e-4
    unquicken_(model)
    assert all(layer.mix_inputs is None for layer in column_layers(model).values())
    remove_(model)
    assert not [name for module in model.modules() for name in vars(module) if name.startswith(("mix", "quick"))]


@pytest.mark.parametrize("methods", [(), (RDrop(),), (Mixout(p=0.5),)])
def test_a_run_in_pieces_has_the_same_bits(methods, folder, quick, tmp_path):
    recipe, encoded = tiny_run("regression", folder, methods=methods, steps=6, precision="bf16", micro_batches=2)
    made = quick()
    whole, model = train(recipe, encoded, STREAMS)
    assert made
    for _ in range(2):
        asked = iter([False, True])
        stopped, _ = train(recipe, encoded, STREAMS, tmp_path, stop=asked.__next__)
        assert stopped.status == "stopped"
    again, other = train(recipe, encoded, STREAMS, tmp_path)
    assert again.losses == whole.losses
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), other.parameters()))


def test_after_memory_ran_out(folder, quick, monkeypatch):
    """Half of a batch has run when the step begins anew: with the casts of these weights, not of others."""
    recipe, encoded = tiny_run("classification", folder, steps=5, precision="bf16")
    made = quick()
    whole, _ = train(recipe, encoded, STREAMS)
    plain, calls = Chunk._loss, []

    def small_memory(self, batch, moment):
        calls.append(moment.step)
        if moment.step == 2 and len(calls) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(self, batch, moment)

    monkeypatch.setattr(Chunk, "_loss", small_memory)
    limited, _ = train(recipe, encoded, STREAMS, bucket=False)
    assert made
    assert len(limited.notes) == 1
    assert np.allclose(limited.losses, whole.losses, rtol=0.02, atol=0.02)


def test_full_precision_has_no_quick_products(folder, quick):
    recipe, encoded = tiny_run("classification", folder, steps=2)
    made = quick()
    train(dataclasses.replace(recipe, precision="fp32"), encoded, STREAMS)
    assert not made
