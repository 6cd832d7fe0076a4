"""Where a stack goes on that was stopped, and what came out of one that has ended.

    folder/stack-0/step-000003/      weights, moments, losses and drift after three epochs (checkpoint.py)

A stack is known by its restarts, its images, its starts and what made it: of another one nothing is taken over.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from steadytune import checkpoint
from steadytune.checkpoint import Checkpoint, Tensors
from steadytune.engine.result import versions
from steadytune.papers.digits.data import Images
from steadytune.papers.digits.network import Restart, Training

SAVE_EVERY = 60.0  # seconds: what a killed process costs, besides the epoch that it was in


class SavedStack:
    """The newest checkpoint of one stack. Without a folder nothing is kept."""

    def __init__(self, folder: Path | None, identity: str = "", every: float = SAVE_EVERY) -> None:
        self._folder, self._identity, self._every = folder, identity, every
        self._at = time.monotonic()

    def find(self, device: torch.device) -> Checkpoint | None:
        found = None if self._folder is None else checkpoint.latest(self._folder)
        if found is None or found.data["stack"] != self._identity:
            return None
        there = {stem: {name: each.to(device) for name, each in of.items()} for stem, of in found.tensors.items()}
        return Checkpoint(found.path, found.step, there, found.data, found.notes)

    def due(self) -> bool:
        return self._folder is not None and time.monotonic() - self._at >= self._every

    def save(self, epochs: int, tensors: Tensors) -> None:
        """What is there after so many epochs."""
        if self._folder is not None:
            checkpoint.write(self._folder, epochs, tensors, {"stack": self._identity}, keep=1)
            self._at = time.monotonic()


def identity(restarts: Sequence[Restart], training: Training, images: Images, start: Mapping[str, Tensor]) -> str:
    """Of a stack. Its bits depend on all of this."""
    device = images.labels.device
    told = [[asdict(each) for each in restarts], asdict(training), [images.mean, images.std], versions(device)]
    found = hashlib.sha256(json.dumps(told).encode())
    for each in (images.pixels, images.labels, *start.values()):
        found.update(f"{each.dtype} {tuple(each.shape)}".encode())
        found.update(each.contiguous().cpu().numpy().data)
    return found.hexdigest()
