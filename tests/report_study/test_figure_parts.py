"""What figures are made of: names in two lines, stretches of a loss curve, which blocks are shown."""

import numpy as np
import pytest
from synthetic import synthetic

from steadytune.report.study.comparisons import compare_all
from steadytune.report.study.figures.curves import _loss
from steadytune.report.study.figures.distances import _during, _parts
from steadytune.report.study.naming import in_lines
from steadytune.report.study.runs import trials_of
from steadytune.report.study.telling import Telling


def test_long_names_take_several_lines_where_they_can():
    names = ["dropout(0.1)", "mixout(w_pre, 0.7) + wdecay(w_pre, 0.01)", "mixout(w_pre, 0.7), exact gradient", "x" * 50]
    found = in_lines(names, 30)
    assert list(found.values())[:3] == [
        "dropout(0.1)",
        "mixout(w_pre, 0.7) +\nwdecay(w_pre, 0.01)",
        "mixout(w_pre, 0.7), exact\ngradient",
    ]
    assert "…" in found["x" * 50]
    averaged = "Transformer full-model weight averaging (checkpoint), 1 model"
    assert in_lines([averaged], 26) == {averaged: "Transformer full-model\nweight averaging\n(checkpoint), 1 model"}
    twins = in_lines([f"{'long ' * 20}{end}" for end in "ab"], 30)
    assert len(set(twins.values())) == 2
    assert all(len(line) <= 30 for name in (*found.values(), *twins.values()) for line in name.split("\n"))


@pytest.mark.parametrize("steps", [1, 7, 50, 237])
def test_a_loss_curve_has_no_stretch_of_a_step_or_two_at_its_end(steps):
    """237 steps are 47 stretches of 5 and 2 more, which were a stretch of their own."""
    made = synthetic(tasks=1, variants=1, seeds=3, steps=steps)
    compared = compare_all(made)
    trials = [trial for line in compared.lines for trial in trials_of(made, line, compared.tasks[0])]
    found = _loss(trials)
    assert len(found.x) <= 50
    assert (np.diff(found.x) > 0).all()
    width = -(-steps // 50)
    last = np.mean([np.mean(trial.losses[(len(found.x) - 1) * width :]) for trial in trials])
    assert found.middle[-1] == pytest.approx(last)


@pytest.mark.parametrize(
    ("blocks", "shown"), [(24, [6, 12, 18, 24]), (12, [3, 6, 9, 12]), (6, [2, 3, 5, 6]), (2, [1, 2])]
)
def test_the_blocks_shown_are_those_of_the_paper_in_proportion(blocks, shown):
    compared = compare_all(synthetic(tasks=1, variants=2, seeds=2, blocks=blocks))
    tell = Telling(compared)
    task = compared.tasks[0]
    panels = _during(tell, compared.lines, [task], {task: _parts(tell, compared.lines, task)})
    assert [int(name.rpartition(" ")[2]) for name in panels] == shown
