"""Figures: the right numbers, safe SVG, the same bytes every time, and nothing cut off or on top of each other."""

import hashlib
import itertools
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.text import Text
from synthetic import by_hand, synthetic

from steadytune import stats
from steadytune.errors import SteadytuneError
from steadytune.report.study.comparisons import compare_all
from steadytune.report.study.figures import figures
from steadytune.report.study.figures.best_of_n import _expected
from steadytune.report.study.figures.curves import by_step
from steadytune.report.study.figures.series import over_runs
from steadytune.report.study.figures.style import DARK, LIGHT, drawing
from steadytune.report.study.figures.sweeps import sweeps
from steadytune.report.study.telling import Telling

CASES = {
    "plain": {},
    "many": {"tasks": 8, "variants": 12, "seeds": 6},
    "swept": {"tasks": 2, "variants": 5, "seeds": 5, "swept": True},
    "tuned": {"tasks": 2, "variants": 3, "seeds": 8, "tuned": True},
    "grid": {"tasks": 1, "variants": 3, "seeds": 36, "grid": True},
    "hostile": {"tasks": 4, "variants": 10, "seeds": 6, "hostile": True, "unfinished": 0.2, "crashed": 0.1},
    "large models": {"tasks": 3, "variants": 2, "seeds": 3, "blocks": 24, "steps": 400},
    "single": {"tasks": 1, "variants": 1, "seeds": 1},
    "lower is better": {"tasks": 4, "variants": 2, "seeds": 4, "without_test": [1, 3]},
}


@pytest.fixture(scope="module")
def made():
    return {name: figures(compare_all(synthetic(**settings))) for name, settings in CASES.items()}


def named(made, case):
    return {figure.name: figure for figure in made[case]}


def test_each_study_has_the_figures_that_fit_it(made):
    usual = ["distribution", "curves", "loss", "best-of-n", "distance", "distance-curves", "time", "memory"]
    assert [figure.name for figure in made["plain"]] == usual
    assert {"sweep-1", "sweep-2", "sweep-3"} <= set(named(made, "swept"))
    assert {"sweep-1", "sweep-2"} <= set(named(made, "tuned"))
    assert "grid-1" in named(made, "grid")
    assert "best-of-n" not in named(made, "single")
    for settings in ({"tasks": 0, "variants": 0}, {"unfinished": 1.0}, {"crashed": 1.0}):
        assert figures(compare_all(synthetic(**settings))) == []


def drawn_with_texts(figure):
    """The SVG, and every text that was really drawn, with its box in points."""
    seen = []
    plain = Text.draw

    def noting(text, renderer, *rest, **more):
        plain(text, renderer, *rest, **more)
        if text.get_visible() and text.get_text().strip():
            seen.append((text.get_text(), text.get_window_extent(renderer)))

    with mock.patch.object(Text, "draw", noting):
        return figure.svg(), seen


@pytest.mark.parametrize("case", CASES)
def test_figures_are_safe_small_and_readable(made, case):
    for figure in made[case]:
        svg, texts = drawn_with_texts(figure)
        root = ElementTree.fromstring(svg)
        check_safe(svg, root)
        assert len(svg.encode()) < 500_000
        width, height = (float(side) for side in root.attrib["viewBox"].split()[2:])
        check_readable(figure.name, texts, width, height)
        written = {element.text for element in root.iter() if element.tag.endswith("}text")}
        assert {line for text, _ in texts for line in text.split("\n")} <= written


def check_safe(svg, root):
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert tags <= {"svg", "g", "path", "use", "defs", "style", "text", "clipPath", "rect", "tspan"}, tags
    for element in root.iter():
        assert not [key for key in element.attrib if key.lower().startswith("on")]
        for key, value in element.attrib.items():
            assert not key.endswith("href") or value.startswith("#")
            assert value.count("url(#") == value.count("url(")
    assert "http" not in re.sub(r' xmlns(?::xlink)?="[^"]*"', "", svg.split("\n")[0])
    ids = {element.attrib["id"] for element in root.iter() if "id" in element.attrib}
    used = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', svg)
    assert {first or second for first, second in used} <= ids


