"""The table, the card and the page of a fit, from a record made by hand."""

import html
import io
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import yaml
from rich.console import Console
from scipy import stats as scipy_stats

from fit_records import NASTY, record
from steadytune.report import terminal, words
from steadytune.report.card import code, escape, make_card
from steadytune.report.page import make_figure, make_page, nice_ticks
from steadytune.report.record import BaselineRecord, FitRecord, IntervalRecord, SeedRecord, SplitRecord, Spread
from steadytune.stats.row_bootstrap import row_interval, t_quantile


def printed(renderable, width=100):
    stream = io.StringIO()
    Console(file=stream, width=width).print(renderable)
    return stream.getvalue()


# --- the record


def test_a_record_survives_json():
    made = record()
    again = FitRecord.from_data(json.loads(json.dumps(made.to_data())))
    assert again == made


def test_counts_and_spread():
    made = record()
    assert [seed.seed for seed in made.failed] == [2]
    assert [seed.seed for seed in made.degenerate()] == [3]
    scores = [0.774, 0.795, 0.49, 0.801]  # the diverged seed is counted, not averaged
    spread = made.spread("test")
    assert spread.mean == pytest.approx(np.mean(scores))
    assert spread.std == pytest.approx(np.std(scores, ddof=1))
    assert made.to_data()["summary"]["test"]["n"] == 4
    assert Spread.of([]) == Spread(0, None, None, None, None)
    assert Spread.of([0.5]).std is None


def test_smaller_can_be_better():
    made = record(metric="rmse", greater_is_better=False, baselines=(BaselineRecord("the mean", 1.0, 1.0),))
    assert made.better(0.5, 1.0) is True
    assert made.better(1.0, 1.0) is False
    assert made.better(None, 1.0) is None
    assert "smaller is better" in make_page(made)


# --- the words


def test_the_verdict_says_how_good_how_sure_how_stable():
    first, second, third = words.verdict(record())
    assert first == "Accuracy 0.795 on 150 test rows that no choice was made on (95% interval 0.730 to 0.858)."
    assert "0.510, outside the interval" in second
    assert "1 of 5 seeds diverged" in third
    assert "1 of 5 did not beat the baseline" in third


@pytest.mark.parametrize(
    ("low", "baseline", "said"), [(0.73, 0.75, "cannot tell"), (0.73, 0.8, "no better"), (0.76, 0.75, "has learned")]
)
def test_the_verdict_compares_the_interval_with_the_baseline(low, baseline, said):
    interval = IntervalRecord(low, 0.858, 0.95, "bootstrap", 150)
    made = record(interval=interval, baselines=(BaselineRecord("always 'good'", 0.5, baseline),))
    assert said in " ".join(words.verdict(made))


def test_the_verdict_without_test_rows_or_without_a_model():
    seeds = tuple(SeedRecord(n, "finished", 10, 5, 0.8) for n in range(2))
    told = " ".join(words.verdict(record(seeds=seeds, interval=None, splits=record().splits[:2])))
    assert "it flatters" in told
    assert "nothing can be said about new rows" in told
    failed = tuple(SeedRecord(n, "diverged", 10) for n in range(2))
    assert words.verdict(record(seeds=failed, chosen=None)) == [
        "All 2 seeds failed: the loss became infinite or not a number. No model was kept."
    ]


def test_settings_are_spelled_as_the_command_line_takes_them():
    shown = dict(words.settings(record()))
    assert shown["method"] == "reinit:layers=1"
    assert shown["lr"] == "5e-05"


# --- the terminal


def test_the_table_shows_every_seed_and_the_baseline():
    text = printed(terminal.result(record()))
    for piece in (
        "0.801",
        "0.795",
        "failed: diverged",
        "not above baseline",
        "kept",
        "1 of 5",
        "always 'good'",
        "mean",
    ):
        assert piece in text
    assert "1 of 5 seeds diverged" in printed(terminal.result(record()), 300)


