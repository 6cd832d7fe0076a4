"""GELU and the kept columns of its output: in plain torch against torch's own, and through Triton's interpreter."""

import os

import pytest
import torch
from torch.nn import functional

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is defined
pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="runs on the device itself: tests/gpu")

from kept_helpers import every_number  # noqa: E402
from steadytune.kernels import activation, activation_triton  # noqa: E402
from steadytune.kernels.activation import gelu, gelu_gradients, gelu_gradients_torch  # noqa: E402
from steadytune.kernels.kept_inputs import columns_of  # noqa: E402


@pytest.fixture(params=["torch", "triton"])
def form(request, monkeypatch):
    monkeypatch.setattr(activation, "has_kernels", lambda *_: request.param == "triton")
    monkeypatch.setattr(activation_triton, "COLUMNS", 16)  # so that small matrices have many tiles
    monkeypatch.setattr(activation_triton, "SLOTS", 8)
    empty, empty_like = torch.empty, torch.empty_like
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(torch.nan))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: empty_like(*a, **k).fill_(torch.nan))


def slots(columns, length, count):
    made = torch.full((length,), -1, dtype=torch.int32)
    made[:count] = torch.randperm(columns)[:count].sort().values
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("shape", "length", "count"), [((1, 1), 8, 1), ((3, 7, 33), 24, 13), ((19, 130), 16, 16)])
def test_numbers_against_float64(shape, length, count, dtype, form):
    h, grad, wanted = torch.randn(shape).to(dtype) * 2, torch.randn(shape).to(dtype), slots(shape[-1], length, count)
    made, (kept,) = gelu_gradients(grad, h, [wanted])
    exact = h.double().requires_grad_()
    a = functional.gelu(exact)
    (expected,) = torch.autograd.grad(a, exact, grad.double())
    bound = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]  # the interpreter cuts off
    assert made.dtype == kept.dtype == dtype
    torch.testing.assert_close(made.double(), expected, atol=bound, rtol=bound)
    columns = columns_of(a.detach().view(-1, shape[-1]), wanted)
    torch.testing.assert_close(kept.double(), columns, atol=bound, rtol=bound)


def test_the_polynomial_is_as_near_as_it_says():
    """a / h is Φ(h): within 1.2e-7, and what float32 rounds when it is multiplied and written."""
    h = torch.cat([torch.linspace(-8, -1e-3, 4000), torch.linspace(1e-3, 8, 4000)])
    wanted = torch.arange(8000, dtype=torch.int32)
    made, kept = activation_triton.gelu_gradients_triton(torch.ones(1, 8000), h.view(1, -1), wanted)
    exact = h.double()
    normal, bell = torch.special.ndtr(exact), (-exact.square() / 2).exp() / (2 * torch.pi) ** 0.5
    assert (kept.flatten() / exact - normal).abs().max() < 1.9e-7
    assert (made.flatten() - normal - exact * bell).abs().max() < 2.5e-7


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_number_of_a_low_type(dtype):
    h, gradient, a = every_number(dtype)
    wanted = torch.arange(256, dtype=torch.int32)
    made, kept = activation_triton.gelu_gradients_triton(torch.ones_like(h), h, wanted)
    bound = {torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]  # the interpreter cuts off
    for found, exact in ((made, gradient), (kept, a)):
        torch.testing.assert_close(found.double(), exact, atol=bound, rtol=bound, equal_nan=True)


def test_without_lists_and_with_several(form):
    h, grad = torch.randn(5, 40), torch.randn(5, 40)
    expected = torch.ops.aten.gelu_backward(grad, h)
    for wanted in ([], [slots(40, 8, 3), slots(40, 16, 9)]):
        made, kept = gelu_gradients(grad, h, wanted)
        assert torch.equal(made, expected)
        for one, other in zip(kept, gelu_gradients_torch(grad, h, wanted)[1], strict=True):
            assert torch.equal(one, other)


def test_the_function_and_what_it_hands_on():
    h = torch.randn(2, 3, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda h: gelu(h)[0], h)
    a, handed = gelu(h)
    assert torch.equal(a, functional.gelu(h))
    assert torch.equal(handed.rows, a.detach().view(6, 8))
    assert not handed.rows.requires_grad
    turned = torch.randn(8, 4, requires_grad=True).t()
    torch.testing.assert_close(gelu(turned)[0], functional.gelu(turned))
    (grad,) = torch.autograd.grad(a.square().sum(), h, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()
