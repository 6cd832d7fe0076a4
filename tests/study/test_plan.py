"""Planning: a pure function whose rows are the same every time, and choices made on validation."""

import hashlib
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steadytune.rng import Streams
from steadytune.study.file import load_study
from steadytune.study.plan import Ended, plan
from steadytune.study.results import TaskInfo
from steadytune.tasks.base import Baseline

TUNED = """\
study: s
tasks: {one: {acceptability: 50}, two: {acceptability: 60}}
variants: {plain: {}, mixout: {add: [{method: mixout}]}}
sweep: {lr: [1e-5, 2e-5, 4e-5]}
seeds: 4
choose: {seeds: 2}
"""


def study(tmp_path, text):
    (tmp_path / "s.yaml").write_text(text)
    return load_study(tmp_path / "s.yaml")


def infos(made, greater=True, level=0.5):
    return {
        name: TaskInfo(
            name, "accuracy", greater, {"train": 50}, Baseline("majority", level, level), f"data of {name}", "x"
        )
        for name in made.tasks
    }


def test_planning_twice_gives_the_same_rows(tmp_path):
    text = TUNED.replace("choose: {seeds: 2}\n", "")
    first, second = study(tmp_path, text), study(tmp_path, text)
    rows = plan(first, infos(first)).rows()
    assert rows == plan(second, infos(second)).rows()
    assert len(rows) == 2 * 6 * 4
    swapped = "mixout: {add: [{method: mixout}]}, plain: {}"
    reordered = study(tmp_path, text.replace("plain: {}, mixout: {add: [{method: mixout}]}", swapped))
    assert {key for key, _, _ in plan(reordered, infos(reordered)).rows()} == {key for key, _, _ in rows}


def test_key_is_the_hash_of_canonical_content(tmp_path):
    made = study(tmp_path, TUNED)
    for trial in plan(made, infos(made)).trials:
        content = json.loads(trial.content)
        assert json.dumps(content, sort_keys=True, separators=(",", ":")) == trial.content
        assert hashlib.sha256(trial.content.encode()).hexdigest() == trial.key
        assert Streams(**content["streams"]) == trial.streams
        assert json.loads(trial.spec())["content"] == content
        assert json.loads(trial.spec())["variant"] == trial.variant


def test_other_data_is_another_trial(tmp_path):
    made = study(tmp_path, TUNED)
    before = {key for key, _, _ in plan(made, infos(made)).rows()}
    changed = {name: TaskInfo(**{**vars(info), "fingerprint": "other"}) for name, info in infos(made).items()}
    assert before.isdisjoint(key for key, _, _ in plan(made, changed).rows())


def test_variants_of_equal_content_share_their_runs(tmp_path):
    made = study(
        tmp_path,
        "study: s\ntasks: {one: {acceptability: 50}}\nvariants: {a: {}, b: {lr: 2e-5}, c: {lr: 3e-5}}\nseeds: 5\n",
    )
    planned = plan(made, infos(made))
    assert len(planned.trials) == 15
    assert len(planned.rows()) == 10


def ended(planned, score, status="finished"):
    return {t.key: Ended(status, score(t)) for t in planned.trials if t.phase == "choose"}


def test_a_choice_is_made_on_validation_and_then_reported(tmp_path):
    made = study(tmp_path, TUNED)
    first = plan(made, infos(made))
    assert {t.phase for t in first.trials} == {"choose"}
    assert len(first.trials) == 2 * 2 * 3 * 2
    assert (len(first.waiting), first.unplanned) == (4, 16)
    second = plan(made, infos(made), ended(first, lambda t: -abs(t.recipe.lr - (2e-5 if t.task == "one" else 4e-5))))
    assert second.trials[: len(first.trials)] == first.trials
    assert second.waiting == []
    assert second.chosen == {
        ("one", "plain"): "plain, lr=2e-05",
        ("two", "plain"): "plain, lr=4e-05",
        ("one", "mixout"): "mixout, lr=2e-05",
        ("two", "mixout"): "mixout, lr=4e-05",
    }
    reported = [t for t in second.trials if t.phase == "report"]
    assert len(reported) == 16
    assert {(t.variant, t.task, t.recipe.lr) for t in reported} == {
        (v, task, lr) for v in ("plain", "mixout") for task, lr in (("one", 2e-5), ("two", 4e-5))
    }
    assert len(second.rows()) == len(first.trials) + 16 - 8  # two of four seeds of the chosen were run already


def test_smaller_is_better_for_perplexity(tmp_path):
    made = study(tmp_path, TUNED)
    first = plan(made, infos(made))
    second = plan(made, infos(made, greater=False), {t.key: Ended("finished", t.recipe.lr) for t in first.trials})
    assert second.chosen["one", "plain"] == "plain, lr=1e-05"


def test_diverged_runs_count_and_crashed_ones_do_not(tmp_path):
    made = study(tmp_path, TUNED)
    first = plan(made, infos(made))

    def result(trial):
        if trial.recipe.lr == 4e-5:  # 0.9 and diverged: 0.7 with the baseline's 0.5
            return Ended("finished", 0.9) if trial.streams.init == 0 else Ended("diverged")
        if trial.recipe.lr == 2e-5:  # 0.72 twice
            return Ended("finished", 0.72)
        return Ended("finished", 0.6) if trial.streams.init == 0 else Ended("failed")

    second = plan(made, infos(made), {t.key: result(t) for t in first.trials})
    assert set(second.chosen.values()) == {"plain, lr=2e-05", "mixout, lr=2e-05"}
    crashed = plan(made, infos(made), {t.key: Ended("failed") for t in first.trials})
    assert (len(crashed.hopeless), crashed.waiting, crashed.chosen) == (4, [], {})


@given(st.sets(st.integers(0, 23)))
def test_nothing_is_chosen_before_all_candidates_have_ended(tmp_path_factory, missing):
    made = study(tmp_path_factory.mktemp("s"), TUNED)
    first = plan(made, infos(made))
    known = {t.key: Ended("finished", 0.6) for number, t in enumerate(first.trials) if number not in missing}
    second = plan(made, infos(made), known)
    incomplete = {(t.task, t.variant.partition(",")[0]) for n, t in enumerate(first.trials) if n in missing}
    assert set(second.waiting) == incomplete
    assert set(second.chosen) == {(task, v) for task in ("one", "two") for v in ("plain", "mixout")} - incomplete


def test_grid_of_streams(tmp_path):
    made = study(
        tmp_path, "study: s\ntasks: {one: {acceptability: 50}}\nvariants: {a: {}}\nseeds: {init: 3, order: 4}\n"
    )
    streams = [t.streams for t in plan(made, infos(made)).trials]
    assert len(set(streams)) == 12
    assert {(s.init, s.order) for s in streams} == {(i, j) for i in range(3) for j in range(4)}


def test_ten_thousand_trials_are_planned_in_seconds(tmp_path):
    made = study(tmp_path, TUNED.replace("seeds: 4", "seeds: 850").replace("choose: {seeds: 2}\n", ""))
    start = time.perf_counter()
    rows = plan(made, infos(made)).rows()
    assert len(rows) == 10_200
    assert time.perf_counter() - start < 5


def test_a_name_may_be_anything(tmp_path):
    hostile = '"<script>alert(1)</script>"'
    made = study(tmp_path, TUNED.replace("plain", hostile).replace("one:", f"{hostile}:"))
    (spec, *_) = (t.spec() for t in plan(made, infos(made)).trials)
    assert json.loads(spec)["task"] == "<script>alert(1)</script>"
    with pytest.raises(json.JSONDecodeError):
        json.loads(spec + "}")
