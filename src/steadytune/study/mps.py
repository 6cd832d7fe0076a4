"""NVIDIA's MPS: kernels of several processes run on a GPU at the same time, instead of in turns.

    with side_by_side(["0"]) as served:
        environment = {**os.environ, **served["0"]}     # of every process that is to share GPU 0

Each GPU gets a daemon of its own, in a directory of its own, so nobody else's processes notice. A shell holds it: when
the pipe to that shell closes, be it that we are done or that we were killed, the daemon is told to quit. An MPS that is
there already is used as it is. Where none can be had, or `STEADYTUNE_MPS=0` says so, nothing is served.

What one process does wrong on the GPU (a bad address, not a lack of memory) ends all that share it.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

Served = Mapping[str, Mapping[str, str]]  # by GPU: what its processes have in their environment

CONTROL = "nvidia-cuda-mps-control"
SWITCH = "STEADYTUNE_MPS"
_PIPE, _LOG, _VISIBLE = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", "CUDA_VISIBLE_DEVICES"
_USUAL = Path("/tmp/nvidia-mps")  # where an MPS listens that was told nothing else
_PLACE = "/tmp"  # a short path, since sockets lie in it
_HOLD = f"""
{CONTROL} -d </dev/null >/dev/null 2>&1 || exit 1
echo on
read line
echo quit | {CONTROL} >/dev/null 2>&1
rm -rf "${_PIPE}"
"""
_TRY = """
import ctypes
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
raise SystemExit(bool(cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)))
"""
_NOBODY = b"Cannot find MPS control daemon"  # what the control program says then
_PATIENCE = 30.0  # seconds for a daemon to start, to serve, to answer, or to quit


@contextmanager
def side_by_side(gpus: Iterable[str]) -> Iterator[Served]:
    """What processes need in their environment to share these GPUs (as in CUDA_VISIBLE_DEVICES), as long as this lasts.

    A GPU that cannot be shared is left out.
    """
    wanted = list(dict.fromkeys(gpus))
    if not wanted or _is_off():
        yield {}
    elif _is_there():
        yield {gpu: {} for gpu in wanted}
    else:
        with ExitStack() as stack:
            tried = {gpu: stack.enter_context(_daemon(gpu)) for gpu in wanted}
            yield {gpu: environment for gpu, environment in tried.items() if environment is not None}


def _is_there() -> bool:
    """Whether the user has an MPS already, which our processes find by themselves."""
    return (_PIPE in os.environ or (_USUAL / "control").exists()) and answers({})


def _is_off() -> bool:
    return os.environ.get(SWITCH, "").lower() in ("0", "off", "no", "false")


@contextmanager
def _daemon(gpu: str) -> Iterator[Mapping[str, str] | None]:
    """The environment of those that are served, or None where nobody can be."""
    if shutil.which(CONTROL) is None or gpu.startswith("MIG"):
        yield None
        return
    try:
        place = tempfile.mkdtemp(prefix="steadytune-mps-", dir=_PLACE)
    except OSError:  # a container may have nothing there that can be written
        yield None
        return
    told = {_PIPE: place, _LOG: place}
    holder = subprocess.Popen(
        ["sh", "-c", _HOLD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **told, _VISIBLE: gpu},
        start_new_session=True,  # Ctrl-C is for us
    )
    try:
        served = {**told, _VISIBLE: "0"}  # the only one that this daemon sees
        yield served if _is_on(holder) and _works(served) else None
    finally:
        try:
            holder.communicate(timeout=_PATIENCE)  # closes the pipe, and waits
        except (subprocess.TimeoutExpired, OSError):
            with suppress(ProcessLookupError):
                os.killpg(holder.pid, signal.SIGKILL)
            holder.communicate()
        shutil.rmtree(place, ignore_errors=True)


def _is_on(holder: subprocess.Popen[bytes]) -> bool:
    """Whether its daemon has started. One that never says so must not hold up the study."""
    assert holder.stdout is not None
    said, *_ = select.select([holder.stdout], [], [], _PATIENCE)
    return bool(said) and holder.stdout.readline() == b"on\n"


def _works(served: Mapping[str, str]) -> bool:
    """Whether a process gets on the GPU in this way: in a container it may not. One that finds no daemon gets on, too,
    but on whichever has that number without it."""
    try:
        tried = subprocess.run(
            [sys.executable, "-c", _TRY],
            env={**os.environ, **served},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return tried.returncode == 0 and answers(served)


def answers(served: Mapping[str, str]) -> bool:
    """Whether the MPS of these is there, as far as can be asked: its directory outlives it."""
    try:
        asked = subprocess.run(
            [CONTROL],
            env={**os.environ, **served},
            input=b"get_server_list\n",
            capture_output=True,
            timeout=_PATIENCE,
        )
    except FileNotFoundError:
        return True  # a container may be given the pipe and nothing else
    except (OSError, subprocess.TimeoutExpired):
        return False
    return _NOBODY not in asked.stdout + asked.stderr
