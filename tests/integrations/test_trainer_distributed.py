"""`accelerate launch` with two processes (gloo, on the CPU): one model, and the numbers of one process."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from distributed_runs import AGREEING, NOISY, run
from small_trainer import assert_close, assert_same

pytestmark = pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo")
SCRIPT = Path(__file__).with_name("distributed_runs.py")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of the two processes ended with."""
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # `--cpu` would start one process only; `--multi_gpu` starts two, and their arguments say use_cpu.
    launch = [
        sys.executable,
        "-m",
        "accelerate.commands.accelerate_cli",
        "launch",
        "--multi_gpu",
        "--num_processes",
        "2",
    ]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    launch += ["--main_process_port", str(port), str(SCRIPT), str(folder)]
    quiet = {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}
    with (folder / "log").open("w") as log:
        # A session of its own, so that whatever happens the launcher goes with both of its children.
        started = subprocess.Popen(
            launch, env={**os.environ, **quiet}, stdout=log, stderr=log, start_new_session=True, cwd=folder
        )
        try:
            code = started.wait(timeout=180)
        finally:
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGKILL)
                started.wait()
    assert code == 0, (folder / "log").read_text()[-3000:]
    return [torch.load(folder / f"rank-{rank}.pt") for rank in (0, 1)]


@pytest.mark.parametrize("name", [*AGREEING, *NOISY])
def test_both_processes_end_with_one_model(name, ranks):
    one, other = (rank[name] for rank in ranks)
    assert one["world"] == other["world"] == 2
    assert_same(one["weights"], other["weights"])
    assert one["anchors"] == other["anchors"]


@pytest.mark.parametrize("name", AGREEING)
def test_two_processes_are_one_with_twice_the_batch(name, ranks, tmp_path):
    alone = run(tmp_path, name)
    assert alone["world"] == 1
    assert_close(ranks[0][name]["weights"], alone["weights"], 1e-6)
    assert ranks[0][name]["losses"] == pytest.approx(alone["losses"], rel=1e-4)
    assert ranks[0][name]["eval_loss"] == pytest.approx(alone["eval_loss"], rel=1e-5)
    assert ranks[0][name]["anchors"] == alone["anchors"]


def test_two_processes_resume_bit_identically(ranks):
    for rank in ranks:
        assert_same(rank["resumed"]["weights"], rank["resumed again"]["weights"])
