"""The answer in words: the sentences of small studies, word for word."""

import re
from dataclasses import replace

import pytest
from synthetic import by_hand, synthetic

from steadytune.report.study.answer import answer
from steadytune.report.study.comparisons import compare_all
from steadytune.report.study.naming import clean, listed, short, short_names, signed, spread

LOW = [0.60, 0.61, 0.62, 0.60, 0.63, 0.61, 0.62, 0.64]
HIGH = [0.71, 0.70, 0.74, 0.72, 0.73, 0.70, 0.71, 0.75]
MIDDLE = [0.61, 0.60, 0.62, 0.61, 0.62, 0.62, 0.61, 0.65]


def said(study):
    return answer(compare_all(study))


def test_a_clear_winner_on_several_tasks():
    shaky = [0.4, 0.61, None, 0.60, 0.45, 0.61, 0.62, 0.44]
    found = said(by_hand({task: {"standard": shaky, "re-init 5": HIGH} for task in ("rte", "cola")}))
    assert found.headline == "re-init 5 beats standard on 2 of 2 tasks; 0 of 16 runs failed against 8 of 16."
    assert "Best mean: re-init 5 on rte (accuracy 0.720 ± 0.019); re-init 5 on cola" in found.further[0]
    assert found.further[1] == (
        "Runs of re-init 5 spread less on 2 of 2 tasks (Brown-Forsythe test) than those of standard."
    )


def test_one_task_is_told_with_its_numbers():
    found = said(by_hand({"rte": {"standard": LOW, "re-init 5": HIGH, "mixout": [v - 0.001 for v in reversed(HIGH)]}}))
    assert found.headline == (
        "re-init 5 beats standard on rte (accuracy 0.720 ± 0.019 against 0.616 ± 0.014, n = 8 each); "
        "0 of 8 runs failed against 0 of 8."
    )
    assert found.further[0] == "mixout beats standard too."
    assert "not shown to be better than mixout" in found.further[1]


def test_nobody_wins_and_it_says_what_it_would_take():
    found = said(by_hand({"rte": {"standard": LOW, "mixout": MIDDLE}}))
    assert found.headline.startswith(
        "mixout is not shown to beat standard on rte (accuracy 0.617 ± 0.015 against 0.616"
    )
    last = found.further[-1]
    match = re.fullmatch(
        r"On rte the difference between mixout and standard \(\+0\.001\) may be chance: if it is as large as it looks, "
        r"about ([\d,]+) seeds would show it \(8 now\)\.",
        last,
    )
    assert match, last
    assert int(match[1].replace(",", "")) > 8
    several = said(by_hand({task: {"standard": LOW, "a": MIDDLE, "b": MIDDLE[::-1]} for task in ("x", "y")}))
    assert several.headline.startswith("No variant is shown to beat standard on any of 2 tasks; 0 of 16 runs of ")


def test_a_loser_is_called_so():
    alone = said(by_hand({"rte": {"standard": HIGH, "mixout": LOW}}))
    assert alone.headline.startswith("mixout is not shown to beat standard on rte (")
    assert ", and is worse on rte; " in alone.headline
    mixed = {"rte": {"standard": LOW, "mixout": HIGH}, "cola": {"standard": HIGH, "mixout": LOW}}
    mixed |= {"mrpc": {"standard": LOW, "mixout": HIGH}}
    found = said(by_hand(mixed))
    assert found.headline.startswith("mixout beats standard on 2 of 3 tasks and loses on cola; ")


def test_lower_is_better_comes_out_right():
    study = by_hand(
        {"wiki": {"standard": [40.0, 41.0, 42.0, 40.5], "longer": [30.0, 30.5, 29.5, 31.0]}},
        levels=60.0,
        greater_is_better=False,
        metric="perplexity",
    )
    assert said(study).headline == (
        "longer beats standard on wiki (perplexity 30.25 ± 0.65 against 40.88 ± 0.85, n = 4 each); "
        "0 of 4 runs failed against 0 of 4."
    )


