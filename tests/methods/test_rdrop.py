"""R-Drop: the divergence, the loss, every public form written out, and the method (R1-R5, R13, D13-D16, T5)."""

import math

import pytest
import torch
from heads import HEADS, batch_for, make
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from steadytune import Moment, RDrop, SteadytuneError, apply_, rdrop_loss, symmetric_kl
from steadytune.methods.dropout import set_dropout_
from steadytune.methods.rdrop import VARIANTS

numbers = st.floats(-30, 30, width=32)
rows_of_numbers = st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=5)


def pair(*shape, dtype=torch.float64, grad=False, seed=0):
    torch.manual_seed(seed)
    return tuple(torch.randn(*shape, dtype=dtype).requires_grad_(grad) for _ in range(2))


def kl(z_1, z_2):
    """KL(P_1 ‖ P_2), element by element, by torch's own function (which takes them the other way round)."""
    return functional.kl_div(z_2.log_softmax(-1), z_1.log_softmax(-1), reduction="none", log_target=True)


# --- symmetric KL


def test_is_half_the_sum_of_both_kls_mean_over_examples():
    z_1, z_2 = pair(7, 5)
    expected = 0.5 * (kl(z_1, z_2) + kl(z_2, z_1)).sum(-1)
    torch.testing.assert_close(symmetric_kl(z_1, z_2), expected.mean())
    torch.testing.assert_close(symmetric_kl(z_1, z_2, reduction="none"), expected)
    torch.testing.assert_close(symmetric_kl(z_1, z_2, reduction="sum"), expected.sum())
    torch.testing.assert_close(symmetric_kl(z_1, z_2, reduction="elements"), expected.mean() / 5)
    z_1, z_2 = pair(2, 3, 5)
    expected = 0.5 * (kl(z_1, z_2) + kl(z_2, z_1)).sum(-1)
    torch.testing.assert_close(symmetric_kl(z_1, z_2), expected.mean())
    torch.testing.assert_close(symmetric_kl(z_1, z_2, reduction="batchmean"), expected.sum() / 2)


def test_gradient_is_exact_and_flows_through_both():
    z_1, z_2 = pair(3, 4, grad=True)
    assert torch.autograd.gradcheck(symmetric_kl, (z_1, z_2))
    assert torch.autograd.gradcheck(lambda a, b: symmetric_kl(a, b, bernoulli=True), (z_1, z_2))
    symmetric_kl(z_1, z_2).backward()
    assert z_1.grad.abs().sum() > 0
    assert z_2.grad.abs().sum() > 0


@settings(max_examples=50, deadline=None)
@given(rows_of_numbers, numbers)
def test_is_symmetric_never_negative_zero_on_itself_and_blind_to_a_constant(values, constant):
    z_1 = torch.tensor(values, dtype=torch.float64)
    z_2 = z_1.flip(-1) * 0.5
    found = symmetric_kl(z_1, z_2)
    assert found >= 0
    assert symmetric_kl(z_1, z_1) == 0
    torch.testing.assert_close(symmetric_kl(z_2, z_1), found)
    torch.testing.assert_close(symmetric_kl(z_1 + constant, z_2), found, rtol=1e-7, atol=1e-9)


def test_large_logits_and_half_precision_are_safe():
    z_1, z_2 = torch.tensor([[1e4, 0.0, -1e4]]), torch.tensor([[-1e4, 0.0, 1e4]])
    assert symmetric_kl(z_1, z_2) == pytest.approx(2e4)
    for dtype in (torch.float16, torch.bfloat16):
        a, b = (each.to(dtype).requires_grad_() for each in pair(6, 4, dtype=torch.float32))
        found = symmetric_kl(a, b)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, symmetric_kl(a.double(), b.double()).float())
        found.backward()
        assert torch.isfinite(a.grad).all()


def test_a_class_forbidden_in_both_adds_nothing_and_no_nan():
    z_1, z_2 = pair(4, 3)
    forbid = torch.full((4, 1), -math.inf, dtype=torch.float64)
    a, b = (torch.cat([each, forbid], -1).requires_grad_() for each in (z_1, z_2))
    found = symmetric_kl(a, b)
    torch.testing.assert_close(found, symmetric_kl(z_1, z_2))
    found.backward()
    assert torch.isfinite(a.grad).all()
    assert torch.isfinite(b.grad).all()
    assert (a.grad[:, 3] == 0).all()


