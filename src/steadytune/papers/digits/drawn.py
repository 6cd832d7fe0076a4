"""Drawn digits, for smoke runs where no files are at hand: the seven segments of a clock, moved, blurred and noisy."""

from __future__ import annotations

import numpy as np

from steadytune.papers.digits.data import CLASSES, SIDE, Digits, from_arrays

#     a          which segments light up for 0, 1, ..., 9
#   f   b
#     g
#   e   c
#     d
_LIT = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg")
_SEGMENTS = {  # (top, left, bottom, right) on a field of 20 x 12
    "a": (0, 0, 2, 12),
    "b": (0, 10, 10, 12),
    "c": (10, 10, 20, 12),
    "d": (18, 0, 20, 12),
    "e": (10, 0, 20, 2),
    "f": (0, 0, 10, 2),
    "g": (9, 0, 11, 12),
}


def drawn_digits(name: str, rows: int, *, noise: float = 60.0, seed: int = 0) -> Digits:
    """`rows` training images, and half as many to validate and to test on. More `noise` (in bytes) is harder."""
    random = np.random.default_rng(seed)
    sizes = {"train": rows, "validation": max(1, rows // 2), "test": max(1, rows // 2)}
    return from_arrays(name, {part: _draw(count, noise, random) for part, count in sizes.items()})


def _draw(rows: int, noise: float, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(rows) % CLASSES
    images = np.zeros((rows, SIDE, SIDE))
    for image, label in zip(images, labels):
        down, right = random.integers(2, 7), random.integers(5, 12)
        for segment in _LIT[label]:
            top, left, bottom, end = _SEGMENTS[segment]
            image[top + down : bottom + down, left + right : end + right] = random.uniform(160, 255)
    noisy = images + noise * random.standard_normal(images.shape)
    return noisy.clip(0, 255).astype(np.uint8), labels
