"""Named streams of randomness, and noise that is a function of a counter.

A run draws from three streams, each with its own number (few-sample paper, section 6; item V23):

    init    the head's first weights, re-initialised layers
    order   the order of the training rows: a function of (stream, epoch)
    noise   dropout and mixout masks

Two runs that share a stream's number share its draws, whatever the other streams do. Nothing here touches torch's
global generator.

The noise of mixout is *counter-based*: noise = hash(key, call, index), so a mask is a pure function of which layer
draws it and for the how-many-th time. No generator state has to be carried through checkpoints, processes, compiled
graphs or CUDA graphs, and CPU and GPU draw the same mask.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_MASK32 = 0xFFFFFFFF


@dataclass(frozen=True)
class Streams:
    """The three numbers that decide all randomness of a run."""

    init: int = 0
    order: int = 0
    noise: int = 0

    def generator(self, stream: str, *labels: object) -> torch.Generator:
        """A CPU generator of its own for (stream, labels); asking twice gives the same draws twice."""
        return torch.Generator().manual_seed(stream_seed(stream, getattr(self, stream), *labels))


def stream_seed(stream: str, number: int, *labels: object) -> int:
    """63 bits that depend on every part: neighbouring numbers or labels give unrelated seeds."""
    text = "\x1f".join([stream, str(number), *map(str, labels)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def streams_from_torch() -> Streams:
    """What `torch.manual_seed(s)` asked for, read without drawing: a loop seeded the usual way gets seeded noise."""
    seed = torch.initial_seed()
    return Streams(init=seed, order=seed, noise=seed)


def new_counter(key: int) -> Tensor:
    """The state of one noise source: the two halves of its key, and how often it has drawn."""
    return torch.tensor([key & _MASK32, (key >> 32) & _MASK32, 0], dtype=torch.int64)


def _hash32(x: Any) -> Any:
    """A bijection on 32 bits with low bias (Wellons' hash-prospector), on Python ints and int64 tensors alike.

    The second multiplier is written minus 2**32, so that no product leaves int64: signed overflow is undefined in
    compiled kernels.
    """
    x = x ^ (x >> 16)
    x = (x * 0x21F0AAAD) & _MASK32
    x = x ^ (x >> 15)
    x = (x * (0xD35A2D97 - (1 << 32))) & _MASK32
    return x ^ (x >> 15)


def random_bits(state: Any, index: Tensor) -> Tensor:
    """32 random bits, as int64, for each of the draws named by `index` (int64): draw i is the same whoever asks for it.

    `state` is (key low, key high, call), as Python ints (cheap on a CPU) or as the int64 tensor itself (no host sync
    on a GPU, no recompilation inside torch.compile); both give the same bits.
    """
    low, high, call = state[0], state[1], state[2]
    first = _hash32(low ^ _hash32((call ^ 0x9E3779B9) & _MASK32))
    second = _hash32((high + first) & _MASK32)
    return _hash32((_hash32((index & _MASK32) ^ first) + second) & _MASK32)


def normal(state: Any, index: Tensor) -> Tensor:
    """Standard normal float32 draws, by Box and Muller: sqrt(-2 ln u1) cos(2 pi u2)."""
    uniform_1 = (random_bits(state, 2 * index).to(torch.float64) + 1.0) / 2.0**32  # in (0, 1]: its logarithm is finite
    uniform_2 = random_bits(state, 2 * index + 1).to(torch.float64) / 2.0**32
    return (torch.sqrt(-2.0 * torch.log(uniform_1)) * torch.cos(2.0 * math.pi * uniform_2)).to(torch.float32)
