"""The task losses against Hugging Face's and torch's own, the calling of models, and where noise is (T5)."""

import pytest
import torch
from heads import HEADS, batch_for, bert_config, make
from torch import nn
from torch.nn import functional
from transformers import BertForQuestionAnswering, BertModel

from steadytune import SteadytuneError
from steadytune.methods.loss import call, kind_of, logits_of, masked_mean, nll, noise_sources, plain_loss, unwrap


def mlp(p=0.5):
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(p), nn.Linear(8, 3))


@pytest.mark.parametrize("name", HEADS)
def test_equals_the_models_own_loss(name):
    model, batch = make(name).eval(), batch_for(name)
    theirs = model(**batch).loss
    model.config.problem_type = None  # Hugging Face writes there what it found; find it without
    logits = logits_of(call(model, batch))
    kind = kind_of(model, logits, batch["labels"])
    assert kind == HEADS[name][1]
    torch.testing.assert_close(nll(logits, batch["labels"], kind), theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["bert-classification", "gpt2-lm", "t5-seq2seq"])
def test_plain_loss_of_a_hugging_face_model_is_its_own_bit_for_bit(name):
    model, batch = make(name).train(), batch_for(name)
    torch.manual_seed(5)
    expected = model(**batch).loss
    torch.manual_seed(5)
    loss, outputs = plain_loss(model, batch)
    assert torch.equal(loss, expected)
    assert outputs.logits.shape[0] == 4


def test_plain_loss_of_tuples_and_of_plain_modules():
    model, batch = make("bert-classification").eval(), batch_for("bert-classification")
    expected = model(**batch).loss
    model.config.return_dict = False
    assert torch.equal(plain_loss(model, batch)[0], expected)
    assert logits_of(call(model, batch)).shape == (4, 3)

    model, x, y = mlp().eval(), torch.randn(5, 4), torch.tensor([0, 1, 2, 1, 0])
    loss, outputs = plain_loss(model, {"input": x, "labels": y})
    assert torch.equal(loss, functional.cross_entropy(model(x), y))
    assert torch.equal(outputs, model(x))


def test_label_smoothing_is_torchs_and_the_published_fairseq_form():
    torch.manual_seed(0)
    logits, labels, epsilon = torch.randn(2, 5, 7), torch.randint(0, 7, (2, 5)), 0.1
    labels[0, 3:] = -100
    found = nll(logits, labels, "token", epsilon)
    expected = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=epsilon)
    torch.testing.assert_close(found, expected)

    log_p, keep = logits.log_softmax(-1), labels != -100
    one = -log_p.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)[keep].sum()
    all_classes = -log_p.sum(-1)[keep].sum()
    published = ((1 - epsilon) * one + epsilon / 7 * all_classes) / keep.sum()
    torch.testing.assert_close(found, published)
    today = ((1 - epsilon - epsilon / 6) * one + epsilon / 6 * all_classes) / keep.sum()
    torch.testing.assert_close(nll(logits, labels, "token", epsilon * 7 / 6), today)


@pytest.mark.parametrize("kind", ["regression", "multilabel"])
def test_label_smoothing_without_classes_is_refused(kind):
    with pytest.raises(SteadytuneError, match="smoothing is for classes"):
        nll(torch.randn(3, 2), torch.rand(3, 2), kind, 0.1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    logits, labels = (50 * torch.randn(6, 3)).to(dtype), torch.tensor([0, 1, 2, 0, 1, 2])
    loss = nll(logits, labels, "classification")
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, functional.cross_entropy(logits.float(), labels))


@pytest.mark.parametrize(
    ("logits", "labels", "kind"),
    [
        ((5, 3), torch.zeros(5, dtype=torch.long), "classification"),
        ((5, 3), torch.zeros(5, 1, dtype=torch.int32), "classification"),
        ((5, 1), torch.zeros(5), "regression"),
        ((5, 1), torch.zeros(5, 1), "regression"),
        ((5,), torch.zeros(5), "regression"),
        ((5, 3), torch.zeros(5, 3), "multilabel"),
        ((5, 2, 3), torch.zeros(5, 2, dtype=torch.long), "token"),
    ],
)
def test_kind_by_shape(logits, labels, kind):
    assert kind_of(None, torch.zeros(logits), labels) == kind
    assert torch.isfinite(nll(torch.zeros(logits), labels, kind))


