"""A study as CSV, JSONL and Parquet: the same rows in all three, read back by other programs."""

import csv
import io
import json
import math
import os
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadytune.errors import SteadytuneError
from steadytune.study.export import export
from steadytune.study.flat_rows import kinds_of_columns, rows, what_happened
from steadytune.study.results import Score, StudyResults, TaskInfo, TrialResult, Variant
from steadytune.tasks.base import Baseline

TRACEBACK = """Traceback (most recent call last):
  File "a.py", line 1, in <module>
    run()
ValueError: inner

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "b.py", line 2, in run
    raise RuntimeError(
    ^^^^^^^^^^^^^^^^^^
RuntimeError: the loss is gone
and a second line of the message
"""


def study(name="table 1", **trial_changes) -> StudyResults:
    rte = TaskInfo("RTE", "accuracy", True, {"train": 70}, Baseline("always yes", 0.5, 0.52), "ab" * 32, "data/rte")
    variants = {
        "standard": Variant("standard", "standard"),
        "mixout": Variant("mixout", "mixout"),
        "mixout, p=0.5": Variant("mixout, p=0.5", "mixout", {"mixout.p": 0.5, "steps": 100, "kind": "a"}),
        "mixout, p=1": Variant("mixout, p=1", "mixout", {"mixout.p": 1, "steps": 200, "kind": "-b"}),
    }
    plan = {"task": "RTE", "streams": {"init": 3, "order": 4, "noise": 4}, "recipe": {"lr": 2e-5, "methods": []}}
    history = [{"step": 10, "train_loss": math.inf, "validation": 0.5, "distances": {"start": {"1": 0.1}}}]
    done = {"status": "finished", "best": Score(10, 1 / 3, 0.1 + 0.2), "last": Score(40, -0.5, math.nan)}
    trials = [
        TrialResult("k0", variant="standard", phase="report", **plan, **done, steps=40, history=history, seconds=1.5),
        TrialResult("k1", variant="mixout, p=0.5", phase="choose", **plan, status="failed", error=TRACEBACK),
        TrialResult("k2", variant="mixout, p=1", phase="choose", **plan, status="diverged", notes=("NaN at 7",)),
        TrialResult("k3", variant="mixout", phase="report", **plan),
    ]
    trials = [replace(trial, **trial_changes) for trial in trials]
    chosen = {("RTE", "mixout"): "mixout, p=1"}
    return StudyResults(name, "", {"RTE": rte}, variants, trials, "standard", chosen=chosen)


def read(path: Path) -> list[dict]:
    """The rows, as another program reads them; missing is None."""
    if path.suffix == ".csv":
        frame = pd.read_csv(path, keep_default_na=False, na_values=[""])
    elif path.suffix == ".jsonl":
        frame = pd.DataFrame([json.loads(line) for line in path.read_bytes().decode("utf-8").split("\n")[:-1]])
    else:
        frame = pd.read_parquet(path)
    return [{k: None if pd.isna(v) else v for k, v in row.items()} for row in frame.to_dict("records")]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_round_trip(tmp_path, suffix):
    made = study()
    path = export(made, tmp_path / f"trials{suffix}")
    again = read(path)
    assert [list(row) for row in again] == [list(kinds_of_columns(made))] * 4
    for row, expected in zip(again, rows(made)):
        expected = {k: None if v == "" else v for k, v in expected.items()}
        if suffix == ".csv" and expected["kind"] == "-b":
            expected["kind"] = "'-b"
        row = {k: None if v == "" else v for k, v in row.items()}
        assert row == expected
    assert os.listdir(tmp_path) == [path.name]


def test_what_the_columns_say():
    first, crashed, diverged, planned = rows(study())
    assert first["best_validation"] == 1 / 3
    assert first["best_test"] == first["score"] == 0.1 + 0.2  # exactly
    assert first["last_test"] is None  # not a number is missing
    assert first["score_without_learning"] == 0.52
    assert json.loads(first["recipe"]) == {"lr": 2e-5, "methods": []}
    assert json.loads(first["history"]) == [{"step": 10, "train_loss": None, "validation": 0.5}]
    assert (first["init"], first["order"], first["noise"]) == (3, 4, 4)
    assert (first["mixout.p"], first["chosen"]) == (None, None)
    assert crashed["error"] == "RuntimeError: the loss is gone"
    assert (crashed["mixout.p"], crashed["chosen"], crashed["score"]) == (0.5, "mixout, p=1", None)
    assert json.loads(diverged["notes"]) == ["NaN at 7"]
    assert planned["status"] == "pending"
    # What is reported for a family runs the settings that were chosen for it; `steps` is also a column of ours.
    assert (planned["mixout.p"], planned["recipe.steps"], planned["steps"]) == (1.0, 200, 0)


