"""Steps as CUDA graphs, and several runs side by side: the numbers of the plain loop, of each run alone."""

import json
import math
import threading
from dataclasses import replace

import pytest
import torch

from steadytune import (
    AdamW,
    Dropout,
    LayerwiseLR,
    Mixout,
    PretrainedDecay,
    RDrop,
    Reinit,
    Streams,
    WeightDecay,
)
from steadytune.engine.graphs import Graphs
from steadytune.engine.lane import Lane, Lanes
from steadytune.engine.noise import private_randomness
from steadytune.engine.train import train
from steadytune.methods.mask_pool import MaskPool
from tiny_tasks import KINDS, save_model, tiny_run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
STREAMS = Streams(init=1, order=2, noise=3)
METHODS = {
    "plain": (),
    "mixout": (Mixout(p=0.5),),
    "mixout and dropout": (Mixout(p=0.9, replace_dropout=False, head="mixout"),),
    "mixed elements": (Mixout(p=0.5, mask="element"),),
    "mixed everywhere": (Mixout(p=0.5, layers="all"),),
    "gaussian": (Mixout(p=0.3, distribution="gaussian"),),
    "rdrop": (RDrop(alpha=0.5),),
    "rdrop and mixout": (RDrop(), Mixout(p=0.5)),
    "no correction": (AdamW(correct_bias=False, eps=1e-6),),
    "pretrained decay": (PretrainedDecay(decay=0.1),),
    "pretrained decay, l2": (PretrainedDecay(decay=0.1, form="l2"),),
    "weight decay": (WeightDecay(decay=0.1), LayerwiseLR(decay=0.9)),
    "re-init": (Reinit(layers=1), Dropout(p=0.3)),
}


def unrecorded(result):
    return [note for note in result.notes if "recorded" in note]


def same(one, other, rel):
    assert one[0].losses == pytest.approx(other[0].losses, rel=rel)
    assert one[0].grad_norms == pytest.approx(other[0].grad_norms, rel=100 * rel, abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_task(kind, tmp_path):
    recipe, encoded = tiny_run(kind, tmp_path, steps=24)
    graphed, plain = (train(recipe, encoded, STREAMS, device="cuda", graphs=on) for on in (True, False))
    assert unrecorded(graphed[0]) == []
    same(graphed, plain, 1e-4)


@pytest.mark.parametrize("methods", METHODS.values(), ids=METHODS.keys())
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_method(methods, precision, tmp_path, monkeypatch):
    recipe, encoded = tiny_run("classification", tmp_path, methods=methods, steps=24, weight_decay=0.01)
    recipe = replace(recipe, precision=precision)
    replayed, replay = [], Graphs.replay
    monkeypatch.setattr(Graphs, "replay", lambda self, name: replayed.append(name) or replay(self, name))
    graphed, plain = (train(recipe, encoded, STREAMS, device="cuda", graphs=on) for on in (True, False))
    assert replayed.count("update") >= 22  # all but the first, and what comes before a recording
    assert len(replayed) - replayed.count("update") >= 18  # chunks: all shapes but rare ones
    assert unrecorded(graphed[0]) == []
    same(graphed, plain, 1e-4 if precision == "fp32" else 3e-2)


def test_fp16_records_the_chunks_and_says_why_not_the_update(tmp_path):
    recipe, encoded = tiny_run("classification", tmp_path, steps=24, precision="fp16")
    graphed, plain = (train(recipe, encoded, STREAMS, device="cuda", graphs=on) for on in (True, False))
    assert [note for note in unrecorded(graphed[0]) if "Updates" in note] == unrecorded(graphed[0]) != []
    same(graphed, plain, 3e-2)


def test_masks_of_plain_mixout_are_drawn_at_once(tmp_path, monkeypatch):
    recipe, encoded = tiny_run("classification", tmp_path, methods=METHODS["mixout"], steps=24)
    drawn, draw_ = [], MaskPool.draw_
    monkeypatch.setattr(MaskPool, "draw_", lambda self: drawn.append(len(self.layers)) or draw_(self))
    train(recipe, encoded, STREAMS, device="cuda")
    assert len(drawn) >= 24
    assert min(drawn) > 4


def test_fp16_in_a_lane_that_has_run_before_is_fp16_alone(tmp_path):
    """The loss scale is a state: made inside a recording, every replay would set it back."""
    recipe, encoded = tiny_run("classification", tmp_path, methods=METHODS["plain"], steps=24, precision="fp16")
    recipe = replace(recipe, lr=1e-2)
    alone = train(recipe, encoded, STREAMS, device="cuda", deterministic=True)[0]
    lanes = Lanes(several=True)
    lane = Lane(torch.device("cuda", 0), lanes)
    with private_randomness(torch.device("cuda", 0), deterministic=True):
        found = [train(recipe, encoded, STREAMS, device="cuda", lane=lane)[0] for _ in range(3)]
    for each in found:
        assert each.losses == alone.losses


def test_a_loss_that_looks_at_the_moment_is_not_recorded(tmp_path):
    recipe, encoded = tiny_run("classification", tmp_path, methods=(RDrop(alpha_schedule="linear"),), steps=24)
    graphed, plain = (train(recipe, encoded, STREAMS, device="cuda", graphs=on) for on in (True, False))
    assert any("depends on where in the run" in note for note in graphed[0].notes)
    same(graphed, plain, 1e-4)


def test_layers_that_are_left_out_at_random_are_trained_as_in_the_plain_loop(tmp_path, monkeypatch):
    """Such steps are not recorded, and updates are; a layer may have its first gradient long after that."""
    save_model("translation", tmp_path, encoder_layerdrop=0.8)
    recipe, encoded = tiny_run("translation", tmp_path, steps=24)
    replayed, replay = [], Graphs.replay
    monkeypatch.setattr(Graphs, "replay", lambda self, name: replayed.append(name) or replay(self, name))
    graphed, plain = (train(recipe, encoded, STREAMS, device="cuda", graphs=on, deterministic=True) for on in (1, 0))
    assert set(replayed) == {"update"}
    assert graphed[0].losses == plain[0].losses
    assert all(torch.equal(a, b) for a, b in zip(graphed[1].parameters(), plain[1].parameters()))


def test_deterministic_graphs_are_the_plain_loop_bit_for_bit(tmp_path):
    recipe, encoded = tiny_run("classification", tmp_path, methods=(Mixout(p=0.5, replace_dropout=False),), steps=24)
    runs = [train(recipe, encoded, STREAMS, device="cuda", graphs=on, deterministic=True) for on in (True, True, False)]
    assert runs[0][0].losses == runs[1][0].losses == runs[2][0].losses
    for other in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0][1].state_dict().values(), other[1].state_dict().values()))


