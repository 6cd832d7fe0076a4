"""A study from its file to its results, by the command and real workers, with tiny models."""

import json
import os
import re
import signal
import subprocess
import sys
import threading

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from steadytune.cli_study import study
from steadytune.study import local
from steadytune.study import trial as trials
from steadytune.study.folder import prepare, read_results
from steadytune.study.ledger import Ledger
from steadytune.study.local import run_local
from steadytune.study.outcome import Outcome, Stopped
from steadytune.study.status import read_status
from tiny_study import PLAIN, SETTINGS, furnish, write
from tiny_text import reviews, write_csv


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return furnish(tmp_path_factory.mktemp("study"))


def steadytune(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "steadytune", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160"},
        **options,
    )


def metrics(folder):
    """Everything a trial measured, but its times."""
    found = {}
    for trial in read_results(folder).trials:
        values = {split: array.tolist() for split, array in trial.predictions.items()}
        found[trial.task, trial.variant, trial.seed] = (trial.status, trial.best, trial.last, trial.losses, values)
    return found


@pytest.fixture(scope="module")
def done(world):
    """A study that the command has run, with one worker."""
    file = write(world, "done")
    made = steadytune("study", "run", file, "--workers", 1, cwd=world)
    assert made.returncode == 0, made.stderr
    assert "4 of 4 trials have ended" in made.stdout
    assert re.search(r"^4 trials in \d+ s\.$", made.stdout, re.MULTILINE)
    assert "steadytune study report" in made.stdout
    return world / "done-study"


def test_results(done):
    results = read_results(done)
    assert [(t.variant, t.seed, t.status) for t in results.trials] == [
        (v, s, "finished") for s in ("0", "1") for v in ("standard", "mixout")
    ]
    for trial in results.trials:
        assert 0.0 <= results.score(trial) <= 1.0
        assert len(trial.losses) == trial.steps == 12
        assert len(trial.history) == 3
        assert trial.predictions["test"].shape == (18,)
    assert results.level("reviews") == 0.5
    assert "steadytune study run" in results.command
    assert not (done / "trials").exists() or not any((done / "trials").rglob("*.safetensors"))


def test_four_workers_measure_the_same(done, world):
    prepared = prepare(write(world, "four"))
    assert run_local(prepared.ledger, workers=4, devices=["cpu"], on_tick=prepared.replan_)
    assert metrics(prepared.folder) == metrics(done)


def test_running_again_has_nothing_to_do(done, world):
    before = metrics(done), [row.ended for row in Ledger.open(done / "ledger.sqlite", readonly=True).rows()]
    again = steadytune("study", "run", world / "done.yaml", "--json", cwd=world)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["finished"] == 4
    assert (metrics(done), [r.ended for r in Ledger.open(done / "ledger.sqlite", readonly=True).rows()]) == before


def test_what_a_changed_file_no_longer_asks_for_is_not_run(world):
    """What runs or has ended stays; what waits goes, and comes back when it is asked for again."""
    folder = prepare(write(world, "fewer", seeds=3)).folder
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        done, running = ledger.claim("a", 60.0), ledger.claim("b", 60.0)
        assert ledger.finish(done, Outcome("finished", {}))

        def waiting():
            return {row.key for row in ledger.rows(status="pending")}

        before = waiting()
        assert len(before) == 4
        prepare(write(world, "fewer", seeds=3))
        assert waiting() == before
        kept = prepare(write(world, "fewer", seeds=1, variants={"standard": {}}))
        assert waiting() == {key for key, _, _ in kept.plan.rows()} - {done.key, running.key} == set()
        assert {row.key: row.status for row in ledger.rows()} == {done.key: "finished", running.key: "running"}
        prepare(write(world, "fewer", seeds=3))
        assert waiting() == before


