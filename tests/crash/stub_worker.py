"""A worker whose trials do what their spec says. It does not import torch, so it starts in a moment.

python stub_worker.py LEDGER --worker NAME ...        as steadytune.study.worker
"""

import os
import signal
import sys
import time
from pathlib import Path

from steadytune.study.outcome import Outcome, Stopped
from steadytune.study.worker import main


def square(spec, folder, progress, stop):
    """Some milliseconds of work."""
    time.sleep(spec.get("seconds", 0.0))
    return Outcome("finished", {"value": spec["value"] ** 2, "best": {"step": 1, "validation": spec["value"]}})


def kill(spec, folder, progress, stop):
    progress({"step": 7})
    print("about to die", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def segfault(spec, folder, progress, stop):
    import ctypes

    ctypes.string_at(0)


def leave(spec, folder, progress, stop):
    os._exit(0)


def error(spec, folder, progress, stop):
    raise RuntimeError("no such thing as a free lunch")


def gpu_error(spec, folder, progress, stop):
    raise RuntimeError(f"CUDA error: device-side assert triggered in process {os.getpid()}")


def no_room(spec, folder, progress, stop):
    raise OSError(28, "No space left on device")


def wait(spec, folder, progress, stop):
    """Says that it has begun, then waits for a file; whoever waited for it is in the result. Stops when told to."""
    (folder / "checkpoint").write_text(f"{(folder / 'checkpoint').exists()}")
    with open(spec["begun"], "a") as begun:
        print(os.getpid(), file=begun)
    while not os.path.exists(spec["gate"]):
        if stop.wait(0.01):
            Path(f"{spec['begun']}.told").touch()
            if not spec.get("deaf"):
                (folder / "stopped").touch()
                raise Stopped
            time.sleep(0.01)
    return Outcome("finished", {"value": os.getpid(), "went_on": (folder / "stopped").exists()})


RUNS = {run.__name__: run for run in (square, kill, segfault, leave, error, gpu_error, no_room, wait)}


def run(spec, folder, progress, stop):
    return RUNS[spec["do"]](spec, folder, progress, stop)


if __name__ == "__main__":
    signal.alarm(120)  # nothing outlives the tests
    sys.exit(main(make_run=lambda options: run))
