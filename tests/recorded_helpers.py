"""Runs whose steps are recorded and replayed as on a GPU, on the CPU: what a graph freezes is frozen here, too.

`recording(monkeypatch)` puts a stand-in in the place of `torch.cuda.CUDAGraph`. It remembers every operation with the
tensors that it read and wrote, and repeats them on those very tensors; nothing of the capture itself stays, as on a
device. What reads a number of the device during a capture is refused. AdamW's kernel is here a step in plain torch that
knows addresses only, from the kernel's own tables: through Triton's interpreter it takes minutes.
"""

from __future__ import annotations

import ctypes
from typing import ClassVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from steadytune.engine import graphs
from steadytune.engine.chunk import Chunk
from steadytune.engine.graphs import Graphs
from steadytune.engine.lane import Lane
from steadytune.engine.resident import Resident
from steadytune.kernels import adamw, adamw_triton, kept_gradients
from steadytune.kernels.adamw_tables import Settings
from steadytune.kernels.mixout_masks import spread
from steadytune.methods import adamw_step, mixed_layers


class Graph(TorchDispatchMode):
    """In the place of a CUDA graph."""

    capturing: ClassVar[list[Graph]] = []  # the one that captures now

    def __init__(self):
        super().__init__()
        self.calls = []
        self.before = {}  # storages that were there before the capture, and what they held

    def capture_begin(self, **options):
        self.capturing.append(self)
        self.__enter__()

    def capture_end(self):
        self.__exit__(None, None, None)
        self.capturing.remove(self)
        for memory, held in self.before.values():
            memory.copy_(held)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        names = [each.name for each in func._schema.arguments]
        given = {**dict(zip(names, args)), **kwargs}
        for each in func._schema.arguments:
            if each.alias_info is not None and each.alias_info.is_write and each.name in given:
                self.keep_(tensors(given[each.name]))
        made = func(*args, **kwargs)
        old = {memory_of(each) for each in tensors((args, kwargs))}
        new = [memory_of(each) not in old for each in tensors(made)]

        def again():
            for found, place, is_new in zip(tensors(func(*args, **kwargs)), tensors(made), new):
                if is_new:
                    place.copy_(found)

        self.calls.append(again)
        return made

    def keep_(self, written):
        """What a capture writes is as it was afterwards."""
        for each in written:
            if memory_of(each) not in self.before:
                whole = torch.empty(0, dtype=torch.uint8).set_(each.detach().untyped_storage())
                self.before[memory_of(each)] = whole, whole.clone()

    def replay(self):
        with torch.no_grad():
            for again in self.calls:
                again()


def tensors(tree):
    return [each for each in tree_iter(tree) if isinstance(each, torch.Tensor)]


def memory_of(tensor):
    return tensor.untyped_storage()._cdata


def launch_adamw_(tables, factor=None, zero_grads=False):
    if Graph.capturing:
        (graph,) = Graph.capturing  # it only remembers, as a device does
        graph.calls.append(lambda: adamw_by_addresses_(tables, factor))
    else:
        adamw_by_addresses_(tables, factor)
    assert not zero_grads  # the engine does not ask for it


def adamw_by_addresses_(tables, factor):
    """kernels/adamw_triton.py in float32, from the table as it lies there."""
    for entry, row in zip(tables.table.tolist(), tables.rows, strict=True):
        size, settings = entry[6], Settings(*row[12:])
        w, m, v = (at(entry[number], size) for number in (0, 2, 3))
        t, rate = at(entry[5], 1), at(row[7], 1, torch.float64)
        if tables.kind.kept:
            place, (columns, width) = at(entry[8], entry[9], torch.int32), entry[9:11]
            g = spread(at(entry[1], size // columns * width).view(-1, width), place)
            g = torch.where(place >= 0, g * row[11], 0.0).flatten()
        else:
            g = at(entry[1], size)
        g = g if factor is None else g * factor
        u = at(entry[4], size) if entry[4] else torch.zeros_like(w)
        t += 1
        alpha = float(rate)
        d = alpha * settings.first_decay * w
        d += alpha * settings.anchor_decay * (w - d - u)
        d += alpha * settings.last_decay * (w - d)
        m += (1 - settings.beta1) * (g - m)
        v.mul_(settings.beta2).add_((1 - settings.beta2) * g * g)
        along, root = alpha, 1.0
        if settings.correct_bias:
            along, root = alpha / (1 - settings.beta1 ** float(t)), (1 - settings.beta2 ** float(t)) ** 0.5
        w -= d + along * m / (v.sqrt() / root + settings.eps)


def at(address, count, dtype=torch.float32):
    """What lies there."""
    if not count:
        return torch.zeros(0, dtype=dtype)
    return torch.frombuffer((ctypes.c_byte * (count * dtype.itemsize)).from_address(address), dtype=dtype)


def recording(monkeypatch):
    """From now on the engine's runs on the CPU take the way of a GPU."""
    monkeypatch.setattr(mixed_layers, "COLUMN_DEVICES", {"cpu"})
    monkeypatch.setattr(kept_gradients, "DEVICES", {"cpu"})
    monkeypatch.setattr(adamw, "DEVICES", ("cpu",))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(Lane, "memory", lambda self: None)
    monkeypatch.setattr(Lane, "generator", torch.default_generator, raising=False)
    monkeypatch.setattr(Lane, "renew_generator_", lambda self: None)
    monkeypatch.setattr(graphs, "_host_randomness", lambda: None)  # dropout draws there, on a CPU
    monkeypatch.setattr(graphs, "_same", lambda one, other: True)
    for module in (adamw, adamw_step):
        monkeypatch.setattr(module, "is_capturing", lambda: bool(Graph.capturing))
    monkeypatch.setattr(adamw_triton, "adamw_triton_", launch_adamw_)
    begin = Chunk.__init__

    def resident(self, applied, recipe, encoded, scaler, lane, masks, parameters, *rest):
        begin(self, applied, recipe, encoded, scaler, lane, masks, parameters, *rest)
        self.resident = Resident(encoded.encoder, self.split, self.device)
        self.graphs = Graphs(lane, self.model, parameters, recipe.key(), [self.loss])

    monkeypatch.setattr(Chunk, "__init__", resident)
