"""The tasks of a study file: every kind of source loads, is limited, described, and written down again."""

import os
from pathlib import Path

import pytest

from steadytune.errors import SteadytuneError
from steadytune.study.data import KINDS, StudyTask, describe
from steadytune.study.folder import task_info

SHARED = Path(os.environ.get("STEADYTUNE_DATA", Path(__file__).parents[3] / "shared" / "data"))
needs_data = pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data")


def task(**data):
    made = StudyTask.from_data(data)
    assert StudyTask.from_data(made.to_data()) == made  # through the ledger and back
    return made


@pytest.fixture
def folder(tmp_path):
    rows = [f"text {number},{number % 2},{number / 10}" for number in range(40)]
    (tmp_path / "rows.csv").write_text("\n".join(["review,stars,score", *rows]))
    (tmp_path / "news.csv").write_text(
        "\n".join(["article,summary", *(f"one two {n} three,two {n}" for n in range(40))])
    )
    (tmp_path / "text.txt").write_text("\n".join(f"line number {n} of a text" for n in range(60)))
    for name in ("train", "valid", "test"):
        for side in ("de", "en"):
            (tmp_path / f"{name}.{side}").write_text("\n".join(f"{side} {name} {n}" for n in range(12)))
    return tmp_path


CASES = {
    "file": ({"file": "rows.csv", "text": "review", "label": "stars", "validation": 0.2, "test": 0.2}, "accuracy"),
    "number": (
        {"file": "rows.csv", "text": "review", "label": "score", "kind": "regression", "metric": "rmse"},
        "rmse",
    ),
    "pairs": ({"file": "rows.csv", "text": ["review", "score"], "label": "stars"}, "accuracy"),
    "translation": ({"translation": ".", "source": "de", "target": "en"}, "bleu"),
    "summarization": ({"summarization": "news.csv", "source": "article", "target": "summary"}, "rouge_l"),
    "language model": ({"language_model": "text.txt"}, "perplexity"),
    "generated": ({"acceptability": 60, "validation": 20, "test": 20}, "accuracy"),
}


@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_task(name, folder):
    spec, metric = CASES[name]
    made = task(**spec)
    data = made.load(folder)
    info = describe(name, made, data)
    assert info.metric == metric or name == "summarization"
    assert set(info.rows) == {"train", "validation", "test"}
    assert info.words > 1
    again = task_info({**vars(info), "baseline": vars(info.baseline)})
    assert again == info
    limited = task(**spec, limit={"train": 9, "validation": 2})
    less = limited.load(folder)
    assert (len(less.train), len(less.validation), len(less.test)) == (9, 2, info.rows["test"])
    assert less.fingerprint == limited.load(folder).fingerprint != data.fingerprint
    assert less.train.fingerprint != data.train.take(range(9)).fingerprint or name == "language model"
    assert len(less.baselines) == len(data.baselines)
    if name != "language model":
        told = [said.split()[1] for said in less.notes.said if said.endswith("rows are used.")]
        assert told == [f"{split}," for split, rows in less.splits().items() if len(rows) < info.rows[split]]


def test_generated_rows_name_no_file_of_this_machine(folder):
    data = task(acceptability=60).load(folder)
    assert data.train.source.file == "acceptability"
    assert data.notes.sentences() == []


@needs_data
@pytest.mark.parametrize(
    ("spec", "rows"),
    [
        ({"glue": "glue/RTE"}, {"train": 2490, "validation": 138, "test": 139}),
        ({"glue": "glue", "task": "mrpc", "rows": 100}, {"train": 100, "validation": 203, "test": 205}),
        ({"images": "usps/usps.npz"}, None),
    ],
    ids=["RTE", "MRPC", "usps"],
)
def test_real_data(spec, rows):
    made = task(**spec)
    info = describe("x", made, made.load(SHARED))
    assert rows is None or info.rows == rows
    assert info.baseline.validation is not None


def test_words_of_all_kinds_are_different_settings():
    assert all(word in kind.__dataclass_fields__ for word, kind in KINDS.items())


def test_a_task_without_validation_is_refused(folder):
    made = task(file="rows.csv", text="review", label="stars", validation=None)
    with pytest.raises(SteadytuneError, match="no validation rows"):
        describe("mine", made, made.load(folder))


def test_images_of_different_sizes_are_resized_to_one(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for number in range(20):
        (tmp_path / "pictures" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        image.new("RGB", (8 + number, 9), (number, 0, 0)).save(
            tmp_path / "pictures" / "ab"[number % 2] / f"{number}.png"
        )
    with pytest.raises(SteadytuneError, match="give a size"):
        task(images="pictures").load(tmp_path)
    assert task(images="pictures", size=12).load(tmp_path).train.images.shape[1:] == (12, 12, 3)
    assert task(images="pictures", size=[6, 7]).load(tmp_path).train.images.shape[1:] == (6, 7, 3)
    for wrong in (0, [4, 0], "large"):
        with pytest.raises(SteadytuneError, match="size"):
            task(images="pictures", size=wrong)


@needs_data
def test_a_glue_task_may_have_another_metric():
    """As R-Drop scores MRPC by accuracy, where the few-sample paper has F1."""
    plain = task(glue=str(SHARED / "glue/MRPC")).load(Path())
    other = task(glue=str(SHARED / "glue/MRPC"), metric="accuracy").load(Path())
    assert (plain.task.metric, other.task.metric) == ("f1", "accuracy")
    assert other.fingerprint == plain.fingerprint, "the same rows"
    assert other.baselines[0].validation != plain.baselines[0].validation
    assert task(glue=str(SHARED / "glue/STS-B"), metric="pearson").load(Path()).task.metric == "pearson"
    for wrong, says in (("acuracy", "is not one of accuracy"), ("pearson", "does not score a classification task")):
        with pytest.raises(SteadytuneError, match=says):
            task(glue=str(SHARED / "glue/MRPC"), metric=wrong).load(Path())
