"""One process at a time, by a locked file: the system lets go of it however the process ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from steadytune.errors import SteadytuneError

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]


@contextmanager
def held(file: Path, busy: str) -> Iterator[None]:
    """Hold the lock of `file`, which is made in a folder that is there; `busy` is the error where another has it."""
    if fcntl is None:
        yield
        return
    with file.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SteadytuneError(busy) from None
        yield
