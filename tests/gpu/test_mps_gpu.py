"""Worker processes side by side on one GPU: the real daemon, and what is left when a worker is killed."""

import json
import os
import shutil
import signal

import pytest
import torch

from steadytune.study import mps
from steadytune.study.folder import prepare, read_results
from steadytune.study.local import run_local
from steadytune.study.mps import CONTROL, side_by_side
from tiny_tasks import save_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
    pytest.mark.skipif(shutil.which(CONTROL) is None, reason="NVIDIA's MPS is not installed here"),
]
GPU = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]


def run(folder, file, **options):
    prepared = prepare(file, folder)
    assert run_local(prepared.ledger, **options)
    return {
        trial.seed: (trial.status, list(trial.losses), trial.attempts) for trial in read_results(prepared.folder).trials
    }


@pytest.mark.skipif(mps._is_there(), reason="an MPS of somebody else's is there, and is used as it is")
def test_a_gpu_is_shared_and_given_back():
    with side_by_side([GPU]) as served:
        assert list(served) == [GPU]
        place = served[GPU]["CUDA_MPS_PIPE_DIRECTORY"]
        assert os.path.isdir(place)
    assert not os.path.exists(place)


def test_a_killed_worker_costs_no_trial_of_those_that_share_its_gpu(tmp_path):
    save_model("classification", tmp_path)
    base = {"model": "classification", "steps": 1000, "batch_size": 8, "max_length": 24, "lr": 1e-3}
    task = {"acceptability": 96, "validation": 40, "test": 40}
    study = {"study": "Shared", "base": base, "tasks": {"words": task}, "variants": {"plain": {}}, "seeds": 12}
    file = tmp_path / "study.yaml"
    file.write_text(json.dumps(study))
    said, killed = [], []

    def kill():
        """One worker, while it has trials."""
        from steadytune.study.ledger import Ledger

        with Ledger.open(tmp_path / "shared" / "ledger.sqlite", readonly=True) as ledger:
            running = ledger.rows(status="running")
        if running and not killed:
            name = running[0].worker.partition("#")[0]
            found = [pid for pid in os.listdir("/proc") if pid.isdecimal() and _is_worker(pid, name)]
            os.kill(int(found[0]), signal.SIGKILL)
            killed.append(name)

    shared = run(tmp_path / "shared", file, per_gpu=6, on_tick=kill, say=said.append)
    assert killed
    assert said == ["2 processes run on 1 GPU, side by side, by NVIDIA's MPS."]
    alone = run(tmp_path / "alone", file, per_gpu=1)
    assert shared.keys() == alone.keys()
    for seed, (status, losses, _) in alone.items():
        assert shared[seed][0] == status == "finished"
        assert shared[seed][1] == pytest.approx(losses, rel=1e-3)


def _is_worker(pid, name):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as stream:
            return name.encode() in stream.read().split(b"\0")
    except OSError:
        return False
