"""The digits experiment: its data, its plan, and a smoke run from end to end."""

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from steadytune import SteadytuneError
from steadytune.papers import digits
from steadytune.papers.digits import DigitsResult, Plan, drawn_digits, load
from steadytune.papers.digits.data import from_arrays
from steadytune.papers.digits.experiment import fine_tuning_restarts, pretrain
from steadytune.papers.digits.network import start_weights
from steadytune.papers.digits.stacked import accuracy
from steadytune.rng import Streams


@pytest.fixture(scope="module")
def smoke():
    return digits.run("smoke")


# --- data ---


def write_npz(path, side=16, rows=40, classes=10):
    random = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", rows), ("test", rows // 2)):
        arrays[f"x_{part}"] = random.integers(0, 256, (count, side, side), dtype=np.uint8)
        arrays[f"y_{part}"] = np.arange(count) % classes
    np.savez(path, **arrays)
    return arrays


def write_idx(path, array):
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    path.write_bytes(gzip.compress(head + array.astype(np.uint8).tobytes()))


def test_npz_is_resized_and_normalised_by_its_own_training_pixels(tmp_path):
    write_npz(tmp_path / "usps.npz")
    data = load(tmp_path / "usps.npz")
    assert data.name == "usps"
    assert data.sizes() == {"train": 36, "validation": 4, "test": 20}
    assert data.train.pixels.shape == (36, 784)
    x = data.train.rows(slice(None), torch.float64)
    assert float(x.mean()) == pytest.approx(0.0, abs=1e-9)
    assert float(x.std(correction=0)) == pytest.approx(1.0, abs=1e-9)
    assert data.test.mean == data.train.mean


def test_idx_files_are_read_as_they_are_or_set_upright(tmp_path):
    """EMNIST's files hold images with rows and columns exchanged."""
    images = np.random.default_rng(0).integers(0, 256, (40, 28, 28), dtype=np.uint8)
    write_idx(tmp_path / "emnist-digits-train-images-idx3-ubyte.gz", images)
    write_idx(tmp_path / "emnist-digits-train-labels-idx1-ubyte.gz", np.arange(40) % 10)
    as_is, upright = load(tmp_path), load(tmp_path, transpose=True)
    assert as_is.test is None
    assert torch.equal(as_is.train.labels, upright.train.labels)
    first = as_is.train.pixels[0].view(28, 28)
    assert torch.equal(upright.train.pixels[0].view(28, 28), first.T)
    assert any(torch.equal(first, torch.from_numpy(each)) for each in images)


def test_digits_that_are_none_are_refused(tmp_path):
    write_npz(tmp_path / "eight.npz", classes=8)
    with pytest.raises(SteadytuneError, match="ten digits"):
        load(tmp_path / "eight.npz")
    flat = {part: (np.full((10, 28, 28), 7, np.uint8), np.arange(10)) for part in ("train", "validation")}
    with pytest.raises(SteadytuneError, match="nothing to learn"):
        from_arrays("flat", flat)


def test_cut_takes_the_same_rows_every_time():
    data = drawn_digits("drawn", 100)
    first, again = data.cut(30, 10), data.cut(30, 10)
    assert first.sizes() == {"train": 30, "validation": 10, "test": 10}
    assert torch.equal(first.train.pixels, again.train.pixels)
    assert data.cut(None, None).sizes() == data.sizes()


# --- plan and run ---


def test_the_full_plan_is_the_papers():
    plan = digits.SCALES["full"]
    assert plan.pretrain_epochs == tuple(range(1, 21))
    assert (plan.pretrain_runs, plan.pretrain_lr, plan.pretrain_dropout, plan.pretrain_decay) == (5, 1e-4, 0.1, 0.01)
    assert (plan.lr, plan.epochs, plan.batch_size, plan.restarts) == (5e-5, 5, 32, 10)
    assert (plan.train_rows, plan.layers[0], plan.mask) == (None, "hidden", "neuron")


