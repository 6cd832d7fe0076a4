"""Ensembles: means of predictions, and models that cannot stand together (R18)."""

import pytest
import torch
from heads import HEADS, batch_for, bert_config, make
from torch import nn
from transformers import BertForSequenceClassification

from steadytune import Ensemble, SteadytuneError, ensemble_logits
from steadytune.methods.ensemble import EnsembleModel
from steadytune.methods.loss import nll


def logits(count=3, *shape):
    torch.manual_seed(0)
    return [torch.randn(*(shape or (4, 5))).double() for _ in range(count)]


def models(name, count=3):
    found = []
    for seed in range(count):
        torch.manual_seed(seed)
        found.append(HEADS[name][0]())
    return found


@pytest.mark.parametrize("shape", [(4, 5), (2, 3, 5)])
def test_softmax_of_the_result_is_the_mean_of_the_softmaxes(shape):
    z = logits(3, *shape)
    mean = torch.stack([each.softmax(-1) for each in z]).mean(0)
    found = ensemble_logits(z)
    torch.testing.assert_close(found.softmax(-1), mean)
    torch.testing.assert_close(found.exp(), mean)  # they are log-probabilities
    geometric = torch.stack([each.log_softmax(-1) for each in z]).mean(0).softmax(-1)
    torch.testing.assert_close(ensemble_logits(z, "logit").exp(), geometric)


def test_multilabel_and_regression():
    z = logits()
    mean = torch.stack([each.sigmoid() for each in z]).mean(0)
    torch.testing.assert_close(ensemble_logits(z, kind="multilabel").sigmoid(), mean)
    torch.testing.assert_close(ensemble_logits(z, "logit", kind="multilabel"), torch.stack(z).mean(0))
    torch.testing.assert_close(ensemble_logits(z, kind="regression"), torch.stack(z).mean(0))


def test_extreme_logits_stay_finite():
    z = [torch.tensor([[1e4, 0.0]]), torch.tensor([[0.0, 1e4]])]
    torch.testing.assert_close(ensemble_logits(z).softmax(-1), torch.tensor([[0.5, 0.5]]))
    assert torch.isfinite(ensemble_logits(z, kind="multilabel")).all()
    half = ensemble_logits([each.clamp(max=6e4).half() for each in z])
    assert half.dtype == torch.float32


def test_one_is_itself_and_bad_input_is_refused():
    z = logits(1)
    assert ensemble_logits(z) is z[0]
    with pytest.raises(SteadytuneError, match="nothing to average"):
        ensemble_logits([])
    with pytest.raises(SteadytuneError, match="differ"):
        ensemble_logits([torch.zeros(2, 3), torch.zeros(2, 4)])
    with pytest.raises(SteadytuneError, match="space must be one of"):
        ensemble_logits(z, "votes")


@pytest.mark.parametrize("name", ["bert-classification", "bert-regression", "bert-multilabel", "gpt2-lm", "t5-seq2seq"])
def test_the_model_predicts_the_mean(name):
    several, batch = models(name), batch_for(name)
    ensemble = Ensemble(size=3).finish(several)
    assert not any(module.training for module in ensemble.modules())
    with torch.no_grad():
        outputs = ensemble(**batch)
        parts = [model(**batch).logits for model in several]
    kind = HEADS[name][1]
    torch.testing.assert_close(outputs.logits, ensemble_logits(parts, kind=kind))
    torch.testing.assert_close(outputs.loss, nll(outputs.logits, batch["labels"], kind))
    assert type(outputs) is type(several[0](**batch))
    if name.startswith("bert"):  # the task is known without labels too: Hugging Face has noted it in the config by now
        with torch.no_grad():
            again = ensemble(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        torch.testing.assert_close(again.logits, outputs.logits)
        assert again.loss is None


def test_plain_modules_and_tuples():
    several = [nn.Linear(3, 2) for _ in range(2)]
    x = torch.randn(4, 3)
    found = EnsembleModel(several, "logit")(input=x)
    torch.testing.assert_close(found, ensemble_logits([each(x) for each in several], "logit"))
    hugging = models("bert-classification", 2)
    for each in hugging:
        each.config.return_dict = False
    (found,) = EnsembleModel(hugging)(**batch_for("bert-classification"))
    assert found.shape == (4, 3)


def test_an_ensemble_of_one_is_the_model():
    several = models("bert-classification", 2)
    assert Ensemble(size=1).finish(several) is several[0]
    batch = batch_for("bert-classification")
    alone = EnsembleModel(several[:1])
    assert torch.equal(alone(**batch).logits, several[0].eval()(**batch).logits)


def test_models_that_mean_different_things_are_refused():
    one = make("bert-classification")
    with pytest.raises(SteadytuneError, match="numbers of labels differ, 3 and 2"):
        EnsembleModel([one, BertForSequenceClassification(bert_config(num_labels=2))])
    named = BertForSequenceClassification(bert_config(id2label={0: "a", 1: "b", 2: "c"}))
    with pytest.raises(SteadytuneError, match="label names differ"):
        EnsembleModel([one, named])
    with pytest.raises(SteadytuneError, match="architectures differ"):
        EnsembleModel([one, make("bert-token")])
    with pytest.raises(SteadytuneError, match="vocabulary sizes differ"):
        EnsembleModel([one, BertForSequenceClassification(bert_config(vocab_size=41))])
    with pytest.raises(SteadytuneError, match="at least one"):
        EnsembleModel([])
    with pytest.raises(SteadytuneError, match="only 1 models were given"):
        Ensemble(size=2).finish([one])
    with pytest.raises(SteadytuneError, match="size must be a whole number"):
        Ensemble(size=0)
