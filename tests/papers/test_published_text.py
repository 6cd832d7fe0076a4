"""The published numbers against the papers' texts: read a second time, by patterns, in the order of the text."""

import re
from pathlib import Path

import pytest

from steadytune.papers.published import load

PAPERS_FOLDER = Path(__file__).resolve().parents[3] / "shared" / "papers"

# id -> the part of the paper's text that holds the table, and a pattern of its numbers, in the order of our file.
_BRACKETS, _STD = r"(\d\d\.?\d) ?\( ?(\d\d\.?\d)\)", r"([\d.]+) ± ([\d.]+)"
_CELL = r"(?<=[\t ])(\d+(?:\.\d+)?)(?=[\t\n ])"
IN_TEXT = {
    "mixout/table-1": ("mixout", "TECHNIQUE 1	TECHNIQUE 2	RTE", "We investigate the effect", _BRACKETS),
    "mixout/table-2": ("mixout", "TECHNIQUE 1	TECHNIQUE 2	SST-2", "6.2	Effect", _BRACKETS),
    "mixout/table-3": ("mixout", "PRETRAINED		ADD", "We report the average and best", _BRACKETS),
    "mixout/table-4": ("mixout", "STRATEGY	RTE", "For all the tasks except MRPC", r"\t(\d\d\.\d)(?=[\t\n])"),
    "few-sample/table-1": ("few-sample", "Dataset Standard Re-init	RTE", "Table 1: Mean test", _STD),
    "few-sample/table-2": ("few-sample", "	Standard	Int. Task	LLRD", "Table 2: Mean test", _STD),
    "few-sample/table-4": ("few-sample", "	CoLA	MRPC	RTE	STS-B\nMixed", "Table 4: Comparing", _STD),
    "few-sample/table-5": ("few-sample", "No bias correction	86.0", "Table 5: Comparing", _STD),
    "few-sample/table-7": ("few-sample", "XLNet 71.7", "Table 7: Average Test", _STD),
    "rdrop/table-2": ("rdrop-appendix", "MRPC	84.30", "Table 2: Comparison", _CELL),
    "rdrop/table-3": ("rdrop-appendix", "Baseline	27.14", "Table 3: Comparison", _CELL),
    "rdrop/table-4": ("rdrop-appendix", "Baseline	77.1", "Table 4: Comparison", _CELL),
    "rdrop/table-5": ("rdrop-appendix", "Transformer full-model deep", "Table 5: Comparison", _CELL),
}


@pytest.mark.parametrize("id", IN_TEXT)
def test_tables_are_those_of_the_text(id):
    file, start, end, pattern = IN_TEXT[id]
    path = PAPERS_FOLDER / f"{file}.txt"
    if not path.exists():
        pytest.skip("the papers' texts are not beside this checkout (../shared/papers)")
    text = path.read_text(encoding="utf-8")
    begin = text.index(start)
    part = text[begin : text.index(end, begin)]
    found = [each for match in re.findall(pattern, part) for each in ([match] if isinstance(match, str) else match)]
    # Three numbers lost their point on the way to text: 755 and 943.
    read = [each if "." in each or len(each) < 3 else f"{each[:-1]}.{each[-1]}" for each in found]
    assert [number.printed for number in load(id).numbers] == read


@pytest.mark.parametrize("id", ["few-sample/table-3", "few-sample/table-6", "rdrop/table-1"])
def test_set_ups_are_those_of_the_text(id):
    """Here lines are compared: the text of these tables has k, %, × 10-5 and names between the numbers."""
    path = PAPERS_FOLDER / ("few-sample.txt" if id.startswith("few") else "rdrop-appendix.txt")
    if not path.exists():
        pytest.skip("the papers' texts are not beside this checkout (../shared/papers)")
    lines = path.read_text(encoding="utf-8").splitlines()
    published = load(id)
    if id == "few-sample/table-6":
        for row, column in dict.fromkeys((number.row, number.column) for number in published.numbers):
            cells = {n.setting: n for n in published.numbers if (n.row, n.column) == (row, column)}
            lr, length, warm = (cells[name] for name in ("learning rate", "length", "warm-up"))
            printed = [
                column,
                lr.printed.replace("e-5", " × 10-5"),
                f"{length.printed} {length.unit}",
                cells["batch size"].printed,
                f"{warm.printed}%" if warm.unit == "percent" else f"{warm.printed} steps",
                cells["layer-wise decay"].printed if "layer-wise decay" in cells else "-",
            ]
            assert any(line.split("\t")[1:] == printed for line in lines), printed
        return
    words = {"training samples": "# of training samples", "validation samples": "# of validation samples"}
    words |= {"test samples": "# of test samples", "majority baseline (validation)": "Majority baseline (val)"}
    words |= {"majority baseline (test)": "Majority baseline (test)"}
    for row in published.rows():
        mine = [number for number in published.numbers if number.row == row and not number.setting]
        printed = [number.note.removeprefix("printed as ") or number.printed for number in mine]
        assert not mine or "\t".join([words.get(row, row), *printed]) in lines, row