def test_restarts_are_paired_across_methods_and_p():
    plan = Plan(ps=(0.0, 0.2, 0.5), restarts=2, layers=("hidden", "linear"), gradients=("exact", "paper"))
    restarts = fine_tuning_restarts(plan)
    counted = {}
    for each in restarts:
        counted.setdefault((each.method, each.p, each.layers, each.gradient), []).append(each.streams)
    assert len(counted) == 3 + 2 * 3  # dropout at three p; three forms of mixout at two
    assert all(streams == [Streams(0, 0, 0), Streams(0, 1, 1)] for streams in counted.values())
    assert [each for each in restarts if each.p == 0.0 and each.method == "mixout"] == []


def test_the_pretraining_run_with_the_best_validation_is_taken():
    data = drawn_digits("drawn", 200)
    plan = Plan(pretrain_epochs=(4, 1), pretrain_runs=2, pretrain_lr=2e-3)
    w_pre, runs, chosen = pretrain(data, plan)
    assert [(each.epochs, each.run) for each in runs] == [(1, 0), (1, 1), (4, 0), (4, 1)]
    assert chosen.validation == max(each.validation for each in runs)
    stacked = {name: each.unsqueeze(0) for name, each in w_pre.items()}
    assert accuracy(stacked, data.validation) == [chosen.validation]
    assert chosen.validation > 0.3  # chance is 0.1


def test_pretraining_that_diverges_everywhere_says_so():
    with pytest.raises(SteadytuneError, match="All 2 pretraining runs on drawn diverged"):
        pretrain(drawn_digits("drawn", 64), Plan(pretrain_epochs=(2,), pretrain_runs=2, pretrain_lr=1e30))


def test_digits_must_be_given_beyond_smoke():
    with pytest.raises(SteadytuneError, match="small digits experiment needs source digits"):
        digits.run("small")
    with pytest.raises(SteadytuneError, match="scale must be one of full, small, smoke"):
        digits.run("tiny")
    with pytest.raises(SteadytuneError, match="at least one"):
        Plan(restarts=0)


def test_smoke_run(smoke):
    plan = digits.SCALES["smoke"]
    assert len(smoke.runs) == plan.restarts * (3 + 3 * 2)
    assert smoke.chosen in smoke.pretrained
    assert all(each.distance > each.distance_mixed > 0 for each in smoke.runs)
    assert all(0.0 <= each.validation <= 1.0 and not each.diverged for each in smoke.runs)
    assert np.mean(smoke.values("mixout", 0.3, "validation")) > 0.5  # of drawn digits, after seconds of training
    # p = 0 is the same run for every method and form
    assert smoke.values("mixout", 0.0, "distance") == smoke.values("dropout", 0.0, "distance")
    # mixing at p = 0.9 holds the mixed layers back, whichever layers those are
    free, held = (np.array(smoke.values("mixout", p, "distance_mixed")) for p in (0.0, 0.9))
    assert (held < free).all()


def test_a_result_survives_json(smoke):
    again = DigitsResult.from_data(json.loads(json.dumps(smoke.to_data(), allow_nan=False)))
    assert again == smoke


def test_the_same_smoke_run_gives_the_same_numbers(smoke):
    plan = replace(digits.SCALES["smoke"], ps=(0.9,), layers=("hidden",), gradients=("exact",))
    fewer = digits.run("smoke", plan=plan)
    for method in ("mixout", "dropout"):
        again, before = (each.values(method, 0.9, "distance") for each in (fewer, smoke))
        np.testing.assert_allclose(again, before, rtol=1e-3)


def test_the_figure_is_drawn(smoke):
    svg = digits.figure(smoke).svg()
    for text in ("(a) distance to w_pre", "dropout(p)", "mixout(w_pre, p), layers=linear"):
        assert text in svg


def test_weights_start_from_their_stream():
    first, again, other = (start_weights(Streams(init=i)) for i in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["hidden_1.weight"], other["hidden_1.weight"])
    assert float(first["hidden_1.weight"].std()) == pytest.approx(0.02, rel=0.02)
    assert not first["output.bias"].any()
    assert first["norm_1.weight"].eq(1).all()
