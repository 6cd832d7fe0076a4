"""Quick layer norms on a real device: float64 references, the same bits twice and in CUDA graphs, no waiting.

All device tests: `python -m pytest -m gpu tests/gpu`.
"""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import BertConfig, BertForSequenceClassification

from gpu_helpers import captured, poison_memory, run_without_waiting
from quick_helpers import counted
from steadytune.engine import quick_norm
from steadytune.engine.quick_norm import quicken_norms_
from steadytune.kernels import norm
from steadytune.kernels.handed_on import SharedCast
from steadytune.kernels.norm import WIDEST, Asked, gradients, is_served, normalise

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
EPS = 1e-12
ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 1e-3}  # a relative error of results in these
SHAPES = [  # and the types of x and of the low copy
    ((4096, 384), torch.float32, torch.bfloat16),
    ((4096, 1024), torch.float32, torch.bfloat16),
    ((33, 770), torch.float32, torch.float16),
    ((33, 770), torch.bfloat16, torch.bfloat16),
    ((5, 7, 48), torch.float16, torch.float16),
    ((3001, 20), torch.float32, torch.bfloat16),
    ((1, WIDEST), torch.float32, torch.bfloat16),
]


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    """Switched on; what the allocator hands out next holds NaN; and the calls that went the quick way."""
    monkeypatch.setattr(norm, "DEVICES", {"cuda"})
    assert is_served("cuda"), "Triton is not installed: nothing here would run a kernel"
    poison_memory()
    return counted(monkeypatch, quick_norm, norm.quick_norm)


def autocast(dtype=torch.bfloat16):
    return torch.autocast("cuda", dtype=dtype)


def error(found, expected):
    assert found.shape == expected.shape
    assert torch.isfinite(found).all()
    found, expected = found.detach().double(), expected.detach()
    return float((found - expected).norm() / (expected.norm() + 1e-9))


def tensors(shape, fed=torch.float32):
    """x, γ, β and g."""
    columns, place = shape[-1], {"device": "cuda"}
    x = (torch.randn(shape, **place) * 3 + 1).to(fed)
    return x, torch.randn(columns, **place), torch.randn(columns, **place), torch.randn(shape, **place)


@pytest.mark.parametrize(("shape", "fed", "low"), SHAPES)
def test_a_layer_against_float64(shape, fed, low, calls):
    x, gamma, beta, g = tensors(shape, fed)
    layer, produced = nn.LayerNorm(shape[-1], eps=1e-5, device="cuda"), SharedCast()
    layer.weight.data, layer.bias.data = gamma, beta
    assert quicken_norms_(layer, low, produced) == 1
    inputs = [x.requires_grad_(), layer.weight, layer.bias]
    exact = [each.detach().double().requires_grad_() for each in inputs]
    expected = functional.layer_norm(exact[0], shape[-1:], *exact[1:], 1e-5)
    expected_grads = torch.autograd.grad(expected, exact, g.double())
    found = []
    for _ in range(2):
        with autocast(low):
            z = layer(x)
            lower = produced.get(z, low).rows
        assert z.dtype == torch.float32
        assert torch.equal(lower, z.detach().to(low).view(-1, shape[-1])), "rounded as torch rounds"
        found.append([z, *torch.autograd.grad(z, inputs, g)])
    assert len(calls) == 2
    assert all(torch.equal(one, other) for one, other in zip(*found)), "the same bits every time"
    z, *grads = found[0]
    assert error(z, expected) < 1e-6
    assert [each.dtype for each in grads] == [fed, torch.float32, torch.float32]
    for one, other in zip(grads, expected_grads, strict=True):
        assert error(one, other) < 2 * ROUNDING[one.dtype]


def test_an_accurate_variance_far_from_zero():
    x = torch.randn(512, 384, device="cuda") + 1e3
    expected = functional.layer_norm(x.double(), [384], eps=EPS)
    ours = normalise(x, torch.ones(384, device="cuda"), torch.zeros(384, device="cuda"), EPS, torch.bfloat16).z
    assert error(ours, expected) < 2e-4  # μ has an error of 1e3 * 2^-24 or so


@pytest.mark.parametrize(("asks_x", "asks_sums"), [(True, False), (False, True)])
def test_what_is_not_there_and_what_is_not_asked_for(asks_x, asks_sums):
    x, _, beta, g = tensors((1000, 384))
    made = normalise(x, None, beta, EPS, torch.bfloat16)
    exact, shift = x.double().requires_grad_(), beta.double().requires_grad_()
    ones = torch.ones(384, device="cuda", dtype=torch.float64, requires_grad=True)
    expected = functional.layer_norm(exact, [384], ones, shift, EPS)
    assert error(made.z, expected) < 1e-6
    found = gradients(g.bfloat16(), x, None, made.mean, made.rstd, Asked(asks_x, asks_sums))
    grads = torch.autograd.grad(expected, [exact, ones, shift], g.bfloat16().double())
    assert [each is not None for each in found[:3]] == [asks_x, asks_sums, asks_sums]
    for one, other in zip(found[:3], grads, strict=True):
        assert one is None or error(one, other) < 1e-6


