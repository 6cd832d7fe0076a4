"""Schedules against transformers' own, number for number, and fairseq's formulas as the R-Drop runs used them."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import TrainingArguments, optimization

from steadytune.errors import SteadytuneError
from steadytune.methods.base import Length, check_methods
from steadytune.methods.schedules import (
    ConstantSchedule,
    InverseSqrtSchedule,
    LinearSchedule,
    PolynomialSchedule,
    amount_to_steps,
    constant,
    inverse_sqrt,
    linear,
    polynomial,
)

RUN = Length(steps=90, steps_per_epoch=30)


def optimizer(lr=1.0):
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)


def factors(scheduler, count):
    """What a transformers scheduler multiplies the learning rate by at each step."""
    return [scheduler.lr_lambdas[0](step) for step in range(count)]


@pytest.mark.parametrize("steps", [1, 7, 100])
@pytest.mark.parametrize("warmup", [0, 1, 5, 7])
def test_linear_equals_transformers(steps, warmup):
    theirs = optimization.get_linear_schedule_with_warmup(optimizer(), warmup, steps)
    assert [linear(s, steps, warmup) for s in range(steps + 10)] == factors(theirs, steps + 10)


@pytest.mark.parametrize("warmup", [0, 1, 10, 4000])
def test_inverse_sqrt_equals_transformers(warmup):
    theirs = optimization.get_inverse_sqrt_schedule(optimizer(), warmup)
    assert [inverse_sqrt(s, warmup) for s in range(5000)] == factors(theirs, 5000)


@pytest.mark.parametrize("warmup", [0, 1, 10])
def test_constant_equals_transformers(warmup):
    theirs = optimization.get_constant_schedule_with_warmup(optimizer(), warmup)
    assert [constant(s, warmup) for s in range(30)] == factors(theirs, 30)


@pytest.mark.parametrize("warmup", [0, 6, 99])
@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("end", [0.0, 1e-7, 0.25])
def test_polynomial_equals_transformers(warmup, power, end):
    mine = [polynomial(s, 100, warmup, power, end) for s in range(120)]
    theirs = optimization.get_polynomial_decay_schedule_with_warmup(optimizer(), warmup, 100, lr_end=end, power=power)
    assert mine == factors(theirs, 120)
    # their `lr_end` is a learning rate, our `end` a factor
    small = optimization.get_polynomial_decay_schedule_with_warmup(
        optimizer(2e-5), warmup, 100, lr_end=end * 2e-5, power=power
    )
    assert mine == pytest.approx(factors(small, 120), rel=1e-12)


def test_polynomial_survives_a_run_that_is_all_warmup():
    assert [polynomial(s, 4, 4) for s in range(6)] == [0.0, 0.25, 0.5, 0.75, 0.0, 0.0]


def test_polynomial_of_power_1_is_linear():
    assert [polynomial(s, 50, 5) for s in range(60)] == pytest.approx([linear(s, 50, 5) for s in range(60)])


def test_inverse_sqrt_is_fairseqs():
    """decay_factor = lr · warmup^0.5; lr = decay_factor · updates^-0.5 (R9: lr 5e-4, 4000 updates of warm-up)."""
    lr, warmup = 5e-4, 4000
    for t in (0, 1, 3999, 4000, 4001, 10_000, 300_000):
        fairseq = t * lr / warmup if t < warmup else lr * warmup**0.5 * t**-0.5
        assert lr * inverse_sqrt(t, warmup) == pytest.approx(fairseq, rel=1e-12)


@given(steps=st.integers(1, 300), data=st.data(), power=st.floats(0.1, 4.0), end=st.floats(0.0, 0.9))
def test_factors_stay_between_0_and_1_rise_in_warmup_and_fall_after_it(steps, data, power, end):
    warmup = data.draw(st.integers(0, steps))
    for f in (
        lambda s: linear(s, steps, warmup),
        lambda s: polynomial(s, steps, warmup, power, end),
        lambda s: inverse_sqrt(s, warmup),
        lambda s: constant(s, warmup),
    ):
        values = [f(s) for s in range(steps + 3)]
        assert all(0.0 <= v <= 1.0 for v in values)
        assert values[:warmup] == sorted(values[:warmup])
        assert values[warmup:] == sorted(values[warmup:], reverse=True)


# --- amounts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("amount", "steps"),
    [
        (0, 0),
        (100, 100),
        (0.0, 0),
        (0.1, 9),
        (0.105, 10),  # 9.45 steps, rounded up
        ("100 steps", 100),
        ("1 step", 1),
        ("1 epoch", 30),
        ("2 epochs", 60),
        ("0.5 epochs", 15),
        ("0.51epochs", 16),  # 15.3
        ("10%", 9),
        (" 10.5 % ", 10),
        ("100%", 90),
    ],
)
def test_amounts(amount, steps):
    assert amount_to_steps(amount, RUN) == steps


BAD = [-1, True, None, 1.0, 1.5, -0.1, math.nan, math.inf, "", "10", "ten steps", "1.5 steps", "-1 epochs", "101%"]


@pytest.mark.parametrize("amount", [*BAD, "1e2 steps", "2 epochs or so", "0.1 run", "5 %s", [3]])
def test_bad_amounts_get_a_sentence(amount):
    with pytest.raises(SteadytuneError, match="no amount of training"):
        amount_to_steps(amount, RUN)
    for kind in (LinearSchedule, InverseSqrtSchedule, PolynomialSchedule, ConstantSchedule):
        with pytest.raises(SteadytuneError, match=kind.__name__):
            kind(warmup=amount)


@pytest.mark.parametrize("steps", [1, 9, 70, 96, 233, 3598])
@pytest.mark.parametrize("ratio", [0.0, 0.06, 0.1, 0.3, 0.7])
def test_ratio_rounds_as_the_hugging_face_trainer_does(steps, ratio, tmp_path):
    args = TrainingArguments(output_dir=str(tmp_path), warmup_steps=ratio, report_to=[])
    assert amount_to_steps(ratio, Length(steps, steps)) == args.get_warmup_steps(steps)


# --- the methods ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "function"),
    [
        (LinearSchedule(), lambda s: linear(s, 90, 9)),
        (LinearSchedule(warmup="1 epoch"), lambda s: linear(s, 90, 30)),
        (InverseSqrtSchedule(), lambda s: inverse_sqrt(s, 4000)),
        (InverseSqrtSchedule(warmup=10), lambda s: inverse_sqrt(s, 10)),
        (PolynomialSchedule(), lambda s: polynomial(s, 90, 6)),
        (PolynomialSchedule(warmup=0, power=2.0, end=0.1), lambda s: polynomial(s, 90, 0, 2.0, 0.1)),
        (ConstantSchedule(warmup=0.1), lambda s: constant(s, 9)),
        (ConstantSchedule(), lambda s: 1.0),
    ],
)
def test_methods_call_their_function(method, function):
    assert [method.lr_factor(s, RUN) for s in range(95)] == [function(s) for s in range(95)]


def test_constant_without_warmup_is_null():
    assert ConstantSchedule().is_null()
    assert not ConstantSchedule(warmup=1).is_null()
    assert not LinearSchedule(warmup=0).is_null()


def test_two_schedules_are_refused():
    with pytest.raises(SteadytuneError, match="both replace the schedule"):
        check_methods([LinearSchedule(), InverseSqrtSchedule()])


@pytest.mark.parametrize("kind", [LinearSchedule, PolynomialSchedule, ConstantSchedule])
def test_warmup_longer_than_the_run_is_refused(kind):
    assert kind(warmup=90).lr_factor(0, RUN) == 0.0
    with pytest.raises(SteadytuneError, match="91 steps, but the run has only 90"):
        kind(warmup=91).lr_factor(0, RUN)


@pytest.mark.parametrize("bad", [{"power": 0.0}, {"power": -1.0}, {"end": 1.0}, {"end": -0.1}, {"end": math.nan}])
def test_bad_polynomials_get_a_sentence(bad):
    with pytest.raises(SteadytuneError, match="PolynomialSchedule"):
        PolynomialSchedule(**bad)


def test_drives_a_torch_scheduler():
    steps = [LinearSchedule(warmup=2).lr_factor(s, Length(4, 2)) for s in range(5)]
    sgd = optimizer(lr=0.5)
    scheduler = torch.optim.lr_scheduler.LambdaLR(sgd, lambda s: LinearSchedule(warmup=2).lr_factor(s, Length(4, 2)))
    seen = []
    for _ in range(5):
        seen.append(scheduler.get_last_lr()[0])
        sgd.step()
        scheduler.step()
    assert seen == [0.5 * f for f in steps] == [0.0, 0.25, 0.5, 0.25, 0.0]
