"""What of a run goes into a checkpoint, and how it comes back: weights, the optimiser's state, and whose run it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from steadytune.checkpoint import Checkpoint, Tensors, latest, write
from steadytune.errors import SteadytuneError


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, a tied one once; not copied."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        found.setdefault(id(tensor), (name, tensor.detach()))
    return dict(found.values())


def copied(model: nn.Module) -> dict[str, Tensor]:
    """The weights as they are now: in main memory, or on a GPU of which they take no hundredth, which is faster."""
    found = weights(model)
    devices = {tensor.device for tensor in found.values()}
    size = sum(tensor.nbytes for tensor in found.values())
    small = all(
        device.type == "cuda" and 100 * size < torch.cuda.get_device_properties(device).total_memory
        for device in devices
    )
    if small:
        return {name: tensor.clone() for name, tensor in found.items()}
    return {name: tensor.to("cpu", copy=True) for name, tensor in found.items()}


@torch.no_grad()
def load_weights_(model: nn.Module, saved: Mapping[str, Tensor]) -> None:
    """Every weight of the model becomes the saved one; names must match exactly."""
    mine = weights(model)
    odd = sorted(mine.keys() ^ saved.keys())
    if odd:
        raise SteadytuneError(
            f"The saved weights are not of a {type(model).__name__}: {odd[0]} is in one and not the other."
        )
    for name, tensor in mine.items():
        tensor.copy_(saved[name])


def pack(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimiser's state as named tensors, and what of it is not tensors. Groups follow from the recipe."""
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {}
    for number, state in optimizer.state_dict()["state"].items():
        for key, value in state.items():
            (tensors if isinstance(value, Tensor) else plain)[f"{number}.{key}"] = value
    return tensors, plain


def unpack_(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
    state: dict[int, dict[str, Any]] = {}
    for name, value in {**tensors, **plain}.items():
        number, _, key = name.partition(".")
        state.setdefault(int(number), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


class RunFolder:
    """The folder of one run: refuses what belongs to another, writes, and finds where to go on.

    `identity` is what makes it this run (recipe, data, streams): another value is refused. `setting` is what its bits
    depend on besides (versions, processes): a change is said in the notes.
    """

    def __init__(self, folder: str | Path | None, identity: dict[str, Any], setting: dict[str, Any]) -> None:
        self.folder = None if folder is None else Path(folder)
        self.identity, self.setting = identity, setting

    def find(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest intact checkpoint of this run, and what is to be said about it."""
        found = None if self.folder is None else latest(self.folder)
        if found is None:
            return None, []
        for name, mine in self.identity.items():
            theirs = found.data.get("identity", {}).get(name)
            if theirs != mine:
                raise SteadytuneError(
                    f"{self.folder} holds a run with {_difference(name, theirs, mine)}. Give another folder, or delete "
                    "that one to start over."
                )
        notes = list(found.notes)
        before = found.data.get("setting", {})
        for name, mine in self.setting.items():
            if before.get(name) != mine and "result" not in found.data:
                notes.append(
                    f"Resumed at step {found.step} with {name} {mine} after {before.get(name)}: the rest may differ in "
                    "its last bits from an uninterrupted run."
                )
        return found, notes

    def write(self, step: int, tensors: Tensors, data: dict[str, Any], keep: int = 2) -> None:
        if self.folder is not None:
            whose = {"identity": self.identity, "setting": self.setting}
            write(self.folder, step, tensors, {**data, **whose}, keep)


def _difference(name: str, theirs: Any, mine: Any) -> str:
    if name == "recipe" and isinstance(theirs, dict) and isinstance(mine, dict):
        odd = [key for key in sorted({*theirs, *mine}) if theirs.get(key) != mine.get(key)]
        shown = ", ".join(f"{key} {theirs.get(key)!r} instead of {mine.get(key)!r}" for key in odd[:3])
        return f"another recipe ({shown})"
    return f"other {name}" if isinstance(mine, str) else f"other {name} ({theirs!r} instead of {mine!r})"
