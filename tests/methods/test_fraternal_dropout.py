"""Fraternal dropout: the loss against its definition and the authors' code (R17)."""

import math

import pytest
import torch
from heads import batch_for, make
from torch import nn
from torch.nn import functional

from steadytune import FraternalDropout, Moment, NoEffect, SteadytuneError, apply_, fraternal_loss
from steadytune.methods.fraternal_dropout import logit_distance


def pair(*shape, grad=False):
    torch.manual_seed(0)
    return tuple(torch.randn(*shape, dtype=torch.float64).requires_grad_(grad) for _ in range(2))


def test_is_the_authors_code():
    (z_1, z_2), y, kappa = pair(6, 5), torch.tensor([0, 1, 2, 3, 4, 0]), 0.15
    loss = functional.cross_entropy(z_1, y)
    loss = (loss + functional.cross_entropy(z_2, y)) / 2
    loss = loss + kappa * (z_1 - z_2).pow(2).mean()
    torch.testing.assert_close(fraternal_loss(z_1, z_2, y, kappa), loss)


def test_is_kappa_over_m_times_the_squared_norm_mean_over_labelled_tokens():
    (z_1, z_2), y = pair(2, 3, 5), torch.tensor([[1, 2, -100], [0, -100, -100]])
    keep = y != -100
    squares = (z_1 - z_2)[keep].square().sum(-1) / 5
    found = fraternal_loss(z_1, z_2, y, 1.0) - fraternal_loss(z_1, z_2, y, 0.0)
    torch.testing.assert_close(found, squares.mean())
    shifted = keep[:, 1:]
    squares = (z_1 - z_2)[:, :-1][shifted].square().mean(-1)
    found = fraternal_loss(z_1, z_2, y, 1.0, kind="causal-lm") - fraternal_loss(z_1, z_2, y, 0.0, kind="causal-lm")
    torch.testing.assert_close(found, squares.mean())


def test_gradients_flow_through_both_passes_exactly():
    z_1, z_2 = pair(3, 4, grad=True)
    y = torch.tensor([0, 3, 1])
    assert torch.autograd.gradcheck(lambda a, b: fraternal_loss(a, b, y, 0.3, label_smoothing=0.1), (z_1, z_2))


def test_regression_and_forbidden_classes():
    (y_1, y_2), y = pair(5), torch.randn(5).double()
    mse = functional.mse_loss
    torch.testing.assert_close(fraternal_loss(y_1, y_2, y, 0.3), (mse(y_1, y) + mse(y_2, y)) / 2 + 0.3 * mse(y_1, y_2))
    z_1, z_2 = torch.tensor([[1.0, -math.inf]]).requires_grad_(), torch.tensor([[3.0, -math.inf]])
    distance = logit_distance(z_1, z_2)
    distance.backward()
    assert distance == 2.0
    assert torch.isfinite(z_1.grad).all()


def test_the_method_is_the_loss_of_two_passes():
    model, batch = make("bert-classification").train(), batch_for("bert-classification")
    torch.manual_seed(3)
    loss, outputs = FraternalDropout(kappa=0.7, forward="two").loss(model, batch, Moment())
    torch.manual_seed(3)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    z_1, z_2 = model(**inputs).logits, model(**inputs).logits
    torch.testing.assert_close(loss, fraternal_loss(z_1, z_2, batch["labels"], 0.7))
    assert torch.equal(outputs.logits, z_1)


def test_null_eval_and_no_noise():
    model, batch = make("bert-classification"), batch_for("bert-classification")
    assert FraternalDropout(kappa=0.0).loss(model.train(), batch, Moment()) is None
    assert FraternalDropout().loss(model.eval(), batch, Moment()) is None
    calm = nn.Sequential(nn.Linear(2, 2)).train()
    with pytest.raises(NoEffect, match="FraternalDropout"):
        FraternalDropout().loss(calm, {"input": torch.randn(3, 2), "labels": torch.tensor([0, 1, 0])}, Moment())
    with pytest.raises(SteadytuneError, match="kappa"):
        FraternalDropout(kappa=-0.1)
    with pytest.raises(SteadytuneError, match="both replace the loss"):
        apply_(model, [FraternalDropout(), FraternalDropout()])
