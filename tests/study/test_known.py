"""Runs that are known already: kept in files, taken over from there and from other studies, and never made up."""

import gzip
import json
import subprocess
import sys

import numpy as np
import pytest

from steadytune.errors import SteadytuneError
from steadytune.papers.run import Workshop, keep_runs, run_experiment
from steadytune.study.folder import prepare, read_results
from steadytune.study.known import Known, keep, of_file
from steadytune.study.ledger import Ledger
from steadytune.study.outcome import Outcome
from steadytune.study.plan import plan
from tiny_study import furnish, write


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return furnish(tmp_path_factory.mktemp("known"))


@pytest.fixture(scope="module")
def done(world):
    """A study of two variants and two seeds that has been run."""
    file = write(world, "done")
    prepared = prepare(file)
    assert _run(prepared) == 4
    return prepared.folder


def _run(prepared):
    """All trials that wait, in this process; how many there were."""
    from steadytune.study.trial import make_run
    from steadytune.study.worker import work

    ran = 0
    with Ledger.open(prepared.ledger, readonly=True) as ledger:
        run = make_run(ledger.meta, prepared.folder, "cpu", prepared.data)

    def counted(*arguments):
        nonlocal ran
        ran += 1
        return run(*arguments)

    while True:
        work(prepared.ledger, counted, worker=f"here-{ran}", folder=prepared.folder / "trials")
        if not prepared.replan_():
            return ran


def scores(folder):
    return {(t.variant, t.seed): (t.status, t.best, t.last) for t in read_results(folder).trials}


def test_what_another_study_has_run_is_not_run_again(world, done):
    more = write(world, "more", seeds=3)
    prepared = prepare(more, known=Known([done]))
    assert (prepared.taken, _run(prepared)) == (4, 2)
    found = scores(prepared.folder)
    assert len(found) == 6
    assert scores(done).items() <= found.items()
    with Ledger.open(prepared.ledger, readonly=True) as ledger:
        taken = [row for row in ledger.rows() if row.attempts == 0]
    assert {row.machine for row in taken} == {str(done / "ledger.sqlite")}, "where it came from is told"
    assert all(row.started is None for row in taken), "the time left goes by what was run here"
    assert prepare(more, known=Known([done])).taken == 0
    first = {trial.key: trial for trial in read_results(done).trials}
    for trial in read_results(prepared.folder).trials:
        if trial.key in first:
            assert trial.grad_norms == first[trial.key].grad_norms
            assert np.array_equal(trial.predictions["test"], first[trial.key].predictions["test"]), "all of it is taken"


def test_nothing_is_looked_for_twice(world, done, monkeypatch):
    """While choices wait, a run plans anew every second."""
    from steadytune.study import known as module

    asked = []
    outcomes = module._outcomes
    monkeypatch.setattr(module, "_outcomes", lambda source, wanted: asked.append(source) or outcomes(source, wanted))
    prepared = prepare(write(world, "twice", seeds=3), known=Known([done]))
    with Ledger.open(prepared.ledger) as ledger:
        for _ in range(3):
            prepared.plan_(ledger)
    assert (len(asked), prepared.taken) == (1, 4)


def test_a_kept_file_carries_scores_exactly_and_losses_to_six_digits(world, done, tmp_path):
    file = tmp_path / "a" / "done.runs.gz"
    assert keep(done / "ledger.sqlite", file) == 4
    before = file.read_bytes()
    assert keep(done / "ledger.sqlite", file) == 4
    assert file.read_bytes() == before, "equal runs are equal bytes"
    prepared = prepare(write(world, "elsewhere"), known=Known([file.parent]))
    assert (prepared.taken, _run(prepared)) == (4, 0)
    assert scores(prepared.folder) == scores(done)
    for here, there in zip(read_results(prepared.folder).trials, read_results(done).trials):
        assert (here.versions, here.notes, here.seconds) == (there.versions, there.notes, there.seconds)
        np.testing.assert_allclose(here.losses, there.losses, rtol=1e-5)
        assert [entry["validation"] for entry in here.history] == [entry["validation"] for entry in there.history]
        assert (here.predictions, list(here.grad_norms)) == ({}, [])


