"""The quick layer norm's Triton kernels, through Triton's interpreter; tests/gpu has them on a real device."""

import os

import pytest
import torch
from torch.nn import functional

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is defined
pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="runs on the device itself: tests/gpu")

from steadytune.kernels import norm, norm_triton  # noqa: E402
from steadytune.kernels.norm import WIDEST, Asked, gradients_torch, normalise_torch, quick_norm  # noqa: E402
from steadytune.kernels.norm_triton import PARTS, cut, gradients_triton, normalise_triton, tile  # noqa: E402

EPS = 1e-5
LOW = {torch.bfloat16: 2**-7, torch.float16: 2**-11}  # the interpreter cuts off what bfloat16 does not hold
SHAPES = [(1, 1), (5, 1), (1, 384), (37, 3), (7, 130), (11, 384), (3, 5, 33), (200,), (2, 1100), (1, WIDEST)]


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    """The kernels run, and what the allocator hands out holds NaN."""
    monkeypatch.setattr(norm, "DEVICES", {"cpu"})
    monkeypatch.setattr(norm_triton, "TILE", 1024)  # so that small matrices have many tiles
    empty, empty_like = torch.empty, torch.empty_like
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(torch.nan))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: empty_like(*a, **k).fill_(torch.nan))


def close(found, expected, bound):
    """By the largest number, as sums are."""
    assert found.shape == expected.shape
    assert torch.isfinite(found).all()
    assert (found.double() - expected.double()).abs().max() <= bound * (expected.abs().max() + 1.0)


@pytest.mark.parametrize("low", list(LOW))
@pytest.mark.parametrize("shape", SHAPES)
def test_forward_and_backward_are_those_of_the_reference(shape, low, monkeypatch):
    monkeypatch.setattr(norm_triton, "PARTS", 2)
    x, gamma, beta, g = torch.randn(shape), torch.randn(shape[-1]), torch.randn(shape[-1]), torch.randn(shape)
    found = normalise_triton(x, gamma, beta, EPS, low)
    exact = normalise_torch(x.double(), gamma.double(), beta.double(), EPS, low)
    assert [each.dtype for each in found] == [torch.float32, low, *[torch.float32] * 3]
    for one, other, bound in zip(found[:4], exact[:4], (1e-5, LOW[low], 1e-6, 1e-5), strict=True):
        close(one, other, bound)
    grads = gradients_triton(g, x, gamma, found.mean, found.rstd, Asked(True, True))
    expected = gradients_torch(g.double(), x.double(), gamma.double(), exact.mean, exact.rstd, Asked(True, True))
    for one, other in zip(grads[:3], expected[:3], strict=True):
        assert one.dtype == torch.float32
        close(one, other, 3e-5)
    again = gradients_triton(g, x, gamma, found.mean, found.rstd, Asked(True, True))
    assert all(torch.equal(one, other) for one, other in zip(grads[:3], again))


@pytest.mark.parametrize("fed", list(LOW))
def test_inputs_and_gradients_in_low_types(fed):
    x, gamma, g = torch.randn(9, 70).to(fed), torch.randn(70), torch.randn(9, 70).to(fed)
    found = normalise_triton(x, gamma, None, EPS, torch.float16)
    exact = normalise_torch(x.double(), gamma.double(), None, EPS, torch.float16)
    assert found.z.dtype == torch.float32
    close(found.z, exact.z, 1e-6)
    grads = gradients_triton(g, x, gamma, found.mean, found.rstd, Asked(True, True))
    expected = gradients_torch(g.double(), x.double(), gamma.double(), exact.mean, exact.rstd, Asked(True, True))
    assert [each.dtype for each in grads[:3]] == [fed, torch.float32, torch.float32]
    for one, other, bound in zip(grads[:3], expected[:3], (LOW[fed], 1e-6, 1e-6), strict=True):
        close(one, other, bound)


