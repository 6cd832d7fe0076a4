"""A fit from a file to a model: what it leaves behind, how it goes on after a kill, and what it refuses."""

import csv
import dataclasses
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import pipeline
from typer.testing import CliRunner

import steadytune
from steadytune import FitFailed, SteadytuneError, fit
from steadytune.cli import app
from steadytune.fitting import default_out, seeds
from steadytune.fitting.plan import load_data, make_plan, make_recipe
from steadytune.report.record import FitRecord
from steadytune.tasks import text as text_task
from tiny_tasks import KINDS, METRICS, tiny_data, tiny_recipe
from tiny_text import reviews, save_encoder, write_csv

STEPS = 30
GLUE = Path(os.environ.get("STEADYTUNE_DATA", Path(__file__).parents[2] / "shared" / "data")) / "glue"


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A tiny encoder and a file of reviews."""
    folder = tmp_path_factory.mktemp("world")
    save_encoder(folder / "encoder")
    write_csv(folder / "reviews.csv", reviews(200))
    return folder


def changes(world, **more):
    return {"model": str(world / "encoder"), "steps": STEPS, "lr": 3e-3, "max_length": 32, "evaluations": 3, **more}


@pytest.fixture(scope="module")
def made(world):
    """One finished fit that many tests look at."""
    return fit(world / "reviews.csv", changes=changes(world), seeds=3, out=world / "fit")


def rows_of(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def weights(folder):
    return load_file(folder / "model" / "model.safetensors")


def assert_same_fit(one, other):
    """Everything but dates and seconds."""
    first, second = (json.loads((folder / "fit.json").read_text()) for folder in (one, other))
    for data in (first, second):
        data.pop("created")
        for seed in data["seeds"]:
            seed.pop("seconds")
    assert first == second
    assert (one / "predictions.csv").read_bytes() == (other / "predictions.csv").read_bytes()
    a, b = weights(one), weights(other)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


# --- what a fit leaves behind


def test_the_files_are_there(made, world):
    names = sorted(str(path.relative_to(made.out)) for path in made.out.rglob("*") if path.is_file())
    for name in ("fit.json", "report.html", "predictions.csv", "model/README.md", "model/model.safetensors"):
        assert name in names
    assert sum("runs/seed-" in name and name.endswith("state.json") for name in names) == 3
    assert not [name for name in names if ".tmp" in name or name.endswith((".bin", ".pt", ".pkl"))]


def test_it_learned_and_says_so(made):
    assert [seed.status for seed in made.scores] == ["finished"] * 3
    assert made.record.best.test > 0.8
    assert made.record.baseline.test == 0.5
    assert made.record.interval.low <= made.record.best.test <= made.record.interval.high
    assert made.record.interval.rows == 30
    assert "30 test rows that no choice was made on" in " ".join(made.report().split())
    assert made.report("html").startswith("<!doctype html>")
    assert made.report("card").startswith("---\n")


def test_the_kept_seed_is_the_best_on_validation_the_earliest_of_equals(made):
    best = max(seed.validation for seed in made.scores)
    assert made.record.chosen == next(seed.seed for seed in made.scores if seed.validation == best)


def test_fit_json_is_the_record(made):
    data = json.loads((made.out / "fit.json").read_text())
    assert FitRecord.from_data(data) == made.record
    assert data["status"] == "finished"


def test_the_model_is_plain_hugging_face(made):
    """The pipeline gives the predictions that were written, and nothing of ours is in the model."""
    classify = pipeline("text-classification", str(made.out / "model"), top_k=None)
    assert not [m for m in classify.model.modules() if type(m).__module__.startswith("steadytune")]
    assert "auto_map" not in json.loads((made.out / "model" / "config.json").read_text())
    rows = rows_of(made.out / "predictions.csv")
    for row, scores in zip(rows, classify([row["text"] for row in rows]), strict=True):
        for each in scores:
            assert float(row[f"probability:{each['label']}"]) == pytest.approx(each["score"], abs=1e-4)


def test_predictions_are_those_that_were_scored(made, world):
    rows = rows_of(made.out / "predictions.csv")
    right = np.mean([row["label"] == row["prediction"] for row in rows])
    assert right == pytest.approx(made.record.best.test)
    lines = (world / "reviews.csv").read_text().splitlines()
    assert all(lines[int(row["row"]) - 1] == f"{row['text']},{row['label']}" for row in rows)


def test_model_tokenizer_and_predict_from_python(made):
    logits = made.model(**made.tokenizer("a lovely film", return_tensors="pt")).logits.detach()
    predicted = made.predict(["a lovely film", "dull and boring"])
    assert predicted[0].probabilities["good"] == pytest.approx(float(logits.softmax(-1)[0, 1]), abs=1e-6)
    assert [each.value for each in predicted] == ["good", "bad"]
    assert steadytune.predict(made.out, ["a lovely film"])[0].value == "good"


def test_the_card_names_data_recipe_scores_and_papers(made):
    card = (made.out / "model" / "README.md").read_text(encoding="utf-8")
    for piece in (
        made.record.fingerprint,
        made.record.recipe_key,
        "Revisiting Few-sample BERT",
        "| 2 |",
        "140",
        "seed",
    ):
        assert piece in card


def test_without_out_everything_goes_with_the_object(world):
    made = fit(world / "reviews.csv", changes=changes(world, steps=2), seeds=1)
    where = made.out
    assert (where / "model" / "config.json").is_file()
    del made
    assert not where.exists()


def test_tokenisation_is_done_once_for_all_seeds(world, tmp_path, monkeypatch):
    from steadytune.engine.encode import Encoder

    seen = []
    usual = Encoder.encode
    monkeypatch.setattr(Encoder, "encode", lambda self, rows, *rest: seen.append(len(rows)) or usual(self, rows, *rest))
    fit(world / "reviews.csv", changes=changes(world, steps=2), seeds=3, out=tmp_path / "out")
    assert seen == [140, 30, 30]


def test_the_global_generator_is_not_touched(world, tmp_path):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    fit(world / "reviews.csv", changes=changes(world, steps=2), seeds=1, out=tmp_path / "out")
    assert torch.equal(before, torch.get_rng_state())


# --- numbers, pairs, own files, other starts


def test_a_number_to_regress(world, tmp_path):
    rows = [(text, f"{(label == 'good') * 2 + 0.1 * (i % 5):.1f}") for i, (text, label) in enumerate(reviews(120))]
    made = fit(write_csv(tmp_path / "scores.csv", rows), changes=changes(world), seeds=2, out=tmp_path / "out")
    assert (made.record.kind, made.record.metric) == ("regression", "spearman")
    assert made.record.best.test > 0.3
    written = rows_of(tmp_path / "out" / "predictions.csv")
    assert list(written[0]) == ["row", "label", "prediction", "text"]
    one = pipeline("text-classification", str(tmp_path / "out" / "model"), function_to_apply="none")
    assert one(written[0]["text"])[0]["score"] == pytest.approx(float(written[0]["prediction"]), abs=1e-4)


def test_pairs_and_files_of_their_own(world, tmp_path):
    def pairs(rows, number):
        return [(text, "the plot", label) for text, label in reviews(rows, number)]

    names = ("first", "second", "gold")
    train, dev, test = (
        write_csv(tmp_path / f"{name}.csv", pairs(rows, rows), names)
        for name, rows in (("a", 60), ("b", 20), ("c", 22))
    )
    made = fit(
        train,
        text=["first", "second"],
        label="gold",
        validation=dev,
        test=test,
        metric="f1",
        positive="bad",
        methods=["mixout:p=0.5"],
        changes=changes(world, steps=4),
        seeds=1,
        out=tmp_path / "out",
    )
    assert [(split.name, split.rows) for split in made.record.splits] == [
        ("train", 60),
        ("validation", 20),
        ("test", 22),
    ]
    assert made.record.metric == "f1"
    assert [item["method"] for item in made.record.recipe["methods"]].count("mixout") == 1
    assert made.predict([("a fine film", "the plot")])[0].value in ("bad", "good")


def test_starting_from_another_fit_keeps_its_body_and_not_its_head(made, world, tmp_path):
    other = write_csv(
        tmp_path / "other.csv", [(text, {"good": "up", "bad": "down"}[label]) for text, label in reviews(60)]
    )
    null = {"steps": 1, "lr": 1e-12, "start_from": str(made.out), "max_length": 32}
    begun = fit(other, recipe="standard", changes=null, seeds=1, out=tmp_path / "out")
    old, new = weights(made.out), weights(tmp_path / "out")
    assert torch.allclose(
        old["bert.encoder.layer.0.output.dense.weight"], new["bert.encoder.layer.0.output.dense.weight"]
    )
    assert not torch.allclose(old["classifier.weight"], new["classifier.weight"], atol=1e-3)
    assert begun.record.labels == ("down", "up")


def test_a_data_object_and_no_test_split(world, tmp_path):
    data = text_task.load(world / "reviews.csv", text="text", label="label", test=None)
    made = fit(data, changes=changes(world, steps=2), seeds=1, out=tmp_path / "out")
    assert made.record.interval is None
    assert "nothing can be said about new rows" in " ".join(made.report().split())
    assert not (tmp_path / "out" / "predictions.csv").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_of_every_kind(kind, tmp_path):
    recipe = tiny_recipe(kind, tmp_path / "models", steps=4)
    made = fit(tiny_data(kind), recipe=recipe, seeds=2, out=tmp_path / "out")
    assert made.record.metric == METRICS[kind]
    assert [seed.status for seed in made.scores] == ["finished", "finished"]
    assert made.record.interval.rows > 0
    assert made.model.num_parameters() > 0
    assert made.report("html")
    assert made.report("card")
    written = tmp_path / "out" / "predictions.csv"
    if kind != "language-model":
        rows = rows_of(written)
        assert len(rows) == 17
        assert {"row", "label", "prediction"} <= rows[0].keys()
    best = made.record.best
    scores = [seed.validation for seed in made.scores]
    assert best.validation == (max(scores) if made.record.greater_is_better else min(scores))


# --- going on


class Steps(seeds.Listener):
    def __init__(self):
        self.taken = []

    def step(self, progress):
        self.taken.append(progress.step)


def test_the_same_call_again_does_nothing_again(made, world):
    before = weights(made.out)
    listener = Steps()
    again = fit(world / "reviews.csv", changes=changes(world), seeds=3, out=made.out, listener=listener)
    assert listener.taken == []
    assert again.record == made.record
    after = weights(made.out)
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("options", [[], ["--deterministic"]])
def test_the_command_asks_for_the_same_bits_every_time(world, tmp_path, monkeypatch, options):
    asked = []

    def train(*_, deterministic):
        asked.append(deterministic)
        raise SteadytuneError("enough")

    monkeypatch.setattr(seeds, "train", train)
    arguments = ["fit", str(world / "reviews.csv"), "--model", str(world / "encoder"), "--out", str(tmp_path / "fit")]
    made = CliRunner().invoke(app, [*arguments, "--max-length", "32", "--quiet", *options])
    assert str(made.exception) == "enough"
    assert asked == [bool(options)]


def test_more_seeds_only_add_runs(world, tmp_path):
    one, all_at_once = tmp_path / "one", tmp_path / "all"
    fit(world / "reviews.csv", changes=changes(world, steps=6), seeds=1, out=one)
    listener = Steps()
    fit(world / "reviews.csv", changes=changes(world, steps=6), seeds=3, out=one, listener=listener)
    assert len(listener.taken) == 12
    fit(world / "reviews.csv", changes=changes(world, steps=6), seeds=3, out=all_at_once)
    assert_same_fit(one, all_at_once)


def test_other_rows_or_another_recipe_are_refused(made, world, tmp_path):
    before = (made.out / "fit.json").read_bytes()
    with pytest.raises(SteadytuneError, match=r"another recipe \(lr 0.003, now 0.001\).*--fresh"):
        fit(world / "reviews.csv", changes=changes(world, lr=1e-3), seeds=3, out=made.out)
    other = write_csv(tmp_path / "other.csv", reviews(100, 1))
    with pytest.raises(SteadytuneError, match=r"other rows \(140 train, 30 validation, 30 test; now 70 train"):
        fit(other, changes=changes(world), seeds=3, out=made.out)
    assert (made.out / "fit.json").read_bytes() == before


def test_fresh_takes_away_the_fit_and_nothing_else(world, tmp_path):
    out = tmp_path / "out"
    fit(world / "reviews.csv", changes=changes(world, steps=2), seeds=2, out=out)
    (out / "mine.txt").write_text("keep")
    fit(world / "reviews.csv", changes=changes(world, steps=3), seeds=1, out=out, fresh=True)
    assert (out / "mine.txt").read_text() == "keep"
    assert [path.name for path in (out / "runs").iterdir()] == ["seed-0"]


def test_a_directory_of_something_else_is_left_alone(world, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    for fresh in (False, True):
        with pytest.raises(SteadytuneError, match=r"not empty \(thesis.tex\) and holds no fit"):
            fit(world / "reviews.csv", changes=changes(world), out=tmp_path, fresh=fresh)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_two_fits_at_once_in_one_directory_are_refused(made, world):
    with open(made.out / ".lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SteadytuneError, match="Another fit is at work"):
            fit(world / "reviews.csv", changes=changes(world), seeds=3, out=made.out)


COMMAND = """
import sys, time, torch
torch.set_num_threads(1)
from steadytune import cli
import steadytune.fitting.command as command
slow = float(sys.argv.pop(1))
usual = command.Bar.step
def step(self, progress):
    print("step", progress.step, file=sys.stderr, flush=True)
    time.sleep(slow)
    usual(self, progress)