def test_status_export_and_plan(done, world):
    status = steadytune("study", "status", done)
    assert "4 of 4 trials have ended" in status.stdout
    assert "best so far" in status.stdout
    data = json.loads(steadytune("study", "status", world / "done.yaml", "--json").stdout)
    assert (data["trials"], data["finished"], data["seconds_left"]) == (4, 4, 0.0)
    assert steadytune("study", "watch", done).returncode == 0
    exported = steadytune("study", "export", done, world / "trials.csv")
    assert exported.returncode == 0, exported.stderr
    assert len((world / "trials.csv").read_text().splitlines()) == 5
    planned = steadytune("study", "plan", world / "done.yaml", "--price", 2)
    assert "4 trials, 4 of them done" in planned.stdout
    as_json = json.loads(steadytune("study", "plan", write(world, "fresh"), "--json", "--price", 2).stdout)
    assert len(as_json["trials"]) == 4
    assert as_json["estimate"]["cost"] > 0
    assert not (world / "fresh-study").exists()
    lost = write(world, "lost", base={**PLAIN["base"], "model": "./nowhere"})
    assert "is not known: a model cannot be had here." in steadytune("study", "plan", lost).stdout


def test_report_and_compare(done, world):
    made = steadytune("study", "report", world / "done.yaml")
    assert made.returncode == 0, made.stderr
    assert str(done / "report.html") in made.stdout.replace("\n", "")
    page = (done / "report.html").read_text()
    assert "steadytune study run" in page
    assert {path.suffix for path in (done / "figures").iterdir()} == {".svg", ".png", ".pdf"}
    assert (done / "tables" / "scores.csv").exists()
    compared = steadytune("compare", f"{done}:mixout", f"{done}:standard")
    assert "fewer than 3 runs" in " ".join(compared.stdout.split())
    data = json.loads(steadytune("compare", f"{done}:mixout", f"{done}:standard", "--json").stdout)
    assert "reviews" in json.dumps(data)
    unclear = steadytune("compare", done, f"{done}:standard")
    assert unclear.returncode == 2
    assert "has several variants; say which" in unclear.stderr
    unknown = steadytune("compare", f"{done}:mixuot", f"{done}:standard")
    assert unknown.returncode == 2
    assert "mixout" in unknown.stderr
    nowhere = steadytune("study", "report", world / "nowhere")
    assert nowhere.returncode == 2
    assert "neither a study file nor the folder of a study" in nowhere.stderr


def test_more_seeds_in_the_file_are_more_trials(done, world):
    first = prepare(write(world, "more", seeds=1))
    assert run_local(first.ledger, workers=1, devices=["cpu"])
    second = prepare(write(world, "more"))
    assert (first.new, second.new) == (2, 2)
    assert run_local(second.ledger, workers=1, devices=["cpu"])
    assert metrics(second.folder) == metrics(done)


def test_settings_are_chosen_on_validation_and_then_reported(world):
    base = {**SETTINGS, "steps": 40}
    planned = read_status(prepare(write(world, "waits", sweep={"lr": [1e-9, 3e-3]}, choose={"seeds": 2})).folder)
    assert (planned.total, planned.unplanned, planned.over) == (8, 4, False)
    file = write(world, "tuned", base=base, sweep={"lr": [1e-9, 3e-3]}, choose={"seeds": 2}, seeds=3)
    made = steadytune("study", "run", file, "--workers", 2, "--json", cwd=world)
    assert made.returncode == 0, made.stderr
    results = read_results(world / "tuned-study")
    assert set(results.chosen.values()) == {"standard, lr=0.003", "mixout, lr=0.003"}
    assert len(results.reported["reviews", "standard"]) == 3
    assert len(results.tuning["reviews", "standard, lr=1e-09"]) == 2
    assert {t.status for t in results.trials} == {"finished"}
    assert read_status(world / "tuned-study").over
    assert json.loads(made.stdout)["trials"] == 2 * (2 * 2 + 1)  # two of the three reported seeds were run already


