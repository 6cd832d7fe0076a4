"""Recipes: strict, with a key that is the same for the same settings, and presets that say what the papers say."""

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steadytune import (
    AdamW,
    Dropout,
    Mixout,
    PolynomialSchedule,
    RDrop,
    Reinit,
    SteadytuneError,
)
from steadytune.methods import all_methods
from steadytune.recipe import Recipe, method_from_data, parse_method, preset
from steadytune.strict import BadValue

METHODS = all_methods()
GOLDEN = "06d8e970c3d30793ac7f7d3d0663d437dc3eaa6d3a9244a127230fa677a04212"


# -- the record -----------------------------------------------------------------------------------------------------


def test_it_is_frozen_and_compares_by_value():
    recipe = Recipe(methods=[Mixout(p=0.7)])
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.lr = 1.0
    assert recipe == Recipe(methods=(Mixout(p=0.7),))
    assert len({recipe, Recipe(methods=Mixout(p=0.7)), Recipe()}) == 2


def test_three_epochs_unless_something_else_is_said():
    assert Recipe().epochs == 3.0
    assert Recipe(steps=7).epochs is None
    assert Recipe().to_data()["epochs"] == 3.0


@pytest.mark.parametrize(
    ("recipe", "per_epoch", "steps"),
    [
        (Recipe(), 32, 96),  # 1,000 rows: the paper's 96 steps
        (Recipe(epochs=0.5), 3, 2),
        (Recipe(steps=5), 1000, 5),
        (Recipe(min_steps=800), 32, 800),
        (Recipe(min_steps=800), 500, 1500),
    ],
)
def test_how_long_it_is(recipe, per_epoch, steps):
    assert recipe.planned_steps(per_epoch) == steps


# -- the key --------------------------------------------------------------------------------------------------------


def test_the_key_of_a_recipe_does_not_change_between_versions():
    """What is stored under old keys must be found again: if this fails, a change was made that forgets them."""
    assert preset("standard").key() == GOLDEN


def test_the_key_is_that_of_the_settings_however_they_were_written():
    one = Recipe(lr=1, epochs=2, methods=[AdamW(), Mixout(p=0), Reinit(layers=1)])
    other = Recipe(lr=1.0, epochs=2.0, methods=(Reinit(layers=1), Mixout(p=0.0), AdamW()))
    assert one.key() == other.key()
    assert one == other


CHANGES = {
    "model": "x",
    "methods": (Mixout(),),
    "lr": 3e-5,
    "weight_decay": 0.1,
    "batch_size": 8,
    "epochs": 4.0,
    "steps": 9,
    "min_steps": 5,
    "clip": 0.0,
    "max_length": 64,
    "max_target_length": 32,
    "precision": "bf16",
    "micro_batches": 2,
    "evaluations": 1,
    "patience": 2,
    "label_smoothing": 0.1,
    "beams": 4,
    "length_penalty": 0.6,
    "trust_remote_code": True,
    "start_from": "runs/mnli",
    "from_config": True,
}


def test_every_setting_is_in_the_key():
    assert CHANGES.keys() == {field.name for field in dataclasses.fields(Recipe)}
    keys = {Recipe(**{name: value}).key() for name, value in CHANGES.items()} | {Recipe().key()}
    assert len(keys) == len(CHANGES) + 1


def test_a_methods_setting_is_in_the_key():
    assert Recipe(methods=Mixout(p=0.7)).key() != Recipe(methods=Mixout(p=0.8)).key()


# -- as data --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_every_method_makes_the_trip_through_data_and_through_text(name):
    made = METHODS[name]()
    assert method_from_data(made.describe()) == made
    pairs = [f"{key}={_said(value)}" for key, value in made.describe().items() if key != "method"]
    assert parse_method(f"{name}:{','.join(pairs)}") == made
    assert parse_method(name) == made


def _said(value):
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


numbers = st.floats(min_value=1e-9, max_value=1e9)


@settings(max_examples=60, deadline=None)
@given(
    lr=numbers,
    epochs=numbers,
    decay=numbers,
    clip=numbers,
    p=st.floats(0.0, 1.0),
    model=st.text(min_size=1).filter(str.strip),
    length=st.integers(1, 10**6),
    patience=st.none() | st.integers(1, 99),
)
def test_from_data_undoes_to_data(lr, epochs, decay, clip, p, model, length, patience):
    recipe = Recipe(
        model=model, methods=[Mixout(p=p)], lr=lr, epochs=epochs, weight_decay=decay, clip=clip, max_length=length,
        patience=patience,
    )  # fmt: skip
    again = Recipe.from_data(recipe.to_data())
    assert again == recipe
    assert again.key() == recipe.key()


