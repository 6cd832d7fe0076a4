"""Work on a GPU, recorded once and then replayed: the host launches one CUDA graph instead of a thousand kernels.

    graphs.warm_up_(shape, work)     # `work` reads and writes the same tensors every time
    graphs.capture_(shape, work)
    graphs.replay(shape)

A graph runs the kernels that the plain loop would run, so it gives the same numbers. What it cannot repeat is a
decision of the host: then `capture_` raises NotCaptured, and the caller runs the work plainly and says why. Before the
first recording of a shape in a process, and the first in a lane (cuBLAS has a handle for each thread), the work runs
once for nothing: libraries choose and load their kernels then.

All graphs of a lane share one memory pool: nothing that a graph leaves behind for later lies in it (gradients and
losses are outside), so they may be replayed in any order.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from steadytune.engine.lane import Lane
from steadytune.errors import SteadytuneError


class NotCaptured(Exception):
    """The work depends on what a graph would freeze; says on what."""


class Graphs:
    """The CUDA graphs of one run, by name or shape.

    `kind` is what a run must share with an earlier one of this process to need no rehearsal; `kept` are tensors besides
    buffers and gradients that the work writes.
    """

    def __init__(
        self, lane: Lane, model: nn.Module, parameters: list[nn.Parameter], kind: Hashable, kept: list[Tensor]
    ) -> None:
        self._lane, self._model, self._parameters, self._kind, self._kept = lane, model, parameters, kind, kept
        self._graphs = lane.recorded
        self.forgotten = 0  # how often

    def writes_(self, tensors: list[Tensor]) -> None:
        """From now on the work writes these, too, instead of gradients of its parameters."""
        self._kept = [*self._kept, *tensors]
        self._kind = (self._kind, len(tensors))

    def __contains__(self, name: Hashable) -> bool:
        return name in self._graphs

    def is_empty(self) -> bool:
        return not self._graphs

    def replay(self, name: Hashable) -> None:
        self._graphs[name].replay()

    def clear(self) -> None:
        """Forget all of them, and give back their memory."""
        self.forgotten += 1
        self._lane.release_memory_()

    def forget_(self) -> None:
        """They may be of what is not so any more: record anew."""
        self.forgotten += 1
        if self._graphs:
            self._lane.forget_()

    def warm_up_(self, name: Hashable, work: Callable[[], None]) -> None:
        """Run the work for nothing where this process has not run it: gradients and buffers are then as they were.

        Afterwards every parameter that the work trains has a gradient to add to.
        """
        used = self._lane.lanes.warm.get((self._kind, name))
        if used is None or not self._lane.warm:
            used = self._lane.lanes.warm[self._kind, name] = self._rehearse(work)
            self._lane.warm = True
        for parameter, trained in zip(self._parameters, used):
            if trained and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    def capture_(self, name: Hashable, work: Callable[[], None]) -> None:
        """Record the work, without running it. Raises NotCaptured where a replay would not be a repetition."""
        graph = torch.cuda.CUDAGraph()
        before = _host_randomness()
        memory = self._lane.memory()
        with _no_garbage_collection():
            graph.capture_begin(pool=memory, capture_error_mode="thread_local")
            try:
                work()
            except BaseException as error:
                with suppress(RuntimeError):
                    graph.capture_end()
                self._lane.renew_generator_()
                if isinstance(error, torch.OutOfMemoryError) or not isinstance(error, RuntimeError | SteadytuneError):
                    raise
                raise NotCaptured(f"the work cannot be recorded ({str(error).splitlines()[0]})") from error
            graph.capture_end()
        if not _same(before, _host_randomness()) and not _draws_for_nothing(self._model):
            raise NotCaptured("the model draws random numbers on the host in every step")
        self._graphs[name] = graph

    def _rehearse(self, work: Callable[[], None]) -> list[bool]:
        gradients = [parameter.grad for parameter in self._parameters]
        buffers = [(buffer, buffer.clone()) for buffer in [*self._model.buffers(), *self._kept]]
        for parameter in self._parameters:
            parameter.grad = None
        try:
            work()
            return [parameter.grad is not None for parameter in self._parameters]
        finally:
            for parameter, gradient in zip(self._parameters, gradients):
                parameter.grad = gradient
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """What the collector frees in the middle of a recording may be another graph, which is not allowed then."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _host_randomness() -> tuple[Any, ...]:
    numpy: Any = np.random.get_state()  # noqa: NPY002 (compared, not used)
    return torch.default_generator.get_state(), random.getstate(), numpy[1], numpy[2]


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return (
        torch.equal(one[0], other[0]) and one[1] == other[1] and np.array_equal(one[2], other[2]) and one[3] == other[3]
    )


def _draws_for_nothing(model: nn.Module) -> bool:
    """BART and its kin draw for each block whether to leave it out, also where the probability of that is 0."""
    config = getattr(model, "config", None)
    names = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop")
    found = [getattr(config, name) for name in names if hasattr(config, name)]
    return bool(found) and not any(found)
