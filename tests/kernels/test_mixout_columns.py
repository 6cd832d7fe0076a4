"""The linear layer of fixed shapes in plain torch, against autograd through the dense form in float64."""

import pytest
import torch
from torch.nn import functional

from steadytune.kernels import mixout_columns, products
from steadytune.kernels.handed_on import Handed
from steadytune.kernels.kept_gradients import KeptGradient
from steadytune.kernels.mixout import mask_of, mixed_linear
from steadytune.kernels.mixout_columns import Layer, column_linear, column_linears
from steadytune.kernels.mixout_masks import draw, new_rule
from steadytune.kernels.products import joined
from steadytune.rng import new_counter

SHAPES = [(3, 5, 7), (1, 1, 1), (4, 130, 33), (2, 16, 24)]  # positions, in, out
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def inputs(positions, columns, rows, dtype=torch.float32):
    x, w, b = torch.randn(2, positions, columns), torch.randn(rows, columns), torch.randn(rows)
    return [each.to(dtype).requires_grad_() for each in (x, w, b)], torch.randn(rows, columns).to(dtype)


def dense(tensors, target, place, p, g):
    """Output and gradients by autograd in float64."""
    x, w, b = (each.detach().double().requires_grad_() for each in tensors)
    out = functional.linear(x, torch.lerp(target.double(), w, (place >= 0).double() / (1 - p)), b)
    return out.detach(), torch.autograd.grad(out, (x, w, b), g.double())


def error(found, expected):
    return float((found.detach().double() - expected).norm() / (expected.norm() + 1e-9))


@pytest.mark.parametrize("split", [0, 16])
@pytest.mark.parametrize("remade", [False, True])
@pytest.mark.parametrize("kept_only", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES)
def test_against_the_dense_form(shape, dtype, kept_only, remade, split, monkeypatch):
    monkeypatch.setattr(products, "SPLIT_TILES", split)
    monkeypatch.setattr(products, "SPLIT_TOKENS", 1)
    monkeypatch.setattr(mixout_columns, "REMAKE_ROWS", 0 if remade else 10**9)
    p, (tensors, target) = 0.6, inputs(*shape, dtype)
    columns = draw(new_counter(shape[1]), new_rule(shape[1], p))
    out = column_linear(*tensors, target, columns, p, 1 / (1 - p), kept_only)
    g = torch.randn_like(out)
    expected, grads = dense(tensors, target, columns.place, p, g)
    assert error(out, expected) < TOLERANCE[dtype]
    for found, grad in zip(torch.autograd.grad(out, tensors, g), grads, strict=True):
        assert found.dtype == dtype
        assert error(found, grad) < TOLERANCE[dtype]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("remade", [False, True])