command.Bar.step = step
cli.main()
"""


def command(world, out, *more, slow=0.0):
    arguments = [str(world / "reviews.csv"), "--model", str(world / "encoder"), "--steps", str(STEPS), "--lr", "3e-3"]
    arguments += ["--max-length", "32", "--seeds", "2", "--out", str(out), "--method", "mixout:p=0.5", *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(slow), "fit", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def wait_for_steps(process, steps):
    seen = 0
    for line in process.stderr:
        seen += line.startswith("step ")
        if seen == steps:
            return
    raise AssertionError(f"the process ended after {seen} steps")


@pytest.fixture(scope="module")
def uninterrupted(world):
    process = command(world, world / "whole", "--json")
    stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    data = json.loads(stdout)
    assert data["status"] == "finished"
    assert Path(data["paths"]["model"]).is_dir()
    return world / "whole"


@pytest.mark.parametrize(("number", "code", "steps"), [(signal.SIGTERM, 143, 40), (signal.SIGINT, 130, 7)])
def test_a_signal_ends_cleanly_and_the_same_command_goes_on(world, uninterrupted, tmp_path, number, code, steps):
    out = tmp_path / "out"
    process = command(world, out, slow=0.05)
    wait_for_steps(process, steps)
    process.send_signal(number)
    rest = process.stderr.read()
    assert process.wait(timeout=60) == code, rest
    assert "The same command goes on from there" in rest
    assert json.loads((out / "fit.json").read_text())["status"] == "stopped"
    assert not (out / "model").exists()
    again = command(world, out)
    _, stderr = again.communicate(timeout=300)
    assert again.returncode == 0, stderr
    assert stderr.count("step ") < 2 * STEPS - steps + 3  # the first steps were not taken again
    assert_same_fit(out, uninterrupted)


def test_a_kill_loses_nothing_that_was_finished(world, uninterrupted, tmp_path):
    out = tmp_path / "out"
    process = command(world, out, slow=0.05)
    wait_for_steps(process, STEPS + 10)
    process.kill()
    process.wait(timeout=60)
    process.stderr.close()
    assert not (out / "model").exists()
    again = command(world, out)
    _, stderr = again.communicate(timeout=300)
    assert again.returncode == 0, stderr
    assert stderr.count("step ") <= STEPS  # the first seed was not run again
    assert_same_fit(out, uninterrupted)


def test_a_full_disk_is_a_sentence_and_what_was_there_stays(world, tmp_path):
    code = (
        "import resource, sys\n"
        "import torch, steadytune.fitting.command\n"
        "from steadytune.cli import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))\n"
        "main()\n"
    )
    arguments = ["fit", str(world / "reviews.csv"), "--model", str(world / "encoder"), "--steps", "3", "--seeds", "1"]
    arguments += ["--max-length", "32", "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 2, done.stderr
    assert "could not be written" in done.stderr
    assert "Traceback" not in done.stderr
    left = [path.name for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert set(left) <= {"fit.json", ".lock"}
    made = fit(
        world / "reviews.csv",
        changes={"model": str(world / "encoder"), "steps": 3, "max_length": 32},
        seeds=1,
        out=tmp_path / "out",
    )
    assert made.record.status == "finished"


# --- seeds that fail


def test_a_diverged_seed_is_shown_and_the_others_go_on(world, tmp_path, monkeypatch):
    usual = seeds.train

    def train(recipe, encoded, streams, *rest, **options):
        result, model = usual(recipe, encoded, streams, *rest, **options)
        if streams.init == 1:
            notes = ("The loss was not a finite number at step 2.",)
            return dataclasses.replace(result, status="diverged", best=None, last=None, notes=notes), None
        return result, model

    monkeypatch.setattr(seeds, "train", train)
    made = fit(world / "reviews.csv", changes=changes(world, steps=8), seeds=3, out=tmp_path / "out")
    assert [seed.status for seed in made.scores] == ["finished", "diverged", "finished"]
    assert made.record.chosen in (0, 2)
    assert made.record.spread("test").n == 2
    assert "1 of 3 seeds diverged" in " ".join(made.report().split())
    page = (tmp_path / "out" / "report.html").read_text()
    assert "not a finite number at step 2" in page


def test_when_every_seed_diverges_there_is_no_model_but_a_record(world, tmp_path):
    with pytest.raises(FitFailed, match=r"All 2 seeds failed.*records are in"):
        fit(world / "reviews.csv", recipe="standard", changes=changes(world, lr=1e30), seeds=2, out=tmp_path / "out")
    data = json.loads((tmp_path / "out" / "fit.json").read_text())
    assert data["status"] == "failed"
    assert data["failed"] == 2
    assert not (tmp_path / "out" / "model").exists()
    assert "No model was kept" in (tmp_path / "out" / "report.html").read_text()


# --- what is refused, before anything is written

GOOD = reviews(40)
HEAD = "text,label\n"


def lines(rows):
    return "".join(f"{text},{label}\n" for text, label in rows)


BAD_FILES = {
    "empty": (b"", r"bad.csv is empty"),
    "only a header": (HEAD.encode(), r"bad.csv has columns text, label but no rows"),
    "missing column": (b"txt,label\n" + lines(GOOD).encode(), r"row 1: there is no column 'text'. Did you mean 'txt'"),
    "one class": ((HEAD + lines((t, "good") for t, _ in GOOD)).encode(), r"column 'label': all 40 rows have the label"),
    "not utf-8": (HEAD.encode() + b"caf\xe9,good\n" + lines(GOOD).encode(), r"bad.csv, row 2, column 'text'"),
    "ragged": ((HEAD + lines(GOOD) + "one,two,three\n").encode(), r"bad.csv, row 42 has 3 cells"),
    "a huge cell": (HEAD.encode() + b"x" * 10_000_001 + b",good\n" + lines(GOOD).encode(), r"bad.csv, row 2"),
    "fewer rows than classes": ((HEAD + "a,1x\nb,2x\nc,3x\n").encode(), r"3 rows for 3 classes"),
    "no label": ((HEAD + lines(GOOD) + "a text,\n").encode(), r"bad.csv, row 42, column 'label': the label is missing"),
    "text among numbers": (
        (HEAD + lines((t, f"{i}.5") for i, (t, _) in enumerate(GOOD)) + "a,nan\n").encode(),
        r"bad.csv, row 42, column 'label'",
    ),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_refused_by_file_row_and_column(world, tmp_path, name):
    content, words = BAD_FILES[name]
    (tmp_path / "bad.csv").write_bytes(content)
    kind = "regression" if name == "text among numbers" else None
    with pytest.raises(SteadytuneError, match=words):
        fit(tmp_path / "bad.csv", kind=kind, changes=changes(world), out=tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.csv"]


def test_a_label_that_train_lacks_is_named_by_row(world, tmp_path):
    train = write_csv(tmp_path / "train.csv", GOOD)
    dev = write_csv(tmp_path / "dev.csv", [*GOOD[:4], ("a text", "goood")])
    with pytest.raises(SteadytuneError, match=r"dev.csv, row 6, column 'label'.*Did you mean 'good'"):
        fit(train, validation=dev, changes=changes(world), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"recipe": "recomended"}, "Did you mean 'recommended'"),
        ({"recipe": "missing.yaml"}, "missing.yaml"),
        ({"methods": ["mixot:p=0.7"]}, "Did you mean 'mixout'"),
        ({"methods": ["mixout:q=0.7"]}, "Mixout has no setting 'q'"),
        ({"methods": ["mixout:p=7"]}, "must lie in"),
        ({"methods": ["reinit:layers=9"]}, "block"),
        ({"metric": "acuracy"}, "Metric 'acuracy' is not one of"),
        ({"metric": "rmse"}, "does not score a classification"),
        ({"kind": "clustering"}, "--kind 'clustering'"),
        ({"seeds": 0}, "not a number of seeds"),
        ({"validation": None}, "validation cannot be none"),
        ({"text": ["a", "b", "c"]}, "given 3 times"),
        ({"text": "label"}, "different columns"),
        ({"label": "labels"}, "Did you mean 'label'"),
        ({"test": 0.99}, "test"),
        ({"validation": "nowhere.csv"}, "nowhere.csv does not exist"),
        ({"out": "/proc/no/fit"}, "/proc/no/fit"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_is_written(world, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SteadytuneError, match=words):
        fit(world / "reviews.csv", **{"changes": changes(world), "out": "out", **arguments})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("what", ["without weights", "only a pickle", "no config", "damaged", "not there"])
def test_a_model_that_cannot_be_used_is_refused(world, tmp_path, what):
    folder = tmp_path / "encoder"
    if what != "not there":
        save_encoder(folder)
    if what in ("without weights", "only a pickle"):
        (folder / "model.safetensors").unlink()
    if what == "only a pickle":
        (folder / "pytorch_model.bin").write_bytes(f"cos\nsystem\n(S'touch {tmp_path / 'ran'}'\ntR.".encode())
    if what == "no config":
        (folder / "config.json").unlink()
    if what == "damaged":
        (folder / "model.safetensors").write_bytes(b"\x08" * 100)
    with pytest.raises(SteadytuneError, match="encoder"):
        fit(world / "reviews.csv", changes=changes(world, model=str(folder)), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "ran").exists()


def test_out_inside_a_file_is_refused(world, tmp_path):
    (tmp_path / "file").write_text("x")
    for out in (tmp_path / "file", tmp_path / "file" / "deeper"):
        with pytest.raises(SteadytuneError, match="file"):
            fit(world / "reviews.csv", changes=changes(world), out=out)
    assert (tmp_path / "file").read_text() == "x"


# --- plans


@pytest.mark.parametrize(
    ("file", "out"),
    [
        ("data/reviews.csv", "reviews-fit"),
        ("x.jsonl.gz", "x-fit"),
        ("glue/RTE/", "RTE-fit"),
        ("hub:owner/name:config", "name-fit"),
        ("v1.2.parquet", "v1.2-fit"),
    ],
)
def test_the_default_directory(file, out):
    assert default_out(file) == Path(out)


def test_steps_of_a_plan_are_those_of_the_run(made, world):
    data = load_data(world / "reviews.csv")
    for more in ({"epochs": 2.0}, {"steps": 7}, {"epochs": 0.3}):
        settings = {**changes(world), "steps": None, **more}
        recipe = make_recipe("standard", ["longer:times=2"], {k: v for k, v in settings.items() if v is not None})
        plan = make_plan(data, recipe, 1)
        listener = Steps()
        fit(data, recipe=plan.recipe, seeds=1, listener=listener)
        assert plan.steps() == listener.taken[-1] == len(listener.taken)


def test_every_format_of_the_same_rows_is_the_same_fit(world, tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = reviews(200)
    (tmp_path / "r.jsonl").write_text("".join(json.dumps({"text": t, "label": y}) + "\n" for t, y in rows))
    (tmp_path / "r.tsv").write_text("text\tlabel\n" + "".join(f"{t}\t{y}\n" for t, y in rows))
    made = datasets.Dataset.from_list([{"text": t, "label": y} for t, y in rows])
    made.to_parquet(tmp_path / "r.parquet")
    made.save_to_disk(tmp_path / "r")
    known = load_data(world / "reviews.csv").fingerprint
    for name in ("r.jsonl", "r.tsv", "r.parquet", "r"):
        assert load_data(tmp_path / name).fingerprint == known


def test_a_recipe_file(world, tmp_path):
    pytest.importorskip("steadytune.config")
    path = tmp_path / "mine.yaml"
    path.write_text("lr: 2e-3\nsteps: 5\nmax_length: 32\nmethods:\n  - method: reinit\n    layers: 1\n")
    recipe, name, _ = make_recipe(str(path), ["mixout:p=0.5"], {"model": str(world / "encoder")})
    assert (recipe.lr, recipe.steps, name) == (2e-3, 5, "mine.yaml")
    assert {item.name for item in recipe.methods} == {"reinit", "mixout"}


# --- the real thing, with few steps

OFFICIAL = {  # rows of train, validation and test; metric; majority baselines (few-sample paper, table 2 and D11)
    "RTE": ((2490, 138, 139), "accuracy"),
    "MRPC": ((3668, 203, 205), "f1"),
    "CoLA": ((8551, 521, 522), "mcc"),
    "STS-B": ((5749, 750, 750), "spearman"),
}


@pytest.mark.skipif(not GLUE.is_dir(), reason=f"needs the GLUE files in {GLUE}")
@pytest.mark.parametrize("name", OFFICIAL)
def test_glue_end_to_end_with_the_bundled_encoder(name, tmp_path):
    rows, metric = OFFICIAL[name]
    few = {"steps": 2, "batch_size": 8, "evaluations": 1, "max_length": 32}
    made = fit(GLUE / name, changes=few, seeds=1, out=tmp_path / "out")
    record = made.record
    assert tuple(split.rows for split in record.splits) == rows
    assert record.metric == metric
    assert record.model == "builtin:minilm"
    for seed in record.seeds:
        assert -1.0 <= seed.test <= 1.0
    if metric == "accuracy":
        test = record.splits[2]
        assert record.baseline.test == pytest.approx(test.classes["entailment"] / test.rows)
    if metric == "f1":
        positive = record.splits[2].classes["1"] / record.splits[2].rows
        assert record.baseline.test == pytest.approx(2 * positive / (1 + positive))
    if metric in ("mcc", "spearman"):
        assert record.baseline.test == 0.0
    written = rows_of(tmp_path / "out" / "predictions.csv")
    assert len(written) == rows[2]
    assert "probability:1" in written[0] or metric in ("accuracy", "spearman")
    assert pipeline("text-classification", str(tmp_path / "out" / "model"))("A sentence.")
