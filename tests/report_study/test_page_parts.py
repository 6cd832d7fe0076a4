"""What the page is made of: texts made readable, curves, rows of trials, and how a study was made."""

import re
import unicodedata
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import HOSTILE, synthetic

from steadytune.report.study.curves import HEIGHT, MOST_POINTS, WIDTH, make_curve, make_scale
from steadytune.report.study.made_section import flat_settings, make_made
from steadytune.report.study.readable import LONGEST_ERROR, readable, shortened, shortened_error, visible
from steadytune.report.study.trials_section import MOST_FAILURES, counted, make_trials
from steadytune.study.results import TrialResult

# --- texts


@given(st.text(alphabet=st.characters(), max_size=60) | st.text(alphabet="\x00\x1b\x7f\x85\r\n\t\u202e\u2066\ud800 a"))
def test_everything_is_visible_and_can_be_encoded(text):
    shown = visible(text)
    shown.encode("utf-8")
    assert not [c for c in shown if unicodedata.category(c) == "Cc" and c not in "\t\n"]
    assert not set(shown) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def test_plain_text_stays_as_it_is():
    assert visible("lr: 2e-5\n\tשלום é 漢 😀") == "lr: 2e-5\n\tשלום é 漢 😀"
    assert visible("a\x00b\x1b") == "a␀b␛"


def test_long_texts_tell_their_length():
    assert shortened("a" * 100, 100) == "a" * 100
    assert shortened("a" * 1_000_000, 100) == "a" * 75 + "… (1,000,000 characters)"
    error = "Traceback\n" + "x" * 1_000_000 + "\nRuntimeError: the end"
    told = shortened_error(error)
    assert told.startswith("Traceback")
    assert told.endswith("RuntimeError: the end")
    assert "characters left out" in told
    assert len(told) < LONGEST_ERROR


def test_a_readable_study_keeps_its_parts_together():
    made = synthetic(tasks=8, variants=10, seeds=3, hostile=True, tuned=True)
    shown = readable(made)
    assert len(shown.tasks) == len(made.tasks)
    assert len(shown.variants) == len(made.variants)
    assert all(name == info.name for name, info in shown.tasks.items())
    assert all(name == variant.name for name, variant in shown.variants.items())
    assert all(trial.task in shown.tasks and trial.variant in shown.variants for trial in shown.trials)
    assert [shown.score(trial) for trial in shown.trials] == [made.score(trial) for trial in made.trials]
    assert [len(trials) for trials in shown.reported.values()] == [len(trials) for trials in made.reported.values()]
    assert shown.baseline in shown.variants
    assert {task for task, _ in shown.chosen} <= shown.tasks.keys()
    assert max(len(name) for name in [*shown.tasks, *shown.variants]) < 100


def test_names_that_begin_alike_stay_apart():
    made = synthetic(variants=2)
    first, second = ("x" * 1_000_000 + end + "x" * 1_000_000 for end in "ab")
    rename = dict(zip(made.variants, (first, second)))
    variants = {
        rename[name]: replace(each, name=rename[name], family=rename[name]) for name, each in made.variants.items()
    }
    trials = [replace(trial, variant=rename[trial.variant]) for trial in made.trials]
    shown = readable(replace(made, variants=variants, trials=trials, baseline=first))
    assert len(shown.variants) == 2
    assert len({trial.variant for trial in shown.trials}) == 2


# --- curves


def trial(history, **changes):
    plan = {"task": "t", "variant": "v", "phase": "report", "streams": {"init": 0, "order": 0, "noise": 0}}
    return TrialResult("k", **plan, recipe={}, status="finished", history=history, **changes)


def pixels(path):
    """Where a path goes, from its own words: M x y, then steps relative to the point before."""
    x, y, *steps = map(int, re.findall(r"-?\d+", path))
    found = [(x, y)]
    for dx, dy in zip(steps[::2], steps[1::2]):
        found.append((found[-1][0] + dx, found[-1][1] + dy))
    return found


finite = st.floats(-1e6, 1e6, allow_nan=False)


@given(st.lists(finite | st.none() | st.just(float("nan")) | st.just(float("inf")), max_size=300))
def test_a_curve_stays_in_its_box(values):
    history = [{"step": 10 * k, "validation": value} for k, value in enumerate(values, start=1)]
    one = trial(history, steps=10 * len(values))
    scale = make_scale([one])
    known = [value for value in values if value is not None and abs(value) < float("inf")]
    if not known:
        assert scale is None
        return
    curve = make_curve(one, scale)
    points = pixels(curve.path)
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points)
    assert all(before[0] <= after[0] for before, after in pairwise(points))
    assert 2 <= len(points) <= MOST_POINTS + 4


