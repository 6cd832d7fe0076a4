"""The randomness of one run, kept apart from everybody else's.

Inside `private_randomness` torch's, numpy's and Python's global generators belong to the run, which seeds them anew for
every chunk of every step: dropout is a function of (stream noise, step, process, chunk), so a resumed run needs no
generator state. Outside they are as they were. Mixout needs no generator (masks.py).
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def private_randomness(device: torch.device, deterministic: bool = False) -> Iterator[None]:
    """Global generators may be used inside and are restored afterwards.

    `deterministic` is `use_deterministic_` for so long; of a GPU alone, as a CPU gives the same bits anyway.
    """
    python, old = random.getstate(), np.random.get_state()  # noqa: NPY002 (saved, not used)
    before = (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled())
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        if deterministic and device.type == "cuda":
            use_deterministic_()
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
            random.setstate(python)
            np.random.set_state(old)  # noqa: NPY002


def use_deterministic_() -> None:
    """Ask torch for kernels that give the same bits every time; a few operations of a GPU have none, and say so."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS is refused
    torch.use_deterministic_algorithms(True)


def seed_(device: torch.device, seed: int) -> None:
    """Seed every global generator that a model may draw from. Other GPUs are left alone."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002 (what model code would draw from)
