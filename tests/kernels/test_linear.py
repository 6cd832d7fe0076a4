"""The quick linear layer in plain torch: its formulas by gradcheck, its numbers under autocast against float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from steadytune.kernels import linear
from steadytune.kernels.handed_on import Handed
from steadytune.kernels.linear import CastTable, column_sum, quick_linear, quick_linears

LOW = {torch.bfloat16: 2e-2, torch.float16: 2e-3}  # and the tolerance of a relative error


@pytest.fixture(autouse=True)
def plain_torch(monkeypatch):
    monkeypatch.setattr(linear, "_HAS_TRITON", False)


def error(found, expected):
    assert torch.isfinite(found).all()
    return float((found.double() - expected).norm() / (expected.norm() + 1e-9))


def tensors(x_shape, out, dtype=torch.float32):
    x, w, b = torch.randn(x_shape, dtype=dtype), torch.randn(out, x_shape[-1], dtype=dtype), torch.randn(out)
    return [x.requires_grad_(), w.requires_grad_(), b.to(dtype).requires_grad_()]


@pytest.mark.parametrize("has_bias", [True, False])
def test_formulas_by_gradcheck(has_bias):
    x, w, b = tensors((2, 3, 5), 4, torch.float64)
    b = b if has_bias else None

    def run(x, w, *b):
        bias = b[0] if b else None
        return quick_linear(x, w, bias, w.detach(), None if bias is None else bias.detach())

    inputs = (x, w) if b is None else (x, w, b)
    assert torch.equal(run(*inputs), functional.linear(x, w, b))
    assert torch.autograd.gradcheck(run, inputs)


@settings(deadline=None, max_examples=40)
@given(
    leading=st.lists(st.integers(0, 5), max_size=2),
    columns=st.integers(1, 19),
    out=st.integers(1, 19),
    low=st.sampled_from(list(LOW)),
    fed=st.sampled_from([torch.float32, *LOW]),
    asked=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_numbers_types_and_what_is_asked_for(leading, columns, out, low, fed, asked):
    x, w, b = tensors((*leading, columns), out)
    inputs = [x.detach().to(fed), w.detach(), b.detach()]
    exact = [each.double() for each in (inputs[0].to(low), w.detach().to(low), b.detach().to(low))]
    for each, twin, is_asked in zip(inputs, exact, asked):
        each.requires_grad_(is_asked)
        twin.requires_grad_(is_asked)
    y = quick_linear(*inputs, w.detach().to(low), b.detach().to(low))
    expected = functional.linear(*exact)
    assert y.dtype == low
    assert y.shape == expected.shape
    assert y.requires_grad == any(asked)
    assert error(y.detach(), expected.detach()) < LOW[low]
    if any(asked):
        g = torch.randn(y.shape).to(low)
        y.backward(g)
        expected.backward(g.double())
    for each, twin, is_asked in zip(inputs, exact, asked):
        assert (each.grad is not None) == is_asked
        if is_asked:
            assert each.grad.dtype == each.dtype
            assert error(each.grad, twin.grad) < max(LOW[low], LOW.get(fed, 0.0))


def test_what_is_kept_for_the_backward_pass():
    x, w, b = tensors((7, 5), 3)
    low_w, low_b = w.detach().bfloat16(), b.detach().bfloat16()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        quick_linear(x, w, b, low_w, low_b)
        assert [(t.shape, t.dtype) for t in kept] == [((7, 5), torch.bfloat16), ((3, 5), torch.bfloat16)]
        assert kept[1].data_ptr() == low_w.data_ptr()
        kept.clear()
        quick_linear(x.detach(), w.detach(), b, low_w, low_b)
        assert not kept


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("frozen", [(), (0,), (1, 2), (0, 1, 2)])
def test_layers_together_are_the_layers_alone(frozen, biased):
    """Also where one is frozen, and one is not used."""
    x, *_ = tensors((4, 3, 8), 2)
    weights = [torch.randn(out, 8).requires_grad_(n not in frozen) for n, out in enumerate((2, 5, 3))]
    biases = [torch.randn(len(w)).requires_grad_(w.requires_grad) if biased else None for w in weights]
    low_weight = torch.cat(weights).detach().bfloat16()
    low_bias = torch.cat(biases).detach().bfloat16() if biased else None
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        outs = quick_linears(x, weights, biases, low_weight, low_bias)
    assert [each.shape for each in kept] == [(12, 8)] * (len(frozen) < 3) + [(10, 8)]  # one cast of x, one of weights
    low = [None if each is None else each.detach().bfloat16() for each in (*weights, *biases)]
    alone = [quick_linear(x, w, b, low[n], low[3 + n]) for n, (w, b) in enumerate(zip(weights, biases))]
    for one, other in zip(outs, alone, strict=True):
        assert error(one, other.double()) < 1e-2
    g = [torch.randn(out.shape).bfloat16() for out in outs]
    learning = [each for each in (x, *weights, *biases) if each is not None and each.requires_grad]
    for used in ((0, 1, 2), (1,)):
        ours, theirs = (
            torch.autograd.grad([made[n] for n in used], learning, [g[n] for n in used], True, allow_unused=True)
            for made in (outs, alone)
        )
        for one, other in zip(ours, theirs, strict=True):
            other = torch.zeros_like(one) if other is None else other
            assert error(one, other.double()) < 1e-2


def test_a_cast_that_is_known_is_not_made_again():
    x, w, b = tensors((4, 3, 5), 2)
    known = torch.full((4, 3, 5), 2.0, dtype=torch.bfloat16)  # not x's: to see whose is read
    low = [w.detach().bfloat16(), b.detach().bfloat16()]
    assert torch.equal(quick_linear(x, w, b, *low, Handed(known)), quick_linear(known.float(), w, b, *low))


@pytest.mark.parametrize("dtype", list(LOW))
def test_a_table_of_casts(dtype):
    sources = [torch.randn(5, 3), torch.randn(1), torch.randn(4097), torch.randn(64, 64)]
    table = CastTable.of(sources, dtype)
    before = table.memory._version
    for _ in range(2):
        for source in sources:
            source.normal_()
        table.memory.fill_(torch.nan)
        table.cast_()
        assert all(torch.equal(low, source.to(dtype)) for low, source in zip(table.lows, sources))
        assert all(low.data_ptr() % 16 == 0 for low in table.lows)
    assert table.lows[0]._version > before
    assert table.table[:, 3].tolist() == [0, 1, 2, 4]
    assert table.owners.tolist() == [0, 1, 2, 2, 3]


def test_casts_one_behind_the_other():
    sources = [torch.randn(3, 8), torch.randn(5, 8), torch.randn(2, 8), torch.randn(7), torch.randn(3)]
    table = CastTable.of(sources, torch.bfloat16, following={1, 2})
    table.cast_()
    assert torch.equal(table.joined(0, 3), torch.cat(sources[:3]).bfloat16())
    assert torch.equal(table.joined(3, 1), sources[3].bfloat16())
    assert all(low.data_ptr() % 16 == 0 for low in table.lows)
    with pytest.raises(AssertionError, match="gaps"):
        table.joined(3, 2)


def test_a_backward_pass_after_the_next_casts_is_refused():
    x, w, b = tensors((7, 5), 3)
    table = CastTable.of([w, b], torch.bfloat16)
    table.cast_()
    y = quick_linear(x, w, b, *table.lows)
    table.cast_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_sums_are_not_rounded_on_the_way():
    rows = torch.rand(4096, 3).bfloat16()
    found = column_sum(rows)
    assert found.dtype == torch.float32
    assert error(found, rows.double().sum(0)) < 1e-6
    assert torch.equal(column_sum(rows[:0]), torch.zeros(3))
