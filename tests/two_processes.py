"""Two processes on one machine (gloo, on the CPU): how the distributed tests start them, and how a process ends."""

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

import torch

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))

LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}


TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def start(folder, *command):
    """Run a launcher to its end; the output of both processes."""
    quiet = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true", **LOOPBACK}
    with (folder / "log").open("w") as log:
        # A session of its own, so that whatever happens the launcher goes with both of its children.
        started = subprocess.Popen(
            [sys.executable, "-m", *map(str, command)],
            env={**os.environ, **quiet},
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=folder,
        )
        try:
            code = started.wait(timeout=180)
        finally:
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGKILL)
                started.wait()
    text = (folder / "log").read_text()
    assert code == 0, text[-3000:]
    return text


def launch(script, folder, launcher=TORCHRUN):
    """What each of two processes that run the script saved with `leave`."""
    start(folder, *launcher, script, folder)
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in (0, 1)]


def die_with_launcher():
    """A killed launcher leaves no process behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def leave(results, folder):
    """Save and end at once.

    Taking a process group of DDP apart can hang for ever: torch 2.13 joins gloo's thread while it holds the GIL, which
    that thread may be waiting for.
    """
    torch.save(results, Path(folder) / f"rank-{RANK}.pt")
    torch.distributed.barrier()
    os._exit(0)
