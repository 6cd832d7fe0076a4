"""Predicting: the numbers are the model's own, files stream, and nothing half-written is left."""

import csv
import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

from steadytune.errors import SteadytuneError
from steadytune.predicting import csv_names, predict, predict_file
from steadytune.trained import load_trained
from tiny_text import reviews, save_encoder, write_csv


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    return save_encoder(tmp_path_factory.mktemp("classifier"), head=True)


@pytest.fixture(scope="module")
def trained(classifier):
    return load_trained(classifier)


def read_csv(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_probabilities_are_those_of_the_pipeline(classifier, trained):
    texts = [text for text, _ in reviews(40)]
    usual = pipeline("text-classification", str(classifier), top_k=None)
    for made, expected in zip(predict(trained, texts), usual(texts), strict=True):
        wanted = {each["label"]: each["score"] for each in expected}
        assert made.probabilities == pytest.approx(wanted, abs=1e-6)
        assert made.value == max(wanted, key=wanted.get)


def test_order_and_values_do_not_depend_on_batches_or_neighbours(trained):
    texts = [text for text, _ in reviews(33)]
    together = [made.probabilities["good"] for made in predict(trained, texts)]
    alone = [predict(trained, [text])[0].probabilities["good"] for text in texts]
    assert len(set(np.round(alone, 7))) > 20  # else the order would not be tested
    assert together == pytest.approx(alone, abs=1e-6)


def test_pairs_are_read_as_pairs(classifier, trained):
    tokenizer = AutoTokenizer.from_pretrained(classifier)
    model = AutoModelForSequenceClassification.from_pretrained(classifier).eval()
    with torch.no_grad():
        wanted = model(**tokenizer("lovely film", "the plot", return_tensors="pt")).logits.softmax(-1).numpy()
    assert trained.predict([("lovely film", "the plot")]).probabilities == pytest.approx(wanted, abs=1e-6)
    assert trained.predict([("lovely film the plot",)]).probabilities != pytest.approx(wanted, abs=1e-6)


def test_no_texts_are_no_predictions(trained):
    assert predict(trained, []) == []


def test_rows_are_cut_to_the_length_asked_for(classifier):
    long = "lovely " * 500
    assert predict(classifier, [long])[0] == predict(classifier, [long + long])[0]  # the model has 64 positions
    short = load_trained(classifier, max_length=8)
    assert predict(short, [long])[0].probabilities != predict(classifier, [long])[0].probabilities
    with pytest.raises(SteadytuneError, match="positions for 64 tokens"):
        load_trained(classifier, max_length=100)


def test_what_fit_wrote_down_is_used(classifier, tmp_path):
    folder = save_encoder(tmp_path / "model", head=True)
    facts = {"task": {"text_columns": ["body"]}, "max_length": 16}
    (folder / "steadytune.json").write_text(json.dumps(facts))
    trained = load_trained(folder)
    assert (trained.text_columns, trained.encoder.max_length) == (("body",), 16)
    source = write_csv(tmp_path / "in.csv", reviews(3), ("body", "label"))
    assert predict_file(trained, source, io.StringIO()) == 3
    (folder / "steadytune.json").write_text("[]")
    with pytest.raises(SteadytuneError, match=r"steadytune.json is damaged"):
        load_trained(folder)


def test_a_csv_keeps_its_columns_and_row_numbers(trained, tmp_path):
    source = tmp_path / "in.csv"
    source.write_text('id,text,prediction\n7,"a ""fine"",\nfilm",old\n\n9,dull,old\n', encoding="utf-8")
    assert predict_file(trained, source, tmp_path / "out.csv") == 2
    first, second = read_csv(tmp_path / "out.csv")
    assert (first["row"], first["id"], first["text"]) == ("2", "7", 'a "fine",\nfilm')
    assert (second["row"], second["id"], second["input:prediction"]) == ("5", "9", "old")
    assert first["prediction"] in ("bad", "good")
    assert float(first["probability:bad"]) + float(first["probability:good"]) == pytest.approx(1.0, abs=1e-5)


def test_jsonl_in_and_out(trained, tmp_path):
    source = tmp_path / "in.jsonl"
    rows = [{"text": "lovely – ünïcode 😀", "id": 3, "extra": {"not": "read"}}, {"text": "dull", "id": None}]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    predict_file(trained, source, tmp_path / "out.jsonl", keep=["id", "text"])
    made = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["row"] for row in made] == [1, 2]
    assert made[0]["input"] == {"id": 3, "text": "lovely – ünïcode 😀"}
    assert sum(made[1]["probabilities"].values()) == pytest.approx(1.0, abs=1e-6)
    stream = io.StringIO()
    predict_file(trained, source, stream)
    assert stream.getvalue().splitlines()[0] == "row,text,prediction,probability:bad,probability:good"


def test_csv_and_jsonl_say_the_same(trained, tmp_path):
    source = write_csv(tmp_path / "in.csv", reviews(20))
    predict_file(trained, source, tmp_path / "out.csv", keep=[])
    predict_file(trained, source, tmp_path / "out.jsonl", keep=[])
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    for row, line in zip(read_csv(tmp_path / "out.csv"), lines, strict=True):
        assert (int(row["row"]), row["prediction"]) == (line["row"], line["prediction"])
        assert float(row["probability:good"]) == pytest.approx(line["probabilities"]["good"], abs=1e-5)


