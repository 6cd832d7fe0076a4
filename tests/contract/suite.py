"""What the contract suites share: every method with small values, and the plainest training loop."""

from __future__ import annotations

import torch

from steadytune import Dropout, Moment, Streams, apply_
from steadytune.methods import all_methods
from tiny import TINY, batch

METHODS = all_methods()
STREAMS = Streams(init=11, order=12, noise=13)
STEPS = 3

# The default is what the suites use; where a tiny model or a run of three steps needs something else, it is said here.
SMALL = {
    "adamw": {"correct_bias": False},
    "constant_schedule": {"warmup": 2},
    "inverse_sqrt_schedule": {"warmup": 2},
    "checkpoint_average": {"last": 2},
    "ensemble": {"size": 2},
    "mixout": {"layers": "linear"},  # a plain MLP has nothing that the paper's selection would mix
    "longer": {"times": 2.0},
}


def small(name):
    return METHODS[name](**SMALL.get(name, {}))


def null(name):
    return METHODS[name](**{**SMALL.get(name, {}), **METHODS[name].null})


def build(architecture):
    """A tiny model that always has noise: some families come with a dropout of 0."""
    torch.manual_seed(0)
    model = TINY[architecture]()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.1
    return model.train()


class Run:
    """Model, methods, optimiser and schedule; `advance` takes steps. Torch's generator is seeded by the step number."""

    def __init__(self, model, methods, steps=STEPS):
        self.model, self.step, self.total = model, 0, steps
        self.applied = apply_(model, methods, streams=STREAMS)
        self.optimizer = self.applied.optimizer(lr=1e-3)
        self.scheduler = self.applied.scheduler(self.optimizer, steps)

    def advance(self, data, steps, callable_=None):
        for _ in range(steps):
            torch.manual_seed(1000 + self.step)
            moment = Moment(self.step, self.total, self.optimizer.param_groups[0]["lr"] / 1e-3)
            loss, _ = self.applied.loss(self.model if callable_ is None else callable_, dict(data), moment)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
            self.step += 1
        return loss.detach()

    def state(self):
        return {
            "model": {k: v.clone() for k, v in self.model.state_dict().items()},
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "applied": self.applied.state_dict(),
            "step": self.step,
        }

    def load(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.applied.load_state_dict(state["applied"])
        self.step = state["step"]


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def assert_same(a, b):
    assert a.keys() == b.keys()
    different = [name for name in a if not torch.equal(a[name], b[name])]
    assert not different, f"{len(different)} of {len(a)} differ, first {different[:3]}"


__all__ = [
    "METHODS",
    "STEPS",
    "STREAMS",
    "TINY",
    "Dropout",
    "Run",
    "assert_same",
    "batch",
    "build",
    "null",
    "small",
    "weights",
]
