"""The quick layer norm in plain torch: its formulas by gradcheck, its numbers against torch's in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from steadytune.kernels import norm
from steadytune.kernels.norm import normalise, quick_norm

EPS = 1e-5
LOW = {torch.bfloat16: 2**-8, torch.float16: 2**-11}  # and how far off rounding can be
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}  # of a gradient in these types


@pytest.fixture(autouse=True)
def plain_torch(monkeypatch):
    monkeypatch.setattr(norm, "_HAS_TRITON", False)


def error(found, expected):
    assert torch.isfinite(found).all()
    return float((found.detach().double() - expected).norm() / (expected.norm() + 1e-9))


@pytest.mark.parametrize(("has_gamma", "has_beta"), [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("shape", [(2, 3, 5), (7,), (1, 2)])
def test_formulas_by_gradcheck(shape, has_gamma, has_beta):
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    gamma, beta = (torch.randn(shape[-1], dtype=torch.float64, requires_grad=True) for _ in range(2))
    own = (gamma if has_gamma else None, beta if has_beta else None)
    z, (low, *_) = quick_norm(x, *own, EPS, torch.bfloat16)
    torch.testing.assert_close(z, functional.layer_norm(x, shape[-1:], *own, EPS))
    assert torch.equal(low, z.detach().bfloat16().view(-1, shape[-1]))
    assert torch.autograd.gradcheck(lambda x, *own: quick_norm(x, *own, EPS, torch.bfloat16)[0], (x, *own))


@settings(deadline=None, max_examples=40)
@given(
    leading=st.lists(st.integers(0, 5), max_size=2),
    columns=st.integers(2, 40),
    low=st.sampled_from(list(LOW)),
    fed=st.sampled_from([torch.float32, *LOW]),
    asked=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    offset=st.sampled_from([0.0, 30.0]),
)
def test_numbers_types_and_what_is_asked_for(leading, columns, low, fed, asked, offset):
    x = (offset + torch.randn(*leading, columns)).to(fed)
    inputs = [x, torch.randn(columns), torch.randn(columns)]
    exact = [each.double() for each in inputs]
    for each, twin, is_asked in zip(inputs, exact, asked):
        each.requires_grad_(is_asked)
        twin.requires_grad_(is_asked)
    z, (lower, *_) = quick_norm(*inputs, EPS, low)
    expected = functional.layer_norm(exact[0], [columns], *exact[1:], EPS)
    assert (z.dtype, z.shape, z.requires_grad) == (torch.float32, expected.shape, any(asked))
    assert error(z, expected.detach()) < 2e-4
    assert (lower.dtype, lower.requires_grad) == (low, False)
    assert torch.equal(lower, z.detach().to(low).view(-1, columns))
    if any(asked):
        g = torch.randn(z.shape)
        z.backward(g)
        expected.backward(g.double())
    for each, twin, is_asked in zip(inputs, exact, asked):
        assert (each.grad is not None) == is_asked
        if is_asked:
            assert each.grad.dtype == each.dtype
            near = 10 * TOLERANCE[each.dtype] * (twin.grad.norm() + 1e-2 * leading.count(0))
            assert (each.grad - twin.grad).norm() <= near + 1e-4


def test_an_accurate_variance_far_from_zero():
    x = torch.randn(64, 384) + 1e3
    expected = functional.layer_norm(x.double(), [384])
    z, _ = quick_norm(x, None, None, EPS, torch.bfloat16)
    assert error(z, expected) < 2e-4  # μ has an error of 1e3 * 2^-24 or so; a variance as mean(x²) - μ² would give 0.05


def test_rows_that_do_not_vary_and_rows_that_are_not_finite():
    x = torch.randn(4, 6)
    x[1], x[2, 3] = 5.0, torch.nan
    x.requires_grad_()
    z, _ = quick_norm(x, None, None, EPS, torch.bfloat16)
    assert torch.equal(z[1], torch.zeros(6))
    assert z[2].isnan().all()
    assert z[[0, 1, 3]].isfinite().all()
    (grad,) = torch.autograd.grad(z, x, torch.randn(4, 6))
    assert grad[[0, 1, 3]].isfinite().all()


def test_inputs_and_gradients_that_are_not_contiguous():
    x = torch.randn(5, 6, 4, requires_grad=True)
    gamma = torch.randn(8, requires_grad=True)
    for turned, g in ((x.transpose(0, 2), torch.ones(()).expand(4, 6, 5)), (x.permute(2, 0, 1), torch.randn(4, 5, 6))):
        columns = turned.shape[-1]
        own = gamma[:columns]
        z, _ = quick_norm(turned, own, None, EPS, torch.bfloat16)
        expected = functional.layer_norm(turned, [columns], own, None, EPS)
        torch.testing.assert_close(z, expected)
        for one, other in zip(torch.autograd.grad(z, [x, gamma], g), torch.autograd.grad(expected, [x, gamma], g)):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_what_is_kept_for_the_backward_pass():
    x, gamma = torch.randn(7, 5).bfloat16().requires_grad_(), torch.randn(5, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append((t.shape, t.dtype)) or t, lambda t: t):
        quick_norm(x, gamma, None, EPS, torch.bfloat16)
    assert kept == [((7, 5), torch.bfloat16), ((5,), torch.float32), ((7,), torch.float32), ((7,), torch.float32)]


def test_an_output_may_be_changed_in_place_as_that_of_torch():
    x = torch.randn(3, 4, requires_grad=True)
    z, _ = quick_norm(x, None, None, EPS, torch.bfloat16)
    g = torch.randn(3, 4)
    (grad,) = torch.autograd.grad(z.relu_(), x, g)
    (expected,) = torch.autograd.grad(functional.layer_norm(x, [4]).relu_(), x, g)
    torch.testing.assert_close(grad, expected)


def test_only_the_first_output_leads_back_and_no_second_derivative():
    x = torch.randn(3, 4, requires_grad=True)
    z, (low, *_) = quick_norm(x, None, None, EPS, torch.bfloat16)
    assert low.grad_fn is None
    (grad,) = torch.autograd.grad(z.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_the_same_bits_every_time():
    x, gamma, beta = (torch.randn(shape, requires_grad=True) for shape in ((33, 77), (77,), (77,)))
    g, found = torch.randn(33, 77), []
    for _ in range(2):
        z, (low, *_) = quick_norm(x, gamma, beta, EPS, torch.float16)
        found.append([z, low, *torch.autograd.grad(z, [x, gamma, beta], g)])
    assert all(torch.equal(one, other) for one, other in zip(*found))


def test_nothing_of_autocast_changes_the_numbers():
    x, gamma, beta = torch.randn(4, 6), torch.randn(6), torch.randn(6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = normalise(x, gamma, beta, EPS, torch.bfloat16)
    outside = normalise(x, gamma, beta, EPS, torch.bfloat16)
    assert all(torch.equal(one, other) for one, other in zip(inside, outside))
