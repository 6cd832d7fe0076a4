"""What is odd about the rows: duplicates, contradictions, empty texts, leaks. Counted, never repaired.

Rows are compared by their inputs alone, exactly (case and white space count). A duplicate is a training row whose input
stood earlier in train; a conflict is a duplicate with another label than the first; a leak is a row of a later split
whose input stands in an earlier one: it makes scores look better than they are.
"""

from typing import Any

from steadytune.tasks.base import Leak, Notes, Rows

_SHOWN = 3


def examine(splits: dict[str, Rows], said: tuple[str, ...] = ()) -> Notes:
    """Notes on the splits, in the order given (train first)."""
    train = splits["train"]
    first: dict[Any, int] = {}
    duplicates = conflicts = 0
    for i, value in enumerate(train.inputs()):
        if value not in first:
            first[value] = i
            continue
        duplicates += 1
        conflicts += _answer(train, i) != _answer(train, first[value])
    empty = sum(not any(text.strip() for text in texts) for texts in train.texts)
    leaks: list[Leak] = []
    earlier: dict[str, set[Any]] = {"train": set(first)}
    for name, rows in splits.items():
        if name == "train":
            continue
        inputs = rows.inputs()
        for other, seen in earlier.items():
            found = [i for i, value in enumerate(inputs) if value in seen]
            if found:
                examples = tuple(rows.source.where(i) for i in found[:_SHOWN])
                leaks.append(Leak(other, name, len(found), examples))
        earlier[name] = set(inputs)
    return Notes(duplicates, conflicts, empty, tuple(leaks), said)


def _answer(rows: Rows, i: int) -> Any:
    if rows.targets is not None:
        return rows.targets[i]
    return None if rows.labels is None else rows.labels[i]