def test_a_curve_is_drawn_where_its_numbers_are():
    one = trial([{"step": 50, "validation": 0.0}, {"step": 100, "validation": 1.0}], steps=100)
    scale = make_scale([one], level=0.5)
    assert pixels(make_curve(one, scale).path) == [(48, 22), (94, 2)]
    assert scale.level == "M0 12h96"
    assert make_curve(one, scale).told == "0.000 to 1.000 in 100 steps"
    assert make_scale([one], level=2.0).level == ""


def test_a_collapse_between_two_points_is_kept():
    values = [0.9] * 500
    values[251] = 0.1
    one = trial([{"step": k, "validation": value} for k, value in enumerate(values)], steps=500)
    other = trial([{"step": 1, "validation": value} for value in (0.0, 1.0)] * 50, steps=500)
    assert max(y for _, y in pixels(make_curve(one, make_scale([one, other])).path)) > 18


def test_the_training_loss_stands_in_for_scores():
    one = trial([{"step": 1, "train_loss": 0.5, "validation": None}])
    assert make_scale([one]).shown == "train_loss"
    assert make_curve(one, make_scale([one])) is not None


# --- trials


def test_every_trial_has_a_row():
    made = synthetic(tasks=3, variants=3, seeds=7, crashed=0.1, unfinished=0.2)
    section = make_trials(made)
    assert sum(len(part.rows) for part in section.tasks) == len(made.trials)
    assert not section.tuned
    for part in section.tasks:
        ended = [row for row in part.rows if row.status == "finished"]
        assert all(row.curve and row.seconds != "–" for row in ended)
        assert all(row.failure == 1 for row in part.rows if row.status == "crashed")
    assert make_trials(synthetic(variants=3, tuned=True)).tuned


def test_runs_that_learned_nothing_are_marked_in_either_direction():
    made = synthetic(tasks=4, variants=1, seeds=20)  # 8 of 20 do not beat the level; one of them diverged
    for part in make_trials(made).tasks:
        assert [row.look for row in part.rows].count("degenerate") == 7
        assert [row.look for row in part.rows].count("diverged") == 1


def test_equal_tracebacks_are_shown_once():
    made = synthetic(tasks=1, variants=1, seeds=MOST_FAILURES * 2 + 10)
    trials = [
        replace(each, status="failed", error=f"Traceback (most recent call last):\nKeyError: {max(k, 9)}")
        for k, each in enumerate(made.trials)
    ]
    section = make_trials(replace(made, trials=trials))
    assert len(section.failures) == MOST_FAILURES
    assert section.failures[0].happened == "KeyError: 9"
    assert len(section.failures[0].trials) == 10
    assert section.failures_left_out == MOST_FAILURES + 1
    rows = section.tasks[0].rows
    assert rows[0].failure == 1
    assert rows[-1].failure is None
    assert rows[-1].remark == f"KeyError: {len(trials) - 1}"


def test_counted():
    made = synthetic(tasks=1, variants=1, seeds=20)
    assert counted(made.trials) == "19 finished, 1 diverged"
    assert counted([]) == ""


# --- how it was made


def test_versions_that_differ_are_counted():
    made = synthetic(tasks=1, variants=1, seeds=4)
    first = replace(made.trials[0], versions={"torch": "2.11", "device": "H200"})
    versions = dict(make_made(replace(made, trials=[first, *made.trials[1:]])).versions)
    assert versions["torch"] == "2.13.0 (3 trials), 2.11 (1 trials)"
    assert versions["python"] == "3.12.0"


def test_recipes_are_told_by_what_differs():
    made = synthetic(tasks=2, variants=2, seeds=2)
    base = {"lr": 2e-5, "clip": 1.0, "patience": None, "methods": [{"method": "adamw", "eps": 1e-6, "x": None}]}
    other = {"lr": 1e-4, "clip": 0.0, "patience": None, "methods": [{"method": "adamw", "eps": 1e-6}, {"method": "r"}]}
    task = next(iter(made.tasks))
    trials = [
        replace(each, recipe=other if each.variant == "mixout" and each.task == task else base) for each in made.trials
    ]
    section = make_made(replace(made, trials=trials))
    assert dict(section.whole) == {"lr": "2e-05", "clip": "1", "method adamw": "eps=1e-06"}
    assert [(each.variant, each.tasks) for each in section.recipes] == [
        ("standard", ""),
        ("mixout", "rte"),
        ("mixout", "cola"),
    ]
    assert section.recipes[0].settings == section.recipes[2].settings == []
    assert dict(section.recipes[1].settings) == {"lr": "0.0001", "method r": "as it is", "clip": "off"}


@pytest.mark.parametrize("name", HOSTILE)
def test_odd_recipes_do_no_harm(name):
    flat = flat_settings(
        {name: name, "methods": [{"method": name, name: name}, {"method": name}, name, 7], "x": {1: name}}
    )
    assert all(len(key) + len(value) < 1_000 for key, value in flat.items())
    assert make_made(replace(synthetic(), trials=[])).whole == []
