"""docs/results.md: what the committed records say, and nothing else."""

import json
from pathlib import Path

import pytest

from steadytune.errors import SteadytuneError
from steadytune.papers.catalogue import ITEMS
from steadytune.papers.experiments import EXPERIMENTS
from steadytune.papers.results_page import read_records, results_page

DOCS = Path(__file__).parents[2] / "docs"


def record(id, **changes):
    """A record with two cells, one of which is published, and three verdicts."""
    cell = {"row": "dropout(0.1) + wdecay(0, 0.01)", "column": "RTE", "setting": "", "task": "RTE", "mean": 0.531}
    cell |= {"std": 0.0123, "n": 20, "failed": 3, "diverged": 1, "crashed": 0, "missing": 0, "values": []}
    own = cell | {"row": "mixout(w_pre, 0.7), exact gradient", "failed": 0, "mean": 0.625}
    verdict = {"text": "a | b <i>", "holds": True, "p_value": 0.0123, "n": 20, "source": "page 7", "how": "t-test"}
    verdicts = [verdict | {"measured": "1 against 2"}, verdict | {"holds": False, "measured": "", "p_value": 0.5}]
    verdicts.append(verdict | {"holds": None, "measured": "", "p_value": None})
    made = {"id": id, "scale": "small", "command": f"steadytune paper run {id} --scale small", "notes": ["A note."]}
    return made | {"made_with": {"torch": "2.13"}, "verdicts": verdicts, "cells": [cell, own]} | changes


def write(folder, *records):
    folder.mkdir(exist_ok=True)
    for each in records:
        (folder / f"{each['id'].replace('/', '-')}.json").write_text(json.dumps(each))
    return folder


def test_the_committed_page_is_made_from_the_committed_records():
    assert (DOCS / "results.md").read_text(encoding="utf-8") == results_page(DOCS / "results"), (
        "run: steadytune paper results docs/results"
    )


def test_every_committed_record_is_whole():
    for each in read_records(DOCS / "results"):
        assert each.data["scale"] == "small"
        for suffix in (".md", ".json"):
            assert (DOCS / "results" / f"{each.stem}{suffix}").is_file()
        assert (each.item.kind == "set-up") or (DOCS / "results" / f"{each.stem}.svg").is_file()
    text = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "results").glob("*.*"))
    assert str(DOCS.parent) not in text
    assert "/tmp/" not in text


def test_measured_and_published_numbers_have_rows_of_their_own(tmp_path):
    page = results_page(write(tmp_path / "results", record("mixout/table-1")))
    rows = [line for line in page.splitlines() if line.startswith("| dropout(0.1)")]
    assert [row.split("|")[2].strip() for row in rows] == ["here", "paper"]
    assert "0.531 ± 0.012, n = 20, 3 failed" in rows[0]
    assert "0.565" in rows[1]  # table 1 of the paper: 56.5
    assert "Paper: Table 1, section 5, page 8, n = 20." in page


def test_every_claim_has_its_verdict_test_and_command(tmp_path):
    page = results_page(write(tmp_path / "results", record("mixout/table-1")))
    assert "with 3 claims: 1 hold, 1 do not hold, 1 cannot be said." in page
    row = next(line for line in page.splitlines() if "1 against 2" in line)
    assert "| holds | 0.012 | 20 | 1 against 2 | t-test | page 7 |" in row
    assert "does not hold at this scale" in page
    assert "<i>" not in page  # text of a record stays text
    assert "steadytune paper run mixout/table-1 --scale small --data DIR" in page
    assert "Made with torch 2.13." in page


def test_a_figure_stands_beside_a_link_to_what_it_shows(tmp_path):
    folder = write(tmp_path / "results", record("mixout/table-1"))
    assert ".md)" not in results_page(folder).partition("## mixout/table-1:")[2]
    (folder / "mixout-table-1.svg").write_text("<svg/>")
    (folder / "mixout-table-1.md").write_text("One point per run.")
    section = results_page(folder).partition("## mixout/table-1:")[2]
    assert "(results/mixout-table-1.svg)\n\n[What the figure shows](results/mixout-table-1.md). [The record]" in section


def test_identities_and_repeated_claims_are_not_counted(tmp_path):
    made = record("mixout/table-1")
    made["verdicts"] += [made["verdicts"][0] | {"text": "by construction", "uncounted": "an identity"}]
    page = results_page(write(tmp_path / "results", made))
    assert "with 3 claims: 1 hold, 1 do not hold, 1 cannot be said. 1 more are not counted." in page
    row = next(line for line in page.splitlines() if "by construction" in line)
    assert "holds (not counted: an identity)" in row
    assert "*Not counted*: identities" in page


def test_no_two_items_count_the_same_claim_of_the_same_cells():
    seen = {}
    for id, item in ITEMS.items():
        runs = item.runs_of or id
        for claim in item.claims:
            if not claim.uncounted:
                same = (runs, claim.kind, claim.cases, claim.quantity, claim.statistic, item.split)
                assert same not in seen, (id, seen[same])
                seen[same] = id
    counted = {id: [claim.text for claim in item.claims if not claim.uncounted] for id, item in ITEMS.items()}
    assert counted["rdrop/table-1"]
    assert not counted["rdrop/figure-1"]
    assert not counted["few-sample/figure-1"]
    assert not any("with the number of trials" in text for text in counted["few-sample/figure-12"])


def test_a_theorem_has_no_scale_and_what_is_not_run_is_said(tmp_path):
    page = results_page(write(tmp_path / "results", record("mixout/theorem-1", cells=[])))
    assert "does not hold |" in page
    assert "does not hold at this scale |" not in page
    missing = page.partition("## Not run")[2]
    assert all(f"| {id} |" in missing for id in EXPERIMENTS if id != "mixout/theorem-1")
    assert "| mixout/theorem-1 |" not in missing
    everything = write(tmp_path / "all", *(record(id, cells=[]) for id in ITEMS))
    assert "Nothing: every table and figure has a record." in results_page(everything)


def test_a_folder_that_holds_something_else_is_refused(tmp_path):
    with pytest.raises(SteadytuneError, match="There is no folder"):
        results_page(tmp_path / "nowhere")
    (tmp_path / "odd.json").write_text("{}")
    with pytest.raises(SteadytuneError, match="is no record of a table or figure"):
        results_page(tmp_path)
    (tmp_path / "odd.json").write_text(json.dumps(record("mixout/table-1")))
    with pytest.raises(SteadytuneError, match=r"would be called mixout-table-1\.json"):
        results_page(tmp_path)
