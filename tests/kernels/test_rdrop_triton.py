"""The Triton kernel of R-Drop's rows, through Triton's interpreter; tests/gpu has it on a real device."""

import math
import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is defined
pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="runs on the device itself: tests/gpu")

from steadytune.kernels.rdrop_rows import Terms, row_losses_torch_  # noqa: E402
from steadytune.kernels.rdrop_triton import row_losses_triton_  # noqa: E402


def terms(classes, smoothing, passes=(1.0, 0.5), dtype=torch.float32):
    """Five positions: one of each kind, and one more that counts in both terms."""
    return Terms(
        labels=torch.randint(0, classes, (5,)),
        labelled=torch.tensor([True, True, False, False, True]),
        compared=torch.tensor([True, False, True, False, True]),
        nu=torch.tensor(0.3, dtype=dtype),
        kappa=torch.tensor(0.7, dtype=dtype),
        passes=passes,
        smoothing=smoothing,
    )


def precise(given):
    return given._replace(nu=given.nu.double(), kappa=given.kappa.double())


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("with_offset", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("classes", [2, 17, 2048, 5003])
def test_kernel_against_float64(classes, dtype, with_offset, smoothing):
    z = (3 * torch.randn(2, 5, classes)).to(dtype)
    given = terms(classes, smoothing)
    offset = torch.randn(classes) if with_offset else None
    exact = z.double()
    losses = row_losses_torch_(exact, precise(given), offset)
    plain, kernel, calm = z.clone(), z.clone(), z.clone()
    for found, grad in (
        (row_losses_torch_(plain, given, offset), plain),
        (row_losses_triton_(kernel, given, offset), kernel),
    ):
        torch.testing.assert_close(found, losses.float())
        torch.testing.assert_close(grad, exact.to(dtype))
        assert (grad[:, 3] == 0).all()  # counts in neither term
    torch.testing.assert_close(row_losses_triton_(calm, given, offset, gradient=False), losses.float())
    assert torch.equal(calm, z)


def test_rows_with_zeros_behind_keep_them():
    buffer = torch.randn(2, 5, 32)
    buffer[..., 19:] = 0.0
    exact, given = buffer[..., :19].double(), terms(19, 0.1)
    losses = row_losses_torch_(exact, precise(given))
    torch.testing.assert_close(row_losses_triton_(buffer[..., :19], given), losses.float())
    torch.testing.assert_close(buffer[..., :19], exact.float())
    assert (buffer[..., 19:] == 0).all()


def test_forbidden_classes_and_passes_that_agree():
    z = torch.randn(1, 5, 40).expand(2, 5, 40).clone()
    z[1] += 1e-3 * torch.randn(5, 40)
    z[..., 39] = -math.inf
    given = terms(39, 0.0)
    exact, kernel = z.double(), z.clone()
    losses = row_losses_torch_(exact, precise(given))
    found = row_losses_triton_(kernel, given)
    torch.testing.assert_close(found[2], losses[2].float(), rtol=1e-3, atol=0.0)  # the divergence alone: near 1e-7
    assert found[2] > 0
    assert torch.isfinite(kernel).all()
    assert (kernel[..., 39] == 0).all()


def test_no_rows():
    none = terms(4, 0.0).part(0, 0)
    assert row_losses_triton_(torch.zeros(2, 0, 4), none).shape == (0,)
