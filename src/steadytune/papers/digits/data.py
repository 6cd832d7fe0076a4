"""Sets of handwritten digits as the network sees them: 28 x 28 pixels, scaled to [0, 1] and normalised (M14).

    data = load("mnist")             # idx files: MNIST, or EMNIST Digits in a folder of its own
    data = load("usps/usps.npz")     # 16 x 16 pixels, resized

Supplement C.1 says "normalization after scaling pixel values into [0, 1]" and not of what; here a set is normalised by
the mean and standard deviation of its own training pixels. Both sets of the paper have 28 x 28 pixels; USPS is resized
bilinearly.
Caveat: EMNIST's files hold every image with rows and columns exchanged. They are read as they are, which the paper's
own numbers suggest (its source accuracy falls to 0.723 after fine-tuning on MNIST); `transpose=True` sets them upright.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from steadytune.errors import SteadytuneError
from steadytune.rng import Streams

SIDE = 28
CLASSES = 10


@dataclass(frozen=True, eq=False)
class Images:
    """Rows of one split. Pixels stay bytes, a quarter of the memory; `rows` makes the network's input of some."""

    pixels: Tensor  # uint8 [n, 784]
    labels: Tensor  # int64 [n]
    mean: float  # of the training pixels of the set, in bytes
    std: float

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, chosen: Tensor | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        """Normalised pixels [..., 784] of the rows named by an index of any shape: (x/255 - mean/255) / (std/255)."""
        return self.pixels[chosen].to(dtype).sub_(self.mean).div_(self.std)

    def to(self, device: torch.device | str) -> Images:
        return replace(self, pixels=self.pixels.to(device), labels=self.labels.to(device))


@dataclass(frozen=True, eq=False)
class Digits:
    name: str
    train: Images
    validation: Images
    test: Images | None

    def to(self, device: torch.device | str) -> Digits:
        test = None if self.test is None else self.test.to(device)
        return replace(self, train=self.train.to(device), validation=self.validation.to(device), test=test)

    def cut(self, train: int | None, evaluate: int | None) -> Digits:
        """At most so many rows to train on and in each evaluated split; which ones does not depend on a run."""
        test = None if self.test is None else _some(self.test, evaluate)
        return replace(self, train=_some(self.train, train), validation=_some(self.validation, evaluate), test=test)

    def sizes(self) -> dict[str, int]:
        splits = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: len(split) for name, split in splits.items() if split is not None}


def load(path: str | Path, *, transpose: bool = False) -> Digits:
    """A folder of idx files or an npz; a tenth of the training rows becomes the validation set (C.1: 54k/6k)."""
    from steadytune.tasks import image

    found = image.load(path, validation=0.1)
    if found.task.labels != tuple(str(digit) for digit in range(CLASSES)):
        raise SteadytuneError(f"{path} has the classes {', '.join(found.task.labels)}; the ten digits are needed.")
    arrays = {part: (np.asarray(rows.images), np.asarray(rows.labels)) for part, rows in found.splits().items()}
    return from_arrays(Path(path).stem, arrays, transpose=transpose)


def from_arrays(name: str, splits: dict[str, tuple[np.ndarray, np.ndarray]], *, transpose: bool = False) -> Digits:
    """Digits from uint8 [rows, height, width] and labels 0-9, for train, validation and perhaps test."""
    pixels = {part: _flat(images, transpose) for part, (images, _) in splits.items()}
    counted = np.bincount(pixels["train"].numpy().ravel(), minlength=256)  # exact, and no float copy of all pixels
    values = np.arange(256)
    mean = float((counted * values).sum() / counted.sum())
    std = float(np.sqrt((counted * (values - mean) ** 2).sum() / counted.sum()))
    if std == 0.0:
        raise SteadytuneError(f"All training pixels of {name} are equal; there is nothing to learn from.")
    made = {
        part: Images(pixels[part], torch.from_numpy(labels.astype(np.int64)), mean, std)
        for part, (_, labels) in splits.items()
    }
    return Digits(name, made["train"], made["validation"], made.get("test"))


def _flat(images: np.ndarray, transpose: bool) -> Tensor:
    if images.ndim != 3:
        raise SteadytuneError(f"Digits are grey images [rows, height, width]; these have the shape {images.shape}.")
    tensor = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 2, 1) if transpose else images))
    if tensor.shape[1:] != (SIDE, SIDE):
        wide = functional.interpolate(tensor.unsqueeze(1).float(), (SIDE, SIDE), mode="bilinear", align_corners=False)
        tensor = wide.squeeze(1).round().to(torch.uint8)
    return tensor.reshape(len(tensor), SIDE * SIDE)


def _some(images: Images, limit: int | None) -> Images:
    if limit is None or limit >= len(images):
        return images
    chosen = torch.randperm(len(images), generator=Streams().generator("order", "subset"))[:limit]
    return replace(images, pixels=images.pixels[chosen], labels=images.labels[chosen])
