"""Every Triton kernel compiles for a Hopper GPU, also where there is none; what it computes is seen elsewhere."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

SOURCES = Path(__file__).parents[2] / "src" / "steadytune" / "kernels"
STACK = 128  # bytes a thread: a few registers that are spilled, in a variant that is hardly used


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    script = Path(__file__).with_name("compile_for_hopper.py")
    paths = os.pathsep.join([str(script.parents[1]), os.environ.get("PYTHONPATH", "")])
    cache = str(tmp_path_factory.mktemp("triton"))  # what was compiled before is not compiled anew
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": cache, "PYTHONPATH": paths}
    made = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=600, env=environment)
    assert made.returncode == 0, made.stderr[-3000:]
    return json.loads(made.stdout.splitlines()[-1])


def test_every_kernel_that_is_launched_compiles(compiled):
    launched = {
        f"{file.stem}.{name}"
        for file in SOURCES.glob("*_triton.py")
        for name in re.findall(r"^ +(_\w+)\[", file.read_text(), re.MULTILINE)
    }
    assert len(launched) >= 15
    assert {each["kernel"] for each in compiled} == launched


def test_nothing_to_speak_of_is_spilled(compiled):
    assert [each for each in compiled if each["stack"] > STACK] == []
    assert sum(each["stack"] > 0 for each in compiled) <= 1


def test_tensors_that_are_aligned_are_read_16_bytes_at_a_time(compiled):
    wide = {each["kernel"] for each in compiled if each["wide"]}
    assert wide >= {
        "adamw_triton._update",
        "linear_triton._cast",
        "mixout_triton._mix",
        "mixout_triton._mix_all",
        "norm_triton._normalise",
        "norm_triton._gradients",
        "rdrop_triton._rows",
    }
