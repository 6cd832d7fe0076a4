"""Expectation-linear dropout: the loss, its deterministic pass, and that nothing stays in eval mode (R17)."""

import pytest
import torch
from heads import batch_for, make
from torch import nn
from torch.nn import functional

from steadytune import ExpectationLinearDropout, Moment, NoEffect, SteadytuneError, mixout_
from steadytune.methods.expectation_linear import deterministic, expectation_linear_loss
from steadytune.methods.fraternal_dropout import logit_distance


def mlp(p=0.5):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(p), nn.Linear(16, 3))


def rows():
    torch.manual_seed(1)
    return {"input": torch.randn(6, 4), "labels": torch.arange(6) % 3}


def test_is_the_likelihood_of_the_dropout_pass_and_its_distance_to_the_deterministic_one():
    torch.manual_seed(0)
    z, calm, y = torch.randn(6, 5).double(), torch.randn(6, 5).double(), torch.tensor([0, 1, 2, 3, 4, 0])
    expected = functional.cross_entropy(z, y) + 0.25 * (z - calm).pow(2).mean()
    torch.testing.assert_close(expectation_linear_loss(z, calm, y), expected)
    z.requires_grad_(), calm.requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: expectation_linear_loss(a, b, y, 0.3, label_smoothing=0.1), (z, calm))


def test_the_method_takes_the_second_pass_without_dropout():
    model, batch = make("bert-classification").train(), batch_for("bert-classification")
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    torch.manual_seed(3)
    loss, outputs = ExpectationLinearDropout(kappa=0.7).loss(model, batch, Moment())
    torch.manual_seed(3)
    z, calm = model(**inputs).logits, model.eval()(**inputs).logits
    torch.testing.assert_close(loss, expectation_linear_loss(z, calm, batch["labels"], 0.7))
    assert torch.equal(outputs.logits, z)


def test_gradients_flow_through_the_deterministic_pass_unless_detached():
    def gradient(detach):
        model, batch = mlp().train(), rows()
        torch.manual_seed(5)
        ExpectationLinearDropout(kappa=3.0, detach=detach).loss(model, batch, Moment())[0].backward()
        return model[0].weight.grad

    model, batch = mlp().train(), rows()
    torch.manual_seed(5)
    z, calm = model(batch["input"]), model.eval()(batch["input"])
    expectation_linear_loss(z, calm.detach(), batch["labels"], 3.0).backward()
    torch.testing.assert_close(gradient(detach=True), model[0].weight.grad)
    assert not torch.allclose(gradient(detach=False), model[0].weight.grad)


def test_every_module_is_as_it_was_even_after_an_error():
    model = mlp().train()
    model[2].eval()
    before = [module.training for module in model.modules()]
    with deterministic(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == before
    with pytest.raises(RuntimeError, match="boom"), deterministic(model):
        raise RuntimeError("boom")
    assert [module.training for module in model.modules()] == before


def test_fraternal_penalty_is_at_most_four_times_this_one():
    model, x = mlp().train(), rows()["input"]
    with torch.no_grad():
        passes = [model(x) for _ in range(200)]
        calm = model.eval()(x)
    here = sum(logit_distance(each, calm) for each in passes) / 200
    fraternal = sum(logit_distance(one, two) for one, two in zip(passes[::2], passes[1::2])) / 100
    assert 0 < fraternal <= 4 * here


def test_mixed_layers_use_their_own_weights_in_the_deterministic_pass():
    model = mlp().train()
    mixout_(model, p=0.5, layers="all", target="zero")
    loss, _ = ExpectationLinearDropout(kappa=1.0).loss(model, rows(), Moment())
    assert torch.isfinite(loss)


def test_null_eval_and_no_noise():
    assert ExpectationLinearDropout(kappa=0.0).loss(mlp().train(), rows(), Moment()) is None
    assert ExpectationLinearDropout().loss(mlp().eval(), rows(), Moment()) is None
    with pytest.raises(NoEffect, match="ExpectationLinearDropout"):
        ExpectationLinearDropout().loss(mlp(p=0.0).train(), rows(), Moment())
    with pytest.raises(SteadytuneError, match="kappa"):
        ExpectationLinearDropout(kappa=-1.0)
