"""Checkpoints: atomic directories of safetensors and JSON with a manifest of hashes.

    folder/step-000123/model.safetensors ...   tensors, one file per name given
                       state.json              everything else, as plain data
                       manifest.json           size and sha256 of each of the above, and its own sha256

A checkpoint is written under a hidden name, flushed to the disk, and renamed: whatever is killed, and however full the
disk is, a directory called step-... is complete. The one before it is deleted only after that. Reading checks every
byte against the manifest, so a damaged file is named and refused and never becomes other numbers. No pickle.

One process at a time writes into a folder. A run goes on from the newest intact checkpoint, so what lies at the same
step as a new one, or later, was refused or replaced; it is deleted with the old ones.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from steadytune.errors import SteadytuneError

FORMAT, MANIFEST, STATE = 1, "manifest.json", "state.json"
_NAME = re.compile(r"step-(\d{6,})(?:\.(\d+))?")
_STEM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")

Tensors = dict[str, dict[str, Tensor]]  # file stem -> name -> tensor


@dataclass(frozen=True)
class Checkpoint:
    """What `latest` found: where it is, what is in it, and what had to be passed over."""

    path: Path
    step: int
    tensors: Tensors
    data: dict[str, Any]
    notes: tuple[str, ...] = ()  # a sentence for each newer checkpoint that is damaged


def write(
    folder: str | Path, step: int, tensors: Mapping[str, Mapping[str, Tensor]], data: dict[str, Any], keep: int = 2
) -> Path:
    """Write `folder/step-<step>`: a safetensors file per entry of `tensors`, and `data` as JSON. Returns its path.

    Either the whole checkpoint is there afterwards, under its name and on the disk, or an error was raised and the
    checkpoints that were there still are. Of the older ones the newest `keep - 1` stay.
    """
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise SteadytuneError(f"A checkpoint's step must be a whole number, 0 or more, not {step!r}.")
    folder = Path(folder)
    hidden = folder / f".step-{step:06d}.{os.getpid()}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(".step-*.tmp"):  # of a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        hidden.mkdir()
        _fill(hidden, tensors, data)
        path = _free_name(folder, step)
        os.rename(hidden, path)
        _flush(folder)
    except BaseException as error:  # Ctrl-C too
        shutil.rmtree(hidden, ignore_errors=True)
        if not isinstance(error, (OSError, SafetensorError)):
            raise
        raise SteadytuneError(
            f"The checkpoint of step {step} could not be written to {folder}: {error}. What was there before is as it "
            "was. Make room or choose another folder, then run the same command again."
        ) from error
    _delete_others(folder, path, step, keep)
    return path


def read(path: str | Path) -> tuple[Tensors, dict[str, Any]]:
    """The tensors and data of one checkpoint directory, every byte checked; an error that names what is damaged."""
    path = Path(path)
    try:
        files = _checked_files(path)
        state = json.loads((path / STATE).read_bytes())
        tensors: Tensors = {name.removesuffix(".safetensors"): load_file(path / name) for name in files}
        for stem, same in state["same"].items():
            tensors[stem].update({name: tensors[stem][other] for name, other in same.items()})
        return tensors, state["data"]
    except (OSError, SafetensorError) as error:
        raise SteadytuneError(f"The checkpoint {path} cannot be read: {error}.") from error


def latest(folder: str | Path) -> Checkpoint | None:
    """The newest intact checkpoint, or None where there are none.

    A damaged one is passed over, and `notes` says so; where all are damaged an error says what is wrong with each.
    """
    notes: list[str] = []
    for path in reversed(_checkpoints(Path(folder))):
        try:
            tensors, data = read(path)
            return Checkpoint(path, _order(path)[0], tensors, data, tuple(notes))
        except SteadytuneError as error:
            if path.exists():  # and was not deleted by a writer just now
                notes.append(str(error))
    if notes:
        raise SteadytuneError(
            f"No checkpoint in {folder} is intact. {' '.join(notes)} Delete the folder to start over."
        )
    return None


def _fill(hidden: Path, tensors: Mapping[str, Mapping[str, Tensor]], data: dict[str, Any]) -> None:
    same: dict[str, dict[str, str]] = {}
    for stem, named in tensors.items():
        if not _STEM.fullmatch(stem):
            raise SteadytuneError(f"{stem!r} cannot be the name of a checkpoint's file: use letters, digits, - and _.")
        once, same[stem] = _each_once(named)
        save_file(once, hidden / f"{stem}.safetensors")
    (hidden / STATE).write_text(_to_json({"data": data, "same": same}), encoding="utf-8")
    files = {file.name: {"size": file.stat().st_size, "sha256": _sha256(file)} for file in sorted(hidden.iterdir())}
    manifest = {"format": FORMAT, "files": files}
    own = hashlib.sha256(_to_json(manifest).encode()).hexdigest()
    (hidden / MANIFEST).write_text(_to_json({**manifest, "sha256": own}), encoding="utf-8")
    for file in hidden.iterdir():
        _flush(file)
    _flush(hidden)


def _each_once(named: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each different tensor under its first name, ready to be saved; and for the other names of a tied one, which.

    safetensors refuses tensors that share memory; a view gets a copy of its own, a tied weight is written once.
    """
    once: dict[str, Tensor] = {}
    same: dict[str, str] = {}
    first: dict[Any, str] = {}
    memory: set[int] = set()  # of what is in `once`
    for name, tensor in named.items():
        tensor = tensor.detach()
        where = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and where in first:
            same[name] = first[where]
            continue
        first[where] = name
        kept = tensor.cpu().contiguous()
        if kept.untyped_storage().nbytes() != kept.nbytes or kept.untyped_storage().data_ptr() in memory:
            kept = kept.clone()
        memory.add(kept.untyped_storage().data_ptr())
        once[name] = kept
    return once, same


