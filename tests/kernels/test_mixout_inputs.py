"""Layers that read the same tensor share its cast: never a stale one, and never memory of its own."""

import copy
import gc
import pickle
import threading
import weakref

import pytest
import torch

from steadytune.kernels import mixout_columns
from steadytune.kernels.handed_on import SharedCast
from steadytune.kernels.mixout_columns import column_linear
from steadytune.kernels.mixout_inputs import Reader, readers
from steadytune.kernels.mixout_masks import draw, new_rule
from steadytune.rng import new_counter

LOW = torch.bfloat16


def test_the_first_casts_the_next_take_and_the_last_takes_it_away():
    first, second, last = readers(3)
    x = torch.randn(2, 3)
    low = x.to(LOW)
    assert first.find(x, LOW) is None
    first.leave_(x, low)
    assert second.find(x, LOW) is low
    second.leave_(x, low)
    assert first.find(x, LOW) is None  # a new round
    assert last.find(x, LOW) is low
    last.leave_(x, low)
    assert second.find(x, LOW) is None


def test_another_tensor_type_or_value_is_not_taken():
    first, second = readers(2)
    x = torch.randn(2, 3)
    first.leave_(x, x.to(LOW))
    assert second.find(x.clone(), LOW) is None
    assert second.find(x.view(2, 3), LOW) is None
    assert second.find(x, torch.float16) is None
    with torch.inference_mode():
        assert second.find(x, LOW) is None
    assert second.find(x, LOW) is not None
    x.add_(1)
    assert second.find(x, LOW) is None


def test_a_tensor_that_does_not_count_its_changes_is_not_shared():
    first, second = readers(2)
    with torch.inference_mode():
        x = torch.randn(2, 3)
        first.leave_(x, x.to(LOW))
        assert second.find(x, LOW) is None


def test_the_cast_dies_with_its_source():
    first, second = readers(2)
    x = torch.randn(2, 3)
    low = x.to(LOW)
    alive = weakref.ref(low)
    first.leave_(x, low)
    del low
    assert alive() is not None
    del x
    gc.collect()
    assert alive() is None
    x = torch.randn(2, 3)
    assert second.find(x, LOW) is None


@pytest.mark.parametrize("again", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_copies_share_among_themselves_and_start_empty(again):
    pair = readers(2)
    x = torch.randn(2, 3)
    pair[0].leave_(x, x.to(LOW))
    first, second = again(pair)
    assert second.find(x, LOW) is None
    first.leave_(x, x.to(LOW))
    assert second.find(x, LOW) is not None
    assert first.cast is second.cast is not pair[0].cast


def test_threads_that_run_one_model_get_their_own_cast():
    first, second = readers(2)
    wrong = []

    def work(number):
        for round_ in range(200):
            x = torch.full((4,), float(1000 * number + round_))
            first.leave_(x, x.to(torch.float64))
            found = second.find(x, torch.float64)
            if found is not None and not torch.equal(found, x.double()):
                wrong.append(number)
            second.leave_(x, x.double())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("kept_only", [False, True])
def test_three_layers_give_the_numbers_of_three_layers_alone(kept_only, monkeypatch):
    casts = []
    monkeypatch.setattr(mixout_columns, "take", lambda rows, *rest: casts.append(rows.dtype) or take(rows, *rest))
    take = mixout_columns.take_torch
    x = torch.randn(5, 96, requires_grad=True)
    weights = [torch.randn(12, 96, requires_grad=True) for _ in range(3)]
    masks = [draw(new_counter(key), new_rule(96, 0.7)) for key in range(3)]
    found = []
    for sharing in ([None] * 3, readers(3)):
        with torch.autocast("cpu", dtype=LOW):
            outs = [
                column_linear(x, w, None, w.detach() + 1, mask, 0.7, 1 / 0.3, kept_only, reader)
                for w, mask, reader in zip(weights, masks, sharing)
            ]
        found.append([*outs, *torch.autograd.grad(torch.cat(outs).float().square().sum(), [x, *weights])])
    assert casts == [torch.float32] * 4 + [LOW] * 2
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_a_reader_is_named_by_its_place():
    assert [(each.is_first, each.is_last) for each in readers(2)] == [(True, False), (False, True)]
    assert isinstance(readers(1)[0], Reader)
    assert isinstance(readers(1)[0].cast, SharedCast)
