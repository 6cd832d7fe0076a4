"""Processes that write checkpoints, to be killed: a server that has imported torch once forks one per line it reads.

    fork FUNCTION FOLDER NUMBER  ->  pid, then whatever the process prints, then `ended CODE`

Nothing outlives the test: the server ends with its standard input, and each process by an alarm at the latest.
"""

import os
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import torch

from steadytune import checkpoint
from steadytune.errors import SteadytuneError

LONGEST = 20  # seconds that a process may live


def contents(step, size=500):
    """What a checkpoint of this step must hold: every number depends on the step."""
    tensors = {
        "model": {"a": torch.full((size, 2), float(step)), "b": torch.arange(size) + step},
        "optimizer": {"a.exp_avg": torch.full((size, 2), step / 3)},
    }
    return tensors, {"step": step, "history": [step / 7, "text"]}


def write(folder, step, size=500, keep=2):
    tensors, data = contents(step, size)
    return checkpoint.write(folder, step, tensors, data, keep)


def same(found, expected):
    (tensors, data), (right_tensors, right_data) = found, expected
    assert data == right_data
    assert tensors.keys() == right_tensors.keys()
    for stem, named in right_tensors.items():
        assert tensors[stem].keys() == named.keys()
        for name, tensor in named.items():
            found = tensors[stem][name]
            assert found.dtype == tensor.dtype
            assert torch.equal(found, tensor)


def is_whole(folder, steps, size=500):
    """The newest checkpoint is one of these steps, and holds exactly what that step wrote."""
    found = checkpoint.latest(folder)
    assert found.step in steps
    assert found.notes == ()
    same((found.tensors, found.data), contents(found.step, size))
    for path in Path(folder).glob("step-*"):
        checkpoint.read(path)  # and so is whatever else has a name
    return found.step


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def for_ever(folder, first):
    """Write one step after the other, and say so after each."""
    for step in range(first, first + 100_000):
        write(folder, step, size=20_000)
        print(step, flush=True)


def killed_at(folder, number):
    """Write step 3, and die just before the number-th thing that touches the disk."""
    left = [number]

    def deadly(function):
        def call(*arguments, **named):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **named)

        return call

    checkpoint.save_file = deadly(checkpoint.save_file)
    for name in ("rename", "fsync", "mkdir", "open", "unlink", "rmdir"):
        setattr(os, name, deadly(getattr(os, name)))
    Path.write_text = deadly(Path.write_text)
    write(folder, 3)


def with_room_for(folder, most):
    """Write step 2 where no file may grow beyond `most` bytes: EFBIG here, as ENOSPC on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    try:
        write(folder, 2)
        said = "written"
    except SteadytuneError as error:
        said = str(error)
    print(said, flush=True)


def serve():
    torch.set_num_threads(1)
    signal.alarm(120)
    for line in sys.stdin:
        name, folder, number = line.rstrip("\n").split("\t")
        pid = os.fork()
        if pid == 0:
            signal.alarm(LONGEST)  # which kills it
            globals()[name](folder, int(number))
            os._exit(0)
        print(pid, flush=True)
        print("ended", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


class Server:
    def __init__(self, process):
        self.process = process

    def fork(self, function, folder, number):
        """Start a process; returns its pid. Then read until `ended`, before the next one."""
        self.process.stdin.write(f"{function.__name__}\t{folder}\t{number}\n")
        self.process.stdin.flush()
        return int(self.line())

    def line(self):
        line = self.process.stdout.readline()
        assert line, "the server of checkpoint writers died"
        return line.rstrip("\n")

    def rest(self):
        """(what it printed, its exit code), once it has ended."""
        printed = []
        while not (line := self.line()).startswith("ended "):
            printed.append(line)
        return printed, int(line.split()[1])


@contextmanager
def server():
    command = [sys.executable, __file__]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Server(process)
    finally:
        process.kill()
        process.wait(LONGEST)
        process.stdin.close()
        process.stdout.close()


if __name__ == "__main__":
    serve()
