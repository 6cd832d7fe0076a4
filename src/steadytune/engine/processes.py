"""One run over several processes, started by `torchrun` or `accelerate launch`.

Every process builds the same model from the same streams, computes its share of each batch's rows, and adds its
gradients to the others': N processes do what one would, up to rounding. Only the first one writes.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, distributed

from steadytune.errors import SteadytuneError


@dataclass(frozen=True)
class Processes:
    """Which of how many this one is, and the device it computes on."""

    rank: int
    count: int
    device: torch.device

    @property
    def first(self) -> bool:
        return self.rank == 0

    def agree(self, flags: Iterable[bool]) -> list[bool]:
        """For each flag, whether any process raised it."""
        raised = list(flags)
        if self.count == 1:
            return raised
        tensor = torch.tensor(raised, dtype=torch.uint8, device=self.device)
        distributed.all_reduce(tensor, op=distributed.ReduceOp.MAX)
        return [bool(flag) for flag in tensor.tolist()]

    def sum_(self, tensors: list[Tensor]) -> None:
        """Each tensor becomes its sum over the processes. One message for each dtype."""
        if self.count == 1:
            return
        for dtype in sorted({tensor.dtype for tensor in tensors}, key=str):
            some = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat = torch.cat([tensor.reshape(-1) for tensor in some])
            distributed.all_reduce(flat)
            for tensor, part in zip(some, flat.split([tensor.numel() for tensor in some])):
                tensor.copy_(part.view_as(tensor))

    def sum_gradients_(self, parameters: list[torch.nn.Parameter], used: list[bool]) -> None:
        """Add up gradients; a parameter that some process used and this one did not has 0 here."""
        if self.count == 1:
            return
        for parameter, anywhere in zip(parameters, used):
            if anywhere and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.sum_([parameter.grad for parameter in parameters if parameter.grad is not None])

    def sum_array(self, array: np.ndarray) -> np.ndarray:
        """The sum over processes of arrays in which each filled its own rows and left 0 elsewhere."""
        if self.count == 1:
            return array
        tensor = torch.from_numpy(array).to(self.device)
        distributed.all_reduce(tensor)
        return tensor.cpu().numpy()

    def check_same(self, number: int, what: str) -> None:
        """Refuse to go on where processes see different things."""
        numbers = np.zeros(self.count, dtype=np.int64)
        numbers[self.rank] = number
        found = self.sum_array(numbers).tolist()
        if len(set(found)) > 1:
            raise SteadytuneError(f"The processes of this run see different {what}: {found}. They must share a folder.")


def join(device: str | torch.device | None = None) -> Processes:
    """This process among those that the launcher started; alone where there is no launcher."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    joined = distributed.is_available() and distributed.is_initialized()
    local = int(os.environ.get("LOCAL_RANK", "0")) if count > 1 or joined else 0
    if device is not None:
        chosen = torch.device(device)
    else:
        chosen = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    if chosen.type == "cuda":
        if not torch.cuda.is_available():
            raise SteadytuneError(f"There is no CUDA device here for device={device!r}; leave it out, or say 'cpu'.")
        chosen = torch.device("cuda", local if chosen.index is None else chosen.index)
        torch.cuda.set_device(chosen)
    if not joined and count > 1:
        distributed.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
        atexit.register(_leave)  # once per process: the next run of it uses the same group
        joined = True
    if not joined:
        return Processes(0, 1, chosen)
    return Processes(distributed.get_rank(), distributed.get_world_size(), chosen)


def _leave() -> None:
    if distributed.is_initialized():
        # Gloo's thread may still wait for the GIL to let go of its last work. The group is taken apart with the GIL
        # held, by joining that thread: without this pause, now and then, for ever (seen with torch 2.13).
        time.sleep(0.1)
        distributed.destroy_process_group()
