"""What one layer hands to the next: never a stale one, and never memory of its own."""

import copy
import gc
import pickle
import threading
import weakref

import pytest
import torch

from steadytune.kernels.handed_on import Handed, Jointly, SharedCast, is_plain

LOW = torch.bfloat16


def test_another_tensor_type_or_value_is_not_taken():
    cast, x = SharedCast(), torch.randn(2, 3)
    assert cast.get(x, LOW) is None
    low = Handed(x.to(LOW))
    cast.put_(x, low)
    assert cast.get(x, LOW) is low
    assert cast.get(x.clone(), LOW) is None
    assert cast.get(x.view(2, 3), LOW) is None
    assert cast.get(x, torch.float16) is None
    with torch.inference_mode():
        assert cast.get(x, LOW) is None
    with torch.no_grad():
        assert cast.get(x, LOW) is None
    assert cast.get(x, LOW) is low
    x.add_(1)
    assert cast.get(x, LOW) is None


def test_a_tensor_that_does_not_count_its_changes_is_not_plain():
    assert is_plain(torch.randn(2))
    with torch.inference_mode():
        assert not is_plain(torch.randn(2))


def test_what_is_handed_on_dies_with_its_source():
    cast, x = SharedCast(), torch.randn(2, 3)
    low = x.to(LOW)
    alive = weakref.ref(low)
    cast.put_(x, low)
    del low
    assert alive() is not None
    del x
    gc.collect()
    assert alive() is None
    assert cast.get(torch.randn(2, 3), LOW) is None


@pytest.mark.parametrize("again", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
@pytest.mark.parametrize("made", [SharedCast(), Jointly((1, 2))])
def test_a_copy_starts_empty(made, again):
    x = torch.randn(2, 3)
    made.put_(x, {1: x.to(LOW)})
    twin = again(made)
    assert twin.of(x) is None
    assert made.of(x) is not None
    made.clear_()


def test_the_first_layer_computes_for_all():
    layers = dict(zip("abc", (object(), object(), object())))
    jointly, x = Jointly(layers.values()), torch.randn(2)
    outputs = [torch.full((2,), float(number)) for number in range(3)]
    asked = []
    compute = lambda: asked.append(1) or outputs  # noqa: E731
    assert jointly.output(layers["b"], x, compute) is None  # nobody has been there
    assert not asked
    for _ in range(2):  # the first begins anew each time
        assert jointly.output(layers["a"], x, compute) is outputs[0]
        assert jointly.output(layers["c"], x, compute) is outputs[2]
        assert jointly.output(layers["c"], x, compute) is None  # taken
        assert jointly.output(layers["b"], x.clone(), compute) is None
        assert jointly.output(layers["b"], x, compute) is outputs[1]
    assert len(asked) == 2
    assert jointly.output(layers["a"], x, lambda: None) is None
    assert jointly.output(layers["b"], x, compute) is None
    assert copy.copy(jointly).output(layers["a"], x, compute) is None


def test_threads_that_run_one_model_get_their_own():
    cast, wrong = SharedCast(), []

    def work(number):
        for round_ in range(200):
            x = torch.full((4,), float(1000 * number + round_))
            cast.put_(x, Handed(x.to(torch.float64)))
            found = cast.get(x, torch.float64)
            if found is not None and not torch.equal(found.rows, x.double()):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