def test_a_diverged_run_is_a_result_and_a_crashed_one_is_not(world):
    bad = {"diverges": {"lr": 1e30, "clip": 0.0, "steps": 30}, "crashes": {"model": "nowhere"}}
    made = steadytune("study", "run", write(world, "bad", variants={**PLAIN["variants"], **bad}), cwd=world)
    assert made.returncode == 1
    found = {(t.variant, t.seed): t for t in read_results(world / "bad-study").trials}
    assert {key: t.status for key, t in found.items() if key[0] == "diverges"} == {
        ("diverges", "0"): "diverged",
        ("diverges", "1"): "diverged",
    }
    assert found["crashes", "0"].status == "failed"
    assert "nowhere" in found["crashes", "0"].error
    assert found["mixout", "1"].status == "finished"


def test_other_data_than_planned_is_refused(world):
    write_csv(world / "other.csv", reviews(120))
    prepared = prepare(write(world, "swapped", tasks={"reviews": {"file": "other.csv"}}))
    write_csv(world / "other.csv", reviews(100))
    run_local(prepared.ledger, workers=1, devices=["cpu"])
    errors = {trial.error for trial in read_results(prepared.folder).trials}
    assert all("is not what it was when the study was planned" in error for error in errors)


def test_killed_in_the_middle_of_training_it_ends_with_the_same_weights(world):
    base = {**SETTINGS, "steps": 800, "evaluations": 20}  # seconds long: looked at once a second
    variants = {"mixout": {"add": [{"method": "mixout", "p": 0.3}]}}
    settings = {"base": base, "variants": variants, "seeds": 1, "keep_models": True}
    calm, killed = (prepare(write(world, name, **settings)) for name in ("calm", "killed"))
    assert run_local(calm.ledger, workers=1, devices=["cpu"])
    kills = []

    def kill() -> None:
        """Once it trains and has a checkpoint, the worker is killed; the driver starts another."""
        running = read_status(killed.folder).running
        checkpoints = list((killed.folder / "trials").rglob("*.safetensors"))
        if len(kills) < 2 and running and running[0].step and running[0].step > 40 * (len(kills) + 1) and checkpoints:
            (log,) = [path for path in (killed.folder / "workers").glob("*.log") if path.stem == running[0].worker]
            pids = [pid for pid in os.listdir("/proc") if pid.isdigit() and running[0].worker in _command(pid)]
            assert log.exists()
            for pid in pids:
                os.kill(int(pid), signal.SIGKILL)
            kills.append(running[0].step)

    with Ledger.open(killed.ledger) as ledger:
        ledger.set_meta("save_every", 0.05)
    assert run_local(killed.ledger, workers=1, devices=["cpu"], on_tick=kill)
    assert kills
    (one,), (other,) = read_results(calm.folder).trials, read_results(killed.folder).trials
    assert other.attempts == 1 + len(kills)
    assert one.losses == other.losses
    (a,), (b,) = (list((study.folder / "models").rglob("model.safetensors")) for study in (calm, killed))
    first, second = load_file(a), load_file(b)
    assert first.keys() == second.keys()
    assert all(first[name].equal(second[name]) for name in first)


def _command(pid):
    try:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


@pytest.mark.parametrize("options", [[], ["--deterministic"]])
def test_the_command_asks_for_the_same_bits_every_time(world, monkeypatch, options):
    asked = []
    monkeypatch.setattr(local, "run_local", lambda ledger, **told: asked.append(told["deterministic"]) or True)
    file = write(world, f"same-bits-{len(options)}")
    CliRunner().invoke(study, ["run", str(file), "--quiet", *options])
    assert asked == [bool(options)]


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_trial_is_trained_so(world, monkeypatch, tmp_path, deterministic):
    prepared = prepare(write(world, f"trained-{deterministic}"))
    asked = []

    def train(*_, **told):
        asked.append(told["deterministic"])
        raise Stopped

    monkeypatch.setattr(trials, "train", train)
    with Ledger.open(prepared.ledger, readonly=True) as ledger:
        run = trials.make_run(ledger.meta, prepared.folder, "cpu", deterministic=deterministic)
        spec = ledger.rows()[0].spec
    with pytest.raises(Stopped):
        run(spec, tmp_path, lambda said: None, threading.Event())
    assert asked == [deterministic]
