"""`accelerate launch` with two processes (gloo, on the CPU): one model, and the numbers of one process."""

import socket
from pathlib import Path

import pytest
import torch
from distributed_runs import AGREEING, NOISY, run
from small_trainer import assert_close, assert_same

from two_processes import launch

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
    settings = {"num_processes": 2, "num_machines": 1, "mixed_precision": "no", "dynamo_backend": "no"}
    settings["main_process_port"] = port
    options = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
    return launch(SCRIPT, folder, launcher=("accelerate.commands.accelerate_cli", "launch", "--multi_gpu", *options))


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
