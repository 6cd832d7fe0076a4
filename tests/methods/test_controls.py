"""The controls of R-Drop: doubled batch (R14) and NLL only (R15)."""

import pytest
import torch
from heads import batch_for, make
from torch import nn

from steadytune import DoubledBatch, Moment, NLLOnly, NoEffect, RDrop, SteadytuneError, apply_, rdrop_loss
from steadytune.methods.controls import nll_only_loss


def test_doubled_batch_is_a_batch_size_and_nothing_else():
    assert DoubledBatch().batch_size(16) == 32
    assert DoubledBatch(times=3).batch_size(16) == 48
    assert DoubledBatch(times=1).batch_size(16) == 16
    applied = apply_(model := make("bert-classification"), DoubledBatch())
    assert applied.batch_size(8) == 16
    batch = batch_for("bert-classification")
    torch.manual_seed(2)
    loss, _ = applied.loss(model.train(), batch)
    torch.manual_seed(2)
    assert torch.equal(loss, model(**batch).loss)


def test_doubling_and_halving_the_batch_are_refused_together():
    with pytest.raises(SteadytuneError, match="both replace the batch size"):
        apply_(nn.Linear(2, 2), [DoubledBatch(), RDrop(half_batch=True)])
    assert apply_(make("bert-classification"), [DoubledBatch(), RDrop()]).batch_size(8) == 16


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_nll_only_is_rdrop_without_its_divergence(kind):
    torch.manual_seed(0)
    width = 3 if kind == "classification" else 1
    z_1, z_2 = torch.randn(6, width), torch.randn(6, width)
    y = torch.arange(6) % 3 if kind == "classification" else torch.randn(6)
    for squared in ("unsquared", "squared"):
        expected = rdrop_loss(z_1, z_2, y, alpha=0.0, regression=squared)
        torch.testing.assert_close(nll_only_loss([z_1, z_2], y, regression=squared), expected)


@pytest.mark.parametrize("passes", [2, 3])
@pytest.mark.parametrize("forward", ["auto", "two"])
def test_nll_only_adds_up_the_passes(passes, forward):
    model, batch = make("bert-classification").train(), batch_for("bert-classification")
    calls = []
    model.register_forward_hook(lambda module, args, out: calls.append(len(out.logits)))
    method = NLLOnly(passes=passes, forward=forward, label_smoothing=0.1)
    loss, outputs = method.loss(model, batch, Moment())
    assert calls == ([4 * passes] if forward == "auto" else [4] * passes)
    assert len(outputs.logits) == 4
    assert 0.5 * passes < loss < 2.0 * passes  # log 3 each, about
    loss.backward()


def test_nll_only_null_eval_and_no_noise():
    model, batch = make("bert-classification"), batch_for("bert-classification")
    assert NLLOnly(passes=1).loss(model.train(), batch, Moment()) is None
    assert NLLOnly().loss(model.eval(), batch, Moment()) is None
    calm = nn.Sequential(nn.Linear(2, 2)).train()
    with pytest.raises(NoEffect, match="NLLOnly"):
        NLLOnly().loss(calm, {"input": torch.randn(3, 2), "labels": torch.tensor([0, 1, 0])}, Moment())
    with pytest.raises(SteadytuneError, match="both replace the loss"):
        apply_(model, [NLLOnly(), RDrop()])


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "2"])
def test_counts_are_whole_numbers_from_1(bad):
    with pytest.raises(SteadytuneError, match="times must be a whole number of at least 1"):
        DoubledBatch(times=bad)
    with pytest.raises(SteadytuneError, match="passes must be a whole number of at least 1"):
        NLLOnly(passes=bad)
