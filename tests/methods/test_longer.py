"""Longer: exactly one way to say how long, never a shorter run (V16)."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadytune.errors import NoEffect, SteadytuneError
from steadytune.methods.base import Length, check_methods
from steadytune.methods.longer import STEPS, Longer, longer

THREE_EPOCHS = Length(steps=96, steps_per_epoch=32)  # 1,000 rows, batches of 32 (V16)


@pytest.mark.parametrize("steps", STEPS)
def test_the_papers_steps(steps):
    assert Longer(steps=steps).length(THREE_EPOCHS) == Length(steps, 32)


@pytest.mark.parametrize(
    ("asked", "steps"),
    [({"epochs": 20}, 640), ({"epochs": 3.01}, 97), ({"times": 2.0}, 192), ({"times": 1.001}, 97), ({}, 288)],
)
def test_epochs_and_times(asked, steps):
    assert Longer(**asked).length(THREE_EPOCHS) == Length(steps, 32)


def test_nothing_given_is_three_times_and_the_record_says_so():
    assert Longer() == Longer(times=3.0)
    assert Longer().describe() == {"method": "longer", "steps": None, "epochs": None, "times": 3.0}


def test_times_1_is_the_baseline():
    assert Longer(times=1.0).is_null()
    assert Longer(times=1.0).length(THREE_EPOCHS) == THREE_EPOCHS
    assert not Longer().is_null()


@given(steps=st.integers(1, 10_000), times=st.floats(1.0, 50.0, exclude_min=True))
def test_times_above_1_always_adds_steps(steps, times):
    made = longer(Length(steps, 1), times=times)
    assert made.steps == math.ceil(times * steps) > steps


@pytest.mark.parametrize("asked", [{"steps": 95}, {"epochs": 2.9}])
def test_a_shorter_run_is_refused(asked):
    with pytest.raises(SteadytuneError, match=r"cut the run from 96 steps to"):
        Longer(**asked).length(THREE_EPOCHS)


@pytest.mark.parametrize("asked", [{"steps": 96}, {"epochs": 3}])
def test_the_same_length_has_no_effect(asked):
    with pytest.raises(NoEffect, match="96 steps that the run has anyway"):
        Longer(**asked).length(THREE_EPOCHS)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"steps": 200, "epochs": 3.0}, "steps and epochs was given"),
        ({"steps": 0}, "steps must be"),
        ({"steps": 2.5}, "whole number"),
        ({"steps": True}, "steps must be"),
        ({"epochs": -1.0}, "epochs must be"),
        ({"epochs": math.nan}, "epochs must be"),
        ({"times": 0.5}, "times must be a number of at least 1"),
        ({"times": "3"}, "times must be"),
    ],
)
def test_bad_settings_get_a_sentence(bad, words):
    with pytest.raises(SteadytuneError, match=words):
        Longer(**bad)


def test_the_function_wants_exactly_one():
    with pytest.raises(SteadytuneError, match="nothing was given"):
        longer(THREE_EPOCHS)


def test_two_lengths_are_refused():
    with pytest.raises(SteadytuneError, match="both replace the length"):
        check_methods([Longer(steps=200), Longer(times=2.0)])
