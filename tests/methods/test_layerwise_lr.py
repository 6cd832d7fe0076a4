"""Layer-wise learning rates: every trainable parameter in exactly one group, lowest at the bottom (V20, T3)."""

import copy

import pytest
import torch
import transformers as tr
from torch import nn

from steadytune.errors import NoEffect, SteadytuneError
from steadytune.layers import HEAD, find_layers
from steadytune.methods.base import Site
from steadytune.methods.layerwise_lr import LayerwiseLR, layerwise_lr, split_by_depth
from steadytune.methods.weight_decay import decayed_names
from steadytune.rng import Streams

SMALL = {"hidden_size": 8, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 20}


def bert(**more):
    return tr.BertForSequenceClassification(tr.BertConfig(**SMALL, **more))


MODELS = {
    "bert": bert,
    "bert-mlm": lambda: tr.BertForMaskedLM(tr.BertConfig(**SMALL)),  # output embeddings tied to the input ones
    "roberta": lambda: tr.RobertaForSequenceClassification(tr.RobertaConfig(**SMALL)),
    "albert": lambda: tr.AlbertForSequenceClassification(tr.AlbertConfig(**SMALL, embedding_size=4)),
    # embedding_size != hidden_size: has the embeddings_project that public code leaves in no group (D12)
    "electra": lambda: tr.ElectraForSequenceClassification(tr.ElectraConfig(**SMALL, embedding_size=4)),
    "bart": lambda: tr.BartForSequenceClassification(
        tr.BartConfig(
            vocab_size=20, d_model=8, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
            decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16,
        )
    ),
    "t5": lambda: tr.T5ForConditionalGeneration(
        tr.T5Config(vocab_size=20, d_model=8, d_kv=4, d_ff=16, num_layers=2, num_heads=2)
    ),
    "gpt2": lambda: tr.GPT2LMHeadModel(tr.GPT2Config(vocab_size=20, n_embd=8, n_layer=2, n_head=2, n_positions=16)),
    "vit": lambda: tr.ViTForImageClassification(
        tr.ViTConfig(**{k: v for k, v in SMALL.items() if k != "vocab_size"}, image_size=8, patch_size=4)
    ),
    "mlp": lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)),
}  # fmt: skip


def site_of(model):
    return Site.of(model, Streams())


def plain_groups(model, lr=0.1, weight_decay=0.01):
    names = decayed_names(model)
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    return [
        {"params": [p for n, p in named if n in names], "lr": lr, "weight_decay": weight_decay},
        {"params": [p for n, p in named if n not in names], "lr": lr, "weight_decay": 0.0},
    ]


def by_parameter(groups):
    found = {}
    for group in groups:
        for p in group["params"]:
            assert p not in found, "in two groups"
            found[p] = group
    return found


@pytest.mark.parametrize("name", MODELS)
def test_every_trainable_parameter_is_in_exactly_one_group(name):
    model = MODELS[name]()
    next(model.parameters()).requires_grad = False
    for groups in (
        layerwise_lr(model, lr=0.1, decay=0.5),
        LayerwiseLR(decay=0.5).groups(plain_groups(model), site_of(model)),
    ):
        assert set(by_parameter(groups)) == {p for p in model.parameters() if p.requires_grad}
        torch.optim.AdamW(groups)  # torch refuses duplicates too


@pytest.mark.parametrize("name", MODELS)
def test_learning_rates_are_the_formula(name):
    model = MODELS[name]()
    layers = find_layers(model)
    group_of = by_parameter(layerwise_lr(model, lr=0.1, decay=0.5, weight_decay=0.3))
    decayed = decayed_names(model)
    rates = {}
    for part in layers.parts():
        for full, p in layers.parameters(part).items():
            i = 0 if part == "embeddings" else part if isinstance(part, int) else layers.count + 1
            assert group_of[p]["lr"] == pytest.approx(0.1 * 0.5 ** (layers.count + 1 - i)), full
            assert group_of[p]["weight_decay"] == (0.3 if full in decayed else 0.0), full
            rates[i] = group_of[p]["lr"]
    assert sorted(rates.values()) == [rates[i] for i in sorted(rates)]  # embeddings lowest
    assert len(rates) >= 3


def test_bert_by_hand():
    model = bert()
    group_of = by_parameter(layerwise_lr(model, lr=1.0, decay=0.5, weight_decay=0.3))
    expected = {
        "bert.embeddings.word_embeddings.weight": (1 / 16, 0.3, "embeddings"),
        "bert.embeddings.LayerNorm.weight": (1 / 16, 0.0, "embeddings, no decay"),
        "bert.encoder.layer.0.output.dense.weight": (1 / 8, 0.3, "block 1"),
        "bert.encoder.layer.2.output.dense.weight": (1 / 2, 0.3, "block 3"),
        "bert.encoder.layer.2.output.dense.bias": (1 / 2, 0.0, "block 3, no decay"),
        "bert.pooler.dense.weight": (1.0, 0.3, "pooler"),
        "classifier.weight": (1.0, 0.3, "head"),
        "classifier.bias": (1.0, 0.0, "head, no decay"),
    }
    for name, (lr, weight_decay, label) in expected.items():
        group = group_of[model.get_parameter(name)]
        assert (group["lr"], group["weight_decay"], group["name"]) == (lr, weight_decay, label), name


