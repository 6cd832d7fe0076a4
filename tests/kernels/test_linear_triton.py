"""The quick linear layer's Triton kernels, through Triton's interpreter; tests/gpu has them on a real device."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is defined
pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="runs on the device itself: tests/gpu")

from steadytune.kernels import linear, linear_triton  # noqa: E402
from steadytune.kernels.linear import BLOCK, CastTable, column_sum, quick_linear  # noqa: E402
from steadytune.kernels.linear_triton import COLUMNS, PROGRAMS, ROWS, column_sum_triton, cut  # noqa: E402

TYPES = [torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    monkeypatch.setattr(linear, "DEVICES", {"cpu"})


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("dtype", TYPES)
def test_casts_have_the_bits_of_torch(dtype, shift):
    sizes = [(1,), (BLOCK - 1,), (BLOCK,), (2, BLOCK + 3), (33, 7)]
    sources = [torch.randn(shift + torch.Size(size).numel())[shift:].view(size) for size in sizes]
    sources[0].fill_(1e-6)  # below float16's normal numbers
    if dtype == torch.bfloat16:  # to which the interpreter cuts off; how a device rounds is seen in tests/gpu
        sources = [source.copy_(source.to(dtype)) for source in sources]
    table = CastTable.of(sources, dtype)
    assert table.aligned == (shift == 0)
    table.memory.fill_(torch.nan)
    table.cast_()
    assert all(torch.equal(low, source.to(dtype)) for low, source in zip(table.lows, sources))
    written = sum(source.numel() for source in sources)
    assert int(table.memory.isnan().sum()) == len(table.memory) - written, "only the casts are written"


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(1, 1), (31, 3), (33, 129), (700, 130), (97, 1000)])
def test_column_sums(shape, dtype, monkeypatch):
    monkeypatch.setattr(linear_triton, "PROGRAMS", 16)
    rows = torch.randn(shape).to(dtype)
    found = column_sum(rows)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), rows.double().sum(0), rtol=1e-6, atol=1e-5)
    assert torch.equal(found, column_sum(rows))


def test_more_parts_than_the_second_launch_holds_at_a_time():
    rows = torch.randn(65 * ROWS + 1, 2).bfloat16()
    parts, _ = cut(*rows.shape)
    assert parts == 66
    torch.testing.assert_close(column_sum_triton(rows).double(), rows.double().sum(0), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("columns", [1, 384, 1024, 4096, 30522, 10**6])
@pytest.mark.parametrize("rows", [1, 32, 33, 4096, 16384, 10**6])
def test_every_row_is_in_one_part(rows, columns):
    parts, each = cut(rows, columns)
    assert each % ROWS == 0
    assert (parts - 1) * each < rows <= parts * each
    assert parts == 1 or parts * -(-columns // COLUMNS) <= PROGRAMS


def test_a_layer_of_kernels_equals_the_layer_of_torch(monkeypatch):
    x, w, b = torch.randn(2, 35, 130), torch.randn(33, 130).bfloat16().float(), torch.zeros(33)
    inputs = [each.requires_grad_() for each in (x, w, b)]
    table = CastTable.of([w, b], torch.bfloat16)
    g, found = torch.randn(2, 35, 33).bfloat16(), []
    for has_triton in (False, True):
        monkeypatch.setattr(linear, "_HAS_TRITON", has_triton)
        table.cast_()
        y = quick_linear(*inputs, *table.lows)
        found.append([y, *torch.autograd.grad(y, inputs, g)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_a_backward_pass_after_the_next_casts_is_refused():
    """Autograd does not see what a kernel writes; it is told."""
    w = torch.randn(3, 5, requires_grad=True)
    table = CastTable.of([w], torch.bfloat16)
    table.cast_()
    y = quick_linear(torch.randn(2, 5, requires_grad=True), w, None, table.lows[0], None)
    table.cast_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
