"""A device as benchmarks need it: its measured ceilings, steps replayed from a CUDA graph, peak memory, one table."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from common import PeakMemory, interleaved, ratio, spread

Step = Callable[[], None]
Sample = TypeVar("Sample")  # the tensors of one call


class Bench:
    """A device, its precision and its measured ceilings."""

    def __init__(self, device: str, rounds: int, eager: bool) -> None:
        self.device, self.rounds, self.cuda, self.eager = device, rounds, device == "cuda", eager
        self.dtype = torch.bfloat16 if self.cuda else torch.float32
        side, length = (8192, 2**28) if self.cuda else (512, 2**23)
        a, b = (torch.randn(side, side, device=device, dtype=self.dtype) for _ in range(2))
        here, there = (torch.randn(length, device=device) for _ in range(2))
        products = interleaved({"product": self.waiting(lambda: torch.mm(a, b))}, 5)["product"]
        copies = interleaved({"copy": self.waiting(lambda: there.copy_(here))}, 5)["copy"]
        self.operations = 2 * side**3 / statistics.median(products)  # per second
        self.bytes = 2 * 4 * length / statistics.median(copies)

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device, dtype=self.dtype, enabled=self.cuda)

    def waiting(self, run: Callable[[], Any]) -> Step:
        """The same, and then wait for the device."""

        def waited() -> None:
            run()
            if self.cuda:
                torch.cuda.synchronize()

        return waited

    def graphed(self, step: Step) -> Step:
        """The step as one CUDA graph, so that what is timed is the device and not the launching."""
        if not self.cuda or self.eager:
            return self.waiting(step)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        return self.replaying(graph, step)

    def replaying(self, graph: torch.cuda.CUDAGraph, step: Step) -> Step:
        """Replays, and holds on to what was captured: a graph knows addresses only."""

        def replay(captured: Step = step) -> None:
            graph.replay()

        return self.waiting(replay)

    def seconds(self, forms: Mapping[str, Callable[[Sample], Any]], samples: Sequence[Sample]) -> dict[str, float]:
        """Of one call of each form, by the median. All samples take turns, so that the device's cache holds none."""

        def over_all(run: Callable[[Sample], Any]) -> Step:
            def step() -> None:
                for sample in samples:
                    run(sample)

            return step

        with torch.no_grad():
            steps = {name: self.graphed(over_all(run)) for name, run in forms.items()}
            times = interleaved(steps, self.rounds)
        return {name: statistics.median(found) / len(samples) for name, found in times.items()}

    def peak(self, run: Step) -> int:
        """The most bytes of tensors alive at once that the run made."""
        if not self.cuda:
            with PeakMemory() as memory:
                run()
            return memory.peak
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    def compare(self, title: str, variants: dict[str, Step], base: str, floors: dict[str, float]) -> dict[str, Any]:
        times = interleaved(variants, self.rounds)
        print(f"\n{title}: {self.rounds} rounds, medians, and of the ratio to '{base}' in the same round")
        print(f"{'variant':34} {'ms':>9} {'±':>6} {'ratio':>7} {'over floor':>11}")
        for name in variants:
            median = statistics.median(times[name])
            above = f"{median / floors[name]:11.2f}" if name in floors else f"{'':11}"
            share = ratio(times, name, base)
            print(f"{name:34} {1000 * median:9.2f} {100 * spread(times[name]):5.1f}% {share:7.3f} {above}")
        return {
            "ratio": {name: ratio(times, name, base) for name in variants if name != base},
            "ms": {name: 1000 * statistics.median(times[name]) for name in variants},
            "spread": {name: spread(times[name]) for name in variants},
            "floor_ms": {name: 1000 * floor for name, floor in floors.items()},
        }