def test_mask_is_true_where_a_position_counts():
    z_1, z_2 = (each.requires_grad_() for each in pair(2, 3, 5))
    mask = torch.tensor([[True, True, False], [True, False, False]])
    found = symmetric_kl(z_1, z_2, mask)
    torch.testing.assert_close(found, symmetric_kl(z_1[mask], z_2[mask]))
    found.backward()
    assert (z_1.grad[~mask] == 0).all()
    assert (z_1.grad[mask] != 0).any()
    assert symmetric_kl(z_1, z_2, torch.zeros(2, 3)) == 0


def test_bernoulli_divergence_against_torch_distributions():
    z_1, z_2 = pair(4, 6)
    p, q = (torch.distributions.Bernoulli(logits=each) for each in (z_1, z_2))
    divergence = torch.distributions.kl_divergence
    expected = 0.5 * (divergence(p, q) + divergence(q, p)).sum(-1).mean()
    torch.testing.assert_close(symmetric_kl(z_1, z_2, bernoulli=True), expected)


def test_bad_arguments_get_a_sentence():
    with pytest.raises(SteadytuneError, match="differ"):
        symmetric_kl(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(SteadytuneError, match="reduction must be one of mean, sum"):
        symmetric_kl(torch.zeros(2, 3), torch.zeros(2, 3), reduction="avg")
    with pytest.raises(SteadytuneError, match="variant must be one of paper"):
        rdrop_loss(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2, dtype=torch.long), variant="mine")


# --- the loss