def test_parquet_has_types(tmp_path):
    import pyarrow.parquet

    schema = pyarrow.parquet.read_schema(export(study(), tmp_path / "t.parquet"))
    found = {name: str(schema.field(name).type) for name in ("mixout.p", "recipe.steps", "kind", "seconds", "init")}
    assert found == {
        "mixout.p": "double",
        "recipe.steps": "int64",
        "kind": "string",
        "seconds": "double",
        "init": "int64",
    }


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", "'", "＝"])
def test_no_cell_is_a_formula(tmp_path, start):
    name = f"{start}HYPERLINK(1)"
    made = study(name)
    path = export(made, tmp_path / "t.csv")
    row = next(csv.DictReader(io.StringIO(path.read_bytes().decode(), newline="")))
    assert row["study"] == f"'{name}"
    assert row["last_validation"] == "-0.5"  # a number stays one
    for suffix in (".jsonl", ".parquet"):
        assert read(export(made, tmp_path / f"t{suffix}"))[0]["study"] == name


@given(name=st.text(max_size=40))
def test_any_name_comes_back(name, tmp_path_factory):
    path = export(study(name), tmp_path_factory.getbasetemp() / "names.csv")
    cells = [row["study"] for row in csv.DictReader(io.StringIO(path.read_bytes().decode(), newline=""))]
    told = name.replace("\0", "\ufffd")
    assert {cell.removeprefix("'") if told[:1] in tuple("=+-@＝＋－＠\t\r\n'") else cell for cell in cells} == {told}
    path = export(study(name), path.with_suffix(".jsonl"))
    lines = path.read_bytes().decode("utf-8").split("\n")
    assert [json.loads(line)["study"] for line in lines[:-1]] == [name] * 4


def test_odd_texts_can_be_written(tmp_path):
    nasty = "\ud83d \x00 \u2028 שלום <script>, \"q\"; 'x'\r\n" + "long" * 250_000
    for suffix in (".csv", ".jsonl", ".parquet"):
        path = export(study(nasty), tmp_path / f"t{suffix}")
        found = read(path)
        assert len(found) == 4
        assert "שלום <script>, \"q\"; 'x'" in found[0]["study"]


def test_ten_thousand_trials(tmp_path):
    one = study()
    many = replace(one, trials=list(one.trials) * 2_500)
    assert len(read(export(many, tmp_path / "t.csv"))) == 10_000


@pytest.mark.parametrize("name", ["trials", "trials.xlsx", "trials.csv.gz", ".csv"])
def test_the_ending_says_how(tmp_path, name):
    with pytest.raises(SteadytuneError, match=r"end its name in \.csv, \.jsonl, \.parquet"):
        export(study(), tmp_path / name)


def test_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SteadytuneError, match=r"needs pyarrow.*export to \.csv or"):
        export(study(), tmp_path / "t.parquet")
    assert os.listdir(tmp_path) == []
    export(study(), tmp_path / "t.csv")


def test_a_failed_export_leaves_the_old_file(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("old")
    made = study()
    with pytest.raises(AttributeError):
        export(replace(made, trials=[*made.trials, object()]), path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["t.csv"]


def test_a_place_that_cannot_be_written(tmp_path):
    with pytest.raises(SteadytuneError, match="could not be written: No such file or directory"):
        export(study(), tmp_path / "nowhere" / "t.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(SteadytuneError, match="is a directory"):
        export(study(), tmp_path / "folder.csv")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("", ""),
        ("The worker died three times.", "The worker died three times."),
        ("Traceback (most recent call last):\nKeyError: 'x'", "KeyError: 'x'"),
        ("   only indented  ", "only indented"),
        (TRACEBACK, "RuntimeError: the loss is gone"),
    ],
)
def test_what_happened(error, told):
    assert what_happened(error) == told
