"""Packed rows on a real device: the kernel against plain torch, packed against padded in float64, CUDA graphs, runs.

All device tests: `python -m pytest -m gpu tests/gpu`.
"""

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from gpu_helpers import captured, poison_memory
from steadytune import Dropout, Mixout, RDrop
from steadytune.engine import packing
from steadytune.engine.packing import Packing, Plan, can_be_packed
from steadytune.engine.train import train
from steadytune.kernels import rows
from steadytune.kernels.rows import move_rows
from steadytune.rng import Streams
from tiny_tasks import tiny_run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
STREAMS = Streams(3, 4, 5)


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """What the allocator hands out next holds NaN."""
    monkeypatch.setattr(packing, "DEVICES", {"cuda"})
    poison_memory()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("count", "columns", "taken"), [(1, 1, 1), (50, 3, 400), (4096, 384, 2560), (999, 1030, 1500)])
def test_rows_have_the_bits_of_plain_torch(count, columns, taken, dtype, monkeypatch):
    x = torch.randn(count, columns + 8, device="cuda").to(dtype)[:, :columns]
    index = torch.randint(-1, count, (taken,), device="cuda")
    found = move_rows(x, index)
    monkeypatch.setattr(rows, "KERNELS", set())
    assert torch.equal(found, move_rows(x, index))


def bert():
    sizes = {"hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 200}
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(vocab_size=300, **sizes, **rates)).cuda().train()


def batch():
    lengths = torch.tensor([3, 37, 11, 20, 5, 5, 30, 8], device="cuda")
    mask = (torch.arange(40, device="cuda") < lengths[:, None]).long()
    labels = torch.arange(8, device="cuda") % 2
    return {"input_ids": torch.randint(0, 300, (8, 40), device="cuda"), "attention_mask": mask, "labels": labels}


def gradients(model, inputs, low=False):
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=low):
        loss = model(**inputs).loss
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


def test_a_model_against_padded_rows():
    model, inputs = bert().double(), batch()
    expected = gradients(model, inputs)
    assert can_be_packed(model, inputs)
    with Packing(model).packs(8, 128):
        found = gradients(model, inputs)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_a_graph_holds_it_and_has_the_numbers_of_the_eager_pass():
    model, inputs = bert(), batch()
    made = Packing(model)

    def work():
        with made.packs(8, 128):
            return gradients(model, inputs, low=True)

    expected = work()
    graph, found = captured(work)  # what waits cannot be recorded
    graph.replay()
    again = [each.clone() for each in found]
    graph.replay()
    for one, other, eager in zip(found, again, expected, strict=True):
        assert torch.isfinite(one).all()
        torch.testing.assert_close(one, eager, rtol=1e-2, atol=1e-4)
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-4)  # attention's backward need not repeat its bits


@pytest.mark.parametrize("methods", [(Dropout(p=0.0),), (Mixout(p=0.5), RDrop())])
def test_a_run_is_that_of_padded_rows(methods, tmp_path, monkeypatch):
    recipe, encoded = tiny_run("classification", tmp_path, methods=methods, steps=8)
    plans, of = [], Plan.of
    monkeypatch.setattr(packing.Plan, "of", lambda mask, tokens: plans.append(tokens) or of(mask, tokens))
    monkeypatch.setattr(packing, "tokens_for", lambda real, rows, width: -(-real // 16) * 16)
    packed, _ = train(recipe, encoded, STREAMS)
    assert plans
    padded, _ = train(recipe, encoded, STREAMS, bucket=False)
    assert np.allclose(packed.losses, padded.losses, rtol=1e-3, atol=1e-4)
