"""Compiles every Triton kernel for a Hopper GPU, on a machine that has none: down to the machine code of sm_90.

    python tests/kernels/compile_for_hopper.py        # one line of JSON: what was compiled, with registers and stack

Triton's interpreter says whether a kernel computes the right thing, but it takes what the compiler would refuse. Here
the same launches go to the compiler: tensors lie on the CPU, the driver says that the device is a Hopper one, and a
launch ends when its code is there. Nothing is computed.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

from adamw_slots import cases
from steadytune.kernels import kept_gradients as kept
from steadytune.kernels import linear, mixout_table
from steadytune.kernels.activation_triton import gelu_gradients_triton
from steadytune.kernels.adamw import FusedStep
from steadytune.kernels.adamw_tables import Settings, Slot
from steadytune.kernels.linear import CastTable
from steadytune.kernels.linear_triton import column_sum_triton
from steadytune.kernels.mixout_columns import Layer
from steadytune.kernels.mixout_masks import Columns, draw_torch, new_rule, new_table
from steadytune.kernels.mixout_masks_triton import draw_all_triton_, draw_triton_, overflows_triton
from steadytune.kernels.mixout_triton import expand_triton, mix_triton_, take_triton
from steadytune.kernels.norm import Asked
from steadytune.kernels.norm_triton import gradients_triton, normalise_triton
from steadytune.kernels.rdrop_rows import Terms
from steadytune.kernels.rdrop_triton import row_losses_triton_
from steadytune.kernels.rows_triton import move_rows_triton
from steadytune.rng import new_counter

LOW = (torch.bfloat16, torch.float16)
TYPES = (torch.float32, *LOW)
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")


class Hopper:
    """As much of a driver as the compiler asks for."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=None):
        return 0


class Compiled:
    """What the launches since then have been compiled to, by kernel and machine code."""

    def __init__(self):
        self.found = {}
        launch = jit.JITFunction.run

        def compiled(kernel, *arguments, warmup, **options):
            made = launch(kernel, *arguments, warmup=True, **options)
            name = f"{kernel.fn.__module__.rpartition('.')[2]}.{kernel.fn.__name__}"
            self.found[name, made.asm["cubin"]] = "ld.global.v4.b32" in made.asm["ptx"]
            return made

        jit.JITFunction.run = compiled
        driver.set_active(Hopper())

    def usage(self):
        """One row for each: a stack is where registers are spilled to; wide, whether it loads 16 bytes at once."""
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        rows = []
        with tempfile.TemporaryDirectory() as folder:
            for number, ((name, code), wide) in enumerate(self.found.items()):
                file = Path(folder, f"{number}.cubin")
                file.write_bytes(code)
                said = subprocess.run([tool, "-res-usage", file], capture_output=True, text=True, check=True).stdout
                registers, stack = map(int, _USAGE.search(said).groups())
                rows.append({"kernel": name, "registers": registers, "stack": stack, "wide": wide})
        return rows


def masks():
    rule, state = new_rule(1024, 0.7), new_counter(1)
    draw_triton_(state, rule, None)
    draw_triton_(state, rule, torch.zeros_like(state))
    table = new_table([rule, new_rule(4096, 0.7)], torch.device("cpu"))
    states = torch.stack([state, new_counter(2)])
    places, kept = torch.zeros(5120, dtype=torch.int32), torch.zeros(3000, dtype=torch.int32)
    draw_all_triton_(states, table.rows, places, kept, table.widest)
    overflows_triton(states, table.rows, table.widest, 20, 3)


def mixout(out=48, columns=1024, positions=64):
    drawn = draw_torch(new_counter(1), new_rule(columns, 0.7))
    place, kept = drawn
    for low in TYPES:
        w, u, bias = torch.randn(out, columns), torch.randn(out, columns), torch.randn(out)
        mix_triton_(w.to(low), bias.to(low), w, u, place, bias, 0.7)
        mix_triton_(w.to(low), None, w, u, place, None, 0.7)
        for given, lists in ((given, lists) for given in TYPES for lists in (1, 3)):
            take_triton(torch.randn(positions, columns).to(given), kept.expand(lists, -1), low)
        for kept_only, width in ((True, len(kept)), (False, columns)):
            for size in ((out, width), (3, out, width)):
                grad = torch.randn(*size).to(low)
                expand_triton(grad, drawn, 1 / 0.3, kept_only, torch.float32, torch.float32 if kept_only else None)


