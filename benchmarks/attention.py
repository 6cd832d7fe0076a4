"""When is torch's flash kernel for CPUs slower than plain matrix products? What engine/attention.py goes by.

    python benchmarks/attention.py --json

Attention of 2,048 tokens in rows of 8 to 512, 12 heads of 32 and of 64, with a padding mask, on one thread: forward
and backward, and forward alone, by both kernels, interleaved. A ratio below 1 means that matrix products are faster.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from common import finish, interleaved, machine, ratio

KERNELS = {"flash": SDPBackend.FLASH_ATTENTION, "products": SDPBackend.MATH}
TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
TOKENS, HEADS = 2048, 12


def passes(kernel: SDPBackend, dtype: torch.dtype, width: int, wide: int, learns: bool) -> Callable[[], None]:
    rows = TOKENS // width
    inputs = [torch.randn(rows, HEADS, width, wide, dtype=dtype, requires_grad=learns) for _ in range(3)]
    mask = torch.ones(rows, 1, width, width, dtype=torch.bool)
    mask[: rows // 2, ..., width * 3 // 4 :] = False
    given = torch.ones(rows, HEADS, width, wide, dtype=dtype)

    def run() -> None:
        with sdpa_kernel(kernel):
            made = functional.scaled_dot_product_attention(*inputs, attn_mask=mask)
        if learns:
            made.backward(given)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--widths", type=int, nargs="+", default=[8, 16, 32, 64, 128, 256, 512])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(machine())
    print(f"{'':<22}" + "".join(f"{width:>8}" for width in options.widths) + "   tokens a row")
    found: dict[str, dict[int, float]] = {}
    for (name, dtype), wide, learns in itertools.product(TYPES.items(), (32, 64), (True, False)):
        called = f"{name}, {wide}, {'learns' if learns else 'forward'}"
        found[called] = {}
        for width in options.widths:
            runs = {each: passes(kernel, dtype, width, wide, learns) for each, kernel in KERNELS.items()}
            found[called][width] = ratio(interleaved(runs, options.rounds), "products", "flash")
        print(f"{called:<22}" + "".join(f"{value:>8.2f}" for value in found[called].values()), flush=True)
    finish({"machine": machine(), "products over flash": found}, options.json)


if __name__ == "__main__":
    main()
