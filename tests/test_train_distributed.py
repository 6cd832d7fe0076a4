"""`torchrun` with two processes (gloo, on the CPU): one model, and the numbers of one process."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tiny_tasks import save_model
from train_distributed_runs import AGREEING, NOISY, run
from two_processes import launch

pytestmark = pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo")
SCRIPT = Path(__file__).with_name("train_distributed_runs.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("ranks")
    for kind, _ in (AGREEING | NOISY).values():
        save_model(kind, place / "models")  # before two processes would write it at once
    return place


@pytest.fixture(scope="module")
def ranks(folder):
    """What each of the two processes ended with."""
    return launch(SCRIPT, folder)


def assert_same(a, b):
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


@pytest.mark.parametrize("name", [*AGREEING, *NOISY])
def test_both_processes_end_with_one_model_and_one_result(name, ranks):
    one, other = (rank[name] for rank in ranks)
    assert_same(one["weights"], other["weights"])
    assert one["result"] == other["result"]


@pytest.mark.parametrize("name", AGREEING)
def test_two_processes_are_one(name, ranks, folder):
    torch.manual_seed(0)
    alone, both = run(folder, name), ranks[0][name]
    assert both["result"]["losses"] == pytest.approx(alone["result"]["losses"], rel=3e-5)
    assert both["result"]["grad_norms"] == pytest.approx(alone["result"]["grad_norms"], rel=1e-3)
    # Adam divides by the size of a gradient: where that is rounding error, so is the direction of the step.
    far = [n for n, w in both["weights"].items() if (w - alone["weights"][n]).abs().mean() > 2e-5]
    assert far == []
    if "average" not in name:
        assert both["result"]["best"]["step"] == alone["result"]["best"]["step"]
    for split, values in both["predictions"].items():
        if values.dtype.kind == "f":
            assert np.allclose(values, alone["predictions"][split], rtol=1e-3)
        else:
            assert (values == alone["predictions"][split]).mean() > 0.8


def test_two_processes_resume_bit_identically(ranks):
    for rank in ranks:
        assert_same(rank["resumed"]["weights"], rank["resumed"]["again"]["weights"])
        assert rank["resumed"]["result"] == rank["resumed"]["again"]["result"]


def test_only_the_first_process_writes(ranks, folder):
    assert [path.name for path in (folder / "resumed").iterdir()] == ["step-000009"]