@pytest.mark.parametrize("kept_only", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_layers_that_read_the_same_tensor(dtype, kept_only, remade, biased, monkeypatch):
    """One product for all of them, and the numbers of each alone; of x the sum of three gradients."""
    monkeypatch.setattr(mixout_columns, "REMAKE_ROWS", 0 if remade else 10**9)
    x = torch.randn(2, 5, 40).to(dtype).requires_grad_()
    weights = [torch.randn(rows, 40).to(dtype).requires_grad_() for rows in (16, 8, 24)]
    biases = [torch.randn(len(w)).to(dtype).requires_grad_() if biased else None for w in weights]
    masks = [draw(new_counter(key), new_rule(40, 0.6)) for key in range(3)]
    layers = [Layer(w, b, torch.randn_like(w), mask) for w, b, mask in zip(weights, biases, masks)]
    trained = [x, *weights, *(b for b in biases if b is not None)]
    alone = [column_linear(x, *layer[:4], 0.6, 2.5, kept_only) for layer in layers]
    together = column_linears(x, layers, 0.6, 2.5, kept_only)
    gs = [torch.randn_like(each) for each in alone]
    found = [torch.autograd.grad(outs, trained, gs) for outs in (together, alone)]
    for one, other in zip((*together, *found[0]), (*alone, *found[1]), strict=True):
        assert one.dtype == other.dtype == dtype
        assert one.shape == other.shape
        assert error(one, other.detach().double()) < TOLERANCE[dtype]
    frozen = weights[1].requires_grad_(False)
    outs = column_linears(x, layers, 0.6, 2.5, kept_only)
    assert not [each for each in torch.autograd.grad(outs[0].sum(), [weights[0], x]) if each.isnan().any()]
    assert frozen.grad is None


def test_the_input_may_be_there_in_the_low_type_already(monkeypatch):
    taken = []
    take = mixout_columns.take_torch
    monkeypatch.setattr(mixout_columns, "take", lambda rows, *rest: taken.append(rows.dtype) or take(rows, *rest))
    (x, w, b), target = inputs(4, 96, 12)
    layers = [Layer(w, b, target, draw(new_counter(key), new_rule(96, 0.7))) for key in range(2)]
    low = x.detach().to(torch.bfloat16).view(-1, 96)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = [column_linears(x, layers, 0.7, 1.0, True, given) for given in (None, Handed(low))]
    assert taken == [torch.float32, torch.bfloat16]
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kept_only", [False, True])
def test_gradcheck(kept_only):
    tensors, target = inputs(2, 20, 3, torch.float64)
    columns = draw(new_counter(2), new_rule(20, 0.5))
    assert torch.autograd.gradcheck(
        lambda x, w, b: column_linear(x, w, b, target, columns, 0.5, 2.0, kept_only), tensors
    )


@pytest.mark.parametrize("kept_only", [False, True])
def test_equals_the_form_of_the_cpu_under_autocast(kept_only):
    (x, w, b), target = inputs(4, 96, 12)
    columns = draw(new_counter(3), new_rule(96, 0.7))
    scale = (columns.place >= 0).float().div_(1 - 0.7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = mixed_linear(x, w, b, target, mask_of(scale), 1.0)
        out = column_linear(x, w, b, target, columns, 0.7, 1.0, kept_only)
    assert torch.equal(out, plain)
    g = torch.randn_like(out)
    for found, expected in zip(torch.autograd.grad(out, (x, w, b), g), torch.autograd.grad(plain, (x, w, b), g)):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=1e-2)


def test_a_mask_that_does_not_fit_is_never_cut():
    (x, w, b), target = inputs(2, 64, 8)
    rule = new_rule(64, 0.5)._replace(capacity=8)
    columns = draw(new_counter(1), rule)
    column_linear(x, w, b, target, columns, 0.5, 2.0, kept_only=True).sum().backward()
    over = columns.place >= 8
    assert w.grad[:, over].isnan().all()
    assert torch.isfinite(w.grad[:, ~over]).all()
    assert b.grad.isnan().all()
    w.grad = b.grad = None
    column_linear(x, w, b, target, columns, 0.5, 2.0, kept_only=False).sum().backward()
    assert (w.grad[:, over] != 0).all()
    assert (b.grad == 4).all()


def test_a_list_without_a_free_entry_has_no_gradient_of_the_bias():
    (x, w, b), target = inputs(2, 64, 8)
    count = int((draw(new_counter(1), new_rule(64, 0.5)).place >= 0).sum())
    for capacity, is_known in ((count, False), (count + 1, True)):
        columns = draw(new_counter(1), new_rule(64, 0.5)._replace(capacity=capacity))
        out = column_linear(x, w, b, target, columns, 0.5, 2.0, kept_only=True)
        grads = torch.autograd.grad(out.sum(), (w, b))
        assert torch.isfinite(grads[0]).all()
        assert bool((grads[1] == 4).all()) == is_known
        assert bool(grads[1].isnan().all()) != is_known


def test_into_how_many_parts_a_weight_gradient_is_split(monkeypatch):
    assert products.splits(4096, 1024, 384) == 1  # cuBLAS decides
    monkeypatch.setattr(products, "SPLIT_TILES", 132)
    found = [products.splits(4096, *shape) for shape in ((1024, 384), (4096, 384), (1024, 1408), (4096, 192))]
    assert found == [4, 1, 1, 2]
    assert [products.splits(tokens, 1024, 384) for tokens in (0, 4097, 1026, 1024, 2**20)] == [1, 1, 2, 2, 4]


def test_the_mixed_weight_is_kept_or_made_again():
    square, tall = torch.zeros(8, 8), torch.zeros(32, 8)
    found = [[mixout_columns.remakes(rows, w) for w in (square, tall)] for rows in (512, 4096, 8192)]
    assert found == [[False, False], [False, True], [True, True]]


def test_only_kept_columns_of_the_input_are_held():
    (x, w, _), target = inputs(50, 1024, 8)
    columns = draw(new_counter(1), new_rule(1024, 0.7))
    held = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(tuple(t.shape)) or t, lambda t: t):
        column_linear(x, w, None, target, columns, 0.7, 1.0, kept_only=True)
    assert (100, 384) in held
    assert (100, 1024) not in held