def test_runs_beside_each_other_are_the_runs_alone_bit_for_bit(tmp_path):
    """Dropout, mixout, R-Drop and a run that diverges, three times each, six lanes."""
    made = {
        name: tiny_run("classification", tmp_path, methods=METHODS[name], steps=24)
        for name in ("plain", "mixout", "rdrop")
    }
    recipe, encoded = made["plain"]
    made["diverges"] = (replace(recipe, lr=1e30, clip=0.0), encoded)
    jobs = [(name, seed) for seed in range(3) for name in made]
    alone = {
        (name, seed): train(*made[name], Streams(seed, seed, seed), device="cuda", deterministic=True)[0]
        for name, seed in jobs
    }
    beside, queue, lanes = {}, list(jobs), Lanes(several=True)
    failed = []

    def work():
        lane = Lane(torch.device("cuda", 0), lanes)
        try:
            while True:
                with lanes.lock:
                    if not queue:
                        return
                    name, seed = queue.pop()
                beside[name, seed] = train(*made[name], Streams(seed, seed, seed), device="cuda", lane=lane)[0]
        except BaseException as error:
            failed.append(error)

    with private_randomness(torch.device("cuda", 0), deterministic=True):
        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed, failed
    assert beside.keys() == alone.keys()
    for job, result in alone.items():
        assert beside[job].status == result.status == ("diverged" if job[0] == "diverges" else "finished")
        assert beside[job].losses == result.losses, job
        assert beside[job].best == result.best or math.isnan(result.best.validation)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_study_with_replicas_has_the_bits_that_it_has_without(tmp_path, precision):
    one, eight = (study(tmp_path, name, count, 4, precision, True) for name, count in (("one", None), ("eight", 8)))
    assert one == eight
    assert len(one) == 8


def test_a_study_with_replicas_measures_what_it_measures_without(tmp_path):
    one, eight = (study(tmp_path, name, count, 20, "fp32", False) for name, count in (("one", None), ("eight", 8)))
    assert one.keys() == eight.keys()
    assert len(one) == 40
    for trial, (status, losses, score) in one.items():
        assert eight[trial][0] == status == "finished"
        assert eight[trial][1] == pytest.approx(losses, rel=1e-4)
        assert eight[trial][2] == pytest.approx(score, abs=0.03)


def study(tmp_path, name, per_gpu, seeds, precision, deterministic):
    """Status, losses and score of every trial, with so many at a time."""
    from steadytune.study.folder import prepare, read_results
    from steadytune.study.local import run_local

    if not (tmp_path / "classification").exists():
        save_model("classification", tmp_path)
    base = {"model": "classification", "steps": 24, "batch_size": 8, "max_length": 24, "lr": 1e-3}
    made = {
        "study": "Replicas",
        "base": {**base, "precision": precision},
        "tasks": {"words": {"acceptability": 96, "validation": 40, "test": 40}},
        "variants": {"plain": {}, "mixed": {"add": [{"method": "mixout", "p": 0.5}]}},
        "seeds": seeds,
    }
    (tmp_path / "study.yaml").write_text(json.dumps(made))
    prepared = prepare(tmp_path / "study.yaml", tmp_path / name)
    assert run_local(prepared.ledger, per_gpu=per_gpu, deterministic=deterministic)
    results = read_results(prepared.folder)
    return {(t.variant, t.seed): (t.status, list(t.losses), results.score(t)) for t in results.trials}