@pytest.mark.parametrize("fed", [torch.float32, *LOW])
@pytest.mark.parametrize("shape", [(1, 1), (7, 130), (3, 5, 33), (200,), (2, 1100)])
def test_a_sum_and_two_gradients(shape, fed, monkeypatch):
    """Bit for bit those of two passes; the cast of dx besides."""
    monkeypatch.setattr(norm_triton, "PARTS", 2)
    h, r, gamma, beta = torch.randn(shape).to(fed), torch.randn(shape), torch.randn(shape[-1]), torch.randn(shape[-1])
    found = normalise_triton(h, gamma, beta, EPS, torch.float16, r)
    alone = normalise_triton(h + r, gamma, beta, EPS, torch.float16)
    assert torch.equal(found.x, h + r)
    assert all(torch.equal(one, other) for one, other in zip(found, alone, strict=True))
    g, other, rest = torch.randn(shape), torch.randn(shape).half(), (found.x, gamma, found.mean, found.rstd)
    grads = gradients_triton(g, *rest, Asked(True, True, torch.float16), other)
    expected = gradients_triton(g + other, *rest, Asked(True, True))
    assert all(torch.equal(one, other) for one, other in zip(grads[:3], expected))
    assert torch.equal(grads.low, expected.x.half())
    only = gradients_triton(g, *rest, Asked(False, False, torch.float16), other)
    assert torch.equal(only.low, grads.low)
    assert only.x is only.gamma is None


@pytest.mark.parametrize("asked", [(True, False), (False, True), (False, False)])
@pytest.mark.parametrize("has_gamma", [True, False])
def test_what_is_not_there_and_what_is_not_asked_for(has_gamma, asked):
    x, g = torch.randn(40, 50), torch.randn(40, 50)
    gamma, beta = (torch.randn(50), None) if has_gamma else (None, torch.randn(50))
    found, exact = (
        normalise_triton(x, gamma, beta, EPS, torch.float16),
        normalise_torch(x, gamma, beta, EPS, torch.half),
    )
    torch.testing.assert_close(found.z, exact.z)
    grads = gradients_triton(g, x, gamma, found.mean, found.rstd, Asked(*asked))
    expected = gradients_torch(g, x, gamma, exact.mean, exact.rstd, Asked(*asked))
    assert [each is not None for each in grads[:4]] == [asked[0], asked[1], asked[1], False]
    for one, other in zip(grads[:3], expected):
        if other is not None:
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_an_accurate_variance_far_from_zero():
    x = torch.randn(16, 384) + 1e3
    expected = functional.layer_norm(x.double(), [384])
    ours = normalise_triton(x, None, None, EPS, torch.float16).z
    assert (ours - expected).norm() < 2e-4 * expected.norm()  # μ has an error of 1e3 * 2^-24 or so


@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_a_row_that_is_not_finite_stays_alone():
    x = torch.randn(4, 6)
    x[2, 3] = torch.inf
    found = normalise_triton(x, None, None, EPS, torch.float16)
    grads = gradients_triton(torch.randn(4, 6), x, None, found.mean, found.rstd, Asked(True, True))
    for each in (found.z, grads.x):
        assert each[2].isnan().all()
        assert each[[0, 1, 3]].isfinite().all()
    assert grads.gamma.isnan().all(), "a run that diverges is to be seen"


def test_the_whole_function(monkeypatch):
    x, gamma, beta = (torch.randn(shape, requires_grad=True) for shape in ((3, 7, 18), (18,), (18,)))
    g, found = torch.randn(3, 18, 7).transpose(1, 2), []
    for has_triton in (False, True):
        monkeypatch.setattr(norm, "_HAS_TRITON", has_triton)
        z, (low, *_) = quick_norm(x, gamma, beta, EPS, torch.float16)
        found.append([z, low, *torch.autograd.grad(z, [x, gamma, beta], g)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-3)
    empty = torch.randn(0, 18, requires_grad=True)
    z, (low, *_) = quick_norm(empty, gamma, beta, EPS, torch.float16)
    z.sum().backward()
    assert low.shape == empty.grad.shape == (0, 18)
    assert torch.equal(gamma.grad, torch.zeros(18))


@pytest.mark.parametrize("columns", [1, 7, 384, 770, 1024, 4097, WIDEST])
@pytest.mark.parametrize("rows", [1, 5, 2048, 2049, 4096, 16384, 10**6])
def test_every_row_is_in_one_part(rows, columns):
    high, wide, warps = tile(columns)
    assert wide // 2 < columns <= wide
    assert warps in (1, 2, 4, 8, 16)
    parts, tiles = cut(rows, high)
    assert parts <= PARTS
    assert (parts - 1) * tiles * high < rows <= parts * tiles * high
