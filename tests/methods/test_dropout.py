"""Dropout: every rate of a model is found, set and restored."""

import pytest
import torch
from torch import nn

from steadytune import Dropout, NoEffect, SteadytuneError, apply_, remove_
from steadytune.methods.dropout import dropout_sites, set_dropout_
from tiny import TINY, batch

ARCHITECTURES = list(TINY)


def forward(model, name):
    inputs = {k: v for k, v in batch(name).items() if k != "labels"}
    out = model(**inputs) if name != "mlp" else model(inputs["input"])
    return getattr(out, "logits", out)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_at_zero_training_is_deterministic(name):
    """The proof that no rate was missed: two forwards of a training model agree."""
    torch.manual_seed(0)
    model = TINY[name]().train()
    set_dropout_(model, 0.0)
    with torch.no_grad():
        assert torch.equal(forward(model, name), forward(model, name))


@pytest.mark.parametrize("name", [n for n in ARCHITECTURES if n != "mlp"])
def test_a_high_rate_makes_noise(name):
    torch.manual_seed(0)
    model = TINY[name]().train()
    assert set_dropout_(model, 0.5) > 0
    with torch.no_grad():
        assert not torch.equal(forward(model, name), forward(model, name))


@pytest.mark.parametrize("name", [n for n in ARCHITECTURES if n != "mlp"])
def test_remove_restores_the_first_rates(name):
    model = TINY[name]()
    before = [(where, getattr(module, attribute)) for module, attribute, where in dropout_sites(model)]
    apply_(model, Dropout(p=0.3))
    apply_(model, Dropout(p=0.4))
    assert {getattr(module, attribute) for module, attribute, _ in dropout_sites(model)} == {0.4}
    remove_(model)
    assert [(where, getattr(module, attribute)) for module, attribute, where in dropout_sites(model)] == before


def test_float_attributes_and_attention_are_found():
    attention = nn.MultiheadAttention(4, 2, dropout=0.1)
    model = nn.Sequential(attention, nn.Dropout2d(0.2), nn.AlphaDropout(0.3))
    assert [where for _, _, where in dropout_sites(model)] == ["0.dropout", "1.p", "2.p"]


def test_switches_and_other_drops_are_left_alone():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.use_dropout = True
            self.layerdrop = 0.1
            self.dropout = 0.2

    assert [where for _, _, where in dropout_sites(nn.Sequential(Odd()))] == ["0.dropout"]


def test_none_keeps_the_models_rates():
    model = TINY["bert"]()
    apply_(model, Dropout(p=None))
    assert {getattr(module, attribute) for module, attribute, _ in dropout_sites(model)} == {0.1}


def test_the_head_may_have_a_rate_of_its_own():
    model = TINY["bert"]()
    apply_(model, Dropout(p=0.4, head=0.0))
    rates = {name: getattr(module, attribute) for module, attribute, name in dropout_sites(model)}
    assert rates.pop("dropout.p") == 0.0
    assert set(rates.values()) == {0.4}
    remove_(model)
    assert {getattr(module, attribute) for module, attribute, _ in dropout_sites(model)} == {0.1}


def test_a_recipe_without_the_knob_is_what_it_was():
    """Its key names trials that were run before the knob was there."""
    assert Dropout(p=0.3).describe() == {"method": "dropout", "p": 0.3}
    assert Dropout(p=0.3, head=0.0).describe() == {"method": "dropout", "p": 0.3, "head": 0.0}


def test_bad_input():
    with pytest.raises(SteadytuneError, match="probability"):
        Dropout(p=0.1, head=-0.1)
    with pytest.raises(SteadytuneError, match="give p, too"):
        Dropout(p=None, head=0.1)
    with pytest.raises(NoEffect, match="no dropout in its head"):
        apply_(TINY["gpt2"](), Dropout(p=0.1, head=0.0))
    with pytest.raises(SteadytuneError, match="probability"):
        Dropout(p=1.5)
    with pytest.raises(NoEffect, match="has no dropout to set"):
        apply_(nn.Sequential(nn.Linear(2, 2)), Dropout(p=0.1))