def check_readable(name, texts, width, height):
    """Nothing is cut off, and no text lies on another."""
    assert texts
    for text, box in texts:
        inside = box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height
        assert inside, f"{name}: {text!r} is cut off at {box}"
    for (first, a), (second, b) in itertools.combinations(texts, 2):
        across, down = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
        assert across <= 1 or down <= 1.5, f"{name}: {first!r} lies on {second!r}"


def test_the_same_bytes_every_time_and_in_every_process(made):
    chosen = [named(made, "plain")["distribution"], named(made, "grid")["grid-1"], named(made, "plain")["curves"]]
    for figure in chosen:
        assert figure.svg() == figure.svg()
    code = (
        "import sys, hashlib; sys.path.insert(0, sys.argv[1]); from synthetic import synthetic; "
        "from steadytune.report.study.comparisons import compare_all; "
        "from steadytune.report.study.figures import figures; "
        "print(hashlib.sha256(figures(compare_all(synthetic()))[0].svg().encode()).hexdigest())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "77", "OMP_NUM_THREADS": "1"}
    run = [sys.executable, "-c", code, str(Path(__file__).parent)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=300, env=environment, check=True)
    assert done.stdout.strip() == hashlib.sha256(chosen[0].svg().encode()).hexdigest()


def test_colours_follow_the_reader_on_a_page_and_are_plain_in_a_file(made, tmp_path):
    figure = named(made, "plain")["distribution"]
    page = figure.svg()
    assert "prefers-color-scheme: dark" in page
    assert f"var(--ink, {LIGHT['ink']})" in page
    assert LIGHT.keys() == DARK.keys()
    assert len(set(LIGHT.values())) == len(LIGHT)
    figure.save(tmp_path, ("svg",))
    assert "var(" not in (tmp_path / "distribution.svg").read_text(encoding="utf-8")


def test_files(made, tmp_path):
    figure = named(made, "plain")["curves"]
    paths = figure.save(tmp_path / "new" / "figures")
    starts = {path.suffix: path.read_bytes()[:8] for path in paths}
    assert starts[".svg"].startswith(b"<svg")
    assert starts[".png"].startswith(b"\x89PNG")
    assert starts[".pdf"].startswith(b"%PDF")
    before = {path: path.read_bytes() for path in paths}
    figure.save(tmp_path / "new" / "figures")
    assert before == {path: path.read_bytes() for path in paths}
    with pytest.raises(SteadytuneError, match="cannot be saved as exe"):
        figure.save(tmp_path, ("exe",))


def test_a_users_own_settings_neither_matter_nor_change(made):
    figure = named(made, "plain")["distribution"]
    plain = figure.svg()
    with matplotlib.rc_context({"font.size": 30, "text.usetex": False, "axes.grid": False}):
        before = dict(matplotlib.rcParams)
        assert figure.svg() == plain
        assert dict(matplotlib.rcParams) == before


def test_the_distribution_shows_every_run():
    study = synthetic(tasks=1, variants=2, seeds=10)
    figure = figures(compare_all(study))[0]
    with drawing("test"):
        panel = figure.draw().axes[0]
    dots = [line for line in panel.get_lines() if line.get_marker() == "o"]
    shown = sorted(value for line in dots for value in line.get_xdata())
    scores = [study.score(trial) for trial in study.trials]
    assert shown == pytest.approx(sorted(score for score in scores if score is not None))
    crosses = [line for line in panel.get_lines() if line.get_marker() == "x" and len(line.get_xdata())]
    assert [list(line.get_xdata()) for line in crosses] == [[0.525]]
    level = [line for line in panel.get_lines() if list(line.get_xdata()) == [0.525, 0.525]]
    assert level


def test_a_score_without_learning_that_is_far_away_does_not_squeeze_the_runs():
    far, near, failed = [24.0, 25.0, 26.0], [3.0, 4.0, 5.0], [0.5, 25.0, 25.5]
    study = by_hand({"far": {"a": far, "b": far}, "near": {"a": near}, "failed": {"a": far, "b": failed}}, levels=1.0)
    figure = figures(compare_all(study))[0]
    assert "Where all runs are far above it, it is not drawn." in figure.caption
    with drawing("test"):
        panels = figure.draw().axes
    drawn = [any(list(line.get_xdata()) == [1.0, 1.0] for line in panel.get_lines()) for panel in panels[:3]]
    assert drawn == [False, True, True]


def test_a_large_study_draws_fewer_points_and_says_so():
    figure = figures(compare_all(synthetic(tasks=2, variants=3, seeds=600, evaluations=2, steps=4)))[0]
    assert "Of more than 400 runs, 400 evenly spaced in rank are drawn." in figure.caption
    with drawing("test"):
        panel = figure.draw().axes[0]
    counts = [len(line.get_xdata()) for line in panel.get_lines() if line.get_marker() in ("o", "x")]
    assert max(counts) <= 400


def test_curves_are_means_and_ranges():
    study = synthetic(tasks=1, variants=1, seeds=7)
    found = by_step(study.trials, lambda entry: entry["validation"])
    last = [trial.history[-1]["validation"] for trial in study.trials if trial.status == "finished"]
    assert found.x[-1] == 40
    assert found.middle[-1] == pytest.approx(np.mean(last))
    assert (found.low[-1], found.high[-1]) == (min(last), max(last))
    table = np.array([[1.0, 2.0, np.nan], [3.0, np.nan, np.nan], [5.0, 4.0, np.nan]])
    half = over_runs([10, 20, 30], table)
    assert half.x.tolist() == [10, 20]
    assert half.middle.tolist() == [3.0, 3.0]
    assert over_runs([1], np.empty((0, 1))) is None


@pytest.mark.parametrize("task", [0, 3])
def test_best_of_n_selects_on_validation(task):
    study = synthetic(tasks=4, variants=1, seeds=9)
    tell = Telling(compare_all(study))
    name = list(study.tasks)[task]
    found = _expected(tell, tell.compared.lines[0], name)
    sign = 1.0 if study.tasks[name].greater_is_better else -1.0
    floor = study.level(name)
    runs = study.reported[name, "standard"]
    validation = [floor if trial.best is None else trial.best.validation for trial in runs]
    test = [floor if study.score(trial) is None else study.score(trial) for trial in runs]
    direct = stats.expected_selected(sign * np.array(validation), sign * np.array(test), range(1, 10))
    assert found.middle == pytest.approx(sign * np.array(direct.mean))
    assert found.middle[0] == pytest.approx(np.mean(test))
    assert found.high - found.low == pytest.approx(2 * np.array(direct.std))


def test_sweeps_have_the_values_that_were_tried():
    study = synthetic(tasks=1, variants=2, seeds=6, swept=True)
    found = sweeps(Telling(compare_all(study)))
    assert [figure.title for figure in found] == ["Score against mixout.p"]
    with drawing("test"):
        panel = found[0].draw().axes[0]
    line = next(line for line in panel.get_lines() if line.get_marker() == "s")
    assert line.get_xdata().tolist() == [0.1, 0.3, 0.5, 0.7, 0.9]
    means = []
    for p in (0.1, 0.3, 0.5, 0.7, 0.9):
        scores = [study.score(trial) for trial in study.reported["rte", f"mixout, p={p:g}"]]
        means.append(np.mean([0.525 if score is None else score for score in scores]))
    assert line.get_ydata() == pytest.approx(means)
    tuned = sweeps(Telling(compare_all(synthetic(tasks=1, variants=5, seeds=6, tuned=True))))
    assert tuned[0].title == "Choosing mixout.p"
    assert "tuning runs" in tuned[0].caption
    with drawing("test"):
        steps = next(figure for figure in tuned if "steps" in figure.title).draw().axes[0]
    assert steps.get_xscale() == "log"
    assert [label.get_text() for label in steps.get_xticklabels()] == ["200", "400", "800", "1,600", "3,200"]


@pytest.mark.slow
def test_ten_thousand_trials_stay_within_bounds():
    study = synthetic(tasks=8, variants=12, seeds=105)
    began = time.process_time()
    compared = compare_all(study)
    drawn = {figure.name: figure.svg() for figure in figures(compared)}
    assert time.process_time() - began < 60  # the whole report's bound
    assert len(study.trials) > 10_000
    assert max(len(svg.encode()) for svg in drawn.values()) < 500_000
    assert sum(len(svg.encode()) for svg in drawn.values()) < 3_000_000