def mixout_at_once():
    mixout_table.has_kernels = lambda *_: True
    for low in TYPES:
        for out, columns in ((48, 1024), (33, 600)):  # aligned, and not
            masked = Columns(*draw_torch(new_counter(1), new_rule(columns, 0.7)))
            layer = Layer(torch.randn(out, columns), torch.randn(out), torch.randn(out, columns), masked)
            mixout_table.MixTable([[layer]], 0.7, low).mix_()


def kept_gradients():
    kept.has_kernels = lambda *_: True
    of = [
        kept.Kept(torch.randn(48, columns), None, draw_torch(new_counter(1), new_rule(columns, 0.7)), 1.0)
        for columns in (1024, 600)
    ]
    gradients = kept.KeptGradients(of)
    gradients.finish_()
    rate, settings = torch.tensor(0.05, dtype=torch.float64), Settings(0.9, 0.999, 1e-8, True, 0.1, 0.0, 0.0)
    for factor in (None, torch.tensor(0.25)):
        for layer in of:
            w, m, v, t, g = *torch.rand(3, *layer.weight.shape), torch.tensor(0.0), gradients.of[layer.weight]
            FusedStep().step_([Slot(w, g.values, m, v, t, None, rate, settings, g)], factor)


def adamw():
    for dtype in TYPES:
        for factor, zero, shift, rate in (
            (None, False, 0, torch.float64),
            (torch.tensor(0.25), True, 0, torch.float64),
            (torch.tensor(0.25, dtype=torch.float64), True, 1, torch.float32),
        ):
            made = cases(dtype, "cpu", torch.tensor(0.05, dtype=rate), shift=shift, seed=0)
            FusedStep().step_([case.slot for case in made], factor, zero)


def plain_layers():
    linear.DEVICES = {"cpu"}
    for low in LOW:
        for shift in (0, 1):
            CastTable.of([torch.randn(shift + 4096)[shift:]], low).cast_()
        column_sum_triton(torch.randn(4096, 1024).to(low))
    for width in (384, 1024, 1000):
        x, gamma, beta = torch.randn(64, width), torch.randn(width), torch.randn(width)
        for low in LOW:
            made = normalise_triton(x, gamma, beta, 1e-5, low)
            normalise_triton(x.to(low), gamma, None, 1e-5, low)
            gradients_triton(x.to(low), x, gamma, made.mean, made.rstd, Asked(True, True))
            normalise_triton(x.to(low), gamma, beta, 1e-5, low, x)
            gradients_triton(x, x, gamma, made.mean, made.rstd, Asked(True, True, low), x)
            kept = draw_torch(new_counter(1), new_rule(width, 0.7)).kept
            gelu_gradients_triton(x.to(low), x.to(low), kept)
        gradients_triton(x, x, None, made.mean, made.rstd, Asked(True, False))
    for dtype in TYPES:
        move_rows_triton(torch.randn(64, 384).to(dtype), torch.arange(64))


def rdrop(rows=5):
    yes = torch.ones(rows, dtype=torch.bool)
    for classes in (2, 3, 32_000):
        for dtype in TYPES:
            for smoothing, with_offset, gradient in ((0.0, False, True), (0.1, True, True), (0.1, False, False)):
                labels, offset = torch.zeros(rows, dtype=torch.int64), torch.randn(classes) if with_offset else None
                terms = Terms(labels, yes, yes, torch.tensor(0.3), torch.tensor(0.7), (1.0, 1.0), smoothing)
                row_losses_triton_(torch.randn(2, rows, classes).to(dtype), terms, offset, gradient)


def main():
    compiled = Compiled()
    for launches in (masks, mixout, mixout_at_once, kept_gradients, adamw, plain_layers, rdrop):
        launches()
    print(json.dumps(compiled.usage()))  # the last line: others are of the cases


if __name__ == "__main__":
    sys.exit(main())
