"""Where trials keep their checkpoints while they run: folder/attempt-N/KEY.

Each attempt has a folder of its own and takes over what the one before it left. A worker that lost its lease without
knowing (a machine that hung for an hour) then finds its folder gone, and cannot write between the files of the worker
that has the trial now.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from steadytune.errors import SteadytuneError

KEY = re.compile(r"[A-Za-z0-9_-]{1,128}")
_ATTEMPT = re.compile(r"attempt-(\d+)")


def take_over(root: Path, key: str, attempt: int) -> Path:
    """The folder of this attempt, with what the newest earlier one left there; older ones are deleted."""
    own = _place(root, key, attempt)
    own.parent.mkdir(parents=True, exist_ok=True)
    earlier = [number for number in _attempts(root, key) if number < attempt]  # a later one has taken it from us
    if not own.exists():
        for number in sorted(earlier, reverse=True):
            with suppress(OSError):  # whose it was may be deleting it just now
                os.rename(_place(root, key, number), own)
                break
    own.mkdir(exist_ok=True)
    for number in earlier:
        shutil.rmtree(_place(root, key, number), ignore_errors=True)
    return own


def delete(root: Path, key: str, attempt: int | None = None) -> None:
    """What a trial left behind: of one attempt, or of all."""
    for number in _attempts(root, key) if attempt is None else [attempt]:
        shutil.rmtree(_place(root, key, number), ignore_errors=True)  # not its parent: another may be about to use it


def keys(root: Path) -> set[str]:
    """The trials that have left anything."""
    return {folder.name for parent in _parents(root).values() for folder in parent.iterdir()}


def _place(root: Path, key: str, attempt: int) -> Path:
    if not KEY.fullmatch(key):  # these folders are deleted, so they had better be ours
        raise SteadytuneError(
            f"{key!r:.200} is not the key of a trial: the ledger is damaged, or not made by steadytune."
        )
    return root / f"attempt-{attempt}" / key


def _attempts(root: Path, key: str) -> list[int]:
    return [number for number, parent in _parents(root).items() if (parent / key).exists()]


def _parents(root: Path) -> dict[int, Path]:
    there = root.iterdir() if root.is_dir() else ()
    return {int(match[1]): path for path in there if (match := _ATTEMPT.fullmatch(path.name)) and path.is_dir()}
