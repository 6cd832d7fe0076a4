"""Processes that use a ledger under bad conditions. Each is forked from a process that has imported everything.

python ledger_processes.py planners LEDGER COUNT ROWS     so many at once create the ledger and plan the same rows
python ledger_processes.py full OPERATION FOLDER SIZES    once per size: no file may grow beyond it; JSON per line
python ledger_processes.py killed LEDGER COUNT            finish so many trials, then SIGKILL in the middle of more
python ledger_processes.py reader FOLDER                  as a user who may not write there; JSON
"""

import json
import os
import random
import resource
import shutil
import signal
import sys
import traceback
from pathlib import Path

import numpy as np

from steadytune.errors import SteadytuneError
from steadytune.study.ledger import Ledger
from steadytune.study.ledger.rows import Claim
from steadytune.study.ledger.values import pack_arrays, unpack_arrays
from steadytune.study.outcome import Outcome

NOBODY = 65534


def rows(count):
    return [(f"key{number:05d}", json.dumps({"value": number}), number) for number in range(count)]


def forked(function, *arguments):
    """Run it in a process of its own; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.alarm(100)  # nothing outlives the tests
        function(*arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def planners(path, count, size):
    reading, writing = os.pipe()

    def one(number):
        os.close(writing)
        os.read(reading, 1)  # until all are there
        mine = rows(size)
        random.Random(number).shuffle(mine)
        with Ledger.ensure(path, {"name": "planned"}) as ledger:
            os.write(1, f"{ledger.plan(mine)}\n".encode())  # in one piece

    pids = [forked(one, number) for number in range(int(count))]
    os.close(writing)
    os.close(reading)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids))


# -- a full disk ----------------------------------------------------------------------------------------------------

LONG = Outcome("finished", {"value": 42, "noise": os.urandom(60_000).hex()})
CLAIM = Claim("running", "{}", "", 1)


def create(path):
    Ledger.create(path.with_name("new.sqlite"), {"name": "new", "text": "x" * 20_000}).close()


def plan(path):
    with Ledger.open(path) as ledger:
        ledger.plan(rows(500))


def claim(path):
    with Ledger.open(path) as ledger:
        assert ledger.claim("w", 60.0) is not None


def beat(path):
    with Ledger.open(path) as ledger:
        assert ledger.beat(mine(path), 60.0, {"step": 1})


def finish(path):
    with Ledger.open(path) as ledger:
        assert ledger.finish(mine(path), LONG)


def fail(path):
    with Ledger.open(path) as ledger:
        assert ledger.fail(mine(path), "x" * 20_000)


def upgrade(path):
    Ledger.open(path).close()


def mine(path):
    return Claim("running", "{}", path.with_name("token").read_text(), 1)


def full(operation, folder, *sizes):
    for size in sizes:
        place = Path(folder) / size
        shutil.copytree(Path(folder) / "base", place)
        pid = forked(with_room_for, globals()[operation], place / "ledger.sqlite", int(size))
        assert os.waitpid(pid, 0)[1] == 0, f"{operation} with {size} bytes"


def with_room_for(operation, path, size):
    """EFBIG here is what ENOSPC is on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    try:
        operation(path)
        said = None
    except SteadytuneError as error:
        said = str(error)
    print(json.dumps([size, said]), flush=True)


# -- others ---------------------------------------------------------------------------------------------------------


def killed(path, count):
    def one():
        with Ledger.open(path) as ledger:
            for _ in range(int(count)):
                ledger.finish(ledger.claim("w", 60.0), Outcome("finished", {"x": 1}, {"a": np.arange(500)}))
            ledger.claim("w", 60.0)
            os.kill(os.getpid(), signal.SIGKILL)

    assert os.waitstatus_to_exitcode(os.waitpid(forked(one), 0)[1]) == -signal.SIGKILL


def reader(folder):
    """What a user sees who may read, but not write."""
    unpack_arrays(pack_arrays({"a": np.zeros(1)}))  # while Python may still import what it needs for that
    if os.getuid() == 0:  # who may everything
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    assert not os.access(folder, os.W_OK)
    found = []
    for readonly in (True, False):
        try:
            with Ledger.open(Path(folder) / "ledger.sqlite", readonly=readonly) as ledger:
                found.append({key: outcome.result for key, outcome in ledger.outcomes(arrays=True)})
        except SteadytuneError as error:
            found.append(str(error))
    try:
        Ledger.create(Path(folder) / "new.sqlite", {})
    except SteadytuneError as error:
        found.append(str(error))
    print(json.dumps(found))


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    if name == "planners":
        planners(arguments[0], int(arguments[1]), int(arguments[2]))
    globals()[name](*arguments)
