"""A run's own place on a device, so that several runs can share one process and one GPU.

    stream      the order of its work on the GPU; work of other lanes may run beside it
    generator   what its dropout draws from; a CUDA graph keeps the generator that it was captured with, and two graphs
                with one generator could not be replayed at the same time
    memory      what its graphs compute in, kept from run to run
    turn        held while something runs that a process has once: torch's, numpy's and Python's global generators,
                the capture of a graph. A replay needs no turn.

A lane on a CPU is only the turn. What a run computes does not depend on its lane.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch


@cache
def _only_stream(device: torch.device) -> torch.cuda.Stream:
    """Of runs that come one after the other: cuBLAS keeps 70 MB for each stream that it has seen, for good."""
    return torch.cuda.Stream(device)


class Lanes:
    """What the lanes of one process share."""

    def __init__(self, several: bool = False) -> None:
        self.several = several  # then time and memory of a run are not its own
        self.lock = threading.RLock()
        self.warm: dict[Hashable, list[bool]] = {}  # what has run here before; which parameters got a gradient
        self.packable: dict[Hashable, bool] = {}  # which models can be packed (packing.py)


class Lane:
    """One of the places of a device."""

    def __init__(self, device: torch.device, lanes: Lanes | None = None) -> None:
        self.device, self.lanes = device, lanes or Lanes()
        self.warm = False  # whether anything has run here
        self.recorded: dict[Hashable, torch.cuda.CUDAGraph] = {}  # the graphs of the run that is here now
        self._memory: Any = None
        self._keeper: torch.cuda.CUDAGraph | None = None
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            torch.cuda.init()
            self.stream = torch.cuda.Stream(device) if self.lanes.several else _only_stream(device)
            self.generator = torch.Generator(device)

    def renew_generator_(self) -> None:
        """After a recording that failed: the old one believes that it still goes on."""
        self.generator = torch.Generator(self.device)
        torch.cuda.default_generators[self.device.index].graphsafe_set_state(self.generator)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Everything that this thread launches inside goes to the lane's stream; at the end it is done."""
        if self.stream is None:
            yield
            return
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            self.stream.wait_stream(torch.cuda.default_stream(self.device))  # what the caller has made
            try:
                yield
            finally:
                self.stream.synchronize()
                self.recorded.clear()  # now, and not when somebody collects garbage: graphs hold memory

    def memory(self) -> Any:
        """The pool that graphs take their memory from. It stays when they go, for those of the next run: otherwise each
        run would ask the device anew, and the device would stop for it."""
        if self._keeper is None:
            self._memory, self._keeper = torch.cuda.graph_pool_handle(), torch.cuda.CUDAGraph()
            something = torch.zeros((), device=self.device)
            self._keeper.capture_begin(pool=self._memory, capture_error_mode="thread_local")
            something.zero_()
            self._keeper.capture_end()
        return self._memory

    def forget_(self) -> None:
        """Forget all graphs. Their memory is for the next ones."""
        if self.stream is not None:
            self.stream.synchronize()
        self.recorded.clear()

    def release_memory_(self) -> None:
        """Forget all graphs, and give their memory back."""
        self.forget_()
        self._keeper = None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Alone with the global generators; the device's is this lane's for the time."""
        with self.lanes.lock:
            if self.stream is None:
                yield
                return
            shared = torch.cuda.default_generators[self.device.index]
            before = shared.graphsafe_get_state()
            shared.graphsafe_set_state(self.generator)
            try:
                yield
            finally:
                shared.graphsafe_set_state(before)