def test_a_file_grows_by_what_is_new(world, done, tmp_path):
    file = tmp_path / "runs.runs.gz"
    first = prepare(write(world, "grows", seeds=1), tmp_path / "one", known=Known([done]))
    assert keep(first.ledger, file) == 2
    assert keep(done / "ledger.sqlite", file) == 4
    assert keep(first.ledger, file) == 4, "nothing that was kept is lost"
    assert len({run.key for run in of_file(file)}) == 4


def test_choices_are_made_by_known_runs(world, tmp_path):
    """Tuning runs that are known lead to reported ones that are known too, in one go."""
    swept = {"variants": {"swept": {"sweep": {"lr": [3e-3, 3e-4]}}}, "choose": {"seeds": 1, "over": ["lr"]}, "seeds": 2}
    first = prepare(write(world, "chosen", **swept))
    assert _run(first) == 3
    second = prepare(write(world, "chosen-again", **swept), known=Known([first.folder]))
    assert (second.taken, second.plan.waiting, _run(second)) == (3, [], 0)
    assert read_results(second.folder).chosen == read_results(first.folder).chosen


def test_a_model_directory_is_known_by_what_is_in_it(world, done, tmp_path):
    """The same path with other weights is another trial; the same weights at another path of the same name are not."""
    for name in ("same", "other"):
        (tmp_path / name).mkdir()
        furnish(tmp_path / name)
    assert prepare(write(tmp_path / "same", "study"), known=Known([done])).taken == 4
    config = tmp_path / "other" / "encoder" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"hidden_dropout_prob": 0.2}))
    assert prepare(write(tmp_path / "other", "study"), known=Known([done])).taken == 0


def test_a_study_planned_before_directories_were_looked_into_keeps_its_trials(world, tmp_path):
    file = write(world, "old")
    prepared = prepare(file)
    old = {trial.key for trial in plan(prepared.study, prepared.tasks).trials}
    assert old.isdisjoint(trial.key for trial in prepared.plan.trials)
    folder = tmp_path / "old"
    folder.mkdir()
    with Ledger.open(prepared.ledger, readonly=True) as ledger:
        meta = {name: value for name, value in ledger.meta.items() if name != "models"}
    Ledger.create(folder / "ledger.sqlite", meta).close()
    again = prepare(file, folder)
    assert {trial.key for trial in again.plan.trials} == old
    assert {trial.key for trial in prepare(file, folder).plan.trials} == old
    assert {trial.key for trial in read_results(folder).trials} == old


def test_models_that_are_kept_are_trained_here(world, done):
    prepared = prepare(write(world, "keeps", keep_models=True), known=Known([done]))
    assert prepared.taken == 0


def test_what_runs_or_has_ended_stays(path, ledger):
    ledger.plan([("a", "{}", 0), ("b", "{}", 1), ("c", "{}", 2), ("d", "{}", 3)])
    finished, running = ledger.claim("w", 60.0), ledger.claim("v", 60.0)
    assert ledger.finish(finished, Outcome("finished", {"best": {"validation": 0.25}}))
    known = {key: Outcome("diverged", {"best": {"validation": 0.75}}) for key in "abcx"}
    assert ledger.take_over(known.items(), "elsewhere") == 1
    assert {row.key: row.status for row in ledger.rows()} == {
        "a": "finished",
        "b": "running",
        "c": "diverged",
        "d": "pending",
    }
    assert ledger.outcome("a").result["best"]["validation"] == 0.25
    assert ledger.finish(running, Outcome("finished", {})), "who runs it is not disturbed"
    assert ledger.take_over([], "elsewhere") == 0


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda file: file.write_bytes(b"no gzip"), "is damaged, or no file of kept runs"),
        (lambda file: file.write_bytes(gzip.compress(b'{"x": 1}\n')), "is no file of kept runs"),
        (lambda file: file.write_bytes(file.read_bytes()[:-20]), "is damaged"),
        (lambda file: _with_line(file, "[]"), "line 6: this is not a run that has ended"),
        (lambda file: _with_line(file, '{"content": {}, "result": {}, "status": "failed"}'), "not a run that has"),
        (lambda file: _with_line(file, "{"), "is damaged"),
        (lambda file: file.unlink(), "has no known runs"),
    ],
)
def test_a_file_that_is_not_one_is_refused_and_nothing_is_taken(world, done, tmp_path, made, says):
    file = tmp_path / "x.runs.gz"
    keep(done / "ledger.sqlite", file)
    made(file)
    with pytest.raises(SteadytuneError, match=says):
        prepare(write(world, "refused"), tmp_path / "out", known=Known([file]))