def test_what_needs_no_gradient_gets_none():
    (x, w, b), target = inputs(2, 24, 8)
    columns = draw(new_counter(1), new_rule(24, 0.5))
    w.requires_grad_(False)
    column_linear(x, w, b, target, columns, 0.5, 2.0, kept_only=True).sum().backward()
    assert w.grad is None
    assert x.grad is not None
    with torch.no_grad():
        assert not column_linear(x, w, b, target, columns, 0.5, 2.0).requires_grad


def test_no_rows_and_inputs_of_any_layout():
    (x, w, b), target = inputs(3, 24, 8)
    columns = draw(new_counter(1), new_rule(24, 0.5))
    none = column_linear(x[:0], w, b, target, columns, 0.5, 2.0, kept_only=True)
    none.sum().backward()
    assert none.shape == (0, 3, 8)
    assert (w.grad == 0).all()
    turned = x.detach().transpose(0, 1)
    torch.testing.assert_close(
        column_linear(turned, w, b, target, columns, 0.5, 2.0),
        column_linear(turned.contiguous(), w, b, target, columns, 0.5, 2.0),
    )


def test_what_lies_one_behind_the_other():
    whole = torch.randn(4, 3, 5)
    assert torch.equal(joined(list(whole)), whole)
    assert joined(list(whole)).data_ptr() == whole.data_ptr()
    assert torch.equal(joined([whole[2]]), whole[2:3])
    turned = [part.t() for part in whole]
    for parts in (
        [whole[0], whole[2]],
        [whole[1], whole[0]],
        [whole[0], whole[1, :2]],
        turned,
        list(whole.clone())[::2],
    ):
        assert joined(parts) is None
    assert joined([whole[0], whole[1].clone()]) is None


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(("tokens", "columns"), [(7, 40), (9000, 300), (9000, 20)])
def test_products_of_layers_that_read_the_same(tokens, columns, apart, adds, monkeypatch):
    """At once where they lie one behind the other and that is quicker; the same numbers in any case."""
    joint, bmm = [], torch.bmm

    def counted(left, right, out_dtype, out):
        joint.append(right.shape)
        return out.copy_(bmm(left, right))

    monkeypatch.setattr(products, "_writes_float32", lambda rows: True)
    monkeypatch.setattr(torch, "bmm", counted)
    monkeypatch.setattr(torch, "mm", lambda a, b, out_dtype=None, out=None: a @ b if out is None else out.copy_(a @ b))
    rows, inputs, memory = torch.randn(tokens, 12), torch.randn(3, tokens, columns), torch.zeros(3, 4, columns)
    given = [part.clone() for part in inputs] if apart else list(inputs)
    kept = [KeptGradient(values, None, 1.0) for values in memory]
    for each in kept:
        each.adds = adds
    products.weight_products_(kept, rows, given)
    expected = torch.stack([own.t() @ x for own, x in zip(rows.split(4, 1), inputs)])
    torch.testing.assert_close(memory, expected, atol=1e-3, rtol=1e-3)
    assert all(each.is_written for each in kept)
    assert len(joint) == (not apart and not adds and columns != 300)