def test_alpha_0_is_the_cross_entropy_of_two_passes():
    (z_1, z_2), y = pair(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    expected = functional.cross_entropy(z_1, y) + functional.cross_entropy(z_2, y)
    torch.testing.assert_close(rdrop_loss(z_1, z_2, y, alpha=0.0), expected)


def test_alpha_means_the_same_at_every_batch_size():
    (z_1, z_2), y = pair(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    for variant, form in VARIANTS.items():
        one = rdrop_loss(z_1, z_2, y, 0.7, variant=variant)
        three = rdrop_loss(*(each.repeat(3, 1) for each in (z_1, z_2)), y.repeat(3), 0.7, variant=variant)
        assert torch.allclose(one, three) == (form.kl != "sum"), variant  # D14: the sums do depend on it


def test_gradcheck_of_each_task():
    z_1, z_2 = pair(3, 4, grad=True)
    y = torch.tensor([0, 3, 1])
    assert torch.autograd.gradcheck(lambda a, b: rdrop_loss(a, b, y, 0.5, label_smoothing=0.1), (z_1, z_2))
    several = torch.randint(0, 2, (3, 4)).double()
    assert torch.autograd.gradcheck(lambda a, b: rdrop_loss(a, b, several, 0.5), (z_1, z_2))
    z_1, z_2 = pair(3, 1, grad=True)
    for regression in ("unsquared", "squared"):
        target = torch.randn(3).double()
        assert torch.autograd.gradcheck(
            lambda a, b, t=target, r=regression: rdrop_loss(a, b, t, 0.5, regression=r), (z_1, z_2)
        )


def test_regression_is_equation_2_unsquared_and_the_code_squared():
    (y_1, y_2), y, alpha = pair(5, 1), torch.randn(5).double(), 0.3
    a, b = y_1[:, 0], y_2[:, 0]
    unsquared = ((y - a).abs() + (y - b).abs() + alpha * (a - b).abs()).mean()
    torch.testing.assert_close(rdrop_loss(y_1, y_2, y, alpha), unsquared)
    torch.testing.assert_close(rdrop_loss(a, b, y, alpha), unsquared)
    mse = functional.mse_loss
    squared = mse(a, y) + mse(b, y) + alpha * mse(a, b)
    torch.testing.assert_close(rdrop_loss(y_1, y_2, y, alpha, regression="squared"), squared)
    torch.testing.assert_close(rdrop_loss(y_1, y_2, y, alpha, variant="official-bert"), squared)
    with pytest.raises(SteadytuneError, match="smoothing"):
        rdrop_loss(y_1, y_2, y, label_smoothing=0.1)


def test_regression_of_vectors_and_where_the_passes_agree():
    (y_1, y_2), y = pair(5, 2), torch.randn(5, 2).double()
    norm = torch.linalg.vector_norm
    expected = (norm(y - y_1, dim=1) + norm(y - y_2, dim=1) + 2.0 * norm(y_1 - y_2, dim=1)).mean()
    torch.testing.assert_close(rdrop_loss(y_1, y_2, y, 2.0, kind="regression"), expected)
    same = y_1.clone().requires_grad_()
    rdrop_loss(same, same.clone(), y, 2.0, kind="regression").backward()
    assert torch.isfinite(same.grad).all()


def test_padding_counts_in_neither_term_and_language_models_shift():
    (z_1, z_2), y = pair(2, 4, 5), torch.tensor([[1, 2, 3, -100], [0, -100, 4, 1]])
    keep = y != -100
    expected = rdrop_loss(z_1[keep], z_2[keep], y[keep], 0.5)
    torch.testing.assert_close(rdrop_loss(z_1, z_2, y, 0.5), expected)
    torch.testing.assert_close(rdrop_loss(z_1, z_2, y, 0.5, kind="seq2seq"), expected)
    keep = y[:, 1:] != -100
    expected = rdrop_loss(z_1[:, :-1][keep], z_2[:, :-1][keep], y[:, 1:][keep], 0.5)
    torch.testing.assert_close(rdrop_loss(z_1, z_2, y, 0.5, kind="causal-lm"), expected)
    every = torch.ones_like(y)
    divergence = symmetric_kl(z_1[:, :-1], z_2[:, :-1])
    found = rdrop_loss(z_1, z_2, y, 1.0, kind="causal-lm", mask=every) - rdrop_loss(z_1, z_2, y, 0.0, kind="causal-lm")
    torch.testing.assert_close(found, divergence)


# --- the method


@pytest.mark.parametrize("name", HEADS)
def test_trains_every_kind_of_head(name):
    model, batch = make(name).train(), batch_for(name)
    if name == "llama-lm":
        set_dropout_(model, 0.5)  # Llama comes with none
    loss, outputs = RDrop(alpha=1.0).loss(model, batch, Moment())
    loss.backward()
    assert torch.isfinite(loss)
    assert outputs.logits.shape[0] == 4
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_is_two_passes_and_their_divergence():
    model, batch = make("bert-classification").train(), batch_for("bert-classification")
    torch.manual_seed(9)
    loss, outputs = RDrop(alpha=0.5, forward="two", label_smoothing=0.1).loss(model, batch, Moment())
    torch.manual_seed(9)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    z_1, z_2 = model(**inputs).logits, model(**inputs).logits
    torch.testing.assert_close(loss, rdrop_loss(z_1, z_2, batch["labels"], 0.5, label_smoothing=0.1))
    assert torch.equal(outputs.logits, z_1)


def test_autocast_and_compile():
    model, batch = make("bert-classification").train(), batch_for("bert-classification")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, outputs = RDrop().loss(model, batch, Moment())
    assert (loss.dtype, outputs.logits.dtype) == (torch.float32, torch.bfloat16)
    (z_1, z_2), y = pair(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    compiled = torch.compile(rdrop_loss, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(z_1, z_2, y, 0.5), rdrop_loss(z_1, z_2, y, 0.5))


def test_null_and_eval_are_one_plain_forward():
    model, batch = make("bert-classification"), batch_for("bert-classification")
    assert RDrop(alpha=0.0, half_batch=True).loss(model.train(), batch, Moment()) is None
    assert RDrop(alpha=0.0, half_batch=True).batch_size(16) == 16
    assert RDrop(alpha=0.0).replaces() == frozenset()
    assert RDrop().loss(model.eval(), batch, Moment()) is None
    applied = apply_(model, RDrop())
    calls = []
    model.register_forward_hook(lambda module, args, out: calls.append(len(out.logits)))
    loss, _ = applied.loss(model.eval(), batch)
    assert calls == [4]
    assert torch.equal(loss, model(**batch).loss)


def test_half_batch_and_schedules_of_alpha():
    assert [RDrop(half_batch=True).batch_size(size) for size in (32, 7, 1)] == [16, 3, 1]
    assert RDrop().batch_size(32) == 32
    moment = Moment(step=25, steps=100, lr_scale=0.4)
    assert RDrop(alpha=2.0).alpha_at(moment) == 2.0
    assert RDrop(alpha=2.0, alpha_schedule="lr").alpha_at(moment) == pytest.approx(0.8)
    assert RDrop(alpha=2.0, alpha_schedule="linear").alpha_at(moment) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "bad",
    [
        {"alpha": -1.0},
        {"alpha": math.nan},
        {"forward": "three"},
        {"variant": "mine"},
        {"label_smoothing": 1.5},
        {"regression": "cubed"},
        {"alpha_schedule": "cosine"},
    ],
)
def test_bad_settings_are_refused_by_name(bad):
    with pytest.raises(SteadytuneError, match=next(iter(bad))):
        RDrop(**bad)


def test_two_losses_in_one_list_are_refused():
    with pytest.raises(SteadytuneError, match="both replace the loss"):
        apply_(nn.Linear(2, 2), [RDrop(), RDrop(alpha=2.0)])
