"""Labels, kinds, splits and notes: what text.load decides, and that it can be overruled."""

import json
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steadytune.errors import SteadytuneError
from steadytune.tasks import Rows, Source, labels, splits, text
from steadytune.tasks.acceptability import write as write_demo


def table(tmp_path, label_cells, name="a.csv"):
    path = tmp_path / name
    path.write_text("text,label\n" + "".join(f"text {i},{cell}\n" for i, cell in enumerate(label_cells)))
    return path


def load(path, **options):
    return text.load(path, **{"text": "text", "label": "label", **options})


@pytest.mark.parametrize(
    ("cells", "kind", "classes"),
    [
        (["pos", "neg"] * 10, "classification", ("neg", "pos")),
        (["0", "1"] * 10, "classification", ("0", "1")),
        (["1", "1.0", "2", "2.00"] * 5, "classification", ("1", "2")),
        (["10", "9", "-1"] * 5, "classification", ("-1", "9", "10")),  # by value, not by spelling
        (["01", "1"] * 5, "classification", ("01", "1")),
        (["1", "NA"] * 5, "classification", ("1", "NA")),
        (["4.5", "3.0"] * 5, "regression", ()),
        ([str(i) for i in range(20)] * 2, "classification", tuple(map(str, range(20)))),
        ([str(i) for i in range(21)] * 2, "regression", ()),
        (["1e-3", "2e-3"] * 5, "regression", ()),
    ],
)
def test_class_or_number(tmp_path, cells, kind, classes):
    data = load(table(tmp_path, cells), validation=None, test=None)
    assert (data.task.kind, data.task.labels) == (kind, classes)
    assert "so it is read as" in data.notes.sentences()[0]


def test_the_rule_can_be_overruled(tmp_path):
    path = table(tmp_path, [str(i) for i in range(21)] * 3)
    assert len(load(path, kind="classification").task.labels) == 21
    path = table(tmp_path, ["0", "1"] * 10)
    data = load(path, kind="regression", metric="rmse")
    assert data.train.labels.dtype == np.float64
    assert data.baselines[0].test == pytest.approx(0.5, abs=0.1)
    with pytest.raises(SteadytuneError, match="image task is not read from text"):
        load(path, kind="image")


def test_a_number_that_is_missing_makes_no_classes_of_the_others(tmp_path):
    """pyarrow and json keep NaN as a float; one of them once turned a column of scores into classes."""
    path = tmp_path / "a.jsonl"
    scores = [4.5, 3.5, float("nan"), 2.5] * 5
    path.write_text("".join(json.dumps({"text": f"t{i}", "label": score}) + "\n" for i, score in enumerate(scores)))
    data = load(path, validation=None, test=None, missing="drop")
    assert (data.task.kind, len(data.train)) == ("regression", 15)
    with pytest.raises(SteadytuneError, match=r"row 3, column 'label': the label is missing"):
        load(path, kind="regression")


def test_a_word_among_numbers_is_named(tmp_path):
    data = load(table(tmp_path, ["4.5", "3.5", "n/a"] * 5), validation=None, test=None)
    assert "names among its numbers, such as 'n/a' in row 4," in data.notes.sentences()[0]
    with pytest.raises(SteadytuneError, match=r"such as 'n/a' in row 4.*--kind regression"):
        load(table(tmp_path, ["4.5", "3.5", "n/a"]))


def test_labels_of_every_type_agree(tmp_path):
    """1, 1.0, "1", "1.0" and " 1 " are one class; True and "True" are another."""
    cells = [1, 1.0, "1", "1.0", " 1 ", 0, True, "True"]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"t{i}", "label": cell}) + "\n" for i, cell in enumerate(cells)))
    data = load(path, validation=None, test=None)
    assert Counter(data.task.labels[i] for i in data.train.labels) == {"1": 5, "0": 1, "True": 2}


@pytest.mark.parametrize(
    ("cell", "name"),
    [
        (None, None),
        (float("nan"), None),
        ("", None),
        (" ", None),
        ("nan", "nan"),
        (-0.0, "0"),
        ("-0", "0"),
        (0.5, "0.5"),
    ],
)
def test_class_names(cell, name):
    assert labels.class_name(cell) == name


def test_given_classes_fix_the_order(tmp_path):
    data = load(table(tmp_path, ["low", "high"] * 10), classes=("low", "mid", "high"))
    assert data.task.labels == ("low", "mid", "high")
    with pytest.raises(SteadytuneError, match=r"row 3, column 'label'.*'high' is not among.*'low', 'mid'"):
        load(table(tmp_path, ["low", "high"] * 10), classes=("low", "mid"))


