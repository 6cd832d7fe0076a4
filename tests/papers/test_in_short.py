"""The main questions of docs/results.md: each finds its claim and its numbers, and is silent without them."""

import json
from pathlib import Path

import pytest

from steadytune.papers.catalogue import ITEMS
from steadytune.papers.in_short import QUESTIONS, answers
from steadytune.papers.results_page import results_page

RECORDS = Path(__file__).parents[2] / "docs" / "results"


def committed(id):
    return json.loads((RECORDS / f"{id.replace('/', '-')}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.text)
def test_each_question_has_one_claim_of_its_item_and_runs_behind_every_line(question):
    texts = [each["text"] for each in committed(question.item)["verdicts"]]
    assert sum(text.startswith(question.claim) for text in texts) == 1
    for line in question.lines:
        cells = committed(line.item or question.item)["cells"]
        assert any((cell["row"], cell["setting"], cell["missing"]) == (line.row, line.setting, 0) for cell in cells), (
            line
        )


def test_an_answer_is_read_from_the_records():
    id = "few-sample/figure-2"
    assert id in ITEMS
    record = committed(id)
    for cell in record["cells"]:
        failed = int(cell["row"] == "No bias correction")
        cell |= {"mean": 0.125 if failed else 0.25, "failed": failed}
    found = answers({id: record})
    assert [answer.question.item for answer in found] == [id]
    assert found[0].measured.startswith("RTE: with 0.250, without 0.125 (1 failed); MRPC: with 0.250")
    assert found[0].verdict.text.startswith("Fewer runs are degenerate")


def test_nothing_is_asked_of_records_that_are_not_there(tmp_path):
    assert answers({}) == []
    assert "In short" not in results_page(tmp_path)