@pytest.mark.parametrize(
    ("logits", "labels"),
    [
        ((5, 1), torch.zeros(5, dtype=torch.long)),  # regression on whole numbers, or two classes with one output?
        ((5, 3), torch.zeros(5)),
        ((5, 3), torch.zeros(5, 3, dtype=torch.long)),
        ((5, 3), torch.zeros(4, dtype=torch.long)),
        ((5, 2, 3), torch.zeros(5, 4, dtype=torch.long)),
        ((5, 2, 3, 3), torch.zeros(5, 2, 3, dtype=torch.long)),
    ],
)
def test_an_unclear_task_is_refused_with_both_shapes(logits, labels):
    with pytest.raises(SteadytuneError, match="Cannot tell the task") as error:
        kind_of(None, torch.zeros(logits), labels)
    assert str(list(logits)) in str(error.value)


def test_problem_type_decides_where_shapes_do_not():
    model = make("bert-multilabel")
    logits, whole = torch.zeros(5, 3), torch.zeros(5, 3, dtype=torch.long)
    model.config.problem_type = "multi_label_classification"
    assert kind_of(model, logits, whole) == "multilabel"
    model.config.problem_type = "regression"
    assert kind_of(model, logits, torch.zeros(5, 3)) == "regression"
    assert kind_of(make("bert-regression"), torch.zeros(5, 1), whole[:, 0]) == "regression"


def test_a_hugging_face_model_of_unknown_shift_is_refused():
    class Strange(nn.Module):
        config = object()

    with pytest.raises(SteadytuneError, match="label t or with label t"):
        kind_of(Strange(), torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.long))


def test_question_answering_headless_models_and_missing_labels_are_refused():
    qa = BertForQuestionAnswering(bert_config(num_labels=2))
    with pytest.raises(SteadytuneError, match="Question answering"):
        logits_of(qa(input_ids=torch.ones(2, 3, dtype=torch.long)))
    with pytest.raises(SteadytuneError, match="without logits"):
        logits_of(BertModel(bert_config())(input_ids=torch.ones(2, 3, dtype=torch.long)))
    with pytest.raises(SteadytuneError, match="no tensor named 'labels'; it has input"):
        plain_loss(mlp(), {"input": torch.randn(2, 4)})


class Wrapper(nn.Module):
    """What DistributedDataParallel looks like from outside."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, **inputs):
        return self.module(**inputs)


def test_decoder_inputs_are_made_from_labels_through_wrappers():
    model, batch = make("t5-seq2seq").eval(), batch_for("t5-seq2seq")
    expected = model(**batch).logits
    compiled = torch.compile(model, backend="eager")
    for wrapped in (model, Wrapper(model), Wrapper(Wrapper(model)), compiled, nn.DataParallel(model)):
        assert unwrap(wrapped) is model
    for wrapped in (model, Wrapper(model)):
        torch.testing.assert_close(logits_of(call(wrapped, batch)), expected)
    given = {**batch, "decoder_input_ids": torch.zeros_like(batch["labels"])}
    assert not torch.allclose(logits_of(call(model, given)), expected)


def test_decoder_inputs_inside_peft():
    peft = pytest.importorskip("peft")
    model, batch = make("t5-seq2seq").eval(), batch_for("t5-seq2seq")
    expected = model(**batch).logits
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q"], task_type="SEQ_2_SEQ_LM")).eval()
    torch.testing.assert_close(logits_of(call(adapted, batch)), expected)  # LoRA starts as the identity
    assert kind_of(adapted, expected, batch["labels"]) == "seq2seq"


def test_masked_mean():
    values, mask = torch.tensor([[1.0, 2.0], [3.0, float("inf")]]), torch.tensor([[True, False], [True, False]])
    assert masked_mean(values, mask) == 2.0
    assert masked_mean(values, torch.zeros(2, 2, dtype=torch.bool)) == 0.0
    assert masked_mean(values[0], None) == 1.5


def test_noise_sources_names_what_is_random():
    assert noise_sources(mlp(0.5)) == ["2.p"]
    assert noise_sources(mlp(0.0)) == []
    assert noise_sources(mlp(1.0)) == []  # always zero is not random
    attention = nn.MultiheadAttention(4, 2, dropout=0.1)
    assert noise_sources(attention) == [".dropout"]
    bart = make("bart-seq2seq")
    assert "model.encoder.dropout" in noise_sources(bart)  # a float, not a module
    bart.model.encoder.layerdrop = 0.5
    assert "model.encoder.layerdrop" in noise_sources(bart)


def test_a_part_in_eval_mode_is_silent_while_the_model_trains():
    model = mlp().train()
    model[2].eval()
    assert noise_sources(model) == []
    assert noise_sources(model.eval()) == ["2.p"]  # before training starts, all of it counts


def test_mixed_layers_are_noise():
    class MixedLinear(nn.Linear):
        is_mixed = True
        p = 0.7

    model = nn.Sequential(MixedLinear(3, 3))
    assert noise_sources(model) == ["0"]
    MixedLinear.p = 1.0
    assert noise_sources(model) == []
