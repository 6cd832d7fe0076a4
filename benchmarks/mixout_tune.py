"""Which tile sizes of mixout's kernels, and which form of the weight gradient, are fastest on this device?

    python benchmarks/mixout_gpu.py --tune

The winners are written down at the top of steadytune/kernels/mixout_triton.py and products.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import torch

from device import Bench
from mixout_passes import Run, Sample, kinds, samples
from steadytune.kernels import products
from steadytune.kernels.mixout_columns import expand, mix_, take
from steadytune.kernels.products import weight_product

NAMES, TAKE_NAMES = ("TILE", "WIDEST", "WARPS"), ("TAKE_ROWS", "TAKE_COLUMNS", "TAKE_SLOTS", "WARPS")
TAKE_TILES = [  # rows, columns, slots, warps
    (8, 256, 128, 4), (4, 256, 128, 4), (16, 256, 128, 4), (4, 512, 256, 4), (8, 512, 256, 8), (8, 128, 64, 2),
]  # fmt: skip
TILES = [(4096, 512, 4), (2048, 512, 4), (1024, 512, 2), (2048, 256, 4), (4096, 1024, 8), (8192, 1024, 8)]


def tune(bench: Bench, width: int, high: int, tokens: int, p: float = 0.7) -> None:
    """Prints the best tile sizes of each pass, and the forms of the weight gradient."""
    low, full = bench.dtype, torch.float32
    for kind in kinds(width, high, low):
        made = samples(bench, kind, tokens, p)
        print(f"\n{kind.title}: microseconds of one call, the fastest first; * is as it is")
        if bench.cuda:
            tuned: list[tuple[str, Run, Sequence[str], Sequence[tuple[int, ...]]]] = [
                ("take", lambda s: take(s.x, [s.columns.kept], low), TAKE_NAMES, TAKE_TILES),
                (
                    "mix",
                    lambda s: mix_(s.mixed, s.low_bias, s.weight, s.target, s.columns.place, s.bias, p),
                    NAMES,
                    TILES,
                ),
                ("expand", lambda s: expand(s.part, s.columns, 1.0, True, full, full), NAMES, TILES),
            ]
            for name, run, names, tiles in tuned:
                _fastest(name, bench.seconds(dict(_with_tiles(run, names, tiles)), made))
        forms: dict[str, Run] = {
            "as it is*": lambda s: weight_product(s.grad, s.taken),
            "low type": lambda s: s.grad.t() @ s.taken,
            "turned": lambda s: s.taken.t() @ s.grad,
        }
        for most in (64, 132, 264):
            forms[f"split, {most} tiles"] = _patched(products, forms["as it is*"], {"SPLIT_TILES": most})
        _fastest("weight gradient", bench.seconds(forms, made))


def _with_tiles(run: Run, names: Sequence[str], tiles: Sequence[tuple[int, ...]]) -> Iterator[tuple[str, Run]]:
    from steadytune.kernels import mixout_triton

    now = tuple(getattr(mixout_triton, name) for name in names)
    for sizes in dict.fromkeys([now, *tiles]):
        title = "/".join(map(str, sizes)) + ("*" if sizes == now else "")
        yield title, _patched(mixout_triton, run, dict(zip(names, sizes)))


def _patched(module: Any, run: Run, values: dict[str, int]) -> Run:
    def patched(sample: Sample) -> Any:
        with mock.patch.multiple(module, **values):
            return run(sample)

    return patched


def _fastest(name: str, found: dict[str, float], most: int = 6) -> None:
    best = sorted(found.items(), key=lambda item: item[1])
    shown = best[:most] + [item for item in best[most:] if item[0].endswith("*")]
    print(f"{name:18} " + "   ".join(f"{form} {1e6 * value:.1f}" for form, value in shown))
