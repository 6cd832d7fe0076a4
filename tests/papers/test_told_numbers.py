"""What README tells of results is what the records say: a study that is run again changes both."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


def cells(name):
    record = json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    return {(cell["row"], cell["task"]): cell for cell in record["cells"]}


def test_failed_runs_with_and_without_bias_correction():
    found = cells("few-sample-figure-2")
    with_it, without = (
        {task: found[row, task]["failed"] for task in ("RTE", "MRPC", "STS-B", "CoLA")}
        for row in ("Bias correction", "No bias correction")
    )
    assert {cell["n"] for cell in found.values()} == {20}
    best = found["No bias correction", "STS-B"]["max"]
    assert (
        f"Without it {without['MRPC']} of 20 runs fail on MRPC, {without['CoLA']} on CoLA and {without['STS-B']} on "
        f"STS-B, where the others hardly learn ({best:.2f} at best); with it {with_it['MRPC']}, none and none"
    ) in README
    assert with_it["CoLA"] == with_it["STS-B"] == 0
    assert f"({without['RTE']} without, {with_it['RTE']} with it, p = 0.03)" in README


@pytest.mark.parametrize(
    ("name", "row", "told"),
    [
        ("rdrop-figure-2", "R-Drop", "on the test rows {} BLEU"),
        ("rdrop-figure-2", "Baseline", "against {} of the baseline"),
        ("rdrop-figure-2", "Double batch", "{} with twice the batch"),
        ("rdrop-section-c2", "NLL only", "{} with two passes but no KL term"),
    ],
)
def test_translation(name, row, told):
    cell = cells(name)[row, "Multi30k De-En"]
    assert told.format(f"{cell['mean']:.1f}") in README
    assert f"1,000 pairs of Multi30k, {cell['n']} seeds" in README