def test_inputs_that_are_not_contiguous_or_not_aligned_and_batches_without_rows():
    gamma = torch.randn(384, device="cuda", requires_grad=True)
    memory = torch.randn(384 * 66 + 1, device="cuda")
    for x in (memory[1:].view(66, 384), memory[:-1].view(384, 66).t(), memory[:-1].view(66, 384)[:0]):
        own = x.detach().requires_grad_()
        z, (low, *_) = norm.quick_norm(own, gamma, None, EPS, torch.bfloat16)
        exact = [own.detach().double().requires_grad_(), gamma.detach().double().requires_grad_()]
        expected = functional.layer_norm(exact[0], [384], exact[1], None, EPS)
        assert error(z, expected) < 1e-6
        assert low.shape == x.shape
        grads = torch.autograd.grad(z, [own, gamma], torch.ones((), device="cuda").expand_as(z))
        for one, other in zip(grads, torch.autograd.grad(expected.sum(), exact)):
            assert (one - other).norm() <= 1e-4 * max(1, len(x)), "of a constant g nothing but rounding leads to x"


def test_rows_of_one_number():
    x, gamma, beta, g = tensors((5000, 1))
    inputs = [each.requires_grad_() for each in (x, gamma, beta)]
    z, _ = norm.quick_norm(*inputs, 1e-5, torch.bfloat16)
    grads = torch.autograd.grad(z, inputs, g)
    assert torch.equal(z, beta.expand_as(x))
    assert (grads[0].abs() <= 1e-5 * (g * gamma).abs() / 1e-5**0.5).all(), "0 but for rounding"
    assert torch.equal(grads[1], torch.zeros_like(gamma))
    assert error(grads[2], g.double().sum(0)) < 1e-5


def test_a_graph_has_the_bits_of_eager_calls_and_nothing_waits():
    x, gamma, beta, g = tensors((4096, 384))
    layer, produced = nn.LayerNorm(384, device="cuda"), SharedCast()
    layer.weight.data, layer.bias.data = gamma, beta
    quicken_norms_(layer, torch.bfloat16, produced)
    x.requires_grad_()

    def step():
        with autocast():
            z = layer(x)
            low = produced.get(z, torch.bfloat16).rows
        return [z.detach(), low, *torch.autograd.grad(z, [x, layer.weight, layer.bias], g)]

    run_without_waiting(step)
    graph, made = captured(step)
    for _ in range(2):
        with torch.no_grad():
            x.normal_()
            g.normal_()
            for each in made:
                each.fill_(torch.nan)
        graph.replay()
        for one, other in zip(made, step(), strict=True):
            assert torch.isfinite(one).all()
            assert torch.equal(one, other)


def bert():
    torch.manual_seed(0)
    sizes = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 200}
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertForSequenceClassification(BertConfig(vocab_size=300, **sizes, **rates)).cuda().train()


def test_a_model_against_float64_beside_plain_autocast_and_its_training(calls):
    model = bert()
    plain, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    assert quicken_norms_(model, torch.bfloat16, SharedCast()) == 5
    ids, labels = torch.randint(0, 300, (8, 37), device="cuda"), torch.arange(8, device="cuda") % 2
    losses = {}
    for name, each in (("quick", model), ("plain", plain), ("exact", exact)):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.05)
        losses[name] = []
        for step in range(6):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=name != "exact"):
                loss = each(input_ids=ids, labels=labels).loss
            loss.backward()
            losses[name].append(loss.detach().double())
            if step == 0:
                first = {key: p.grad.clone() for key, p in each.named_parameters() if p.grad is not None}
                losses[f"{name} gradients"] = first
            optimizer.step()
    assert len(calls) == 6 * 5
    truth = losses["exact gradients"]
    largest = max(each.norm() for each in truth.values())
    telling = [key for key in truth if truth[key].norm() > 1e-4 * largest]  # attention does not feel the keys' bias
    ours, theirs = (
        sum(error(losses[f"{name} gradients"][key], truth[key]) for key in telling) / len(telling)
        for name in ("quick", "plain")
    )
    assert ours < 1.1 * theirs
    assert losses["exact"][-1] < losses["exact"][0]
    torch.testing.assert_close(torch.stack(losses["quick"]), torch.stack(losses["plain"]), atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(torch.stack(losses["quick"]), torch.stack(losses["exact"]), atol=2e-2, rtol=2e-2)
