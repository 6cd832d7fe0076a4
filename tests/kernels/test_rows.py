"""Rows that move, through Triton's interpreter and in plain torch: gaps are zeros, the gradient is the way back."""

import pytest
import torch

from steadytune.kernels import rows
from steadytune.kernels.rows import move_rows, take_rows


@pytest.fixture(params=["plain", "kernel"])
def way(request, monkeypatch):
    if request.param == "kernel":
        pytest.importorskip("triton")
        monkeypatch.setattr(rows, "KERNELS", {"cpu"})
    return request.param


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("count", "columns", "taken"), [(1, 1, 1), (5, 3, 40), (37, 130, 16), (9, 128, 17)])
def test_rows_and_gaps(way, count, columns, taken, dtype):
    wide = torch.randn(count, columns + 5).to(dtype)
    index = torch.randint(-1, count, (taken,))
    for x in (wide[:, :columns], wide[:, :columns].contiguous(), wide[:, :columns].t().contiguous().t()):
        found = move_rows(x, index)
        assert found.shape == (taken, columns)
        for m, n in enumerate(index.tolist()):
            assert torch.equal(found[m], x[n] if n >= 0 else torch.zeros(columns, dtype=dtype))


def test_nothing_to_move(way):
    assert move_rows(torch.randn(3, 4), torch.zeros(0, dtype=torch.int64)).shape == (0, 4)
    assert not move_rows(torch.randn(0, 4), torch.full((2,), -1)).any()


def test_the_gradient_is_the_way_back(way):
    x = torch.randn(6, 7, requires_grad=True)
    index, back = torch.tensor([4, -1, 0, 2]), torch.tensor([2, -1, 3, -1, 0, -1])
    g = torch.randn(4, 7)
    take_rows(x, index, back).backward(g)
    expected = torch.zeros(6, 7).index_copy(0, torch.tensor([4, 0, 2]), g[[0, 2, 3]])
    assert torch.equal(x.grad, expected)
    (grad,) = torch.autograd.grad(take_rows(x, index, back).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()
