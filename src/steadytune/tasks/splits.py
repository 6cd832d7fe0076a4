"""Which rows train, validate and test. Pure functions from labels to sorted row indices.

Two kinds of randomness, kept apart: our own splits draw from a numpy Generator named by (the word "split", a stream
number); the splits of the few-sample paper are those of its public code, row for row, from the legacy generator it
used (which numpy promises never to change). The global generator is not touched.
"""

import zlib
from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np

from steadytune.errors import SteadytuneError


def generator(stream: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence([zlib.crc32(b"split"), stream]))


def size(rows: int, fraction: float, what: str) -> int:
    """The rows of a split asked for as a fraction; at least one."""
    if not 0 <= fraction < 1:
        raise SteadytuneError(f"The {what} fraction is {fraction}; it should be at least 0 and below 1.")
    return max(1, round(rows * fraction)) if fraction else 0


def shares(counts: Sequence[int], total: int) -> list[int]:
    """`total` divided over classes in proportion to their counts, by largest remainder, so that it adds up exactly.
    Every class keeps at least one row for itself."""
    whole = sum(counts)
    exact = [total * count / whole for count in counts]
    given = [min(int(share), count - 1) for share, count in zip(exact, counts)]
    by_remainder = sorted(range(len(counts)), key=lambda k: (given[k] - exact[k], k))
    while (left := total - sum(given)) > 0:
        open_classes = [k for k in by_remainder if given[k] < counts[k] - 1]
        if not open_classes:
            break
        for k in open_classes[:left]:
            given[k] += 1
    return given


def stratified(
    labels: np.ndarray | None, inputs: Sequence[Hashable], validation: int, test: int, stream: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Indices of (train, validation, test) with the class proportions of the whole; `labels` None: plain random.

    Rows with equal inputs stay together, so a split made here never leaks, and every class has a row in train. Where
    the inputs are distinct the sizes are exact; a group of equal rows too large for its class's share goes to train.
    """
    rows = len(inputs)
    if rows - validation - test < 1:
        raise SteadytuneError(f"{rows} rows cannot give {validation} for validation and {test} for test.")
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for i, value in enumerate(inputs):
        groups[value].append(i)
    classes: dict[int, list[list[int]]] = defaultdict(list)  # groups by the class of their first row
    for members in groups.values():
        classes[0 if labels is None else int(labels[members[0]])].append(members)
    keys = sorted(classes)
    counts = [sum(map(len, classes[key])) for key in keys]
    held_out = shares(counts, validation + test)
    for_test = shares([share + 1 for share in held_out], test)
    draw = generator(stream)
    found: tuple[list[int], list[int], list[int]] = ([], [], [])
    for key, share, test_left in zip(keys, held_out, for_test):
        validation_left = share - test_left
        shuffled = [classes[key][i] for i in draw.permutation(len(classes[key]))]
        found[0].extend(shuffled[0])
        for members in shuffled[1:]:
            if len(members) <= test_left:
                test_left -= len(members)
                found[2].extend(members)
            elif len(members) <= validation_left:
                validation_left -= len(members)
                found[1].extend(members)
            else:
                found[0].extend(members)
    train, val, held = (np.array(sorted(part), dtype=np.int64) for part in found)
    return train, val, held


def public_halves(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The few-sample paper's halves of a dev set (V7, D11): each class shuffled, its first floor(n / 2) rows validate.

    Gives 138/139 (RTE), 203/205 (MRPC), 521/522 (CoLA). Numbers to regress are one class here: 750/750 for STS-B, where
    the public code takes every distinct score for a class (722/778) and the paper prints 690/690.
    """
    whole = labels.dtype.kind == "f"
    validation: list[int] = []
    test: list[int] = []
    for members in [list(range(len(labels)))] if whole else _by_class(labels):
        np.random.RandomState(1).shuffle(members)  # the paper's rows
        validation += members[: len(members) // 2]
        test += members[len(members) // 2 :]
    return np.sort(np.array(validation, dtype=np.int64)), np.sort(np.array(test, dtype=np.int64))


def public_sample(labels: np.ndarray, train: int | None, validation: int) -> tuple[np.ndarray, np.ndarray]:
    """The few-sample paper's class-balanced samples of a train file (V7, D11): n // classes rows of each class to train
    (None: all the rest) and as many others to validate. MNLI: 333 x 3 = 999. Numbers to regress: plainly at random,
    where the public code used torch's generator, so those rows differ from the paper's.
    """
    draw = np.random.RandomState(0)  # the paper's rows
    classes = [np.arange(len(labels))] if labels.dtype.kind == "f" else [np.array(rows) for rows in _by_class(labels)]
    chosen: tuple[list[int], list[int]] = ([], [])
    for members in classes:
        draw.shuffle(members)
        kept = validation // len(classes)
        wanted = len(members) - kept if train is None else train // len(classes)
        if wanted + kept > len(members):
            raise SteadytuneError(
                f"A class of {len(members)} rows cannot give {wanted} to train and {kept} to validate."
            )
        chosen[0].extend(members[:wanted])
        chosen[1].extend(members[len(members) - kept :])
    return np.sort(np.array(chosen[0], dtype=np.int64)), np.sort(np.array(chosen[1], dtype=np.int64))


def _by_class(labels: np.ndarray) -> list[list[int]]:
    """Row indices of each class, classes in the order they first occur (the order the public code draws in)."""
    found: dict[int, list[int]] = defaultdict(list)
    for i, label in enumerate(labels.tolist()):
        found[label].append(i)
    return list(found.values())
