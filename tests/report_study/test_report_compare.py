"""`steadytune compare A B`: the words, the numbers, and what it refuses."""

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats as scipy_stats
from statsmodels.stats.multitest import multipletests
from synthetic import by_hand, synthetic

from fit_records import record
from steadytune.errors import SteadytuneError
from steadytune.report.study.compare import Side, compare, side_of_fit, side_of_variant
from steadytune.report.terminal import as_text

LOW = {str(seed): 0.6 + 0.01 * (seed % 4) for seed in range(8)}
HIGH = {str(seed): 0.7 + 0.01 * (seed % 3) for seed in range(8)}


def side(name, scores, level=0.5, greater=True):
    return Side(name, scores, dict.fromkeys(scores, level), dict.fromkeys(scores, greater))


def test_the_answer_and_the_table():
    pair = compare(side("new", {"rte": HIGH}), side("old", {"rte": {**LOW, "0": None, "1": 0.4}}))
    assert pair.answer() == ["new beats old on rte; 0 of 8 runs failed against 2 of 8."]
    text = as_text(pair.render(), width=110)
    lines = text.splitlines()
    assert lines[0] == pair.answer()[0]
    assert lines[2].split() == ["task", "mean", "±", "std", "median", "best", "failed", "n"]
    assert lines[3].split() == ["rte", "new", "0.709", "±", "0.008", "0.710", "0.720", "0", "of", "8", "8"]
    assert "Student's t-test, paired, two-tailed, n = 8 pairs: p = " in text.replace("\n", " ")
    assert "P(new better) 1.00" in text.replace("\n", " ")


def test_numbers_are_scipys():
    rng = np.random.default_rng(3)
    a, b = (
        {task: {str(s): float(v) for s, v in enumerate(mean + 0.03 * rng.standard_normal(10))} for task in ("x", "y")}
        for mean in (0.7, 0.68)
    )
    data = compare(side("a", a), side("b", b)).as_data()
    raw = [scipy_stats.ttest_rel(list(a[task].values()), list(b[task].values())).pvalue for task in ("x", "y")]
    assert [task["p_uncorrected"] for task in data["tasks"]] == pytest.approx(raw, abs=1e-12)
    assert [task["p"] for task in data["tasks"]] == pytest.approx(multipletests(raw, method="holm")[1], abs=1e-12)
    assert data["tasks"][0]["a"]["mean"] == pytest.approx(np.mean(list(a["x"].values())))
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    turned = compare(side("b", b), side("a", a)).as_data()
    for one, other in zip(data["tasks"], turned["tasks"]):
        assert one["difference"] == pytest.approx(-other["difference"])
        assert one["p"] == pytest.approx(other["p"])


def test_the_other_side_wins_and_lower_is_better():
    costs = [
        side(name, {"wiki": {s: 50 * v for s, v in scores.items()}}, 60.0, False)
        for name, scores in (("slow", HIGH), ("quick", LOW))
    ]
    assert compare(*costs).answer()[0] == "quick beats slow on wiki; 0 of 8 runs failed against 0 of 8."
    both = compare(side("a", {"x": HIGH, "y": LOW}), side("b", {"x": LOW, "y": HIGH}))
    assert both.answer()[0].startswith("a beats b on 1 of 2 tasks, and b beats a on 1 of 2 tasks; ")


def test_what_cannot_be_said():
    near = {seed: score + 0.001 * (-1) ** int(seed) + 0.0005 for seed, score in LOW.items()}
    told = compare(side("a", {"x": near}), side("b", {"x": LOW})).answer()
    assert told[0] == "Neither a nor b is shown to beat the other on x; 0 of 8 runs failed against 0 of 8."
    assert told[1].startswith("x: if the difference is as large as it looks, about ")
    few = compare(side("a", {"x": {"0": 0.6, "1": 0.7}}), side("b", {"x": {"0": 0.7, "1": 0.8}}))
    assert "fewer than 3 runs, and here it is 2" in few.answer()[0]
    assert "no test, because" in as_text(few.render())
    nothing = compare(side("a", {"x": {"0": None}}, None), side("b", {"x": {"0": None}}, None))
    assert nothing.answer()[0].startswith("Nothing can be said about a and b")
    json.dumps(nothing.as_data(), allow_nan=False)
    partly = compare(side("a", {"x": HIGH, "y": LOW}), side("b", {"x": LOW}))
    assert partly.answer()[-1] == "y was run on one side only and left out."