def _to_json(data: Any) -> str:
    try:
        _refuse_other_keys(data)
        return json.dumps(data, indent=1)
    except (TypeError, ValueError) as error:
        raise SteadytuneError(f"A checkpoint's data must be plain: {error}.") from error


def _refuse_other_keys(data: Any) -> None:
    """JSON would write {1: 2} and read {"1": 2}."""
    if isinstance(data, dict):
        for key in data:
            if not isinstance(key, str):
                raise TypeError(f"{key!r} is a key and not a text")
    for value in data.values() if isinstance(data, dict) else data if isinstance(data, (list, tuple)) else ():
        _refuse_other_keys(value)


def _checked_files(path: Path) -> list[str]:
    """The names of the tensor files, after every file was found to be what the manifest says."""
    listed = _manifest(path)
    there = {file.name for file in path.iterdir() if not file.name.startswith(".")} - {MANIFEST}
    for name in sorted({*listed, STATE} | there):
        if name not in there:
            raise SteadytuneError(f"{path} is damaged: {name} is missing.")
        if name not in listed:
            raise SteadytuneError(f"{path} is damaged: {name} is not in its {MANIFEST}.")
        size, right = (path / name).stat().st_size, listed[name]
        if size != right["size"]:
            raise SteadytuneError(f"{path} is damaged: {name} has {size} bytes and was written with {right['size']}.")
        if _sha256(path / name) != right["sha256"]:
            raise SteadytuneError(f"{path} is damaged: the bytes of {name} are not those that were written (sha256).")
    return sorted(there - {STATE})


def _manifest(path: Path) -> dict[str, dict[str, Any]]:
    """Name -> size and sha256, as they were written."""
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        own = manifest.pop("sha256")
        if own != hashlib.sha256(_to_json(manifest).encode()).hexdigest():
            raise ValueError("sha256")
    except FileNotFoundError:
        raise SteadytuneError(f"{path} is damaged: {MANIFEST} is missing.") from None
    except (ValueError, KeyError, TypeError, AttributeError):  # no UTF-8, no JSON, no mapping, or other values
        raise SteadytuneError(f"{path} is damaged: {MANIFEST} is not what was written.") from None
    if manifest["format"] != FORMAT:
        raise SteadytuneError(f"{path} has the format {manifest['format']!r}; this version reads {FORMAT}.")
    return dict(manifest["files"])


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _flush(path: Path) -> None:
    """Wait until a file's bytes, or a directory's entries, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _order(path: Path) -> tuple[int, int]:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1]), int(match[2] or 0)


def _checkpoints(folder: Path) -> list[Path]:
    """Oldest first."""
    there = folder.iterdir() if folder.is_dir() else []
    return sorted((path for path in there if _NAME.fullmatch(path.name) and path.is_dir()), key=_order)


def _free_name(folder: Path, step: int) -> Path:
    """step-000123, or step-000123.1 where that exists: nothing is overwritten, so at no moment is nothing there."""
    taken = [_order(path)[1] for path in _checkpoints(folder) if _order(path)[0] == step]
    return folder / (f"step-{step:06d}.{max(taken) + 1}" if taken else f"step-{step:06d}")


def _delete_others(folder: Path, new: Path, step: int, keep: int) -> None:
    others = [path for path in _checkpoints(folder) if path != new]
    older = [path for path in others if _order(path)[0] < step]
    for path in [path for path in others if path not in older] + older[: max(0, len(older) - keep + 1)]:
        gone = path.with_name(f".{path.name}.old.tmp")  # hidden first: a kill in the middle leaves no half checkpoint
        try:
            os.rename(path, gone)
        except OSError:
            continue  # it only takes room
        shutil.rmtree(gone, ignore_errors=True)
