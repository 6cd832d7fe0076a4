"""R-Drop's loss from hidden states in chunks, and in one pass over few classes: the direct form is the oracle."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from steadytune import SteadytuneError, rdrop_loss
from steadytune.kernels import rdrop
from steadytune.kernels.rdrop import chunked_rdrop_loss, fused_rdrop_loss
from steadytune.methods.rdrop import VARIANTS


def inputs(shape=(3, 5), classes=11, width=4, dtype=torch.float64, seed=0, ignored=0.3):
    """Hidden states of two passes, weight, bias (all with gradients), and labels, of which some are -100."""
    draw = torch.Generator().manual_seed(seed)

    def made(*size):
        return torch.randn(*size, generator=draw, dtype=torch.float64).to(dtype).requires_grad_()

    tensors = (made(*shape, width), made(*shape, width), made(classes, width), made(classes))
    labels = torch.randint(0, classes, shape, generator=draw)
    return tensors, labels.masked_fill(torch.rand(shape, generator=draw) < ignored, -100)


def settings_of(variant):
    form = VARIANTS[variant]
    return {"nll": form.nll, "kl": form.kl, "factor": form.factor}


def direct(tensors, labels, alpha=0.7, *, offset=0.0, **options):
    hidden_1, hidden_2, weight, bias = tensors
    logits = [functional.linear(hidden, weight, bias) + offset for hidden in (hidden_1, hidden_2)]
    kind = "token" if labels.ndim == 2 else "classification"
    return rdrop_loss(*logits, labels, alpha, kind=kind, **options)


def gradients(loss, tensors):
    wanted = [each for each in tensors if each is not None and each.requires_grad]
    return torch.autograd.grad(loss, wanted, retain_graph=True)


def assert_same(found, expected, tensors, **tolerance):
    torch.testing.assert_close(found, expected, **tolerance)
    for one, other in zip(gradients(found, tensors), gradients(expected, tensors), strict=True):
        torch.testing.assert_close(one, other, **tolerance)


# --- from hidden states, in chunks


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_public_form_is_the_direct_one(variant, smoothing):
    tensors, labels = inputs()
    mask = torch.rand(labels.shape) > 0.5 if VARIANTS[variant].mask == "attention" else None
    expected = direct(tensors, labels, variant=variant, label_smoothing=smoothing, mask=mask)
    options = {"alpha": 0.7, "label_smoothing": smoothing, "mask": mask, **settings_of(variant)}
    for chunk in (4, None):
        assert_same(chunked_rdrop_loss(*tensors, labels, chunk=chunk, **options), expected, tensors)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 4),
    length=st.integers(1, 5),
    classes=st.integers(2, 9),
    width=st.integers(1, 4),
    chunk=st.integers(1, 25),
    smoothing=st.sampled_from([0.0, 0.2, 1.0]),
    alpha=st.sampled_from([0.0, 0.5, 5.0]),
    seed=st.integers(0, 99),
)
def test_any_shape_and_any_chunk(rows, length, classes, width, chunk, smoothing, alpha, seed):
    tensors, labels = inputs((rows, length), classes, width, seed=seed)
    labels[0, 0] = 0  # at least one label
    expected = direct(tensors, labels, alpha, label_smoothing=smoothing)
    found = chunked_rdrop_loss(*tensors, labels, alpha=alpha, label_smoothing=smoothing, chunk=chunk)
    assert_same(found, expected, tensors)


def test_gradcheck():
    tensors, labels = inputs((2, 3), 5, 3)
    assert torch.autograd.gradcheck(
        lambda *each: chunked_rdrop_loss(*each, labels, alpha=0.7, label_smoothing=0.1, chunk=4), tensors
    )


def test_a_constant_for_each_class_and_classes_that_are_forbidden():
    tensors, labels = inputs()
    offset = torch.randn(1, 11).double()
    found = chunked_rdrop_loss(*tensors, labels, alpha=0.7, offset=offset, chunk=4)
    assert_same(found, direct(tensors, labels, offset=offset), tensors)
    offset[0, 3] = -math.inf
    labels = labels.masked_fill(labels == 3, 4)
    found = chunked_rdrop_loss(*tensors, labels, alpha=0.7, offset=offset, chunk=4)
    torch.testing.assert_close(found, direct(tensors, labels, offset=offset))
    grads = gradients(found, tensors)
    assert all(torch.isfinite(each).all() for each in grads)
    assert (grads[2][3] == 0).all()


@pytest.mark.parametrize("shape", [(0, 4), (2, 4)])
def test_without_any_label_the_loss_is_nan_and_its_gradient_zero_as_in_torch(shape):
    tensors, labels = inputs(shape, ignored=2.0)
    for made in (direct(tensors, labels), chunked_rdrop_loss(*tensors, labels, alpha=0.7)):
        assert made.isnan()
        assert all((each == 0).all() for each in gradients(made, tensors))


def test_ignored_positions_get_no_gradient_and_another_number_may_mean_ignored():
    tensors, labels = inputs()
    ignored = labels == -100
    for options, given_labels in (({}, labels), ({"ignore_index": 7}, labels.masked_fill(ignored, 7))):
        keep = given_labels != options.get("ignore_index", -100)
        grads = gradients(chunked_rdrop_loss(*tensors, given_labels, chunk=4, **options), tensors)
        assert all((each[~keep] == 0).all() for each in grads[:2])
        assert all((each[keep] != 0).any() for each in grads[:2])


def error(found, expected):
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("autocast", [True, False])
def test_lower_precision_is_as_good_as_the_direct_form(dtype, autocast):
    """Against float64: products in the given type, everything else in float32."""
    own = torch.float32 if autocast else dtype
    tensors, labels = inputs((4, 16), 200, 24, dtype=own)
    exact = tuple(each.detach().double().requires_grad_() for each in tensors)
    truth = direct(exact, labels)
    truths = gradients(truth, exact)
    errors = {}
    for name, form in (("direct", direct), ("chunked", lambda t, y: chunked_rdrop_loss(*t, y, alpha=0.7, chunk=9))):
        with torch.autocast("cpu", dtype=dtype, enabled=autocast and dtype != torch.float32):
            loss = form(tensors, labels)
        assert loss.dtype == torch.float32
        found = gradients(loss, tensors)
        assert all(each.dtype == own for each in found)
        errors[name] = [error(loss, truth), *(error(one, other) for one, other in zip(found, truths))]
    for ours, theirs in zip(errors["chunked"], errors["direct"]):
        assert ours < 1.5 * theirs + 1e-6, errors


def test_float16_gradients_survive_without_a_scaler_and_scale_with_one():
    """1/n would be lost in float16 if it were in the gradient that the products see."""
    tensors, labels = inputs((64, 64), 30, 8, dtype=torch.float32)
    exact = tuple(each.detach().double().requires_grad_() for each in tensors)
    truths = gradients(direct(exact, labels), exact)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = chunked_rdrop_loss(*tensors, labels, alpha=0.7, chunk=500)
    for scale in (1.0, 65536.0):
        found = torch.autograd.grad(loss * scale, tensors, retain_graph=True)
        assert all(error(one / scale, other) < 5e-3 for one, other in zip(found, truths))
    summed = {"nll": "sum", "kl": "sum", "factor": 1.0}
    truths = gradients(direct(exact, labels, variant="official-vit"), exact)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = chunked_rdrop_loss(*tensors, labels, alpha=0.7, chunk=500, **summed)
    assert all(error(one, other) < 5e-3 for one, other in zip(gradients(loss, tensors), truths))


class Sizes(TorchDispatchMode):
    """The most elements of any tensor that was made inside the block, and how many operations made something new."""

    def __init__(self):
        super().__init__()
        self.largest, self.operations = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for each in tree_iter(out):
            if isinstance(each, torch.Tensor):
                self.largest = max(self.largest, each.numel())
                self.operations += not each._is_view() and "promote_types" not in str(func)
        return out


def test_the_logits_are_never_held():
    tensors, labels = inputs((8, 16), 500, 4, dtype=torch.float32)
    with Sizes() as sizes:
        chunked_rdrop_loss(*tensors, labels, chunk=8).backward()
    assert sizes.largest == 2 * 8 * 500
    with Sizes() as sizes:
        direct(tensors, labels).backward()
    assert sizes.largest == 128 * 500


def test_what_needs_no_gradient_gets_none():
    tensors, labels = inputs()
    expected = gradients(direct(tensors, labels), tensors)
    for wanted in ((0, 1), (2,), (3,), (0,), (1, 2, 3)):
        given_ = tuple(each.detach().requires_grad_(place in wanted) for place, each in enumerate(tensors))
        found = gradients(chunked_rdrop_loss(*given_, labels, alpha=0.7, chunk=4), given_)
        for place, grad in zip(wanted, found, strict=True):
            torch.testing.assert_close(grad, expected[place])
    with torch.no_grad():
        value = chunked_rdrop_loss(*tensors, labels, alpha=0.7, chunk=4)
    assert not value.requires_grad
    torch.testing.assert_close(value, direct(tensors, labels).detach())
    without_bias = (*tensors[:3], None)
    assert_same(chunked_rdrop_loss(*without_bias, labels, alpha=0.7), direct(without_bias, labels), without_bias)


def test_the_gradient_scales_accumulates_and_can_be_asked_for_again():
    tensors, labels = inputs()
    loss = chunked_rdrop_loss(*tensors, labels, alpha=0.7, chunk=4)
    once = torch.autograd.grad(loss, tensors, retain_graph=True)
    again = torch.autograd.grad(3.0 * loss, tensors, retain_graph=True)
    for one, three in zip(once, again):
        torch.testing.assert_close(3.0 * one, three)
    (loss * 0.5).backward(retain_graph=True)
    (loss * 0.5).backward()
    for each, one in zip(tensors, once):
        torch.testing.assert_close(each.grad, one)


def test_a_tied_output_matrix_gets_both_gradients():
    tensors, labels = inputs()
    weight, ids = tensors[2], torch.randint(0, 11, (3, 5))
    found = []
    for form in (direct, lambda t, y: chunked_rdrop_loss(*t, y, alpha=0.7, chunk=4)):
        hidden = functional.embedding(ids, weight)
        (grad,) = torch.autograd.grad(form((hidden * 2.0, hidden.sin(), weight, None), labels), weight)
        found.append(grad)
    torch.testing.assert_close(*found)


def test_alpha_may_be_a_tensor_that_a_graph_reads():
    tensors, labels = inputs()
    found = chunked_rdrop_loss(*tensors, labels, alpha=torch.tensor(0.7), chunk=4)
    assert_same(found, direct(tensors, labels), tensors, rtol=1e-6, atol=1e-7)


def test_second_derivatives_are_refused_in_a_sentence():
    tensors, labels = inputs()
    with pytest.raises(SteadytuneError, match="no second derivative"):
        torch.autograd.grad(chunked_rdrop_loss(*tensors, labels), tensors, create_graph=True)
    logits = [functional.linear(each, tensors[2]) for each in tensors[:2]]
    with pytest.raises(SteadytuneError, match="create_graph"):
        torch.autograd.grad(fused_rdrop_loss(*logits, labels), tensors[:2], create_graph=True)


def test_compiles_without_a_break():
    tensors, labels = inputs()

    def both(*given_):
        *hidden, weight, bias = given_
        fused = fused_rdrop_loss(*(functional.linear(each, weight, bias) for each in hidden), labels)
        return chunked_rdrop_loss(*given_, labels, alpha=0.7, chunk=4) + fused

    torch._dynamo.reset()
    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    assert_same(compiled(*tensors), both(*tensors), tensors)


@pytest.mark.parametrize("dtype", [None, torch.float16], ids=["own", "float16"])
def test_whole_logits_by_autograd_are_the_same(dtype, monkeypatch):
    """What a compiler gets instead of the chunks, on a GPU."""
    tensors, labels = inputs()
    options = {"alpha": 0.7, "label_smoothing": 0.1, "dtype": dtype}
    chunks = chunked_rdrop_loss(*tensors, labels, **options)
    chunked = torch.autograd.grad(chunks, tensors)
    monkeypatch.setattr(rdrop, "_is_traced_for_a_gpu", lambda device: True)
    whole = chunked_rdrop_loss(*tensors, labels, **options)
    near = {"rtol": 1e-6, "atol": 1e-6} if dtype is None else {"rtol": 2e-2, "atol": 2e-3}
    torch.testing.assert_close(whole, chunks, **near)
    for one, other in zip(torch.autograd.grad(whole, tensors), chunked):
        torch.testing.assert_close(one, other, **near)


def test_bad_arguments_get_a_sentence():
    tensors, labels = inputs()
    with pytest.raises(SteadytuneError, match="one row for each label"):
        chunked_rdrop_loss(*tensors, labels[:, 1:])
    with pytest.raises(SteadytuneError, match="one row for each label"):
        fused_rdrop_loss(torch.zeros(3, 2), torch.zeros(3, 4), torch.zeros(3, dtype=torch.long))
    with pytest.raises(SteadytuneError, match="chunk must be"):
        chunked_rdrop_loss(*tensors, labels, chunk=0)
    with pytest.raises(SteadytuneError, match="half-first"):
        chunked_rdrop_loss(*tensors, labels, nll="second")
    for wrong in (11, -1):
        with pytest.raises((IndexError, RuntimeError), match=r"out of (bounds|range)"):
            chunked_rdrop_loss(*tensors, labels.masked_fill(labels == 3, wrong))


# --- from the logits of few classes


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("variant", VARIANTS)
def test_fused_is_the_direct_form(variant, smoothing):
    logits = tuple(torch.randn(7, 3, dtype=torch.float64).requires_grad_() for _ in range(2))
    labels = torch.tensor([0, 1, 2, -100, 2, 1, 0])
    expected = rdrop_loss(*logits, labels, 0.7, variant=variant, label_smoothing=smoothing)
    found = fused_rdrop_loss(*logits, labels, alpha=0.7, label_smoothing=smoothing, **settings_of(variant))
    assert_same(found, expected, logits)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_fused_keeps_the_logits_type_and_works_in_float32(dtype):
    logits = tuple((4 * torch.randn(2, 5, 3)).to(dtype).requires_grad_() for _ in range(2))
    labels = torch.tensor([[0, 1, 2, -100, 2]] * 2)
    found = fused_rdrop_loss(*logits, labels, alpha=0.7)
    assert found.dtype == torch.float32
    exact = tuple(each.detach().double().requires_grad_() for each in logits)
    truth = rdrop_loss(*exact, labels, 0.7)
    torch.testing.assert_close(found, truth.float())
    for one, other in zip(gradients(found, logits), gradients(truth, exact)):
        torch.testing.assert_close(one, other.to(dtype))  # which also says that the types are the same


def test_fused_takes_forbidden_classes_empty_batches_and_huge_logits():
    logits = tuple(torch.randn(4, 3, dtype=torch.float64) for _ in range(2))
    forbidden = tuple(functional.pad(each, (0, 1), value=-math.inf).requires_grad_() for each in logits)
    labels = torch.tensor([0, 1, 2, 0])
    found = fused_rdrop_loss(*forbidden, labels, alpha=0.7)
    torch.testing.assert_close(found, rdrop_loss(*logits, labels, 0.7))
    assert all(torch.isfinite(each).all() for each in gradients(found, forbidden))
    empty = torch.zeros(0, 3, requires_grad=True)
    assert fused_rdrop_loss(empty, empty, labels[:0]).isnan()
    huge = torch.tensor([[1e4, 0.0, -1e4]], requires_grad=True)
    found = fused_rdrop_loss(huge, -huge.detach(), labels[:1], alpha=1.0)
    torch.testing.assert_close(found, torch.tensor(4e4))


def test_fused_takes_fewer_operations_than_the_direct_form():
    logits = tuple(torch.randn(7, 3).requires_grad_() for _ in range(2))
    labels, counts = torch.arange(7) % 3, []
    for form in (rdrop_loss, fused_rdrop_loss):
        with Sizes() as sizes:
            form(*logits, labels).backward()
        counts.append(sizes.operations)
    assert counts[1] < counts[0]