def test_different_seeds_are_compared_unpaired():
    others = {str(int(seed) + 3): score for seed, score in LOW.items()}
    text = as_text(compare(side("a", {"x": HIGH}), side("b", {"x": others})).render(), width=200)
    assert "Welch's t-test, unpaired, two-tailed, n = 8 and 8" in text
    assert "Unpaired: 6 of 11 seeds have a result on one side only." in text


def test_a_variant_of_a_study():
    study = synthetic(tasks=2, variants=3)
    pair = compare(side_of_variant(study, "reinit"), side_of_variant(study, "standard"))
    assert pair.answer()[0] == "reinit beats standard on both tasks; 0 of 40 runs failed against 16 of 40."
    tuned = side_of_variant(synthetic(tasks=1, variants=2, tuned=True), "mixout")
    assert len(tuned.scores["rte"]) == 20
    with pytest.raises(SteadytuneError, match=r"reports no variant 'renit'\. Did you mean 'reinit'\?"):
        side_of_variant(study, "renit")
    crashed = by_hand({"x": {"a": [0.6, 0.7, 0.8, "crashed"], "b": [0.7, 0.75, 0.9, "pending"]}})
    told = compare(side_of_variant(crashed, "a"), side_of_variant(crashed, "b")).answer()
    assert told[-1] == "1 trial crashed and is left out."


def test_hostile_names_stay_names():
    study = synthetic(tasks=2, variants=10, seeds=4, hostile=True)
    names = list(study.variants)
    for first, second in zip(names, names[1:] + names[:1]):
        pair = compare(side_of_variant(study, first), side_of_variant(study, second), draws=200)
        text = as_text(pair.render())
        assert "\x1b" not in text
        text.encode()
        assert len(text) < 10_000
    with pytest.raises(SteadytuneError) as refused:
        side_of_variant(study, "\x1b" + "x" * 100_000)
    assert len(str(refused.value)) < 2000


def saved(folder, **changes):
    made = record(**changes)
    folder.mkdir()
    (folder / "fit.json").write_text(json.dumps(made.to_data()), encoding="utf-8")
    return folder


def test_two_fits(tmp_path):
    better = [replace(seed, test=seed.test + 0.08) if seed.finished else seed for seed in record().seeds]
    first = side_of_fit(saved(tmp_path / "a", seeds=tuple(better), name="other name"), "a")
    second = side_of_fit(saved(tmp_path / "b"), "b")
    assert second.scores == {"reviews": {"0": 0.774, "1": 0.795, "2": None, "3": 0.49, "4": 0.801}}
    assert second.levels == {"reviews": 0.51}
    pair = compare(first, second)  # of the same rows, though called differently
    assert pair.tasks == ("other name",)
    assert pair.found["other name"].paired
    assert pair.runs["other name"][1].failed == 2


def test_what_is_refused(tmp_path):
    with pytest.raises(SteadytuneError, match=r"has no fit.json: it is not the output of `steadytune fit`"):
        side_of_fit(tmp_path)
    fine = saved(tmp_path / "fine")
    for number, text in enumerate(("{", "[]", '{"schema": "steadytune fit 1"}', "null")):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "fit.json").write_text(text, encoding="utf-8")
        with pytest.raises(SteadytuneError, match="is damaged"):
            side_of_fit(folder)
    other = tmp_path / "older"
    other.mkdir()
    (other / "fit.json").write_text('{"schema": "steadytune fit 0"}', encoding="utf-8")
    with pytest.raises(SteadytuneError, match="written by another version"):
        side_of_fit(other)
    rows = saved(tmp_path / "rows", fingerprint="ee" * 32)
    with pytest.raises(SteadytuneError, match="not of the same data"):
        compare(side_of_fit(fine), side_of_fit(rows))
    metric = saved(tmp_path / "metric", metric="f1")
    with pytest.raises(SteadytuneError, match="not of the same metric"):
        compare(side_of_fit(fine), side_of_fit(metric))
    with pytest.raises(SteadytuneError, match="have no task in common"):
        compare(side("a", {"x": LOW}), side("b", {"y": LOW}))
