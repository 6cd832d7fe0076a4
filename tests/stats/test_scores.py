import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import steadytune.stats
from steadytune.errors import SteadytuneError
from steadytune.stats import pair_by_seed, settle_diverged


def test_a_diverged_run_is_given_the_floor_and_counted():
    values, diverged = settle_diverged([0.7, float("nan"), 0.6, float("-inf"), float("inf")], floor=0.5)
    assert values.tolist() == [0.7, 0.5, 0.6, 0.5, 0.5]
    assert diverged == 3


def test_a_diverged_run_without_a_floor_is_refused_with_its_position():
    with pytest.raises(SteadytuneError, match=r"1 of 3 scores are not finite \(position 1\).*never dropped"):
        settle_diverged([0.7, float("nan"), 0.6])


def test_the_callers_array_is_not_written_to():
    scores = np.array([0.7, np.nan])
    settle_diverged(scores, floor=0.5)
    assert np.isnan(scores[1])


@pytest.mark.parametrize("scores", [[], [[0.1, 0.2]]])
def test_other_shapes_are_refused(scores):
    with pytest.raises(SteadytuneError):
        settle_diverged(scores)


def test_a_floor_must_be_a_score():
    with pytest.raises(SteadytuneError, match="floor"):
        settle_diverged([float("nan")], floor=float("nan"))


def test_pairing_follows_the_seed_and_not_the_order_of_arrival():
    a, b = pair_by_seed({1: 0.1, 2: 0.2, 3: 0.3}, {3: 0.33, 1: 0.11, 2: 0.22})
    assert a.tolist() == [0.1, 0.2, 0.3]
    assert b.tolist() == [0.11, 0.22, 0.33]


def test_a_seed_that_only_one_method_ran_is_refused():
    for a, b in (({1: 0.1, 3: 0.3}, {1: 0.2}), ({1: 0.1}, {1: 0.2, 3: 0.3})):
        with pytest.raises(SteadytuneError, match="Seeds 3 were run by only one"):
            pair_by_seed(a, b)


def test_importing_the_statistics_loads_neither_scipy_nor_torch_nor_pandas():
    code = (
        "import sys, steadytune.stats; "
        "print([m for m in ('scipy', 'torch', 'pandas', 'statsmodels') if m in sys.modules])"
    )
    source = str(pathlib.Path(steadytune.stats.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": source},
    )
    assert done.stdout.strip() == "[]"


def test_every_public_name_exists_once():
    names = steadytune.stats.__all__
    assert len(names) == len(set(names))
    assert all(hasattr(steadytune.stats, name) for name in names)
