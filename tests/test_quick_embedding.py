"""Embeddings whose gradient keeps its place: the numbers of nn.Embedding, and no new memory."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from steadytune.engine import quick_embedding
from steadytune.engine.quick_embedding import QuickEmbedding, quicken_embeddings_, unquicken_embeddings_
from steadytune.engine.train import train
from steadytune.rng import Streams
from tiny_tasks import KINDS, tiny_run


@pytest.fixture(autouse=True)
def small_tables_too(monkeypatch):
    monkeypatch.setattr(quick_embedding, "LEAST", 1)


def two(padding=None):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Embedding(50, 6, padding_idx=padding), nn.Linear(6, 2))
    quick = copy.deepcopy(plain)
    assert quicken_embeddings_(quick) == 1
    return plain, quick


def backward(model, ids, dtype=torch.float32):
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
        model(ids).float().square().sum().backward()
    return model[0].weight.grad


@pytest.mark.parametrize("padding", [None, 0, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_is_that_of_the_plain_layer(padding, dtype):
    plain, quick = two(padding)
    for _ in range(3):  # chunks of one step
        ids = torch.randint(0, 20, (4, 9))  # many twice, padding among them
        expected, found = backward(plain, ids, dtype), backward(quick, ids, dtype)
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(quick[1].weight.grad, plain[1].weight.grad)


def test_its_memory_stays_and_begins_at_zero_in_every_step():
    plain, quick = two()
    first = backward(quick, torch.arange(10)).data_ptr()
    quick[0].weight.grad.fill_(torch.nan)  # what a diverging step may leave
    for model in (plain, quick):
        model.zero_grad(set_to_none=True)
        backward(model, torch.arange(5, 12))
    assert quick[0].weight.grad.data_ptr() == first
    assert torch.allclose(quick[0].weight.grad, plain[0].weight.grad, rtol=1e-5, atol=1e-6)


def test_a_gradient_of_somebody_else_is_added_to():
    plain, quick = two()
    for model in (plain, quick):
        model[0].weight.grad = torch.ones_like(model[0].weight)
        backward(model, torch.arange(5))
    assert torch.allclose(quick[0].weight.grad, plain[0].weight.grad, rtol=1e-5, atol=1e-6)


def test_which_tables_are_taken(monkeypatch):
    tied = nn.ModuleList([nn.Embedding(50, 6), nn.Linear(6, 50, bias=False)])
    tied[1].weight = tied[0].weight
    hooked = nn.Embedding(50, 6)
    hooked.weight.register_hook(lambda grad: grad)
    frozen = nn.Embedding(50, 6).requires_grad_(False)
    for other in (tied, hooked, frozen, nn.Embedding(50, 6, max_norm=1.0), nn.Embedding(50, 6, sparse=True)):
        assert quicken_embeddings_(other) == 0
    monkeypatch.setattr(quick_embedding, "LEAST", 301)
    assert quicken_embeddings_(nn.Embedding(50, 6)) == 0


def test_elsewhere_it_is_the_plain_layer_and_becomes_one_again():
    plain, quick = two()
    ids = torch.arange(10)
    with torch.no_grad():
        assert torch.equal(quick[0](ids), plain[0](ids))
    assert torch.equal(quick.eval()[0](ids), plain[0](ids))
    assert copy.deepcopy(quick)[0].quick_table is None
    assert quick[0].state_dict().keys() == plain[0].state_dict().keys()
    unquicken_embeddings_(quick)
    assert type(quick[0]) is nn.Embedding
    assert not any(name.startswith("quick_") for name in vars(quick[0]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_that_of_plain_layers(kind, tmp_path, monkeypatch):
    recipe, encoded = tiny_run(kind, tmp_path, other=3, evaluations=2, steps=6)
    found, model = train(recipe, encoded, Streams(3, 4, 5))
    assert not any(isinstance(module, QuickEmbedding) for module in model.modules())
    monkeypatch.setattr(quick_embedding, "LEAST", 10**9)
    plain, _ = train(recipe, encoded, Streams(3, 4, 5))
    assert np.allclose(found.losses, plain.losses, rtol=1e-4, atol=1e-5)