BAD = [
    ({"lrr": 1e-5}, "no setting 'lrr'. Did you mean 'lr'", ("lrr",)),
    ({"learning": 1e-5}, "Choose from model, methods, lr", ("learning",)),
    ({"lr": "2e-5"}, "lr must be a number, not '2e-5'", ("lr",)),
    ({"lr": True}, "lr must be a number", ("lr",)),
    ({"lr": 0.0}, "lr must be a number above 0", ("lr",)),
    ({"lr": math.inf}, "lr must be a number above 0", ("lr",)),
    ({"lr": math.nan}, "lr must be a number above 0", ("lr",)),
    ({"epochs": -1.0}, "epochs must be a number above 0", ("epochs",)),
    ({"batch_size": 32.0}, "batch_size must be a whole number", ("batch_size",)),
    ({"batch_size": 0}, "batch_size must be a whole number of at least 1", ("batch_size",)),
    ({"batch_size": True}, "batch_size must be a whole number", ("batch_size",)),
    ({"steps": 0}, "steps must be a whole number of at least 1", ("steps",)),
    ({"steps": 5, "epochs": 2}, "give one or the other", ("steps",)),
    ({"steps": 5, "min_steps": 2}, "give one or the other", ("steps",)),
    ({"min_steps": -1}, "min_steps must be", ("min_steps",)),
    ({"precision": "int8"}, "precision must be one of fp32, bf16, fp16", ("precision",)),
    ({"label_smoothing": 1.5}, "label_smoothing is a probability", ("label_smoothing",)),
    ({"clip": -1}, "clip must be", ("clip",)),
    ({"length_penalty": math.nan}, "length_penalty must be a number", ("length_penalty",)),
    ({"patience": 0}, "patience must be", ("patience",)),
    ({"model": " "}, "model is empty", ("model",)),
    ({"model": None}, "model must be a text", ("model",)),
    ({"trust_remote_code": "yes"}, "trust_remote_code must be true or false", ("trust_remote_code",)),
    ({"from_config": True, "start_from": "x"}, "keep one", ("from_config",)),
    ({"methods": {"method": "mixout"}}, "methods is a list", ("methods",)),
    ({"methods": ["mixout"]}, "A method is written {method: mixout", ("methods", 0)),
    ({"methods": [{"method": ["mixout"]}]}, "A method is written", ("methods", 0)),
    ({"methods": [{"method": "mixot"}]}, "no method 'mixot'. Did you mean 'mixout'", ("methods", 0, "method")),
    ({"methods": [{"method": "mixout", "q": 1}]}, "Mixout has no setting 'q'", ("methods", 0, "q")),
    ({"methods": [{"method": "mixout", "p": "x"}]}, "Mixout: p must be a number", ("methods", 0, "p")),
    ({"methods": [{"method": "adamw"}, {"method": "mixout", "p": 2}]}, "in [0, 1]", ("methods", 1, "p")),
    ({"methods": [{"method": "adamw", "betas": [0.9]}]}, "a list of 2, each a number", ("methods", 0, "betas")),
    ({"methods": [{"method": "reinit", "layers": 1}, {"method": "reinit", "layers": 2}]}, "keep one", ("methods",)),
    ({"methods": [{"method": "ensemble"}, {"method": "ensemble"}]}, "is there twice", ("methods",)),
    ({"methods": [{"method": "mixout"}, {"method": "dropout"}]}, "both replace the dropout", ("methods",)),
    ({"label_smoothing": 0.1, "methods": [{"method": "rdrop"}]}, "Give it to RDrop", ("label_smoothing",)),
]


@pytest.mark.parametrize(("data", "said", "path"), BAD)
def test_what_is_wrong_is_said_and_where(data, said, path):
    with pytest.raises(BadValue) as error:
        Recipe.from_data(data)
    assert said in str(error.value)
    assert error.value.path == path


@pytest.mark.parametrize("data", [None, [], "recommended", 3])
def test_data_that_is_no_recipe(data):
    with pytest.raises(SteadytuneError, match="A recipe is"):
        Recipe.from_data(data)


def test_label_smoothing_beside_a_loss_that_is_null_is_fine():
    assert Recipe(label_smoothing=0.1, methods=RDrop(alpha=0.0)).label_smoothing == 0.1


# -- changed --------------------------------------------------------------------------------------------------------


def test_updated_is_strict_and_a_new_length_replaces_the_old_one():
    recommended = preset("recommended")
    assert recommended.updated({"lr": 1e-4}) == dataclasses.replace(recommended, lr=1e-4)
    short = recommended.updated({"steps": 10})
    assert (short.steps, short.epochs, short.min_steps) == (10, None, 0)
    assert recommended.updated({"epochs": 2}).planned_steps(32) == 64
    assert recommended.updated({"epochs": 2, "min_steps": 100}).planned_steps(32) == 100
    assert recommended.updated({"min_steps": 100}).planned_steps(32) == 100
    with pytest.raises(BadValue, match="Did you mean 'batch_size'"):
        recommended.updated({"batchsize": 1})


def test_a_method_takes_the_place_of_what_it_replaces():
    devlin = preset("devlin").with_methods(Mixout(p=0.9))
    assert Mixout(p=0.9) in devlin.methods
    assert not any(isinstance(item, Dropout) for item in devlin.methods)
    scheduled = preset("standard").with_methods(PolynomialSchedule(), AdamW(eps=1e-6))
    assert scheduled.methods == (AdamW(eps=1e-6), PolynomialSchedule())
    again = preset("mixout").with_methods(Mixout(p=0.9))
    assert [item for item in again.methods if isinstance(item, Mixout)] == [Mixout(p=0.9)]
    with pytest.raises(SteadytuneError, match="both replace"):
        preset("standard").with_methods(Mixout(), Dropout())