def test_electras_projection_is_trained_with_the_embeddings():
    model = MODELS["electra"]()
    group = by_parameter(layerwise_lr(model, lr=1.0, decay=0.5))[model.electra.embeddings_project.weight]
    assert group["name"] == "embeddings"


@pytest.mark.parametrize("name", ["bert-mlm", "gpt2", "t5"])
def test_a_tied_parameter_moves_with_its_lowest_place(name):
    model = MODELS[name]()
    tied = model.get_output_embeddings().weight
    assert tied is model.get_input_embeddings().weight
    group = by_parameter(layerwise_lr(model, lr=1.0, decay=0.5))[tied]
    assert group["lr"] == 0.5 ** (find_layers(model).count + 1)


def test_the_method_keeps_other_keys_and_scales_each_groups_own_lr():
    model = bert()
    groups = plain_groups(model)
    groups[1].update(lr=0.4, betas=(0.5, 0.6), name="free")
    before = [dict(group) for group in groups]
    made = by_parameter(LayerwiseLR(decay=0.5).groups(groups, site_of(model)))
    block = model.bert.encoder.layer[2].output.dense
    assert made[block.weight] == {
        "params": made[block.weight]["params"], "lr": 0.05, "weight_decay": 0.01, "name": "block 3, group 0"
    }  # fmt: skip
    assert made[block.bias]["lr"] == 0.2
    assert made[block.bias]["betas"] == (0.5, 0.6)
    assert made[block.bias]["name"] == "block 3, free"
    assert groups == before  # what was given is untouched


def test_decay_1_returns_the_groups_themselves():
    model = bert()
    groups = plain_groups(model)
    assert LayerwiseLR(decay=1.0).is_null()
    assert LayerwiseLR(decay=1.0).groups(groups, site_of(model)) is groups


def test_a_step_of_sgd_moves_each_layer_by_its_rate():
    model = bert().double()
    start = copy.deepcopy(model)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer = torch.optim.SGD(layerwise_lr(model, lr=0.1, decay=0.9))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 0.5)  # any scheduler works
    optimizer.step()
    layers = find_layers(model)
    for name, p in model.named_parameters():
        moved = 0.05 * 0.9 ** (layers.count + 1 - layers.depth(layers.part(name)))
        torch.testing.assert_close(start.get_parameter(name) - p, torch.full_like(p, moved))
    assert max(schedule.get_last_lr()) == 0.05


def test_one_depth_is_no_effect():
    model = bert()
    for name, p in model.named_parameters():
        p.requires_grad = name.startswith(("classifier", "bert.pooler"))
    LayerwiseLR().check(site_of(bert()))
    with pytest.raises(NoEffect, match="all lie at one depth"):
        LayerwiseLR().check(site_of(model))
    LayerwiseLR(decay=1.0).check(site_of(model))


def test_nothing_to_train_is_no_effect():
    with pytest.raises(NoEffect, match="requires a gradient"):
        layerwise_lr(bert().requires_grad_(False), lr=0.1)


@pytest.mark.parametrize("decay", [0.0, -0.5, 1.1, float("nan"), "0.9", True])
def test_bad_decay_gets_a_sentence(decay):
    for call in (lambda: LayerwiseLR(decay=decay), lambda: layerwise_lr(bert(), lr=0.1, decay=decay)):
        with pytest.raises(SteadytuneError, match="decay must"):
            call()


def test_groups_that_cannot_be_split_get_a_sentence():
    model, layers = bert(), find_layers(bert())
    with pytest.raises(SteadytuneError, match="carries no 'lr'"):
        LayerwiseLR().groups([{"params": list(model.parameters())}], site_of(model))
    with pytest.raises(SteadytuneError, match="not the model's"):
        split_by_depth([{"params": list(model.parameters()), "lr": 0.1}], layers, 0.9)


def test_unknown_architectures_raise():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.mystery = nn.Parameter(torch.ones(2, 2))

    with pytest.raises(SteadytuneError):
        layerwise_lr(Odd(), lr=0.1)


def test_head_and_pooler_can_be_given_the_papers_weight_decay_by_name():
    model = bert()
    groups = layerwise_lr(model, lr=0.1, weight_decay=0.3)
    for group in groups:
        if group["name"].startswith(("head", "pooler")):
            group["weight_decay"] = 0.0
    group_of = by_parameter(groups)
    assert all(group_of[p]["weight_decay"] == 0.0 for p in find_layers(model).parameters(HEAD).values())
    assert group_of[model.bert.encoder.layer[0].output.dense.weight]["weight_decay"] == 0.3
