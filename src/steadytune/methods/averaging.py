"""Checkpoint averaging: the mean of the weights that one run had at several times.

    w̄ = 1/k Σ_i w_i

Near the end of a run the weights circle around a minimum; their mean is nearer to it. R-Drop, table 5: 35.00 to 35.44
BLEU for 2 to 6 checkpoints against 34.78 for one; with R-Drop, which has less left to gain, 37.22 to 37.31.

Relations: one checkpoint is the checkpoint, bit for bit. Ensembling averages predictions, not weights.
Caveats: only checkpoints of ONE run can be averaged. Weights of different seeds lie in different basins: 0 BLEU in that
table, and nothing here can tell. Running statistics of batch normalisation are averaged like weights, which is only
about right; its step counter is taken from the last checkpoint. The mean is taken in float64 and keeps its parts' type.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from steadytune.errors import SteadytuneError
from steadytune.methods.base import RDROP, Method, check_count, method

WEIGHTS, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"


def average_weights(state_dicts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """w̄ = 1/k Σ w_i of every tensor by name. Whole numbers (position ids) must agree and stay as they are."""
    if not state_dicts:
        raise SteadytuneError("There are no weights to average: give at least one state dict or checkpoint.")
    _check_same_names(state_dicts)
    return {name: _mean(name, [state[name] for state in state_dicts]) for name in state_dicts[0]}


def average_checkpoints(paths: Sequence[str | Path]) -> dict[str, Tensor]:
    """The mean of the weights in Hugging Face checkpoint directories, read one tensor at a time."""
    weights = [CheckpointWeights(Path(path)) for path in paths]
    for other in weights[1:]:
        if other.architecture != weights[0].architecture:
            raise SteadytuneError(
                f"{other.folder} holds {other.architecture or 'a model without config.json'}, {weights[0].folder} "
                f"{weights[0].architecture or 'one without'}: only checkpoints of one run can be averaged."
            )
    return average_weights(weights)


def _check_same_names(state_dicts: Sequence[Mapping[str, Tensor]]) -> None:
    first = state_dicts[0].keys()
    for number, state in enumerate(state_dicts[1:], start=2):
        odd = sorted(first ^ state.keys())
        if odd:
            raise SteadytuneError(
                f"The weights to average are of different architectures: number {number} and number 1 do not both have "
                f"{', '.join(odd[:3])}{f' and {len(odd) - 3} more' if len(odd) > 3 else ''}."
            )


def _mean(name: str, tensors: list[Tensor]) -> Tensor:
    first, last = tensors[0], tensors[-1]
    for number, other in enumerate(tensors[1:], start=2):
        if (other.shape, other.dtype) != (first.shape, first.dtype):
            raise SteadytuneError(
                f"The weights to average are of different architectures: {name} is {list(first.shape)} {first.dtype} "
                f"in number 1 and {list(other.shape)} {other.dtype} in number {number}."
            )
    if not (first.is_floating_point() or first.is_complex()):
        if name.endswith("num_batches_tracked"):
            return last.clone()
        if not all(torch.equal(first, other) for other in tensors[1:]):
            raise SteadytuneError(f"{name} holds whole numbers that differ; their mean would mean nothing.")
        return first.clone()
    for number, tensor in enumerate(tensors, start=1):
        if not torch.isfinite(tensor).all():
            raise SteadytuneError(
                f"{name} of number {number} has NaN or infinite values. That run diverged: leave it out."
            )
    if len(tensors) == 1:
        return first.detach().clone()
    wide = torch.complex128 if first.is_complex() else torch.float64
    total = torch.zeros(first.shape, dtype=wide)
    for tensor in tensors:
        total += tensor.detach().to("cpu", wide)
    return (total / len(tensors)).to(device=first.device, dtype=first.dtype)


class CheckpointWeights(Mapping[str, Tensor]):
    """The tensors of one checkpoint directory, read when asked for. Safetensors only: nothing is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = self._find_files()
        config = self._json(CONFIG) if (folder / CONFIG).exists() else {}
        self.architecture = " ".join(str(config[key]) for key in ("model_type", "architectures") if config.get(key))

    def _find_files(self) -> dict[str, Path]:
        """Tensor name -> file."""
        if (self.folder / WEIGHTS).is_file():
            with self._open(self.folder / WEIGHTS) as file:
                return dict.fromkeys(file.keys(), self.folder / WEIGHTS)
        if (self.folder / INDEX).is_file():
            shards = self._json(INDEX).get("weight_map")
            if not isinstance(shards, dict):
                raise SteadytuneError(f"{self.folder / INDEX} has no 'weight_map', which says where each tensor is.")
            for shard in sorted(set(map(str, shards.values()))):
                if Path(shard).name != shard or not (self.folder / shard).is_file():
                    raise SteadytuneError(f"{self.folder / INDEX} names the file {shard!r}, which is not beside it.")
            return {name: self.folder / shard for name, shard in shards.items()}
        if (self.folder / "adapter_model.safetensors").is_file():
            raise SteadytuneError(
                f"{self.folder} holds a PEFT adapter. The mean of its factors is not the mean of the models: merge "
                "each checkpoint first (merge_and_unload), then average."
            )
        pickled = sorted(path.name for path in self.folder.glob("*.bin"))
        hint = f" It has {pickled[0]}, a pickle, which could run code: save with safetensors." if pickled else ""
        raise SteadytuneError(f"{self.folder} has no {WEIGHTS} and no {INDEX}.{hint}")

    def _json(self, name: str) -> dict[str, Any]:
        try:
            found = json.loads((self.folder / name).read_text(encoding="utf-8"))
        except ValueError as error:
            raise SteadytuneError(f"{self.folder / name} is damaged; it is not JSON: {error}") from error
        return found if isinstance(found, dict) else {}

    @staticmethod
    def _open(path: Path) -> Any:
        try:
            return safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise SteadytuneError(f"{path} is damaged or incomplete: {error}") from error

    def __getitem__(self, name: str) -> Tensor:
        with self._open(self.files[name]) as file:
            try:
                return file.get_tensor(name)
            except SafetensorError as error:
                raise SteadytuneError(f"{self.files[name]} does not hold {name}, which its index names.") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


@method("checkpoint_average", place="finish", paper=RDROP, items="R18", null={"last": 1})
class CheckpointAverage(Method):
    """The mean of the run's last checkpoints in place of the last one."""

    last: int = 5  # how many checkpoints; 1 is the last one alone

    def __post_init__(self) -> None:
        check_count("last", self.last, "CheckpointAverage")

    def finish(self, models: Sequence[Any]) -> dict[str, Tensor]:
        """`models`: state dicts or checkpoint directories of one run, oldest first."""
        if len(models) < self.last:
            raise SteadytuneError(
                f"CheckpointAverage(last={self.last}): the run kept only {len(models)} checkpoints. Keep more of "
                "them, or average fewer."
            )
        chosen = list(models)[-self.last :]
        if all(isinstance(item, (str, Path)) for item in chosen):
            return average_checkpoints(chosen)
        if all(isinstance(item, Mapping) for item in chosen):
            return average_weights(chosen)
        raise SteadytuneError("CheckpointAverage: give state dicts or checkpoint directories, all of one kind.")
