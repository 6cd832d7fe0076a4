"""What do quick layer norms save under autocast on a GPU?

    python benchmarks/norm_gpu.py --json

Forward, backward and both through autograd, of one layer norm in float32 whose output is read in bf16: as autocast does
it, which casts the output for each of three layers that read it, or for one; and by one kernel that writes both. Each
is replayed from a CUDA graph. The floor is bytes over the measured copy bandwidth: x, z and its cast forward, g, x and
dx backward. Calls go through several copies of their tensors, so that nothing is read from the device's cache that a
step would not have there.

`--tune` compares tile sizes; the winners are written down at the top of steadytune/kernels/norm_triton.py. `--device
cpu --tiny` runs the same script in plain torch, to see that it works; its numbers mean nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional

from common import finish, machine
from device import Bench
from steadytune.kernels import norm
from steadytune.kernels.norm import Asked, Normalised, gradients, normalise, quick_norm

SHAPES, TINY = [(4096, 384), (4096, 1024), (16384, 1024)], [(32, 48)]
COPIES = 8  # of every tensor
LOW, EPS = torch.bfloat16, 1e-12
OURS, THREE, ONE = "ours", "3 casts", "1 cast"
TILES = [(tile, each, 512) for tile in (512, 1024, 2048, 4096) for each in (8, 16, 32)]
PARTS = [(tile, each, parts) for tile, each in ((1024, 16), (2048, 16), (2048, 32)) for parts in (128, 256, 512, 1024)]
Run = Callable[["Sample"], Any]


@dataclass(frozen=True)
class Sample:
    """The tensors of one call of a layer."""

    x: Tensor
    gamma: Tensor
    beta: Tensor
    grad: Tensor  # g
    made: Normalised


def samples(bench: Bench, shape: tuple[int, int]) -> list[Sample]:
    found = []
    for _ in range(COPIES):
        x, grad = (torch.randn(shape, device=bench.device) for _ in range(2))
        gamma, beta = (torch.randn(shape[1], device=bench.device, requires_grad=True) for _ in range(2))
        with torch.no_grad():
            made = normalise(x, gamma, beta, EPS, LOW)
        found.append(Sample(x.requires_grad_(), gamma, beta, grad, made))
    return found


def ours_forward(s: Sample) -> Any:
    return normalise(s.x, s.gamma, s.beta, EPS, LOW)


def ours_backward(s: Sample) -> Any:
    return gradients(s.grad, s.x, s.gamma, s.made.mean, s.made.rstd, Asked(True, True))


def ours_both(s: Sample) -> Any:
    with torch.enable_grad():
        z, _ = quick_norm(s.x, s.gamma, s.beta, EPS, LOW)
    return torch.autograd.grad(z, [s.x, s.gamma, s.beta], s.grad)


def plain_forward(s: Sample, casts: int) -> Any:
    z = functional.layer_norm(s.x, s.x.shape[1:], s.gamma, s.beta, EPS)
    return [z.to(LOW) for _ in range(casts)]


def plain_backward(s: Sample) -> Any:
    mean, rstd = s.made.mean[:, None], s.made.rstd[:, None]
    asked = [True, True, True]
    return torch.ops.aten.native_layer_norm_backward(s.grad, s.x, s.x.shape[1:], mean, rstd, s.gamma, s.beta, asked)


def plain_both(s: Sample, casts: int) -> Any:
    with torch.enable_grad():
        z = functional.layer_norm(s.x, s.x.shape[1:], s.gamma, s.beta, EPS)
    for _ in range(casts):  # what a layer that reads them sends back is a gradient of z already
        z.detach().to(LOW)
    return torch.autograd.grad(z, [s.x, s.gamma, s.beta], s.grad)


def passes() -> dict[str, tuple[dict[str, Run], int]]:
    """The forms of each pass, and the bytes it moves per element at least."""
    forward: dict[str, Run] = {
        OURS: ours_forward,
        THREE: lambda s: plain_forward(s, 3),
        ONE: lambda s: plain_forward(s, 1),
    }
    both: dict[str, Run] = {OURS: ours_both, THREE: lambda s: plain_both(s, 3), ONE: lambda s: plain_both(s, 1)}
    return {
        "forward": (forward, 10),
        "backward": ({OURS: ours_backward, THREE: plain_backward}, 12),
        "both": (both, 22),
    }


def compare(bench: Bench, shape: tuple[int, int]) -> dict[str, Any]:
    """Prints a table of the passes; returns their microseconds."""
    made, result = samples(bench, shape), {}
    print(f"\n{shape[0]} rows of {shape[1]}, microseconds of one call")
    print(f"{'pass':10} {OURS:>9} {'floor':>9} {'over':>6} {THREE:>9} {ONE:>9}")
    for name, (forms, moved) in passes().items():
        floor = moved * shape[0] * shape[1] / bench.bytes
        found = bench.seconds(forms, made)
        one = f"{1e6 * found[ONE]:9.1f}" if ONE in found else ""
        over = f"{1e6 * floor:9.1f} {found[OURS] / floor:6.2f}"
        print(f"{name:10} {1e6 * found[OURS]:9.1f} {over} {1e6 * found[THREE]:9.1f} {one}")
        result[name] = {form: 1e6 * value for form, value in {**found, "floor": floor}.items()}
    return result


def tune(bench: Bench, shape: tuple[int, int]) -> None:
    """Prints the tile sizes of both passes, the fastest first."""
    from steadytune.kernels import norm_triton

    names = ("TILE", "EACH", "PARTS")
    now = tuple(getattr(norm_triton, name) for name in names)

    def sized(run: Run, sizes: tuple[int, ...]) -> Run:
        def patched(sample: Sample) -> Any:
            with mock.patch.multiple(norm_triton, **dict(zip(names, sizes))):
                return run(sample)

        return patched

    made = samples(bench, shape)
    print(f"\n{shape[0]} rows of {shape[1]}, microseconds of one call by {'/'.join(names)}; * is as it is")
    for title, run, tiles in (("forward", ours_forward, TILES), ("backward", ours_backward, [*TILES, *PARTS])):
        forms = {"/".join(map(str, sizes)) + "*" * (sizes == now): sized(run, sizes) for sizes in [now, *tiles]}
        best = sorted(bench.seconds(forms, made).items(), key=lambda item: item[1])
        shown = best[:6] + [item for item in best[6:] if item[0].endswith("*")]
        print(f"{title:10} " + "   ".join(f"{form} {1e6 * value:.1f}" for form, value in shown))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--rounds", type=int, default=None, help="rounds of each part (21 on a GPU, 3 on the CPU)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs: launching is timed too")
    parser.add_argument("--tiny", action="store_true", help="a small matrix, to try the script")
    parser.add_argument("--tune", action="store_true", help="compare tile sizes instead")
    options = parser.parse_args()
    print(machine())
    started = time.perf_counter()
    bench = Bench(options.device, options.rounds or (21 if options.device == "cuda" else 3), options.eager)
    print(f"{bench.bytes / 1e9:.4g} GB/s in a large copy")
    results: dict[str, Any] = {}
    with mock.patch.multiple(norm, DEVICES={options.device}, _HAS_TRITON=bench.cuda and norm._HAS_TRITON):
        assert norm.is_served(options.device), "nothing would run a kernel: is Triton installed?"
        for shape in TINY if options.tiny else SHAPES:
            if options.tune and bench.cuda:
                tune(bench, shape)
            else:
                results["x".join(map(str, shape))] = compare(bench, shape)
    finish({"seconds": time.perf_counter() - started, "machine": machine(), "parts": results}, options.json)


if __name__ == "__main__":
    main()
