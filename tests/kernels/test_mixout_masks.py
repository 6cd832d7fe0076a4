"""Kept columns in plain torch: the bits of rng.py, lists that fit or say so, and all layers at once."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steadytune.kernels.mixout_masks import (
    Rule,
    capacity,
    draw,
    draw_all_,
    draw_next_,
    new_rule,
    new_table,
    overflows,
)
from steadytune.methods.mixing import Mix
from steadytune.rng import new_counter


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 700), st.floats(0.01, 0.99), st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.integers(0, 63))
def test_a_draw_is_the_mask_of_the_plain_path(columns, p, key, call, rank):
    state = new_counter(key)
    state[2] = call
    rule = new_rule(columns, p, rank << 26)
    place, kept = draw(state, rule)
    noise = Mix(torch.zeros(1), p, offset=rank << 26).noise(state, torch.arange(columns))
    expected = noise.nonzero().squeeze(1)
    assert torch.equal((place >= 0).nonzero().squeeze(1), expected)
    assert torch.equal(place[expected], torch.arange(len(expected), dtype=torch.int32))
    fits = min(len(expected), rule.capacity)
    assert torch.equal(kept[:fits].long(), expected[:fits])
    assert (kept[fits:] == -1).all()
    assert len(kept) == rule.capacity


def test_a_counter_goes_on_and_the_state_used_is_handed_out():
    state, rule = new_counter(5), new_rule(40, 0.5)
    first, used = draw_next_(state, rule)
    second, _ = draw_next_(state, rule)
    assert (int(used[2]), int(state[2])) == (0, 2)
    assert torch.equal(draw(used, rule).place, first.place)
    assert not torch.equal(first.place, second.place)


def test_all_layers_at_once_are_each_layer_alone():
    rules = [new_rule(5, 0.7), new_rule(300, 0.3, 7), new_rule(1, 0.5), new_rule(64, 0.9)]
    states = torch.stack([new_counter(key) for key in (1, 2**63 + 5, 3, 4)])
    states[:, 2] = torch.tensor([0, 9, 2, 2**33])
    alone = [draw_next_(state.clone(), rule)[0] for state, rule in zip(states, rules)]
    places = torch.full((sum(rule.columns for rule in rules),), -9, dtype=torch.int32)
    kept = torch.full((sum(rule.capacity for rule in rules),), -9, dtype=torch.int32)
    before = states.clone()
    draw_all_(states, new_table(rules, torch.device("cpu")), places, kept)
    assert torch.equal(places, torch.cat([each.place for each in alone]))
    assert torch.equal(kept, torch.cat([each.kept for each in alone]))
    assert torch.equal(states - before, torch.tensor([0, 0, 1]).expand(4, 3))


@pytest.mark.parametrize("start", [0, 5])
def test_overflows_are_those_of_the_draws(start):
    rules = [Rule(100, 2**31, 0, 52), Rule(30, 2**30, 0, 12), new_rule(1024, 0.7)]
    states = torch.stack([new_counter(key) for key in (11, 12, 13)])
    states[:, 2] = torch.tensor([3, 0, 8])
    found = overflows(states, new_table(rules, torch.device("cpu")), 40, start)
    expected = []
    for ahead in range(start, start + 40):
        now = states + torch.tensor([0, 0, ahead])
        counts = [int((draw(state, rule).place >= 0).sum()) for state, rule in zip(now, rules)]
        expected.append(any(count >= rule.capacity for count, rule in zip(counts, rules)))
    assert found.tolist() == expected
    assert 0 < sum(expected) < 40


@given(st.integers(1, 20000), st.floats(0.0, 1.0))
def test_a_capacity_holds_five_deviations(columns, p):
    found = capacity(columns, p)
    assert found <= columns + 64
    assert found % 8 == 0
    deviation = math.sqrt(columns * p * (1 - p))
    assert found >= min(columns, columns * (1 - p) + 5 * deviation) + 1 - 1e-6  # the last entry stays free


def test_capacities_of_bert_large_suit_matrix_products():
    assert [capacity(1024, 0.7), capacity(4096, 0.7), capacity(1024, 0.9), capacity(4096, 0.9)] == [384, 1408, 192, 512]
