"""What travels to the nodes of a Ray cluster, because they may not have it: the data, and models that are directories.

There need be no file system that all machines see. Models by name (`builtin:minilm`, the hub's) are found by the nodes
themselves.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from steadytune.errors import SteadytuneError
from steadytune.packages import package_versions
from steadytune.study.outcome import Run

if TYPE_CHECKING:
    from steadytune.study.folder import Prepared
    from steadytune.tasks.base import Data

Files = Mapping[str, np.ndarray]  # path inside a folder -> bytes; Ray shares arrays between the processes of a node

_PACKAGES = ("steadytune", "torch", "transformers")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".pkl")  # never read (models.py), so they stay here


@dataclass(frozen=True, eq=False)
class Cargo:
    """The parts of a study that are sent. `run` is called instead of training, where it is given: for tests."""

    data: Mapping[str, Data] = field(default_factory=dict)  # by task
    models: Mapping[str, Path] = field(default_factory=dict)  # what recipes say -> the directory on this machine
    run: Run | None = None


def cargo_of(prepared: Prepared) -> Cargo:
    """What a study needs. A directory that is not on this machine is left for the nodes to find."""
    from steadytune.models import source
    from steadytune.study.data import located

    candidates = [each for group in prepared.study.groups.values() for each in group]
    models: dict[str, Path] = {}
    for recipe in (recipe for each in candidates for recipe in each.recipes.values()):
        name = recipe.start_from or recipe.model
        if name in models or name.startswith("builtin:"):
            continue
        with suppress(SteadytuneError):
            found = Path(source(located(recipe, prepared.base)))
            if found.is_dir():
                models[name] = found
    return Cargo(prepared.data, models)


# -- folders as data ---------------------------------------------------------------------------------------------------


def read_files(folder: Path) -> dict[str, np.ndarray]:
    """All files of a folder but pickles and hidden ones."""
    found: dict[str, np.ndarray] = {}
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_file() and path.suffix not in _PICKLES and not any(part.startswith(".") for part in inside.parts):
            found[inside.as_posix()] = np.fromfile(path, dtype=np.uint8)
    return found


def write_files(files: Files, folder: Path) -> None:
    """Make a folder of them: the whole of it, or none."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    hidden = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for name, content in files.items():
            path = hidden / name
            path.parent.mkdir(parents=True, exist_ok=True)
            content.tofile(path)
        os.rename(hidden, folder)
    except OSError:
        if not folder.is_dir():  # otherwise another process was quicker
            raise
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def digest(files: Files) -> str:
    made = hashlib.sha256()
    for name in sorted(files):
        made.update(f"{len(name.encode())} {name} {files[name].nbytes}\n".encode())
        made.update(files[name].data)
    return made.hexdigest()


# -- the machines ------------------------------------------------------------------------------------------------------


def node_folder(study: str) -> Path:
    """Where a node keeps checkpoints and copies of models: under its temporary directory, closed to other users."""
    user = os.getuid() if hasattr(os, "getuid") else None
    top = Path(tempfile.gettempdir(), "steadytune" if user is None else f"steadytune-{user}")
    top.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = top.lstat()
    if user is not None and (not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & 0o022):
        raise SteadytuneError(f"{top} can be changed by other users, so nothing is read from it. Move it away.")
    return top / study


def versions() -> dict[str, str]:
    """What numbers depend on, besides Python and Ray: those two Ray compares by itself."""
    found = package_versions(_PACKAGES)
    return {name: number.partition("+")[0] for name, number in found.items()}  # 2.13.0+cpu and +cu130 are the same


def different(here: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """Sentence parts on what differs."""
    return [f"{name} {there.get(name)} instead of {value}" for name, value in here.items() if there.get(name) != value]


def plain(result: Mapping[str, Any], copy: str, name: str) -> dict[str, Any]:
    """A result whose notes speak of a model by its own name, not by that of a node's copy."""
    notes = [note.replace(copy, name) if isinstance(note, str) else note for note in result.get("notes", ())]
    return {**result, "notes": notes} if notes else dict(result)
