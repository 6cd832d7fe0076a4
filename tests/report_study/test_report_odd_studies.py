"""Whatever a study holds, the report says something true and breaks nowhere."""

import csv
import io
import math
from xml.etree import ElementTree

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import by_hand

from steadytune.report.study.answer import answer
from steadytune.report.study.comparisons import compare_all
from steadytune.report.study.figures import figures
from steadytune.report.study.tables import tables

outcomes = st.one_of(
    st.floats(-2, 2).map(lambda value: round(value, 2)),
    st.sampled_from([0.5, 0.5, None, "crashed", "pending"]),
    st.just(math.nan),
)
lines = st.dictionaries(st.sampled_from(["a", "b", "c, x=1"]), st.lists(outcomes, max_size=5), max_size=3)
studies = st.builds(
    by_hand,
    st.dictionaries(st.sampled_from(["rte", "cola"]), lines, max_size=2),
    levels=st.sampled_from([0.5, 0.0, None, -1.0]),
    greater_is_better=st.booleans(),
    split=st.sampled_from(["test", "validation"]),
)


@settings(max_examples=60, deadline=None)
@given(studies)
def test_words_and_tables_of_any_study(study):
    compared = compare_all(study)
    for each in compared.against.values():
        if min(each.n) < 3:
            assert each.verdict == each.steadier == each.fails_less == "undecided"
        if each.verdict in ("better", "worse"):
            assert each.t_test.p < 0.05
            assert (each.improvement > 0) == (each.verdict == "better")
    for (task, line), runs in compared.runs.items():
        trials = study.reported.get((task, line), ())
        statuses = [trial.status for trial in trials]
        assert runs.planned == len(trials)
        assert runs.crashed == statuses.count("failed")
        assert runs.n == statuses.count("finished") + statuses.count("diverged")
        assert 0 <= runs.failed <= runs.n
        if compared.mark(task, line) in ("best", "equivalent"):
            assert runs.n >= 3
    for sentence in answer(compared).sentences():
        assert sentence.endswith(".")
        assert "nan" not in sentence.replace("nance", "")
    for table in tables(compared):
        assert all(len(row) == len(table.columns) for row in table.rows)
        parsed = list(csv.reader(io.StringIO(table.csv())))
        assert len({len(row) for row in parsed}) == 1
        assert "nan" not in table.csv().lower().replace("nance", "")
        table.markdown()
        table.latex()


@settings(max_examples=12, deadline=None)
@given(studies)
def test_figures_of_any_study(study):
    for figure in figures(compare_all(study)):
        ElementTree.fromstring(figure.svg())


def test_a_score_that_is_no_number_counts_as_diverged():
    for greater in (True, False):
        compared = compare_all(by_hand({"x": {"a": [math.nan, 0.1, 0.2]}}, levels=None, greater_is_better=greater))
        assert compared.runs["x", "a"].diverged == 1
        assert {figure.name for figure in figures(compared)} == {"distribution", "best-of-n"}
        for figure in figures(compared):
            figure.svg()


def test_constant_scores_and_one_seed():
    for values in ([0.5], [0.5] * 6, [None] * 6, [0.7, 0.7, 0.7]):
        study = by_hand({"x": {"a": values, "b": values}})
        compared = compare_all(study)
        assert all(each.verdict == "undecided" for each in compared.against.values())
        assert np.isfinite(compared.runs["x", "a"].summary.mean)
        for figure in figures(compared):
            figure.svg()
