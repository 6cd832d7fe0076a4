"""Streams are independent, and counter-based noise is as random as it should be."""

import numpy as np
import pytest
import torch
from scipy import stats

from steadytune.rng import Streams, new_counter, normal, random_bits, stream_seed, streams_from_torch

INDEX = torch.arange(100_000)


def uniform(state, index=INDEX):
    return random_bits(state, index).double().numpy() / 2**32


def test_seeds_depend_on_every_part_and_fit_in_63_bits():
    parts = [("init", 0), ("init", 1), ("noise", 0), ("init", 0, "reinit"), ("init", 0, "reinit", 1), ("init", 0, 1)]
    seeds = [stream_seed(*part) for part in parts]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert stream_seed("noise", 1, "2") != stream_seed("noise", 12)


def test_a_stream_gives_the_same_draws_twice_and_streams_do_not_mix():
    streams = Streams(init=1, order=2, noise=3)
    first = torch.randperm(50, generator=streams.generator("order", 0))
    assert torch.equal(first, torch.randperm(50, generator=streams.generator("order", 0)))
    assert not torch.equal(first, torch.randperm(50, generator=streams.generator("order", 1)))
    other = Streams(init=7, order=2, noise=9)
    assert torch.equal(first, torch.randperm(50, generator=other.generator("order", 0)))


def test_reading_torchs_seed_draws_nothing():
    torch.manual_seed(17)
    state = torch.get_rng_state()
    assert streams_from_torch() == Streams(17, 17, 17)
    assert torch.equal(torch.get_rng_state(), state)


def test_bits_are_uniform():
    assert stats.kstest(uniform((1, 2, 3)), "uniform").pvalue > 1e-3
    bits = random_bits((4, 5, 6), INDEX).numpy()
    ones = np.array([((bits >> k) & 1).mean() for k in range(32)])
    assert (abs(ones - 0.5) < 4.5 * 0.5 / len(INDEX) ** 0.5).all()


def test_neighbouring_calls_keys_and_indices_are_unrelated():
    draws = [uniform((9, 9, call)) for call in range(40)] + [uniform((key, 9, 0)) for key in range(10, 30)]
    draws += [uniform((9, key, 0)) for key in range(10, 30)]
    correlation = np.corrcoef(draws) - np.eye(len(draws))
    assert abs(correlation).max() < 5.5 / len(INDEX) ** 0.5
    for lag in (1, 2, 64, 768):
        assert abs(np.corrcoef(draws[0][lag:], draws[0][:-lag])[0, 1]) < 4.5 / len(INDEX) ** 0.5


def test_a_draw_is_the_same_whoever_asks_and_in_tensor_or_python_arithmetic():
    state = new_counter(stream_seed("noise", 1, "layer"))
    ints = tuple(state.tolist())
    assert torch.equal(random_bits(state, INDEX), random_bits(ints, INDEX))
    assert torch.equal(random_bits(ints, INDEX)[5:9], random_bits(ints, INDEX[5:9]))
    assert torch.equal(normal(state, INDEX), normal(ints, INDEX))


def test_normal_draws_are_normal():
    draws = normal((3, 1, 4), INDEX).double().numpy()
    assert stats.kstest(draws, "norm").pvalue > 1e-3
    assert np.isfinite(draws).all()
    other = normal((3, 1, 5), INDEX).double().numpy()
    assert abs(np.corrcoef(draws, other)[0, 1]) < 4.5 / len(INDEX) ** 0.5


@pytest.mark.parametrize("key", [0, 1, 2**63 - 1])
def test_extreme_keys(key):
    state = tuple(new_counter(key).tolist())
    assert stats.kstest(uniform(state), "uniform").pvalue > 1e-4
