"""Tables: every number where it belongs, in every format, and nothing in a name that acts."""

import csv
import io
import re

import numpy as np
import pytest
from synthetic import by_hand, synthetic

from steadytune.report.study.comparisons import compare_all
from steadytune.report.study.table_formats import Column, Item, Table, latex_escape
from steadytune.report.study.tables import tables


def made(**settings):
    return {table.name: table for table in tables(compare_all(synthetic(**settings)))}


def read(table):
    return list(csv.DictReader(io.StringIO(table.csv())))


def test_the_main_table_has_what_the_papers_have():
    study = synthetic(tasks=4, variants=3)
    found = {table.name: table for table in tables(compare_all(study))}
    rows = read(found["scores"])
    assert len(rows) == 12
    for row in rows:
        scores = [study.score(trial) for trial in study.reported[row["task"], row["variant"]]]
        values = np.array([study.level(row["task"]) if score is None else score for score in scores])
        assert float(row["mean"]) == pytest.approx(values.mean(), abs=1e-12)
        assert float(row["std"]) == pytest.approx(values.std(ddof=1), abs=1e-12)
        assert float(row["median"]) == pytest.approx(np.median(values), abs=1e-12)
        best = values.min() if row["task"] == "wiki" else values.max()
        assert float(row["best"]) == best
        assert row["n"] == "20"
        assert row["failed"] == {"standard": "8", "mixout": "2", "reinit": "0"}[row["variant"]]
    texts = found["scores"].texts()
    assert texts[0][:2] == ("rte", "standard")
    assert texts[0][found["scores"].head().index("failed")] == "8 of 20"
    assert "*†" in texts[2][2]
    assert "best, better than baseline" in texts[2][-1]
    wide = found["overview"]
    assert wide.head()[-1] == "wiki (perplexity)"
    assert [row[0] for row in wide.texts()] == ["standard", "mixout", "reinit"]
    assert [item.strong for item in wide.rows[2]] == [False, True, True, True, True]


def test_captions_say_test_tail_n_and_correction():
    found = made(tasks=2, variants=3)
    for name in ("scores", "overview"):
        caption = found[name].caption
        for needed in ("Student's t-test, unpaired, one-tailed", "uncorrected", "n = 20 runs each", "p < 0.05"):
            assert needed in caption
        assert "Student's t-test, paired by seed, two-tailed, p < 0.05, Holm-corrected over 4 tests" in caption
    caption = found["against-baseline"].caption
    for needed in ("two-tailed", "Holm-corrected over this table, 4 t-tests", "Fisher's exact test", "Brown-Forsythe"):
        assert needed in caption
    assert "expanded BCa bootstrap" in found["scores"].caption
    broken = made(tasks=1, variants=2, crashed=0.2)
    assert "Welch's t-test, unpaired" in broken["scores"].caption
    assert "Crashed trials have no score and are left out" in broken["scores"].caption
    assert re.search(r"n = \d+ to \d+ runs", broken["scores"].caption)
    assert "Lower is better for perplexity" in made(tasks=4, variants=1)["scores"].caption


def test_what_is_missing_is_counted():
    study = by_hand({"rte": {"standard": [0.6, 0.7, 0.8, "crashed"], "new": [0.7, None, "pending", "pending"]}})
    found = tables(compare_all(study))[0]
    rows = read(found)
    assert [(row["n"], row["crashed"], row["not_ended"]) for row in rows] == [("3", "1", "0"), ("2", "0", "2")]
    assert rows[1]["diverged"] == "1"
    assert rows[1]["failed"] == "1"
    assert rows[1]["marks"] == "undecided"


def test_a_line_without_any_result_is_shown_as_such():
    found = tables(compare_all(by_hand({"rte": {"standard": [0.6, 0.7, 0.8], "new": ["pending"]}})))[0]
    assert found.texts()[1][2:6] == ("–", "–", "–", "–")
    assert read(found)[1]["mean"] == ""


def test_pairwise_rows_repeat_the_comparisons():
    compared = compare_all(synthetic(tasks=2, variants=3))
    table = next(table for table in tables(compared) if table.name == "against-baseline")
    for row in read(table):
        each = compared.against[row["task"], row["variant"]]
        assert float(row["difference"]) == each.difference.estimate
        assert float(row["p_t_test"]) == each.t_test.p
        assert float(row["p_t_test_uncorrected"]) == each.raw_p
        assert float(row["probability_of_improvement"]) == each.effect.probability_of_improvement
        assert row["test"] == "Student, paired"


