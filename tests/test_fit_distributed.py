"""`torchrun -m steadytune fit` with two processes: one fit, written once, with the numbers of one process."""

import json

import pytest
import torch

from steadytune import fit
from tiny_text import reviews, save_encoder, write_csv
from two_processes import TORCHRUN, start

pytestmark = pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="needs gloo")


def test_two_processes_make_one_fit(tmp_path):
    save_encoder(tmp_path / "encoder")
    write_csv(tmp_path / "reviews.csv", reviews(120))
    options = ["--model", tmp_path / "encoder", "--method", "mixout:p=0.3", "--steps", 6, "--lr", "3e-3"]
    options += ["--max-length", 32, "--seeds", 2, "--out", "both", "--quiet"]
    start(tmp_path, *TORCHRUN, "--module", "steadytune", "fit", tmp_path / "reviews.csv", *options)
    both = json.loads((tmp_path / "both" / "fit.json").read_text())
    changes = {"model": str(tmp_path / "encoder"), "steps": 6, "lr": 3e-3, "max_length": 32}
    alone = fit(tmp_path / "reviews.csv", methods=["mixout:p=0.3"], changes=changes, seeds=2, out=tmp_path / "alone")
    assert both["status"] == "finished"
    for mine, theirs in zip(both["seeds"], alone.record.to_data()["seeds"], strict=True):
        assert mine["validation"] == pytest.approx(theirs["validation"], abs=0.1)
    left = {path.name for path in (tmp_path / "both").iterdir()}
    assert {"model", "predictions.csv", "fit.json"} <= left
    assert not [name for name in left if "tmp" in name]