@pytest.mark.parametrize(
    ("study", "headline"),
    [
        (synthetic(tasks=0, variants=0), "Nothing can be said: the study has no trials."),
        (synthetic(unfinished=1.0), "Nothing can be said yet: none of 120 trials has ended."),
        (by_hand({"x": {"a": ["pending"]}}), "Nothing can be said yet: none of 1 trial has ended."),
        (synthetic(crashed=1.0), "Nothing can be said: all 120 trials that ended crashed."),
        (by_hand({"x": {"a": ["crashed"]}}), "Nothing can be said: the only trial that ended crashed."),
        (
            by_hand({"x": {"a": [0.6, 0.7], "b": [0.8, 0.9]}}),
            "Nothing can be said yet about what beats a: nothing is called significant from fewer than 3 runs, and "
            "here it is 2.",
        ),
        (
            by_hand({"x": {"a": [0.6] * 4, "b": [0.6] * 4}}),
            "Nothing can be said yet about what beats a: the runs do not vary in a way that a test could weigh.",
        ),
        (by_hand({"x": {"a": [0.6]}}), "a scores accuracy 0.600 on x (0 of 1 run failed)."),
    ],
)
def test_where_nothing_can_be_said_that_is_said(study, headline):
    assert said(study).headline == headline


def test_what_is_unfinished_or_crashed_or_only_validation_is_said():
    study = by_hand({"rte": {"standard": [*LOW, "crashed"], "mixout": [*HIGH, "pending"]}})
    assert said(study).further[-1] == (
        "1 of 18 trials crashed and is left out; 1 of 18 trials has not ended, so these numbers will change."
    )
    on_validation = said(by_hand({"rte": {"standard": LOW, "mixout": HIGH}}, split="validation"))
    assert on_validation.further[-1] == (
        "All scores are from validation, where each run's best step was chosen, so they flatter."
    )
    one = said(synthetic(without_test=[0]))
    assert any(sentence.startswith("rte has no test rows: its scores are from validation") for sentence in one.further)


def test_only_tuning_trials_so_far():
    study = synthetic(tasks=1, variants=2, tuned=True)
    only = [trial for trial in study.trials if trial.phase == "choose"]
    assert (
        said(replace(study, trials=only, chosen={})).headline
        == "Nothing can be said yet: only tuning trials have ended so far."
    )


@pytest.mark.parametrize("settings", [{}, {"tasks": 8, "variants": 12}, {"tasks": 4, "variants": 5, "swept": True}])
def test_an_answer_is_a_few_sentences(settings):
    found = said(synthetic(**settings, unfinished=0.1, crashed=0.05))
    assert 1 <= len(found.further) <= 7
    for sentence in found.sentences():
        assert sentence.endswith(".")
        assert "  " not in sentence
        assert not re.search(r"\b1 (trials|seeds|tasks|runs)\b", sentence)


def test_hostile_names_are_short_and_clean():
    for sentence in said(synthetic(tasks=3, variants=10, hostile=True)).sentences():
        assert len(sentence) < 1500
        sentence.encode()
        assert not re.search(r"[\x00-\x1f\u202e]", sentence)


def test_names_and_numbers():
    assert short("a" * 100, 21) == "a" * 10 + "…" + "a" * 10
    assert clean("\x1b[31m\n") == "[31m"
    assert clean("\x00") == "(no name)"
    shown = short_names(["a" * 99 + "b" * 99, "a" * 100 + "b" * 99, "c"], 20)
    assert len(set(shown.values())) == 3
    assert all(len(each) <= 20 for each in shown.values())
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert listed(["a"]) == "a"
    assert listed([]) == ""
    assert listed(["a, x", "b", "c"]) == "a, x; b and c"
    assert listed(list("abcdefgh"), 4) == "a, b, c and 5 more"
    assert (signed(0.02), signed(-0.02), signed(0.0), signed(None)) == ("+0.020", "−0.020", "0.000", "–")
    assert spread(51.5, 7.92) == "51.50 ± 7.92"
    assert spread(0.5, None) == "0.500"
