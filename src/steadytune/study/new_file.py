"""A file that is there as a whole, or as it was before: written under a hidden name, flushed, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from steadytune.errors import SteadytuneError


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yields the name to write to; when the block ends well, the file gets the name `path`."""
    if path.is_dir():
        raise SteadytuneError(f"{path} is a directory; name a file to be written.")
    hidden = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield hidden
        with open(hidden, "rb+") as stream:
            os.fsync(stream.fileno())
        os.replace(hidden, path)
    except OSError as error:
        why = error.strerror or error
        raise SteadytuneError(
            f"{path} could not be written: {why}. What was there before is as it was; make room or name another "
            "place, then run the same command again."
        ) from error
    finally:
        hidden.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    with new_file(path) as hidden:
        hidden.write_text(text, encoding="utf-8", newline="")
