"""The eight GLUE tasks on their real files: counts, splits, baselines, duplicates and leaks (V7, V8, D11, T6)."""

from collections import Counter

import numpy as np
import pytest

from steadytune.errors import SteadytuneError
from steadytune.tasks import glue

COUNTS = {
    "RTE": (2490, 277, {"entailment": 1249, "not_entailment": 1241}, {"entailment": 146, "not_entailment": 131}),
    "MRPC": (3668, 408, {"1": 2474, "0": 1194}, {"1": 279, "0": 129}),
    "CoLA": (8551, 1043, {"1": 6023, "0": 2528}, {"1": 721, "0": 322}),
    "STS-B": (5749, 1500, None, None),
    "SST-2": (67349, 872, {"1": 37569, "0": 29780}, {"1": 444, "0": 428}),
    "QNLI": (3463, 2000, None, None),
    "MNLI": (9888, 6238, None, None),
    "QQP": (7000, 2917, None, None),
}
DUPLICATES = {"RTE": 2, "MRPC": 0, "CoLA": 19, "STS-B": 43, "SST-2": 371, "QNLI": 0, "MNLI": 0, "QQP": 0}
LEAKS = {"CoLA": 16, "STS-B": 6}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_duplicates_and_leaks_of_the_public_files(real_data, name):
    data = glue.load(real_data / "glue", name, halves=False)
    train, dev, train_labels, dev_labels = COUNTS[name]
    assert (len(data.train), len(data.validation), data.test) == (train, dev, None)
    for rows, expected in ((data.train, train_labels), (data.validation, dev_labels)):
        if expected:
            assert Counter(data.task.labels[i] for i in rows.labels) == expected
    assert data.notes.duplicates == DUPLICATES[name]
    assert sum(leak.rows for leak in data.notes.leaks) == LEAKS.get(name, 0)
    assert data.notes.empty == 0
    official = name not in ("QNLI", "MNLI", "QQP")
    assert any("not GLUE scores" in line for line in data.notes.sentences()) != official


def test_near_balanced_subsets_and_score_range(real_data):
    for name, classes in (("QNLI", 2), ("QQP", 2), ("MNLI", 3)):
        shares = np.bincount(glue.load(real_data / "glue", name, halves=False).train.labels) / COUNTS[name][0]
        assert len(shares) == classes
        assert np.ptp(shares) < 0.02
    scores = glue.load(real_data / "glue", "STS-B").train.labels
    assert scores.dtype == np.float64
    assert (scores.min(), scores.max()) == (0, 5)


@pytest.mark.parametrize(
    ("name", "validation", "test", "metric", "baseline"),
    [
        ("RTE", 138, 139, "accuracy", (52.9, 52.5)),
        ("MRPC", 203, 205, "f1", (81.3, 81.2)),
        ("STS-B", 750, 750, "spearman", (0.0, 0.0)),
        ("CoLA", 521, 522, "mcc", (0.0, 0.0)),
    ],
)
@pytest.mark.parametrize("rows", [None, 1000])
def test_small_tasks_halve_the_dev_file(real_data, name, validation, test, metric, baseline, rows):
    data = glue.load(real_data / "glue" / name, rows=rows)
    assert data.task.metric == metric
    assert (len(data.validation), len(data.test)) == (validation, test)
    assert len(data.train) == (rows or COUNTS[name][0])
    both = np.concatenate([data.validation.source.numbers, data.test.source.numbers])
    assert len(np.unique(both)) == COUNTS[name][1]  # every dev row once
    majority = data.baselines[0]
    assert (round(100 * majority.validation, 1), round(100 * majority.test, 1)) == baseline
    if rows and data.task.labels:
        assert np.bincount(data.train.labels).tolist() == [500, 500]


@pytest.mark.parametrize(
    ("name", "train", "validation", "test", "baseline"),
    [
        ("SST-2", 1000, 1000, 872, (50.0, 49.1)),  # as printed in Table 3: a fixed class, not the larger one (D11)
        ("QNLI", 1000, 1000, 2000, (50.0, 49.3)),
        ("QQP", 1000, 1000, 2917, (50.0, 50.9)),
        ("MNLI", 999, 999, 6238, (33.3, 33.0)),
    ],
)
def test_large_tasks_validate_on_train_rows_and_test_on_dev(real_data, name, train, validation, test, baseline):
    data = glue.load(real_data / "glue", name, rows=1000)
    assert [len(rows) for rows in data.splits().values()] == [train, validation, test]
    assert not set(data.train.source.numbers) & set(data.validation.source.numbers)
    for rows in (data.train, data.validation):
        assert len(set(np.bincount(rows.labels))) == 1  # class-balanced
    majority, chance = data.baselines
    assert (round(100 * majority.validation, 1), round(100 * majority.test, 1)) == baseline
    assert chance.test == pytest.approx(1 / len(data.task.labels))