def _with_line(file, line):
    file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes()) + line.encode() + b"\n"))


def test_a_line_that_was_changed_is_another_trial(world, done, tmp_path):
    """A run is looked for by the hash of what it says it is: nobody gets the outcome of other settings."""
    file = tmp_path / "x.runs.gz"
    keep(done / "ledger.sqlite", file)
    text = gzip.decompress(file.read_bytes()).decode().replace('"lr":0.003', '"lr":0.004', 1)
    file.write_bytes(gzip.compress(text.encode()))
    assert prepare(write(world, "changed"), tmp_path / "out", known=Known([file])).taken == 3


def test_by_command(world, done, tmp_path):
    def steadytune(*arguments):
        command = [sys.executable, "-m", "steadytune", "study", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=200)

    kept = steadytune("keep", done, tmp_path / "done.runs.gz")
    assert kept.stdout.strip().endswith("4 runs"), kept.stderr
    again = steadytune("run", write(world, "command"), "--out", tmp_path / "out", "--known", tmp_path / "done.runs.gz")
    assert again.returncode == 0, again.stderr
    assert "4 trials are known already" in again.stdout
    assert "call the file" in steadytune("keep", done, tmp_path / "done.json").stderr
    assert "no known runs" in steadytune("run", world / "command.yaml", "--known", tmp_path / "nowhere").stderr


def test_a_paper_s_runs_are_kept_and_taken_over(tmp_path):
    """Another machine with the kept files has nothing to train, but for what is timed; the report is the same."""
    from steadytune.papers.report import make_report

    id = "few-sample/figure-2"
    there = Workshop(tmp_path / "there", "smoke")
    assert run_experiment(id, there, None) == 0
    made = keep_runs(there, tmp_path / "runs")
    assert {path.name for path in made} == {"smoke-few-sample-rates.runs.gz", "smoke-few-sample-figure-2.runs.gz"}
    here = Workshop(tmp_path / "here", "smoke", known=(str(tmp_path / "runs"),))
    assert run_experiment(id, here, None) == 0
    with Ledger.open(here.folder(id) / "ledger.sqlite", readonly=True) as ledger:
        assert ledger.attempts() == 0
    assert json.dumps(make_report(id, here).record()) == json.dumps(make_report(id, there).record())
    with pytest.raises(SteadytuneError, match="has no runs of the small scale"):
        keep_runs(Workshop(tmp_path / "here", "small"), tmp_path / "runs")


def test_studies_of_one_scale_share_their_runs(tmp_path):
    """Plain fine-tuning of several tables is run once."""
    from steadytune.papers.study_parts import PARTS

    workshop = Workshop(tmp_path, "smoke")
    for id in ("few-sample/figure-2", "few-sample/figure-18"):
        assert run_experiment(id, workshop, None) == 0
    assert workshop.known_to(PARTS["rdrop/step-time"]) == [], "times are measured here"
    assert str(workshop.folder("few-sample/figure-2")) in workshop.known_to(PARTS["few-sample/figure-18"])
    assert str(workshop.folder("few-sample/figure-18")) not in workshop.known_to(PARTS["few-sample/figure-18"])
