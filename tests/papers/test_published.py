"""The published numbers agree with themselves: sums, whole tables, and what papers print twice."""

import re
from itertools import product

import pytest

from steadytune.errors import SteadytuneError
from steadytune.papers.catalogue import PAPERS
from steadytune.papers.published import COLUMNS, available, load, parse

# id -> how many numbers, and their sum as printed: a slip of a key in a file shows here.
SUMS = {
    "few-sample/figure-2": (1, 48.0),
    "few-sample/figure-4": (3, 1015.0),
    "few-sample/figure-9": (135, 10066.62),
    "few-sample/table-1": (96, 3704.8),
    "few-sample/table-2": (64, 2566.2),
    "few-sample/table-3": (40, 1005754.8),
    "few-sample/table-4": (16, 632.8),
    "few-sample/table-5": (8, 347.1),
    "few-sample/table-6": (72, 27216.60051),
    "few-sample/table-7": (64, 2783.6),
    "mixout/figure-2": (5, 1.935),
    "mixout/figure-3": (7, 17.0),
    "mixout/figure-4": (2, 19.0),
    "mixout/figure-6": (6, 8.0),
    "mixout/supplement-e": (3, 1511.5),
    "mixout/table-1": (88, 6623.7),
    "mixout/table-2": (4, 375.2),
    "mixout/table-3": (32, 2464.7),
    "mixout/table-4": (12, 917.2),
    "rdrop/figure-2": (8, 12414.92),
    "rdrop/section-c2": (3, 106.82),
    "rdrop/table-1": (49, 347554.30008),
    "rdrop/table-2": (16, 1414.03),
    "rdrop/table-3": (11, 353.88),
    "rdrop/table-4": (6, 339.9),
    "rdrop/table-5": (24, 686.85),
    "rdrop/translation": (6, 218.05),
}

SMALL = "RTE MRPC STS-B CoLA"
TASKS_12 = f"{SMALL} RTE_(1k) MRPC_(1k) STS-B_(1k) CoLA_(1k) SST_(1k) QNLI_(1k) QQP_(1k) MNLI_(1k)"
# id -> how many rows; the columns, settings and statistics of each (names separated by blanks, blanks by _).
SHAPES = {
    "mixout/table-1": (11, SMALL, "", "mean max"),
    "mixout/table-2": (2, "SST-2", "", "mean max"),
    "mixout/table-3": (4, SMALL, "", "mean max"),
    "mixout/table-4": (3, SMALL, "", "value"),
    "few-sample/table-1": (2, TASKS_12, "3_epochs longer", "mean std"),
    "few-sample/table-2": (8, SMALL, "", "mean std"),
    "few-sample/table-3": (5, f"{SMALL} SST-2 QNLI QQP MNLI", "", "value"),
    "few-sample/table-4": (2, SMALL, "", "mean std"),
    "few-sample/table-5": (2, "MNLI", "dev test", "mean std"),
    "few-sample/table-7": (2, SMALL, "XLNet RoBERTa ELECTRA BART", "mean std"),
    "rdrop/table-2": (1, "MRPC SST-2 MNLI QNLI", "α=0.1 α=0.5 α=1.0 α=1.5", "value"),
    "rdrop/table-4": (3, "CIFAR-100 IWSLT14_De-En", "", "value"),
    "rdrop/table-5": (4, "IWSLT14_De-En", "1_model 2_models 3_models 4_models 5_models 6_models", "value"),
}


def value(id, row, column, setting="", statistic="mean"):
    found = load(id).find(row, column, setting, statistic)
    assert found is not None, (id, row, column, setting, statistic)
    return found.value


def names(text):
    return [name.replace("_", " ") for name in text.split()] or [""]


def test_every_file_has_its_source_and_sum():
    assert set(available()) == set(SUMS)
    for id, (count, total) in SUMS.items():
        published = load(id)
        assert published.source == PAPERS[id.partition("/")[0]].citation
        kind, _, number = id.partition("/")[2].partition("-")
        assert kind not in ("table", "figure") or published.place.startswith(f"{kind.title()} {number}"), id
        assert published.about
        assert len(published.numbers) == count, id
        assert sum(number.value for number in published.numbers) == pytest.approx(total, abs=1e-9), id


@pytest.mark.parametrize("id", SHAPES)
def test_tables_are_whole(id):
    rows, columns, settings, statistics = SHAPES[id]
    published = load(id)
    assert len(published.rows()) == rows
    wanted = set(product(published.rows(), names(columns), names(settings), names(statistics)))
    assert {(n.row, n.column, n.setting, n.statistic) for n in published.numbers} == wanted


def test_published_tables_agree_with_each_other():
    table_1, heads = load("mixout/table-1"), load("mixout/table-3")
    for task, statistic in product(names(SMALL), ("mean", "max")):
        best = max(n.value for n in table_1.numbers if (n.column, n.statistic) == (task, statistic))
        assert value("mixout/table-3", "best of table 1", task, "", statistic) == best
        mixout = value("mixout/table-1", "mixout(w_pre, 0.7)", task, "", statistic)
        assert value("mixout/table-3", "head: none", task, "", statistic) == mixout
    assert all(
        value(heads.id, row, task, "", "max") >= value(heads.id, row, task)
        for row in heads.rows()
        for task in names(SMALL)
    )
    # "49.2% increase over 38.8": section 5, page 7
    rise = (
        value("mixout/table-1", "mixout(w_pre, 0.8)", "CoLA") / value("mixout/table-1", table_1.rows()[0], "CoLA") - 1
    )
    assert round(100 * rise, 1) == 49.2
    seconds = [value("mixout/supplement-e", row, "RTE", "", "value") for row in ("mixout(w_pre, p)", "dropout(p)")]
    assert round(100 * (seconds[0] / seconds[1] - 1), 1) == value(
        "mixout/supplement-e", "mixout(w_pre, p)", "RTE", "", "overhead"
    )