def test_whole_large_task_keeps_the_other_train_rows(real_data):
    data = glue.load(real_data / "glue", "QNLI")
    assert [len(rows) for rows in data.splits().values()] == [2463, 1000, 2000]


def test_splits_are_the_public_codes_rows(real_data):
    """The public code shuffles each class's dev indices with RandomState(1) and takes the first floor half."""
    data = glue.load(real_data / "glue", "RTE")
    dev = (real_data / "glue" / "RTE" / "dev.tsv").read_text().split("\n")[1:-1]
    expected = []
    for label in ("entailment", "not_entailment"):
        members = [i for i, line in enumerate(dev) if line.split("\t")[3] == label]
        np.random.RandomState(1).shuffle(members)
        expected += members[: len(members) // 2]
    assert sorted(expected) == [n - 2 for n in data.validation.source.numbers]


def test_splits_stay_what_they_are(real_data):
    """A changed fingerprint means other rows or another order: results would no longer compare with older ones."""
    golden = {
        "RTE": "77c34b6c3954e2d2",
        "MRPC": "ee58dd3ef8265538",
        "CoLA": "a9414eaee1bde6e4",
        "STS-B": "a4a7924a6cea6f7e",
    }
    assert {name: glue.load(real_data / "glue", name, rows=1000).fingerprint[:16] for name in golden} == golden


def test_quotes_and_boms_are_text(real_data):
    data = glue.load(real_data / "glue", "MRPC", halves=False)
    assert data.validation.texts[0][1].startswith('" The foodservice pie business')
    assert data.validation.source.where(0).endswith("dev.tsv, row 2")
    cola = glue.load(real_data / "glue", "CoLA", halves=False)
    assert cola.validation.source.where(0).endswith("dev.tsv, row 1")  # no header
    assert cola.validation.texts[-1] == ("John talked to Bill about himself.",)  # no last newline


def test_a_folder_names_its_task(real_data, tmp_path):
    assert glue.detect(real_data / "glue" / "STS-B") == "STS-B"
    assert glue.detect(real_data) is None
    assert glue.load(real_data / "glue", "sts-b").task.name == "STS-B"
    with pytest.raises(SteadytuneError, match="not a GLUE task; choose from RTE"):
        glue.load(tmp_path, "WNLI")
    with pytest.raises(SteadytuneError, match="not a GLUE folder"):
        glue.load(tmp_path)
    with pytest.raises(SteadytuneError, match=r"train\.tsv does not exist"):
        glue.load(tmp_path, "RTE")


def test_a_folder_that_is_named_after_a_task_and_lacks_its_files_is_not_asked_for_the_name(tmp_path):
    with pytest.raises(SteadytuneError, match=r"There is no folder .*RTE, which would hold train\.tsv and dev\.tsv"):
        glue.load(tmp_path / "RTE")
    (tmp_path / "mnli").mkdir()
    (tmp_path / "mnli" / "train.tsv").write_text("")
    with pytest.raises(SteadytuneError, match=r"mnli has no dev_matched\.tsv, which GLUE's MNLI has"):
        glue.load(tmp_path / "mnli")


def test_torn_lines_of_qqp_are_left_out_and_counted(tmp_path):
    head = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    rows = "".join(f"{i}\t1\t2\tq{i}?\tr{i}?\t{i % 2}\n" for i in range(2200))
    (tmp_path / "QQP").mkdir()
    (tmp_path / "QQP" / "train.tsv").write_text(head + rows + "9\ttorn line\n")
    (tmp_path / "QQP" / "dev.tsv").write_text(head + "1\t1\t2\ta?\tb?\t1\n2\t1\t2\tc?\td?\t0")
    data = glue.load(tmp_path, "QQP")
    assert any("1 ragged rows" in line and "row 2202" in line for line in data.notes.sentences())
