"""Many restarts at once are the same restarts, one by one: noise, order, start, schedule and method of each."""

import itertools
import math

import pytest
import torch

from steadytune import SteadytuneError, Streams
from steadytune.papers.digits import drawn_digits, stacked
from steadytune.papers.digits.network import (
    MIXED,
    Restart,
    StreamDropout,
    Training,
    accuracy_alone,
    network_of,
    start_weights,
    train_alone,
)
from steadytune.papers.digits.stacked import accuracy, finite, logits, squared_distances, train

DIGITS = drawn_digits("drawn", 72)  # two whole batches and a smaller one
KINDS = {
    "mixout": {"method": "mixout"},
    "dropout": {"method": "dropout"},
    "element": {"method": "mixout", "mask": "element"},
    "paper gradient": {"method": "mixout", "gradient": "paper"},
    "every linear layer": {"method": "mixout", "layers": "linear"},
}


def mixed_bag(lr=1e-3):
    """Every kind with every p, and neighbours that differ in length, learning rate and streams."""
    rates = itertools.product(KINDS.values(), (0.0, 0.4, 1.0))
    return [
        Restart(**kind, p=p, epochs=1 + i % 2, lr=lr * (1 + i // 2 % 2), streams=Streams(i, 10 + i, 20 + i % 4))
        for i, (kind, p) in enumerate(rates)
    ]


def starts_of(restarts, dtype=torch.float64):
    return [start_weights(restart.streams, dtype) for restart in restarts]


def of_replica(weights, i):
    return {name: each[i] for name, each in weights.items()}


def moved(after, before):
    return math.sqrt(sum(float((after[name] - before[name]).double().square().sum()) for name in before))


OTHER = Training(50, 0.1, "decoupled", betas=(0.5, 0.9), eps=1e-3, warmup=0.5)


@pytest.mark.parametrize("training", [Training(weight_decay=0.1), OTHER], ids=["l2", "decoupled, other settings"])
def test_every_replica_is_the_restart_trained_alone(training):
    restarts = mixed_bag()
    starts = starts_of(restarts)
    together = train(starts, restarts, training, DIGITS.train)
    for i, (start, restart) in enumerate(zip(starts, restarts)):
        alone = dict(train_alone(start, restart, training, DIGITS.train).state_dict())
        mine = of_replica(together.weights, i)
        assert moved(alone, start) > 1e-4, restart
        assert moved(mine, alone) < 1e-6 * moved(alone, start), restart


def test_in_float32_they_agree_as_two_devices_do():
    restarts = mixed_bag(lr=2e-4)
    starts = starts_of(restarts, torch.float32)
    together = train(starts, restarts, Training(weight_decay=0.01), DIGITS.train)
    scores = accuracy(together.weights, DIGITS.validation)
    for i in range(1, len(restarts), 3):  # every kind, at p = 0.4
        start, restart = starts[i], restarts[i]
        network = train_alone(start, restart, Training(weight_decay=0.01), DIGITS.train)
        alone = dict(network.state_dict())
        assert moved(of_replica(together.weights, i), alone) < 0.02 * moved(alone, start)
        assert abs(scores[i] - accuracy_alone(network, DIGITS.validation)) <= 2 / len(DIGITS.validation)


def test_a_replica_does_not_depend_on_its_company():
    """Nor on the size of the stacks, nor on the order of the list."""
    restarts = mixed_bag()
    starts = starts_of(restarts)
    together = train(starts, restarts, Training(), DIGITS.train)
    in_threes = train(starts, restarts, Training(), DIGITS.train, at_once=3)
    backwards = train(starts[::-1], restarts[::-1], Training(), DIGITS.train)
    single = train(starts[4:5], restarts[4:5], Training(), DIGITS.train)
    for i, start in enumerate(starts):
        mine, far = of_replica(together.weights, i), moved(of_replica(together.weights, i), start)
        assert moved(of_replica(in_threes.weights, i), mine) < 1e-6 * far
        assert moved(of_replica(backwards.weights, len(starts) - 1 - i), mine) < 1e-6 * far
    assert moved(of_replica(single.weights, 0), of_replica(together.weights, 4)) < 1e-6
    assert [len(each) for each in backwards.losses[::-1]] == [restart.epochs for restart in restarts]


def test_a_replica_that_diverges_spoils_itself_only():
    good = [Restart("mixout", 0.5, 2, 1e-3, Streams(i, i, i)) for i in range(3)]
    wild = Restart("mixout", 0.5, 2, 1e30, Streams(7, 7, 7))
    starts = starts_of([*good, wild], torch.float32)
    with_wild = train(starts, [*good, wild], Training(), DIGITS.train)
    without = train(starts[:3], good, Training(), DIGITS.train)
    assert finite(with_wild.weights).tolist() == [True, True, True, False]
    for i, start in enumerate(starts[:3]):
        mine = of_replica(without.weights, i)
        assert moved(of_replica(with_wild.weights, i), mine) < 1e-3 * moved(mine, start)
    scores = accuracy(with_wild.weights, DIGITS.validation)
    assert math.isnan(scores[3])
    assert not any(map(math.isnan, scores[:3]))


def test_losses_and_drift_have_the_length_of_the_run():
    restarts = [Restart("dropout", 0.1, epochs, 1e-3, Streams(0, 1, 1)) for epochs in (1, 4, 2)]
    starts = starts_of(restarts)
    trained = train(starts, restarts, Training(), DIGITS.train)
    assert [len(each) for each in trained.losses] == [1, 4, 2]
    steps, far = zip(*trained.drift[1])
    assert steps[0] == 1
    assert steps[-1] == 12  # 4 epochs of 3 batches
    assert far[0] == 0.0  # the first step of the warm-up has learning rate 0
    start = {name: torch.stack([each[name] for each in starts]) for name in starts[0]}
    squared = sum(each[1] for each in squared_distances(trained.weights, start).values())
    assert far[-1] == pytest.approx(math.sqrt(float(squared)), rel=1e-9)
    assert trained.losses[1][-1] < trained.losses[1][0]


def test_stacked_logits_are_the_networks_logits():
    starts = [start_weights(Streams(i), torch.float64) for i in range(3)]
    stack = {name: torch.stack([each[name] for each in starts]) for name in starts[0]}
    x = DIGITS.test.rows(slice(None), torch.float64)
    out = logits(stack, x)
    for i, start in enumerate(starts):
        torch.testing.assert_close(out[i], network_of(start, Streams()).eval()(x))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_stream_dropout_is_dropout(p):
    """It keeps 1 - p of the units, scales what it keeps, draws anew each time and nothing in eval mode."""
    layer = StreamDropout(p)
    layer.key = 123456789
    x = torch.ones(400, 100)
    first, second = layer(x), layer(x)
    kept = first > 0
    assert kept.double().mean() == pytest.approx(1 - p, abs=4 * math.sqrt(p * (1 - p) / kept.numel()))
    assert torch.equal(first[kept], torch.full_like(first[kept], 1 / (1 - p)))
    assert not torch.equal(first, second)
    assert layer.eval()(x) is x


def test_dropout_is_mixout_toward_zero_for_one_row():
    """M3, with the layers that this experiment mixes: the reading of the text in network.py."""
    network = network_of(start_weights(Streams(3), torch.float64), Streams(3)).train()
    network.dropout_1.p = network.dropout_2.p = 0.5
    x = DIGITS.train.rows(slice(0, 1), torch.float64)
    dropped = network(x)
    h = x
    for name, layer in network.named_children():
        if name in MIXED["hidden"]:
            noise = network.get_submodule({"hidden_2": "dropout_1", "output": "dropout_2"}[name])
            noise.calls = 0
            column = noise(torch.ones(1, layer.in_features, dtype=torch.float64))
            h = torch.nn.functional.linear(h, layer.weight * column, layer.bias)
        elif not isinstance(layer, StreamDropout):
            h = layer(h)
    torch.testing.assert_close(h, dropped)


class Killed(BaseException):
    """Nothing catches it."""


def killed_after(steps, monkeypatch):
    """Training ends in the middle of this step, as if the process had been killed."""
    step_, taken = stacked.StackedAdam.step_, []

    def counted(self, grads, step):
        taken.append(step)
        if len(taken) > steps:
            raise Killed
        step_(self, grads, step)

    monkeypatch.setattr(stacked.StackedAdam, "step_", counted)
    return taken


@pytest.mark.parametrize("steps", [1, 4, 7, 10, 16])
def test_what_was_killed_goes_on_to_the_same_bits(steps, tmp_path, monkeypatch):
    """Three steps an epoch; stacks of up to four restarts, which end after one, two or three epochs."""
    restarts = [
        Restart("mixout", p, 1 + i % 3, 1e-3 * (1 + i % 2), Streams(i, i, i), gradient=gradient)
        for gradient in ("exact", "paper")
        for i, p in enumerate((0.0, 0.4, 0.7, 0.9))
    ]
    call = starts_of(restarts, torch.float32), restarts, Training(weight_decay=0.1), DIGITS.train
    whole = train(*call)
    with monkeypatch.context() as patched:
        killed_after(steps, patched)
        with pytest.raises(Killed):
            train(*call, folder=tmp_path, save_every=0.0)
    with monkeypatch.context() as patched:
        taken = killed_after(1000, patched)
        again = train(*call, folder=tmp_path, save_every=0.0)
    assert len(taken) == 18 - steps // 3 * 3, "whole epochs are not trained again"
    assert all(torch.equal(again.weights[name], each) for name, each in whole.weights.items())
    assert (again.losses, again.drift) == (whole.losses, whole.drift)


def test_only_what_is_the_same_stack_is_taken_over(tmp_path):
    restarts = [Restart("dropout", 0.1, 2, 1e-3, Streams(i, i, i)) for i in range(2)]
    starts = starts_of(restarts, torch.float32)
    train(starts, restarts, Training(), DIGITS.train, folder=tmp_path)
    other = starts_of([Restart("dropout", 0.1, 2, 1e-3, Streams(i + 5, i, i)) for i in range(2)], torch.float32)
    calls = [(other, restarts, Training(), DIGITS.train), (starts, restarts, Training(16), DIGITS.train)]
    calls += [(starts, restarts, Training(), drawn_digits("others", 72, seed=7).train)]
    calls += [(starts, [Restart("dropout", 0.2, 2, 1e-3, Streams(i, i, i)) for i in range(2)], *calls[0][2:])]
    for call in calls:
        mine, kept = train(*call), train(*call, folder=tmp_path)
        assert all(torch.equal(kept.weights[name], each) for name, each in mine.weights.items())
    (there,) = (tmp_path / "stack-0").iterdir()
    (there / "weights.safetensors").write_bytes(b"")
    with pytest.raises(SteadytuneError, match=r"weights.safetensors has 0 bytes"):
        train(*calls[-1], folder=tmp_path)