def test_numbers_and_nulls_as_texts(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [
        {"text": 5, "label": "a"},
        {"text": None, "label": "b"},
        {"text": "x", "label": "a"},
        {"text": 1.5, "label": "b"},
        {"text": float("nan"), "label": "b"},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    data = load(path, validation=None, test=None)
    assert data.train.texts == [("5",), ("",), ("x",), ("1.5",), ("",)]
    assert data.notes.empty == 2


def test_default_split_is_stratified_and_repeatable(tmp_path):
    path = table(tmp_path, (["a"] * 3 + ["b"]) * 50)
    data = load(path)
    assert [len(rows) for rows in data.splits().values()] == [140, 30, 30]
    assert [np.bincount(rows.labels).tolist() for rows in data.splits().values()] in (
        [[105, 35], [22, 8], [23, 7]],
        [[105, 35], [23, 7], [22, 8]],
    )
    assert load(path).fingerprint == data.fingerprint
    assert load(path, split=1).fingerprint != data.fingerprint
    row = data.test.source.numbers[0]
    assert data.test.texts[0] == (f"text {row - 2}",)  # rows still know their line
    assert data.baselines[0].name == "always 'a', the commonest class of train"


def test_own_files_for_validation_and_test(tmp_path):
    train = table(tmp_path, ["a", "b"] * 10)
    dev = table(tmp_path, ["b", "a"], "dev.csv")
    data = load(train, validation=dev, test=None)
    assert [len(rows) for rows in data.splits().values()] == [20, 2]
    data = load(train, validation=dev, test=0.2)
    assert [len(rows) for rows in data.splits().values()] == [16, 2, 4]
    assert data.validation.source.where(1) == f"{dev}, row 3"


def test_duplicates_conflicts_and_leaks(tmp_path):
    train, dev = tmp_path / "train.csv", tmp_path / "dev.csv"
    train.write_text("text,label\na,x\na,x\na,y\nb,x\nc,y\n,x\n")
    dev.write_text("text,label\nb,x\nc,x\nd,y\nA,y\n")
    notes = load(train, validation=dev, test=None).notes
    assert (notes.duplicates, notes.conflicts, notes.empty) == (2, 1, 1)
    (leak,) = notes.leaks
    assert (leak.earlier, leak.later, leak.rows) == ("train", "validation", 2)
    assert leak.examples == (f"{dev}, row 2", f"{dev}, row 3")
    assert any("2 validation rows also stand in train" in line for line in notes.sentences())


@settings(deadline=None)
@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    share=st.floats(0, 0.4),
    copies=st.integers(1, 3),
    stream=st.integers(0, 5),
)
def test_splits_never_leak_and_train_has_every_class(counts, share, copies, stream):
    classes = np.repeat(np.arange(len(counts)), counts)
    classes = np.tile(classes, copies)
    inputs = [i % (len(classes) // copies) for i in range(len(classes))]  # every input `copies` times
    size = int(share * len(classes))
    if len(classes) - 2 * size < 1:
        return
    parts = splits.stratified(classes, inputs, size, size, stream)
    assert sorted(np.concatenate(parts)) == list(range(len(classes)))
    texts = [{inputs[i] for i in part} for part in parts]
    assert sum(map(len, texts)) == len(set.union(*texts))
    assert set(classes[parts[0]]) == set(classes)
    assert len(parts[1]) <= size
    assert len(parts[2]) <= size


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.floats(0, 0.6))
def test_shares_add_up(counts, fraction):
    total = int(fraction * sum(counts))
    given_out = splits.shares(counts, total)
    assert sum(given_out) == min(total, sum(counts) - len(counts))
    assert all(0 <= share < count for share, count in zip(given_out, counts))


def test_splits_leave_the_global_generator_alone():
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    y = np.arange(40) % 2
    splits.public_halves(y)
    splits.public_sample(y, 10, 10)
    splits.stratified(y, list(range(40)), 5, 5)
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002


def test_balanced_samples():
    y = np.array([0] * 70 + [1] * 20 + [2] * 30)
    train, validation = splits.public_sample(y, 31, 10)
    assert np.bincount(y[train]).tolist() == [10, 10, 10]
    assert np.bincount(y[validation]).tolist() == [3, 3, 3]
    assert not set(train) & set(validation)
    with pytest.raises(SteadytuneError, match="A class of 20 rows cannot give 20 to train and 3"):
        splits.public_sample(y, 60, 10)


def test_rows_know_themselves():
    rows = Rows(
        Source("f.csv", np.array([2, 3, 9])), texts=[("a", "bc"), ("ab", "c"), ("x", "y")], labels=np.array([0, 1, 0])
    )
    assert len(rows) == 3
    assert rows.take([2]).source.where(0) == "f.csv, row 9"
    assert rows.take([0]).fingerprint != rows.take([1]).fingerprint
    assert rows.take([1, 0]).fingerprint != rows.take([0, 1]).fingerprint
    with pytest.raises(SteadytuneError, match="differ in length"):
        Rows(Source("f.csv", np.array([1])), texts=[("a",), ("b",)])


def test_iter_texts_needs_no_label(tmp_path):
    path = tmp_path / "new.tsv"
    path.write_text("id\ttext\n7\thello\n8\t\n")
    assert list(text.iter_texts(path, ["text"])) == [([2, 3], [("hello",), ("",)])]


def test_one_column_files(tmp_path):
    path = tmp_path / "new.csv"
    path.write_text('text\nhello\n\n""\nbye\n')
    assert list(text.iter_texts(path, ["text"])) == [([2, 4, 5], [("hello",), ("",), ("bye",)])]


def test_demo_data_loads(tmp_path):
    data = text.load(write_demo(tmp_path, 80, 40, 40), text="sentence", label="label")
    assert data.task.labels == ("acceptable", "unacceptable")
    assert [len(rows) for rows in data.splits().values()] == [80, 40, 40]
    assert (data.notes.duplicates, data.notes.leaks) == (0, ())
    assert data.baselines[0].test == 0.5


HEAVY = ["torch", "transformers", "datasets", "pyarrow", "PIL", "sacrebleu", "pandas", "scipy", "sklearn"]


def test_importing_tasks_imports_nothing_heavy():
    modules = ["acceptability", "base", "files", "glue", "image", "language_model", "metrics", "text", "translation"]
    code = f"""
import sys
for name in {modules}:
    __import__("steadytune.tasks." + name)
print([name for name in {HEAVY} if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
