"""Mixout's Triton kernels, through Triton's interpreter; tests/gpu has them on a real device."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is defined
pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="runs on the device itself: tests/gpu")

from steadytune.kernels import mixout_columns, mixout_masks, mixout_table, products  # noqa: E402
from steadytune.kernels import mixout_masks_triton as masks_triton  # noqa: E402
from steadytune.kernels import mixout_triton as kernels  # noqa: E402
from steadytune.kernels.mixout_columns import (  # noqa: E402
    Layer,
    column_linear,
    column_linears,
    expand_torch,
    mix_torch_,
    take_torch,
)
from steadytune.kernels.mixout_masks import draw_torch, new_rule, new_table  # noqa: E402
from steadytune.rng import new_counter  # noqa: E402

TYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(1, 1, 1), (7, 5, 3), (33, 600, 17), (2, 1030, 9)]  # out, in, positions


@pytest.mark.parametrize(("p", "rank"), [(0.7, 0), (0.9, 63), (1e-11, 1)])
@pytest.mark.parametrize("columns", [1, 5, 1024, 1025, 5000])
def test_draw(columns, p, rank):
    state, rule = new_counter(0xFEDCBA9876543210 + columns), new_rule(columns, p, rank << 26)
    state[2] = 2**33 + 7
    expected = draw_torch(state, rule)
    same, used = state.clone(), torch.full_like(state, -1)
    for found in (masks_triton.draw_triton_(same, rule, None), masks_triton.draw_triton_(same, rule, used)):
        assert torch.equal(found.place, expected.place)
        assert torch.equal(found.kept, expected.kept)
    assert torch.equal(used, state)
    assert int(same[2]) == 2**33 + 8


def test_a_draw_longer_than_its_list_writes_nothing_behind_it():
    rule = new_rule(300, 0.5)._replace(capacity=20)
    found, expected = masks_triton.draw_triton_(new_counter(3), rule, None), draw_torch(new_counter(3), rule)
    assert torch.equal(found.place, expected.place)
    assert torch.equal(found.kept, expected.kept)
    assert len(found.kept) == 20


def test_draw_all_and_overflows():
    rules = [new_rule(5, 0.7), new_rule(1500, 0.7)._replace(capacity=450), new_rule(64, 0.9), new_rule(65, 0.3)]
    table = new_table(rules, torch.device("cpu"))
    states = torch.stack([new_counter(key * 77_777_777_777) for key in range(4)])
    states[:, 2] = torch.tensor([3, 4, 5, 6])
    places, kept, after = [], [], []
    for form in (mixout_masks.draw_all_, lambda s, t, a, b: masks_triton.draw_all_triton_(s, t.rows, a, b, t.widest)):
        now = states.clone()
        places.append(torch.full((sum(rule.columns for rule in rules),), -9, dtype=torch.int32))
        kept.append(torch.full((sum(rule.capacity for rule in rules),), -9, dtype=torch.int32))
        form(now, table, places[-1], kept[-1])
        after.append(now)
    assert torch.equal(*places)
    assert torch.equal(*kept)
    assert torch.equal(*after)
    found = masks_triton.overflows_triton(states, table.rows, table.widest, 20, 3)
    assert torch.equal(found, mixout_masks.overflows_torch(states, table, 20, 3))
    assert 0 < found.sum() < 20


@pytest.mark.parametrize("low", TYPES)
@pytest.mark.parametrize("given", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_passes(shape, given, low):
    (out, columns, positions), p = shape, 0.7
    drawn = draw_torch(new_counter(columns), new_rule(columns, p))
    place, kept = drawn
    w, u, b, x = (torch.randn(*size).to(given) for size in ((out, columns),) * 2 + ((out,), (positions, columns)))
    made = []
    for form in (kernels.mix_triton_, mix_torch_):
        made.append((torch.full((out, columns), torch.nan, dtype=low), torch.full((out,), torch.nan, dtype=low)))
        form(*made[-1], w, u, place, b, p)
    torch.testing.assert_close(*made)
    lists = torch.stack([kept, kept.flip(0), draw_torch(new_counter(5), new_rule(columns, p)).kept])
    for some in (lists, lists[:1]):
        cast, taken = kernels.take_triton(x, some, low)
        expected = take_torch(x, list(some), low)
        torch.testing.assert_close((cast, list(taken)), expected)
    for kept_only, width in ((True, len(kept)), (False, columns)):
        for size in ((out, width), (3, out, width)):
            arguments = (torch.randn(*size).to(low), drawn, 1 / (1 - p), kept_only, given, given if kept_only else None)
            found = kernels.expand_triton(*arguments)
            torch.testing.assert_close(found, expand_torch(*arguments))
            assert (found[0][:, place < 0] == 0).all()


@pytest.mark.parametrize("low", TYPES)
@pytest.mark.parametrize("aligned", [False, True])
def test_all_weights_in_one_launch(aligned, low, monkeypatch):
    sizes = [(16, 32), (48, 32), (40, 1040)] if aligned else [(3, 5), (7, 5), (33, 600)]
    layers = []
    for number, (out, columns) in enumerate(sizes):
        w, u = torch.randn(2, out, columns)
        bias = None if number == 2 else torch.randn(out)
        layers.append(Layer(w, bias, u, draw_torch(new_counter(number), new_rule(columns, 0.7))))
    tables = []
    for is_there in (False, True):
        monkeypatch.setattr(mixout_table, "has_kernels", lambda *_, is_there=is_there: is_there)
        tables.append(mixout_table.MixTable([layers[:2], layers[2:]], 0.7, low))
        tables[-1].mix_()
    plain, kernel = tables
    assert kernel.aligned == aligned
    torch.testing.assert_close(plain.memory, kernel.memory)
    assert [made.weight.shape for made in kernel.together] == [
        (sizes[0][0] + sizes[1][0], sizes[0][1]),
        sizes[2],
    ]
    for layer, made in zip(layers, [*kernel.alone[0], *kernel.alone[1]], strict=True):
        place = layer.columns.place
        exact = torch.lerp(layer.target.double(), layer.weight.double(), (place >= 0).double() / 0.3)
        torch.testing.assert_close(made.weight, exact.to(low))
        assert (made.bias is None) == (layer.bias is None)
        if layer.bias is not None:
            torch.testing.assert_close(made.bias, layer.bias.to(low))  # the interpreter does not round to bfloat16
        assert made.is_of([layer], low)


def test_a_mask_that_does_not_fit_is_never_cut():
    columns = draw_torch(new_counter(1), new_rule(64, 0.5)._replace(capacity=8))
    found, bias = kernels.expand_triton(torch.ones(3, 8), columns, 2.0, True, torch.float32, torch.float32)
    assert found[:, columns.place >= 8].isnan().all()
    assert torch.isfinite(found[:, columns.place < 8]).all()
    assert bias.isnan().all()


@pytest.mark.parametrize("kept_only", [False, True])
def test_layers_that_read_the_same_tensor(kept_only, monkeypatch):
    x = torch.randn(2, 5, 130, requires_grad=True)
    parameters = [torch.randn(*size, requires_grad=True) for size in ((33, 130), (7, 130), (33,), (7,))]
    masks = [draw_torch(new_counter(key), new_rule(130, 0.7)) for key in range(2)]
    layers = [Layer(w, b, w.detach() + 1, mask) for w, b, mask in zip(parameters[:2], parameters[2:], masks)]
    found = []
    for is_there in (False, True):
        monkeypatch.setattr(mixout_columns, "has_kernels", lambda *_, is_there=is_there: is_there)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outs = column_linears(x, layers, 0.7, 1 / 0.3, kept_only)
        loss = sum(out.float().square().sum() for out in outs)
        found.append([*outs, *torch.autograd.grad(loss, [x, *parameters])])
    for one, other in zip(*found, strict=True):
        assert one.dtype == other.dtype
        assert torch.isfinite(other).all()
        assert (one.double() - other.double()).norm() < 0.06 * one.double().norm()  # the interpreter cuts bfloat16 off


@pytest.mark.parametrize("kept_only", [False, True])
@pytest.mark.parametrize("split", [0, 16])
@pytest.mark.parametrize("remade", [False, True])
def test_a_layer_of_kernels_equals_the_layer_of_torch(remade, split, kept_only, monkeypatch):
    monkeypatch.setattr(products, "SPLIT_TILES", split)
    monkeypatch.setattr(products, "SPLIT_TOKENS", 1)
    monkeypatch.setattr(mixout_columns, "REMAKE_ROWS", 0 if remade else 10**9)
    x, w, b, u = torch.randn(2, 5, 130), torch.randn(33, 130), torch.randn(33), torch.randn(33, 130)
    tensors = [each.requires_grad_() for each in (x, w, b)]
    columns = draw_torch(new_counter(4), new_rule(130, 0.7))
    found = []
    for is_there in (False, True):
        monkeypatch.setattr(mixout_columns, "has_kernels", lambda *_, is_there=is_there: is_there)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = column_linear(*tensors, u, columns, 0.7, 1 / 0.3, kept_only)
        found.append([out, *torch.autograd.grad(out.float().square().sum(), tensors)])
    for one, other in zip(*found, strict=True):
        assert one.dtype == other.dtype
        assert torch.isfinite(other).all()
        assert (one.double() - other.double()).norm() < 0.06 * one.double().norm()  # the interpreter cuts bfloat16 off
