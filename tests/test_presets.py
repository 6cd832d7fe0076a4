"""Presets: what the papers say, and a recommended recipe that fits every architecture."""

import math

import pytest
import torch

from steadytune import AdamW, Dropout, LinearSchedule, Reinit, SteadytuneError, Streams, apply_
from steadytune.recipe import PRESETS, Recipe, preset
from tiny import TINY


def test_presets_say_what_they_are():
    assert next(iter(PRESETS)) == "recommended"
    assert {"standard", "devlin", "mixout", "mosbach", "rdrop"} <= PRESETS.keys()
    for item in PRESETS.values():
        assert item.describe
        assert item.source
        assert Recipe.from_data(item.recipe.to_data()) == item.recipe
    with pytest.raises(SteadytuneError, match=r"no recipe 'recomended'\. Did you mean 'recommended'"):
        preset("recomended")


def test_presets_are_those_of_the_papers():
    standard, devlin, mosbach, rdrop = (preset(name) for name in ("standard", "devlin", "mosbach", "rdrop"))
    v9 = (2e-5, 0.0, 32, 3.0, 1.0, 128, 10)
    assert v9 == (
        standard.lr,
        standard.weight_decay,
        standard.batch_size,
        standard.epochs,
        standard.clip,
        standard.max_length,
        standard.evaluations,
    )
    assert standard.methods == (AdamW(correct_bias=True), LinearSchedule(warmup=0.1))
    assert AdamW(correct_bias=False, eps=1e-6) in devlin.methods
    assert (devlin.lr, devlin.weight_decay, Dropout(p=0.1) in devlin.methods) == (2e-5, 0.01, True)
    assert (mosbach.lr, mosbach.epochs, mosbach.batch_size, mosbach.weight_decay) == (2e-5, 20.0, 16, 0.01)
    assert rdrop.planned_steps(math.ceil(3668 / 16)) == pytest.approx(2296, rel=0.01)  # MRPC, appendix table 1
    assert rdrop.planned_steps(math.ceil(8551 / 16)) == pytest.approx(5336, rel=0.01)  # CoLA


def test_recommended_is_the_papers_advice():
    """V25: bias correction, warm-up, re-init, and steps enough for few rows without cutting many short."""
    recipe = preset("recommended")
    assert set(recipe.methods) == {AdamW(correct_bias=True), LinearSchedule(warmup=0.1), Reinit(layers=0.25)}
    assert recipe.planned_steps(math.ceil(500 / 32)) == 800
    assert recipe.planned_steps(math.ceil(100_000 / 32)) == 9375


@pytest.mark.parametrize("name", [name for name in TINY if name != "mlp"])
def test_recommended_fits_every_architecture(name):
    torch.manual_seed(0)
    model = TINY[name]()
    recipe = preset("recommended")
    applied = apply_(model, recipe.methods, streams=Streams())
    assert 0 < len(applied.site.reinitialised) < len(list(model.named_parameters()))
    assert applied.optimizer(recipe.lr, recipe.weight_decay)