def test_a_regressor_gives_numbers(tmp_path):
    folder = save_encoder(tmp_path / "model", head=True)
    config = json.loads((folder / "config.json").read_text())
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=1, problem_type="regression", ignore_mismatched_sizes=True
    )
    model.save_pretrained(folder)
    assert config["id2label"] == {"0": "bad", "1": "good"}
    made = predict(folder, ["a fine film"])[0]
    assert isinstance(made.value, float)
    assert made.probabilities == {}
    source = write_csv(tmp_path / "in.csv", reviews(3))
    predict_file(folder, source, tmp_path / "out.csv", keep=[])
    assert list(read_csv(tmp_path / "out.csv")[0]) == ["row", "prediction"]


def test_names_of_ours_and_theirs_do_not_meet():
    assert csv_names(["row", "x", "probability:a"], ["a", "b"]) == [
        *("row", "input:row", "x", "input:probability:a", "prediction", "probability:a", "probability:b")
    ]


# --- what cannot be used


def test_a_body_without_a_head_is_refused(tmp_path):
    folder = save_encoder(tmp_path / "model")
    with pytest.raises(SteadytuneError, match=r"no trained classification head \(classifier"):
        load_trained(folder)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), "no weights"),
        (lambda folder: (folder / "config.json").unlink(), "no config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\x08" * 50), "cannot be loaded"),
    ],
)
def test_a_damaged_model_directory_is_refused(tmp_path, damage, words):
    folder = save_encoder(tmp_path / "model", head=True)
    damage(folder)
    with pytest.raises(SteadytuneError, match=words):
        load_trained(folder)


def test_a_mistyped_directory_is_said_at_once_where_there_is_no_hub(monkeypatch):
    """Asked for a name it does not have, transformers tries the hub for half a minute, and then talks of the hub."""
    monkeypatch.setattr("steadytune.trained.online", lambda: False)
    with pytest.raises(SteadytuneError, match=r"^reviews-fti is neither a directory nor .* cannot be reached"):
        load_trained("reviews-fti")


def test_a_pickle_is_never_opened(tmp_path):
    folder = save_encoder(tmp_path / "model", head=True)
    (folder / "model.safetensors").unlink()
    bomb = f"cos\nsystem\n(S'touch {tmp_path / 'ran'}'\ntR."
    (folder / "pytorch_model.bin").write_bytes(bomb.encode())
    with pytest.raises(SteadytuneError, match=r"pytorch_model.bin, which could run code"):
        load_trained(folder)
    assert not (tmp_path / "ran").exists()


def test_an_error_in_a_late_row_leaves_nothing_and_the_old_file(trained, tmp_path):
    source = write_csv(tmp_path / "in.csv", reviews(600))
    with open(source, "a", encoding="utf-8") as file:
        file.write("one cell too many,good,x\n")
    out = tmp_path / "out.csv"
    out.write_text("before")
    with pytest.raises(SteadytuneError, match=r"in.csv, row 602 has 3 cells"):
        predict_file(trained, source, out)
    assert out.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "out.csv"]


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("in.csv", "is the file that is read"),
        ("x.parquet", ".csv or .jsonl"),
        ("folder.csv", "is a directory; name a file, such as"),
        ("nowhere/x.csv", "there is no directory .*nowhere. Make it"),
    ],
)
def test_where_predictions_cannot_go(tmp_path, out, words):
    """It is said before the model is loaded."""
    source = write_csv(tmp_path / "in.csv", reviews(3))
    (tmp_path / "folder.csv").mkdir()
    before = source.read_text()
    with pytest.raises(SteadytuneError, match=words):
        predict_file(tmp_path / "no model", source, tmp_path / out)
    assert source.read_text() == before


def test_a_full_disk_leaves_the_old_file(classifier, tmp_path):
    """RLIMIT_FSIZE in this process would also hit pytest's own files, so in one of its own."""
    source = write_csv(tmp_path / "in.csv", reviews(300))
    code = (
        "import resource, sys\n"
        "from steadytune.predicting import predict_file\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        f"predict_file({str(classifier)!r}, {str(source)!r}, {str(tmp_path / 'out.csv')!r})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=quiet_env())
    assert "SteadytuneError" in done.stderr
    assert "out.csv could not be written: File too large" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv"]


def test_memory_does_not_grow_with_the_file(classifier, tmp_path):
    """12 MB of long rows through a tiny model: from the first tenth on, the peak stays where it is."""
    words = " ".join(text for text, _ in reviews(60))[:2000]
    source = tmp_path / "big.csv"
    with open(source, "w", encoding="utf-8") as file:
        file.write("text\n")
        for number in range(6_000):
            file.write(f"{number} {words[number % 50 :]}\n")
    assert source.stat().st_size > 11e6
    code = (
        "import json, resource, sys\n"
        "from steadytune.predicting import predict_file\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024\n"
        "seen = []\n"
        f"rows = predict_file({str(classifier)!r}, {str(source)!r}, {str(tmp_path / 'out.csv')!r}, max_length=16, "
        "progress=lambda done: seen.append((done, peak())))\n"
        "print(json.dumps([rows, seen]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=quiet_env())
    assert done.returncode == 0, done.stderr
    rows, seen = json.loads(done.stdout)
    assert rows == 6_000
    assert all(count <= 512 for count, _ in seen)
    growth = seen[-1][1] - seen[len(seen) // 10][1]
    assert growth < 5e6, f"{growth / 1e6:.1f} MB"


def quiet_env():
    return {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
