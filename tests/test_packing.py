"""Blocks that see no padding: what a model says and learns is what it says and learns of padded rows."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from quick_helpers import on_the_cpu
from steadytune import Dropout, Mixout, RDrop
from steadytune.engine import packing
from steadytune.engine.packing import ATTENTION, Packing, Plan, can_be_packed, forget_packing_, tokens_for
from steadytune.engine.quick import quicken_
from steadytune.engine.train import train
from steadytune.kernels import linear, norm
from steadytune.rng import Streams
from tiny import TINY, batch
from tiny_tasks import tiny_run

STREAMS = Streams(3, 4, 5)
PACKED = ["bert", "roberta", "distilbert", "electra"]
PLAIN = ["albert", "deberta-v2", "mpnet", "modernbert", "gpt2", "llama"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


def padded_batch(name, rows=4):
    """Rows of several lengths."""
    made = batch(name)
    ids = made["input_ids"][:rows]
    lengths = torch.arange(2, 2 + len(ids)) % ids.shape[1] + 1
    made = {key: value[:rows] for key, value in made.items()}
    return made | {"attention_mask": (torch.arange(ids.shape[1]) < lengths[:, None]).long()}


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(0, 30))
@settings(deadline=None, max_examples=60)
def test_a_plan_is_a_permutation_of_the_real_tokens_and_some_padding(lengths, more):
    mask = (torch.arange(6) < torch.tensor(lengths)[:, None]).long()
    tokens = min(int(mask.sum()) + more, mask.numel())
    plan = Plan.of(mask, tokens)
    real = mask.view(-1).nonzero()[:, 0]
    assert torch.equal(plan.source[: len(real)], real)
    assert len(plan.source.unique()) == tokens
    x = torch.randn(*mask.shape, 3, 2)
    packed = plan.pack(x)
    assert packed.shape == (1, tokens, 3, 2)
    again = plan.pad(packed)
    there = plan.place.view(mask.shape) >= 0
    assert torch.equal(again[there], x[there])
    assert not again[~there].any()
    assert there[mask.bool()].all()


def test_gradients_of_both_ways():
    plan = Plan.of(torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0]]), 4)
    x = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    y = torch.randn(1, 4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(plan.pack, x)
    assert torch.autograd.gradcheck(plan.pad, y)


def test_how_many_tokens():
    assert tokens_for(2100, 32, 128) == 2560
    assert tokens_for(2560, 32, 128) == 2560
    assert tokens_for(4000, 32, 128) == 0  # nothing to gain
    assert tokens_for(10, 2, 16) == 0
    assert len({tokens_for(real, 32, 128) for real in range(32, 4097)}) <= 8
    for real in range(1, 200):
        assert tokens_for(real, 10, 20) in (0, *range(real, 181))


def results(model, inputs):
    model.zero_grad()
    loss = model(**inputs).loss
    loss.backward()
    return loss.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("name", PACKED)
def test_loss_and_gradients_are_those_of_padded_rows(name):
    torch.manual_seed(0)
    model = TINY[name]().double()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    model.train()
    inputs = padded_batch(name)
    real = int(inputs["attention_mask"].sum())
    expected = results(model, inputs)
    assert can_be_packed(model, inputs)
    assert model.config._attn_implementation == "sdpa"
    packing = Packing(model)
    seen = []
    blocks = [module for module in model.modules() if "packing" in vars(module)]
    blocks[0].register_forward_hook(lambda module, args, output: seen.append(args[0].shape if args else None))
    for tokens in (real, real + 3):
        with packing.packs(4, tokens):
            found = results(model, inputs)
        assert seen[-1] in ((1, tokens, 16), None)
        for one, other in zip([found[0], *found[1]], [expected[0], *expected[1]], strict=True):
            torch.testing.assert_close(one, other)
    with packing.packs(4, real):  # twice over, as R-Drop has it
        doubled = model(**{key: torch.cat([value, value]) for key, value in inputs.items()})
    torch.testing.assert_close(doubled.loss.detach(), expected[0])
    plain = results(model, inputs)
    assert torch.equal(plain[0], expected[0]), "outside of it the model is the plain one"
    forget_packing_(model)
    assert model.config._attn_implementation == "sdpa"
    assert not [module for module in model.modules() if "packing" in vars(module)]


@pytest.mark.parametrize("name", PLAIN)
def test_models_that_stay_padded(name):
    model = TINY[name]().train()
    before = model.config._attn_implementation
    assert not can_be_packed(model, padded_batch(name))
    assert model.config._attn_implementation == before
    assert model.training


def test_a_block_that_mixes_tokens_is_found_out():
    class Mixing(nn.Module):
        def forward(self, x):
            return x + 0.1 * x.roll(1, dims=1)

    model = TINY["bert"]()
    assert can_be_packed(model, padded_batch("bert"))
    model.bert.encoder.layer[1].output.dropout = Mixing()
    assert not can_be_packed(model, padded_batch("bert"))
    assert not can_be_packed(TINY["bert"]().requires_grad_(False).double(), {"attention_mask": torch.ones(1, 2)})


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setattr(packing, "DEVICES", {"cpu"})


NONE = (Dropout(p=0.0),)


@pytest.mark.parametrize("kind", ["classification", "regression"])
@pytest.mark.parametrize("methods", [NONE, (Mixout(p=0.5), RDrop()), (Mixout(p=0.5),)])
def test_a_run_is_that_of_padded_rows(methods, kind, folder, on_cpu, monkeypatch):
    recipe, encoded = tiny_run(kind, folder, methods=methods, steps=5)
    plans, of = [], Plan.of
    monkeypatch.setattr(packing.Plan, "of", lambda mask, tokens: plans.append(tokens) or of(mask, tokens))
    monkeypatch.setattr(packing, "tokens_for", lambda real, rows, width: real + 1 if real < rows * width else 0)
    packed, model = train(recipe, encoded, STREAMS)
    assert len(plans) > 5
    count = len(plans)
    padded, twin = train(recipe, encoded, STREAMS, bucket=False)
    assert len(plans) == count
    assert np.allclose(packed.losses, padded.losses, rtol=1e-4, atol=1e-5)
    for one, other in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-4)
    assert model.config._attn_implementation == "sdpa"


def test_a_run_in_pieces_has_the_same_bits(folder, on_cpu, tmp_path):
    recipe, encoded = tiny_run("classification", folder, steps=6, precision="bf16")
    whole, _ = train(recipe, encoded, STREAMS)
    asked = iter([False, False, True])
    assert train(recipe, encoded, STREAMS, tmp_path, stop=asked.__next__)[0].status == "stopped"
    assert train(recipe, encoded, STREAMS, tmp_path)[0].losses == whole.losses


def test_with_quick_layers(folder, on_cpu, monkeypatch):
    """Everything that a GPU does at once."""
    recipe, encoded = tiny_run("classification", folder, methods=NONE, steps=6, precision="bf16")
    plain, _ = train(recipe, encoded, STREAMS, bucket=False)
    for module in (linear, norm):
        on_the_cpu(monkeypatch, module)
    quick, model = train(recipe, encoded, STREAMS)
    assert np.allclose(quick.losses, plain.losses, rtol=0.02, atol=0.02)
    assert {type(module) for module in model.modules() if isinstance(module, nn.Linear)} == {nn.Linear}


def test_the_name_of_attention_is_no_part_of_a_saved_model(folder, on_cpu, tmp_path):
    recipe, encoded = tiny_run("classification", folder, steps=1)
    _, model = train(recipe, encoded, STREAMS)
    model.save_pretrained(tmp_path)
    assert ATTENTION not in (tmp_path / "config.json").read_text()
    quicken_(model, torch.bfloat16)