def test_few_sample_tables_agree_but_for_two_cells():
    """Table 2 says that it copies from table 1; D11 names the two cells where it does not."""
    copies = {
        "Standard": ("Standard", "3 epochs"),
        "Re-init": ("Re-init", "3 epochs"),
        "Longer": ("Standard", "longer"),
    }
    apart = {
        (row, task)
        for row, (old, setting) in copies.items()
        for task in names(SMALL)
        for statistic in ("mean", "std")
        if value("few-sample/table-2", row, task, "", statistic)
        != value("few-sample/table-1", old, task, setting, statistic)
    }
    assert apart == {("Re-init", "CoLA"), ("Longer", "MRPC")}


def test_figure_9_agrees_with_its_margins():
    figure = load("few-sample/figure-9")
    for number in figure.numbers:
        if number.statistic != "mean":  # accuracies of 138 rows
            assert round(100 * round(number.value * 1.38) / 138, 2) == number.value, number
    whole = [i for i in range(10) if figure.find("Re-init 5", "order 0", f"init {i}", "value")]
    assert len(whole) == 7
    margins = {
        s: [value(figure.id, "Re-init 5", "every order", f"init {i}", s) for i in range(10)]
        for s in ("min", "mean", "max")
    }
    for i in whole:
        cells = [value(figure.id, "Re-init 5", f"order {j}", f"init {i}", "value") for j in range(10)]
        assert (min(cells), max(cells)) == (margins["min"][i], margins["max"][i])
        assert sum(cells) / 10 == pytest.approx(margins["mean"][i], abs=0.011)
    everywhere = {s: value(figure.id, "Re-init 5", "every order", "every init", s) for s in margins}
    assert (min(margins["min"]), max(margins["max"])) == (everywhere["min"], everywhere["max"])
    columns = [value(figure.id, "Re-init 5", f"order {j}", "every init") for j in range(10)]
    for means in (margins["mean"], columns):
        assert sum(means) / 10 == pytest.approx(everywhere["mean"], abs=0.011)
    # the margins of the margins, as printed: 72.10 and 76.52
    assert [sum(margins[s]) / 10 for s in ("min", "max")] == pytest.approx([72.10, 76.52], abs=0.011)
    for row in ("Standard", "Re-init 5"):
        tops = [value(figure.id, row, f"order {j}", "every init", "max") for j in range(10)]
        assert max(tops) == value(figure.id, row, "every order", "every init", "max")


def test_rdrop_tables_agree_with_each_other():
    iwslt = "IWSLT14 De-En"
    best = {
        value(id, "R-Drop", iwslt, "", "value")
        for id in ("rdrop/table-4", "rdrop/figure-2", "rdrop/section-c2", "rdrop/translation")
    }
    assert best == {37.25}
    singles = {row: value("rdrop/table-5", row, iwslt, "1 model", "value") for row in load("rdrop/table-5").rows()}
    assert [*singles.values()] == [value("rdrop/table-4", "Baseline", iwslt, "", "value")] * 3 + [37.25]
    assert value("rdrop/figure-2", "Double batch", iwslt, "", "value") == value(
        "rdrop/section-c2", "NLL only", iwslt, "", "value"
    )


def test_percent_is_scaled_to_what_is_measured():
    assert load("mixout/table-1").find("mixout(w_pre, 0.7)", "RTE").scaled == pytest.approx(0.616)
    assert load("rdrop/table-5").numbers[0].scaled == 34.78
    assert load("rdrop/figure-2").find("R-Drop", "time per step", "", "value").scaled == pytest.approx(0.010)
    assert load("few-sample/table-1").find("Standard", "RTE", "never", "mean") is None


def test_quotations_are_short():
    for id in available():
        for number in load(id).numbers:
            assert all(len(quoted.split()) < 25 for quoted in re.findall(r"'([^']+)'", number.note)), number


HEAD = ["# source: a", "# place: b", "# about: c", ",".join(COLUMNS)]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (HEAD[1:], "exactly one line '# source"),
        ([*HEAD[:3], "row,column"], "must have the columns"),
        ([*HEAD, "a,b,,mean,x,percent,"], "line 5: 'x' is not a number"),
        ([*HEAD, "a,b,,mean,nan,percent,"], "line 5: 'nan' is not a number"),
        ([*HEAD, "a,b,,mean,1,procent,"], "Did you mean 'percent'"),
        ([*HEAD, "a,b,,mean,1"], "line 5: there must be 7 cells"),
        ([*HEAD, "a,b,,mean,1,percent,,more"], "line 5: there must be 7 cells"),
        ([*HEAD, "a,b,,mean,1,percent,", "a,b,,mean,2,percent,"], "a, b, mean twice"),
    ],
)
def test_a_bad_file_is_refused_in_a_sentence(lines, says):
    with pytest.raises(SteadytuneError, match=re.escape(says)):
        parse("some/table", lines)


def test_an_unknown_id_is_refused_with_the_nearest():
    with pytest.raises(SteadytuneError, match="Did you mean 'mixout/table-1'"):
        load("mixout/table_1")
    with pytest.raises(SteadytuneError, match="no published numbers"):
        load("../errors")