def test_markup_in_names_is_only_text():
    nasty = "[red]x[/red][link=file:///etc]"
    made = record(name=nasty, notes=(nasty,), baselines=(BaselineRecord(nasty, 0.5, 0.5),), recipe_name=nasty)
    assert nasty in printed(terminal.plan(made, 10, nasty), 200)
    assert nasty in printed(terminal.result(made), 200)


# --- the card


def test_the_card_holds_what_was_promised():
    card = make_card(record())
    assert card.startswith("---\n")
    matter = yaml.safe_load(card.split("---\n")[1])
    assert matter["pipeline_tag"] == "text-classification"
    assert matter["base_model"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert matter["model-index"][0]["results"][0]["metrics"] == [{"type": "accuracy", "value": 0.795}]
    for piece in (
        "cd" * 32,
        "ef" * 32,
        "0.730 to 0.858",
        "zhang2021revisiting",
        "reinit:layers=1",
        "| 2 |",
        "diverged",
    ):
        assert piece in card
    assert "Training rows that repeat an earlier one: 3." in card
    assert "earlier split too: 2." in card


def test_the_card_is_inert():
    split = SplitRecord("train", 2, NASTY, "ab" * 32, {NASTY: 2})
    card = make_card(record(name=NASTY, notes=(NASTY,), splits=(split,), model=NASTY, label_column=NASTY))
    assert yaml.safe_load(card.split("\n---\n")[0].removeprefix("---\n"))["model-index"][0]["name"] == NASTY
    body = card.split("\n---\n", 1)[1]
    outside_code = re.sub(r"(`+).*?\1", "", body.replace("\\`", ""), flags=re.DOTALL)
    assert "<script" not in outside_code
    assert "](javascript" not in outside_code.replace("\\]", "")
    for line in body.splitlines():
        if line.startswith("| train"):
            assert len(re.findall(r"(?<!\\)\|", line)) == 6  # five cells: no name opened another


@pytest.mark.parametrize("text", ["a`b", "``", "`", "x | y", "line\nbreak"])
def test_inline_code_cannot_be_left(text):
    made = code(text)
    fence = re.match(r"`+", made)[0]
    assert made.endswith(fence)
    assert fence not in made[len(fence) : -len(fence)]
    assert "\n" not in made


def test_escape_keeps_one_line():
    assert "\n" not in escape("a\nb\u2028c")
    assert escape("a_b*c") == r"a\_b\*c"


# --- the page


class Page(HTMLParser):
    """Tags and attributes of a page, checked for anything that could load or run."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.bad = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag in ("script", "link", "iframe", "img", "object", "embed", "base", "form"):
            self.bad.append(tag)
        for name, value in attributes:
            if name in ("src", "href", "srcset", "action", "style") or name.startswith("on"):
                self.bad.append((tag, name, value))


def test_the_page_is_self_contained():
    text = make_page(record())
    page = Page(text)
    assert not page.bad
    assert page.tags.count("svg") == 1
    assert page.tags.count("circle") == 10
    assert "prefers-color-scheme: dark" in text
    assert "@import" not in text
    assert "url(" not in text


def test_names_on_the_page_are_only_text():
    split = SplitRecord("train", 2, NASTY, NASTY, {NASTY: 2})
    seeds = (SeedRecord(0, "finished", 10, 5, 0.8, 0.7, 0.7, 0.7, 1.0, (NASTY,)),)
    made = record(
        name=NASTY,
        notes=(NASTY,),
        splits=(split,),
        model=NASTY,
        recipe_name=NASTY,
        recipe_about=NASTY,
        versions={NASTY: NASTY},
        seeds=seeds,
        chosen=0,
        baselines=(BaselineRecord(NASTY, 0.5, 0.5),),
    )
    text = make_page(made)
    assert not Page(text).bad
    assert "<script" not in text
    assert "49" not in re.findall(r"<h1>(.*?)</h1>", text)[0]  # {{ 7 * 7 }} was not evaluated
    assert html.unescape(re.findall(r"<h1>(.*?)</h1>", text)[0]) == NASTY


def test_of_many_classes_the_commonest_are_named():
    """All 200 of a file once left one letter's width to the columns beside them."""
    counts = {f"c{number}": 1 + (number == 150) for number in range(200)}
    made = record(splits=(SplitRecord("train", 201, "many.csv", "ab" * 32, counts),))
    for text in (make_page(made), make_card(made)):
        assert "c150" in text
        assert "c199" not in text
        assert "and 188 more" in text


def test_the_figure_places_scores_on_its_axis():
    figure = make_figure(record())
    at = {round(float(label), 6): x for x, label in figure.ticks}
    low, high = min(at), max(at)
    scale = (at[high] - at[low]) / (high - low)
    for mark, seed in zip(figure.marks, record().seeds, strict=True):
        assert mark.validation == pytest.approx(at[low] + scale * (seed.validation - low), abs=0.2)
        assert mark.test == pytest.approx(at[low] + scale * (seed.test - low), abs=0.2)
    assert figure.baseline == pytest.approx(at[low] + scale * (0.51 - low), abs=0.2)
    assert figure.interval[0] < figure.marks[1].test < figure.interval[1]


def test_pages_of_unusual_fits():
    failed = tuple(SeedRecord(n, "diverged", 10) for n in range(3))
    assert "<svg" not in make_page(record(seeds=failed, chosen=None, interval=None))
    one = (SeedRecord(0, "finished", 10, 5, 0.5, None),)
    assert make_page(record(seeds=one, chosen=0, interval=None, baselines=())).count("<circle") == 1


@pytest.mark.parametrize(
    ("low", "high"), [(0.5, 0.83), (0.0, 0.0), (0.5, 0.5), (-0.02, 1.0), (812.0, 1033.0), (1e-7, 2e-7)]
)
def test_ticks_are_round_and_cover_the_range(low, high):
    ticks = nice_ticks(low, high)
    assert ticks[0] <= low
    assert ticks[-1] >= high
    assert 2 <= len(ticks) <= 9
    assert np.diff(ticks) == pytest.approx(ticks[1] - ticks[0])


# --- how sure


@pytest.mark.parametrize("df", [9, 20, 100, 5000])
@pytest.mark.parametrize("tail", [0.025, 0.005, 0.05])
def test_the_t_quantile_is_scipys(df, tail):
    assert t_quantile(tail, df) == pytest.approx(scipy_stats.t.ppf(tail, df), abs=2e-3 if tail < 0.01 else 2e-4)


def test_the_interval_covers_in_simulation():
    """95% intervals for an accuracy of 0.7 on 100 rows; the band allows for 300 simulations."""
    rng = np.random.default_rng(0)
    covered = 0
    for number in range(300):
        right = rng.random(100) < 0.7
        made = row_interval(lambda rows, right=right: right[rows].mean(), 100, draws=400, noise=number, share=True)
        covered += made.low <= 0.7 <= made.high
    assert 0.91 <= covered / 300 <= 0.985


def test_the_interval_is_about_the_usual_one_for_a_mean():
    values = np.random.default_rng(1).normal(size=400)
    made = row_interval(lambda rows: float(values[rows].mean()), 400, draws=4000)
    half = scipy_stats.t.ppf(0.975, 399) * values.std(ddof=1) / 20
    assert (made.low, made.high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.01)
    assert made == row_interval(lambda rows: float(values[rows].mean()), 400, draws=4000)  # no global randomness


def test_an_interval_that_cannot_be_given_says_why():
    assert row_interval(lambda rows: 1.0, 5).low is None
    assert "fewer than 10" in row_interval(lambda rows: 1.0, 5).note
    assert "no spread" in row_interval(lambda rows: 0.3, 50).note
    assert "not finite" in row_interval(lambda rows: float("nan"), 50).note


def test_all_rows_right_has_an_exact_bound():
    exact = scipy_stats.binomtest(60, 60).proportion_ci(0.95, method="exact")
    made = row_interval(lambda rows: 1.0, 60, share=True)
    assert (made.low, made.high) == pytest.approx((exact.low, exact.high))
    none = scipy_stats.binomtest(0, 60).proportion_ci(0.95, method="exact")
    made = row_interval(lambda rows: 0.0, 60, share=True)
    assert (made.low, made.high) == pytest.approx((none.low, none.high))
