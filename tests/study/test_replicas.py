"""Several trials at a time in one worker process: who runs where, and what one does to the others."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ledger_stories import plan_specs
from steadytune.study.folder import prepare, read_results
from steadytune.study.ledger import Ledger
from steadytune.study.local import run_local
from steadytune.study.replicas import side_by_side
from steadytune.study.results import StudyResults
from tiny_tasks import save_model

STUB = [sys.executable, str(Path(__file__).parent.parent / "crash" / "stub_worker.py")]


def test_three_trials_share_a_process(ledger, path, tmp_path):
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    plan_specs(ledger, *[{"do": "wait", "begun": str(begun), "gate": str(gate)}] * 5)

    def open_the_gate():
        if begun.exists() and len(begun.read_text().split()) >= 3:
            workers = {row.worker for row in ledger.rows(status="running")}
            seen.append(workers)
            gate.touch()

    seen = []
    assert run_local(path, devices=["cuda:0"], per_gpu=3, command=STUB, on_tick=open_the_gate)
    assert ledger.counts()["finished"] == 5
    pids = begun.read_text().split()
    assert len(set(pids)) == 1
    assert {name.partition("#")[2] for name in seen[0]} == {"0", "1", "2"}


def test_an_error_is_the_affair_of_its_own_trial(ledger, path):
    plan_specs(ledger, *[{"do": "square", "value": 3}] * 4, {"do": "error"}, *[{"do": "square", "value": 4}] * 4)
    assert run_local(path, devices=["cuda:0"], per_gpu=3, command=STUB)
    counts = ledger.counts()
    assert (counts["finished"], counts["failed"]) == (8, 1)
    failed = next(row for row in ledger.rows() if row.status == "failed")
    assert "free lunch" in (failed.error or "")


@pytest.mark.parametrize("end", ["kill", "gpu_error"])
def test_after_three_processes_only_the_culprit_has_failed(ledger, path, end):
    """With the process all of its trials end. Those that were beside the culprit once or twice are run again."""
    plan_specs(ledger, *[{"do": "square", "value": n} for n in range(3)], {"do": end})
    ledger.plan([(f"later{n}", json.dumps({"do": "square", "value": n}), 100 + n) for n in range(6)])
    assert run_local(path, devices=["cuda:0"], per_gpu=2, command=STUB)
    rows = {row.key: row for row in ledger.rows()}
    assert rows["t3"].status == "failed"
    assert "3 times" in (rows["t3"].error or "")
    odd = {key: (row.status, row.error) for key, row in rows.items() if key != "t3" and row.status != "finished"}
    assert not odd


def test_the_first_error_stops_the_others():
    stop, ended = threading.Event(), []

    def work(name):
        if name.endswith("1"):
            raise KeyError("broken")
        stop.wait(30)
        ended.append(name)

    with pytest.raises(KeyError, match="broken"):
        side_by_side(work, "w", 3, stop, fatal=ZeroDivisionError)
    assert sorted(ended) == ["w#0", "w#2"]


def test_runs_beside_each_other_measure_what_they_measure_alone(tmp_path):
    """Real training, with the threads' turns at the global generators: dropout, mixout, re-init, R-Drop."""
    save_model("classification", tmp_path)
    (tmp_path / "study.yaml").write_text(
        """
study: Replicas
base: {model: model, steps: 6, batch_size: 8, max_length: 24, evaluations: 2, lr: 1e-3}
tasks: {words: {acceptability: 48, validation: 16, test: 16}}
variants:
  plain: {}
  mixed: {add: [{method: mixout, p: 0.5, replace_dropout: false}]}
  twice: {add: [{method: rdrop}, {method: reinit, layers: 1}]}
seeds: 2
""".replace("model: model", "model: classification")
    )

    def measured(folder: Path) -> dict[tuple[str, str], list[float]]:
        results: StudyResults = read_results(folder)
        assert all(trial.status == "finished" for trial in results.trials)
        return {(trial.variant, trial.seed): list(trial.losses) for trial in results.trials}

    alone = prepare(tmp_path / "study.yaml", tmp_path / "alone")
    assert run_local(alone.ledger, workers=1, devices=["cpu"])
    beside = prepare(tmp_path / "study.yaml", tmp_path / "beside")
    command = [sys.executable, "-m", "steadytune.study.worker", str(beside.ledger), "--device", "cpu"]
    done = subprocess.run(
        [*command, "--replicas", "3", "--worker", "w", "--deterministic"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert measured(beside.folder) == measured(alone.folder)
    names = {row.worker for row in Ledger.open(beside.ledger, readonly=True).rows()}
    assert len(names) > 1
