"""Gradients that stay where they are written, against the dense path: in plain torch, and through Triton's interpreter.

tests/gpu/test_kept_gradients_gpu.py has them on a real device.
"""

import os

import pytest
import torch
from torch import nn

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is defined
pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="runs on the device itself: tests/gpu")

from kept_helpers import dense_gradients_  # noqa: E402
from steadytune.kernels import kept_gradients as module  # noqa: E402
from steadytune.kernels.adamw import FusedStep  # noqa: E402
from steadytune.kernels.adamw_tables import BLOCK, Settings, Slot  # noqa: E402
from steadytune.kernels.kept_gradients import Kept, KeptGradient, KeptGradients  # noqa: E402
from steadytune.kernels.mixout_columns import Layer, column_linears, expand_torch  # noqa: E402
from steadytune.kernels.mixout_masks import draw_torch, new_rule  # noqa: E402
from steadytune.rng import new_counter  # noqa: E402

SIZES = [(33, 600), (16, 1024), (140, 32), (1, 1), (3, 5), (BLOCK // 1024 + 1, 1024)]  # out, in


@pytest.fixture(params=["torch", "triton"])
def form(request, monkeypatch):
    monkeypatch.setattr(module, "has_kernels", lambda *_: request.param == "triton")


def mask(columns, p=0.7, key=1):
    return draw_torch(new_counter(key), new_rule(columns, p))


def layers_of(sizes, p=0.7, factor=1 / 0.3):
    made = []
    for number, (out, columns) in enumerate(sizes):
        bias = nn.Parameter(torch.randn(out)) if number != 1 else None
        weight = nn.Parameter(torch.randn(out, columns))
        made.append(Kept(weight, bias, mask(columns, p, number), factor if number % 2 == 0 else 1.0))
    return made


def run(x, layers, kept, chunks, dtype, p=0.7, first=True):
    """Gradients of all layers, that read the same x and lie one after the other in a sum; x in chunks."""
    for number, part in enumerate(x.chunk(chunks)):
        if kept is not None:
            kept.begin_(first and number == 0)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = 0
            for each in layers:
                target = each.weight.detach() + 0.1
                of = None if kept is None else kept.of[each.weight]
                bias = each.bias
                layer = Layer(each.weight, bias, target, each.columns, of)
                (y,) = column_linears(part[:, : each.weight.shape[1]], [layer], p, each.factor, True)
                loss = loss + y.float().square().sum()
        loss.backward()


@pytest.mark.parametrize("p", [0.7, 0.9])
@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_against_the_dense_path(dtype, chunks, p, form):
    """Weights and biases, a layer without bias, two factors; the same bits in one chunk."""
    layers = layers_of(SIZES, p)
    x = torch.randn(12, 1024)
    run(x, layers, None, chunks, dtype, p)
    dense, expected = dense_gradients_(layers)
    kept = KeptGradients(layers)
    for _ in range(2):  # a second step begins anew
        run(x, layers, kept, chunks, dtype, p)
        kept.finish_()
        biases = [each.bias.grad for each in layers if each.bias is not None]
        assert kept.norm(biases).item() == pytest.approx(expected.item(), rel=1e-6)
        for each, (weight, bias) in zip(layers, dense, strict=True):
            assert each.weight.grad is None
            close = {"rtol": 0, "atol": 0} if chunks == 1 else {"rtol": 1e-5, "atol": 1e-4}
            torch.testing.assert_close(kept.of[each.weight].dense(), weight, **close)
            assert (kept.of[each.weight].values[:, each.columns.kept < 0] == 0).all()
            if bias is not None:
                torch.testing.assert_close(each.bias.grad, bias, **close)
        assert all(kept.covers(each) for layer in layers for each in layer[:2] if each is not None)


def test_a_layer_that_no_loss_depends_on_has_no_gradient(form):
    layers = layers_of([(4, 8), (5, 8), (6, 8)])
    kept = KeptGradients(layers)
    run(torch.randn(3, 8), layers[1:], kept, 1, torch.float32)
    kept.finish_()
    assert [kept.of[each.weight].is_written for each in layers] == [False, True, True]
    assert layers[0].bias.grad is None
    assert layers[2].bias.grad is not None


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_layer_that_a_step_leaves_out_does_not_keep_the_gradient_of_the_step_before(chunks, form):
    """Routed experts, say: whichever chunk has it, nothing old counts."""
    layers, x = layers_of([(4, 8), (5, 8), (6, 8)]), torch.randn(6, 8)
    kept = KeptGradients(layers)
    run(x, layers, kept, 1, torch.float32)
    kept.settle_()
    kept.finish_()
    assert kept.of[layers[0].weight].values.any()
    run(x[:3], layers[1:], kept, 1, torch.float32)
    kept.settle_()
    if chunks == 2:
        run(x[3:], layers, kept, 1, torch.float32, first=False)
    kept.finish_()
    alone = KeptGradients(layers)
    if chunks == 2:
        run(x[3:], layers[:1], alone, 1, torch.float32)
    alone.finish_()
    of = layers[0].weight
    torch.testing.assert_close(kept.of[of].values, alone.of[of].values, rtol=1e-5, atol=1e-5)
    rest = [kept.of[each.weight].values * each.factor for each in layers]
    expected = torch.stack([each.norm() for each in rest]).norm()
    assert kept.norm([]).item() == pytest.approx(expected.item(), rel=1e-6)
    assert kept.of[of].is_written


def test_a_mask_that_does_not_fit_gives_nan(form):
    rule = new_rule(64, 0.5)._replace(capacity=8)
    columns = draw_torch(new_counter(1), rule)
    layer = Kept(nn.Parameter(torch.randn(5, 64)), nn.Parameter(torch.randn(5)), columns, 2.0)
    kept = KeptGradients([layer])
    run(torch.randn(4, 64), [layer], kept, 1, torch.float32, 0.5)
    kept.finish_()
    assert layer.bias.grad.isnan().all()
    dense, over = kept.of[layer.weight].dense(), columns.place >= 8
    assert dense[:, over].isnan().all()
    assert torch.isfinite(dense[:, ~over]).all()
    assert (kept.of[layer.weight].values[:, -1] != 0).all()  # of a column, and not of the bias
    assert kept.norm([layer.bias.grad]).isnan()


def slot_pair(out, columns, p=0.7, capacity=None, anchored=False, shift=0):
    """The same step of a weight by its kept gradient, and by the dense one that it stands for."""
    rule = new_rule(columns, p)
    drawn = draw_torch(new_counter(columns), rule._replace(capacity=capacity or rule.capacity))
    if shift:
        moved = torch.empty(columns + shift, dtype=torch.int32)[shift:]
        drawn = drawn._replace(place=moved.copy_(drawn.place))
    kept = KeptGradient(torch.randn(out, len(drawn.kept)), drawn, 1 / (1 - p))
    dense = expand_torch(kept.values, drawn, 1 / (1 - p), True, torch.float32)[0]
    torch.testing.assert_close(kept.dense(), dense, rtol=0, atol=0, equal_nan=True)
    w, m, v = torch.randn(out, columns), torch.randn(out, columns), torch.rand(out, columns)
    anchor = torch.randn(out, columns) if anchored else None
    rate, settings = torch.tensor(0.05, dtype=torch.float64), Settings(0.9, 0.999, 1e-8, True, 0.1, 0.2, 0.0)

    def slot(gradient, of):
        return Slot(w.clone(), gradient, m.clone(), v.clone(), torch.tensor(3.0), anchor, rate, settings, of)

    return slot(kept.values, kept), slot(dense, None)


@pytest.mark.parametrize("factor", [None, torch.tensor(0.37)])
@pytest.mark.parametrize("number", range(len(SIZES) + 3))
def test_a_step_has_the_bits_of_the_step_on_the_dense_gradient(number, factor):
    """Rows that end within a block, blocks that are not full, anchors, a mask that does not fit, unaligned places."""
    more = [((4, 1024, 0.9), {"anchored": True}), ((5, 64, 0.5), {"capacity": 8}), ((4, 1024), {"shift": 1})]
    arguments, options = [*((size, {}) for size in SIZES), *more][number]
    kept, dense = slot_pair(*arguments, **options)
    for _ in range(2):
        FusedStep().step_([kept], factor)
        FusedStep().step_([dense], factor)
    for one, other in zip((kept.w, kept.m, kept.v, kept.t), (dense.w, dense.m, dense.v, dense.t), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    assert kept.w.isnan().any() == ("capacity" in options)


def test_beside_plain_tensors_in_one_step():
    (kept, _), (_, plain) = slot_pair(5, 1024), slot_pair(7, 33)
    values, step = kept.g.clone(), FusedStep()
    tables = step.step_([plain, kept], None, True)
    assert {(each.kind.kept, each.kind.aligned) for each in tables} == {(True, True), (False, True)}
    assert torch.equal(kept.g, values)  # the next backward pass overwrites it
    assert not plain.g.any()
    assert step.step_([plain, kept], None, True) == tables


@pytest.mark.parametrize("columns", [1, 3, 5, 31, 600, 1023, 2047, 4099, 2**16 - 1, 2**20 - 1])
def test_rows_are_found_without_a_division(columns):
    """As the kernel finds them, for all elements that a block can begin with or reach."""
    index = torch.arange(columns + BLOCK)
    for inverse in (torch.tensor(1.0 / columns), torch.nextafter(torch.tensor(1.0 / columns), torch.tensor(0.0))):
        assert torch.equal(((index.float() + 0.5) * inverse).int(), (index // columns).int())
