"""What the benchmarks share: interleaved timing, peak memory by counting live storages, and one JSON line at the
end."""

from __future__ import annotations

import json
import os
import platform
import signal
import statistics
import subprocess
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

T = TypeVar("T")


def interleaved(variants: dict[str, Callable[[], None]], rounds: int, warmup: int = 1) -> dict[str, list[float]]:
    """Seconds of each variant, one call of each per round: what disturbs the machine disturbs all of them alike."""
    for run in variants.values():
        for _ in range(warmup):
            run()
    times: dict[str, list[float]] = {name: [] for name in variants}
    names = list(variants)
    for round_ in range(rounds):
        for name in names[round_ % len(names) :] + names[: round_ % len(names)]:
            start = time.perf_counter()
            variants[name]()
            times[name].append(time.perf_counter() - start)
    return times


def ratio(times: dict[str, list[float]], name: str, base: str) -> float:
    """Median over rounds of time(name) / time(base) within the round."""
    return statistics.median(a / b for a, b in zip(times[name], times[base]))


def spread(values: list[float]) -> float:
    """Half the interquartile range over the median; one value says nothing of it."""
    if len(values) < 2:
        return float("nan")
    low, median, high = statistics.quantiles(values, n=4)
    return (high - low) / 2 / median


class PeakMemory(TorchDispatchMode):
    """The most bytes of tensors alive at once that were made inside the block. Works on any device, without an
    allocator's rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_iter(out):
            if isinstance(tensor, torch.Tensor):
                self._track(tensor.untyped_storage())
        return out

    def _track(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._seen:
            return
        self._seen.add(key)
        size = storage.nbytes()
        self.live += size
        self.peak = max(self.peak, self.live)

        def freed() -> None:
            self._seen.discard(key)
            self.live -= size

        weakref.finalize(storage, freed)


def chosen(found: dict[str, T], names: Sequence[str]) -> dict[str, T]:
    """Those with these names, or all of them where none is given."""
    unknown = [name for name in names if name not in found]
    if unknown:
        raise SystemExit(f"There is no {unknown[0]!r} here, but {', '.join(found)}.")
    return {name: each for name, each in found.items() if not names or name in names}


def ended(command: Sequence[str], output: Path, seconds: float) -> int | str:
    """The exit code of a command that writes all that it says to a file; or that it was stopped, with all that it has
    started."""
    with output.open("w") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"stopped after {seconds:.0f} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def machine() -> str:
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    processor = platform.processor() or platform.machine()
    return f"{processor}, {torch.get_num_threads()} threads, torch {torch.__version__}{gpu}"


def finish(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(result))