def test_beside_tables_are_there_where_they_have_something_to_say():
    assert set(made(tasks=1, variants=2)) == {"scores", "against-baseline", "instability", "cost"}
    assert "variance" in made(tasks=1, variants=2, seeds=25, grid=True)
    tuned = made(tasks=2, variants=3, tuned=True)
    assert "chosen" in tuned["scores"].head()
    rows = read(tuned["choices"])
    assert len(rows) == 2 * (5 + 6)
    assert sum(row["chosen"] == "chosen" for row in rows) == 4
    for task in {row["task"] for row in rows}:
        group = [row for row in rows if row["task"] == task and row["group"] == "reinit"]
        assert max(group, key=lambda row: float(row["mean"]))["chosen"] == "chosen"
    assert tables(compare_all(synthetic(tasks=0, variants=0))) == []


def test_variance_and_cost_are_right():
    study = synthetic(tasks=1, variants=2, seeds=25, grid=True)
    compared = compare_all(study)
    found = {table.name: read(table) for table in tables(compared)}
    split = compared.luck.grids["rte", "mixout"].split
    assert float(found["variance"][1]["init_share"]) == split.shares()["init"]
    assert float(found["variance"][1]["std_init_fixed"]) == split.std_with_init_fixed()
    seconds = [trial.seconds for trial in study.reported["rte", "mixout"] if trial.status == "finished"]
    assert float(found["cost"][1]["seconds"]) == pytest.approx(np.mean(seconds), rel=1e-12)
    assert float(found["cost"][0]["time_ratio"]) == 1.0


def test_a_spreadsheet_runs_nothing():
    for table in made(tasks=3, variants=10, hostile=True).values():
        for row in csv.reader(io.StringIO(table.csv())):
            for value in row:
                if value[:1] in ("=", "+", "-", "@"):
                    float(value)  # only numbers may begin like that
        table.csv().encode()


def test_markdown_cells_stay_cells():
    for table in made(tasks=3, variants=10, hostile=True).values():
        text = table.markdown()
        lines = [line for line in text.splitlines() if line.startswith("|")]
        counts = {len(re.findall(r"(?<!\\)\|", line)) for line in lines}
        assert counts == {len(table.columns) + 1}
        assert len(lines) == len(table.rows) + 2
        assert "<script" not in text
        assert "](javascript" not in re.sub(r"\\.", "", text)


ESCAPED = re.compile(
    r"\\textbf\{|\\(?:textbackslash|textasciitilde|textasciicircum|textasciigrave|textless|textgreater|textbar|char34|dots)\{\}"
    r"|\$(?:\\pm|-|\\times|\^\\dagger|\^\\ddagger)\$|\\[&%$#_{}]|\{\}"
)


def test_latex_holds_nothing_but_text():
    for table in made(tasks=3, variants=10, hostile=True).values():
        text = table.latex()
        body = text[text.index(r"\midrule") + len(r"\midrule") : text.index(r"\bottomrule")]
        lines = [line for line in body.splitlines() if line]
        assert len(lines) == len(table.rows)
        for line in lines:
            assert line.endswith(r" \\")
            rest = ESCAPED.sub("", line.removesuffix(r" \\")).replace("}", "")
            assert rest.count("&") == len(table.columns) - 1
            assert not set(rest) & set('\\{$#%_^~<>|`"'), rest
            assert line.lstrip()[:1] not in ("[", "*")
        assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")


def test_escaping_of_single_characters():
    assert latex_escape(r"50% of a_b & {x}^2 ~ \cmd $1 #2") == (
        r"50\% of a\_b \& \{x\}\textasciicircum{}2 \textasciitilde{} \textbackslash{}cmd \$1 \#2"
    )
    table = Table("t", "T", "C", (Column("a", "a", False),), ((Item("[x", "[x"),), (Item("*", "*"),)))
    assert r"{}[x \\" in table.latex()
    assert r"{}* \\" in table.latex()


def test_saved_files(tmp_path):
    table = made(tasks=1, variants=2)["scores"]
    paths = table.save(tmp_path / "tables")
    assert [path.name for path in paths] == ["scores.csv", "scores.md", "scores.tex"]
    assert paths[0].read_text(encoding="utf-8") == table.csv()
    assert paths[2].read_text(encoding="utf-8") == table.latex()
    assert not [path for path in (tmp_path / "tables").iterdir() if path.name.startswith(".")]
