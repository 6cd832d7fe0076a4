"""Sums and kept columns that norms and GELUs make in their own passes, on a real device.

All device tests: `python -m pytest -m gpu tests/gpu`.
"""

from importlib.util import find_spec

import pytest
import torch
from torch.nn import functional

from gpu_helpers import captured, poison_memory, run_without_waiting
from kept_helpers import every_number
from steadytune import Mixout, Streams
from steadytune.engine.train import train
from steadytune.kernels.activation import gelu_gradients
from steadytune.kernels.handed_on import SharedCast
from steadytune.kernels.kept_gradients import KeptGradient
from steadytune.kernels.kept_inputs import Source, columns_of
from steadytune.kernels.mixout_masks import draw, new_rule
from steadytune.kernels.norm import Asked, gradients, gradients_torch, normalise
from steadytune.kernels.products import weight_products_
from steadytune.rng import new_counter
from tiny_tasks import tiny_run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
    pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed"),
]
LOW = {torch.bfloat16: 1e-2, torch.float16: 1e-3}
SHAPES = [(4096, 384), (4096, 1024), (2048, 4096), (33, 770), (3001, 20), (1, 64)]


def rows(*shape):
    return torch.randn(shape, device="cuda")


def slots(columns, count, p=0.7):
    return [draw(new_counter(key).cuda(), new_rule(columns, p)).kept for key in range(count)]


def error(found, exact):
    assert torch.isfinite(found).all()
    return float((found.double() - exact).norm() / (exact.norm() + 1e-9))


@pytest.mark.parametrize("low", list(LOW))
@pytest.mark.parametrize("shape", SHAPES)
def test_a_sum_and_two_gradients(shape, low):
    h, r, g, other = rows(*shape).to(low), rows(*shape), rows(*shape), rows(*shape)
    gamma, beta = rows(shape[1]), rows(shape[1])
    poison_memory()
    made = normalise(h, gamma, beta, 1e-5, low, r)
    alone = normalise(h + r, gamma, beta, 1e-5, low)
    assert torch.equal(made.x, h + r)
    poison_memory()
    found = gradients(g, made.x, gamma, made.mean, made.rstd, Asked(True, True, low), other)
    apart = gradients(g + other, made.x, gamma, made.mean, made.rstd, Asked(True, True))
    for one, two in zip((*made, *found[:3]), (*alone, *apart[:3]), strict=True):
        if shape[0] > 1:  # a single row is compiled in another way
            assert torch.equal(one, two)
        torch.testing.assert_close(one, two)
    assert torch.equal(found.low, found.x.to(low))
    exact = [each.double() for each in (g, h.double() + r, gamma)]
    mean, variance = exact[1].mean(-1), exact[1].var(-1, correction=0)
    expected = gradients_torch(*exact, mean, (variance + 1e-5).rsqrt(), Asked(True, True), other.double())
    for one, two in zip(found[:3], expected):
        assert error(one, two) < 2e-5


@pytest.mark.parametrize("low", [torch.float32, *LOW])
@pytest.mark.parametrize("shape", SHAPES)
def test_gelu(shape, low):
    h, grad, wanted = rows(*shape).to(low) * 2, rows(*shape).to(low), slots(shape[1], 1)
    poison_memory()
    made, (kept,) = gelu_gradients(grad, h, wanted)
    exact = h.double().requires_grad_()
    (expected,) = torch.autograd.grad(functional.gelu(exact), exact, grad.double())
    bound = LOW.get(low, 1e-5)
    assert made.dtype == kept.dtype == low
    assert error(made, expected) < bound
    rounded = functional.gelu(h.double())
    assert error(kept, columns_of(rounded, wanted[0])) < bound
    assert error(functional.gelu(h)[:, wanted[0][:1].long()], rounded[:, wanted[0][:1].long()]) < bound


@pytest.mark.parametrize("low", list(LOW))
def test_gelu_of_every_number(low):
    h, gradient, a = every_number(low, "cuda")
    made, (kept,) = gelu_gradients(torch.ones_like(h), h, [torch.arange(256, dtype=torch.int32, device="cuda")])
    for found, exact in ((made, gradient), (kept, a)):
        torch.testing.assert_close(found.double(), exact, atol=LOW[low], rtol=LOW[low], equal_nan=True)


@pytest.mark.parametrize(("tokens", "columns"), [(512, 384), (4096, 192), (16384, 192), (16384, 384)])
def test_products_of_query_key_and_value(tokens, columns):
    """One batched product, or three: against float64, into places that hold NaN."""
    dy, x = rows(tokens, 3 * 256).bfloat16(), rows(3, tokens, columns).bfloat16()
    memory = torch.full((3, 256, columns), torch.nan, device="cuda")
    kept = [KeptGradient(values, None, 1.0) for values in memory]
    weight_products_(kept, dy, list(x))
    assert all(each.is_written for each in kept)
    for values, own, taken in zip(memory, dy.split(256, 1), x, strict=True):
        assert error(values, own.double().t() @ taken.double()) < 1e-4  # 16,384 summands; a low type has 2e-3


def test_a_graph_has_the_bits_of_eager_calls_and_nothing_waits():
    h, grad, wanted = rows(512, 4096).bfloat16(), rows(512, 4096).bfloat16(), slots(4096, 1)

    def step():
        made, (kept,) = gelu_gradients(grad, h, wanted)
        return made, kept

    run_without_waiting(step)
    graph, made = captured(step)
    h.normal_()
    for each in made:
        each.fill_(torch.nan)
    graph.replay()
    assert all(torch.equal(one, two) for one, two in zip(made, step(), strict=True))


@pytest.mark.parametrize("graphs", [True, False])
def test_runs_whose_columns_are_made_again(graphs, tmp_path, monkeypatch):
    """Near those whose columns are taken in the forward pass: a GELU's kept columns may differ in their last bit."""
    methods = (Mixout(p=0.5, layers="linear"),)
    recipe, encoded = tiny_run("classification", tmp_path, methods=methods, steps=12, precision="bf16")
    want, wanted = Source.want_, []
    monkeypatch.setattr(Source, "want_", lambda self, those: wanted.append(len(those)) or want(self, those))
    options = {"device": "cuda", "graphs": graphs}
    streams = Streams(init=1, order=2, noise=3)
    again = train(recipe, encoded, streams, **options)
    assert set(wanted) == {1}
    get = SharedCast.get

    def without_source(self, *rest):
        handed = get(self, *rest)
        return handed._replace(source=None) if handed is not None else None

    monkeypatch.setattr(SharedCast, "get", without_source)
    wanted.clear()
    taken = train(recipe, encoded, streams, **options)
    assert not wanted
    assert again[0].losses == pytest.approx(taken[0].losses, rel=2e-2)
    assert again[0].grad_norms == pytest.approx(taken[0].grad_norms, rel=5e-2)
