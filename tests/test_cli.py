"""The command line: shape, exit codes, and where output goes. What `fit` does is in test_fit.py."""

import json
import os
import re
import subprocess
import sys
from importlib import import_module

import pytest
import torch
from typer.testing import CliRunner

from steadytune import cli, demo
from steadytune.effects import effect, shown_methods, sparkline
from steadytune.methods import all_methods
from tiny import TINY, batch
from tiny_text import reviews, save_encoder, write_csv


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    save_encoder(folder / "encoder")
    write_csv(folder / "reviews.csv", reviews(80))
    return folder


def run(capsys, monkeypatch, *arguments):
    """(exit code, stdout, stderr) of the command, in this process."""
    monkeypatch.setattr(sys, "argv", ["steadytune", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    captured = capsys.readouterr()
    return ended.value.code or 0, captured.out, captured.err


def options(world, *more):
    return ["--model", world / "encoder", "--steps", 4, "--lr", "3e-3", "--max-length", 32, "--seeds", 2, *more]


PAPER = [["paper", name] for name in ("list", "run", "report")]
STUDY = [["study", name] for name in ("plan", "run", "status", "watch", "report", "export")]


@pytest.mark.parametrize(
    "command",
    [[], ["fit"], ["predict"], ["methods"], ["demo"], ["compare"], ["study"], *STUDY, ["paper"], *PAPER],
    ids=" ".join,
)
def test_every_command_explains_itself_with_an_example(command):
    text = CliRunner().invoke(cli.app, [*command, "--help"]).stdout
    assert "Usage" in text
    assert "Example:" in text


def test_fit_has_the_promised_options():
    text = re.sub(r"\x1b\[[0-9;]*m", "", CliRunner().invoke(cli.app, ["fit", "--help"], env={"COLUMNS": "200"}).stdout)
    for name in ("text", "label", "validation", "test", "recipe", "seeds", "method", "model", "out", "resume", "fresh"):
        assert f"--{name}" in text
    for name in (
        "dry-run",
        "json",
        "quiet",
        "start-from",
        "steps",
        "epochs",
        "lr",
        "batch-size",
        "max-length",
        "metric",
    ):
        assert f"--{name}" in text


def test_fit_then_predict(world, tmp_path, capsys, monkeypatch):
    out = tmp_path / "fit"
    code, stdout, stderr = run(capsys, monkeypatch, "fit", world / "reviews.csv", *options(world, "--out", out))
    assert code == 0
    assert "Without learning" in stdout
    assert str(out / "model" / "README.md") in stdout
    assert "seed 1: validation" in stderr
    code, stdout, _ = run(capsys, monkeypatch, "predict", out, world / "reviews.csv", "--only-predictions")
    assert code == 0
    assert stdout.splitlines()[0] == "row,prediction,probability:bad,probability:good"
    assert len(stdout.splitlines()) == 81
    made = tmp_path / "made.jsonl"
    code, stdout, stderr = run(capsys, monkeypatch, "predict", out, world / "reviews.csv", "-o", made)
    assert (code, stdout) == (0, "")
    assert "80 rows predicted" in stderr
    assert len(made.read_text().splitlines()) == 80


def test_json_is_all_that_is_on_stdout(world, tmp_path, capsys, monkeypatch):
    code, stdout, _ = run(
        capsys, monkeypatch, "fit", world / "reviews.csv", *options(world, "--out", tmp_path / "fit", "--json")
    )
    data = json.loads(stdout)
    assert code == 0
    assert data["status"] == "finished"
    assert len(data["seeds"]) == 2
    assert data["paths"]["report"].endswith("report.html")


def test_quiet_prints_nothing(world, tmp_path, capsys, monkeypatch):
    given = options(world, "--out", tmp_path / "fit", "--quiet")
    assert run(capsys, monkeypatch, "fit", world / "reviews.csv", *given) == (0, "", "")


@pytest.mark.parametrize("as_json", [False, True])
def test_a_dry_run_shows_the_plan_and_writes_nothing(world, tmp_path, capsys, monkeypatch, as_json):
    given = options(world, "--out", tmp_path / "fit", "--dry-run", "--method", "mixout:p=0.7")
    code, stdout, _ = run(capsys, monkeypatch, "fit", world / "reviews.csv", *given, *(["--json"] if as_json else []))
    assert code == 0
    assert list(tmp_path.iterdir()) == []
    if as_json:
        data = json.loads(stdout)
        assert (data["status"], data["steps"], data["splits"][0]["rows"]) == ("planned", 4, 56)
    else:
        assert "2, 4 steps each" in stdout
        assert "mixout:p=0.7" in stdout


def test_the_default_directory_is_named_after_the_file(world, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, _ = run(capsys, monkeypatch, "fit", world / "reviews.csv", *options(world, "--seeds", 1, "-q"))
    assert code == 0
    assert (tmp_path / "reviews-fit" / "model" / "config.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fit", "nowhere.csv"], "nowhere.csv does not exist"),
        (["fit", "{reviews}", "--text", "txt"], "no column 'txt'. Did you mean 'text'"),
        (["fit", "{reviews}", "--method", "mixot"], "Did you mean 'mixout'"),
        (["fit", "{reviews}", "--recipe", "devlyn"], "Did you mean 'devlin'"),
        (["fit", "{reviews}", "--metric", "f2"], "Metric 'f2'"),
        (["fit", "{reviews}", "--model", "/no/such/model"], "/no/such/model"),
        (["fit", "{reviews}", "--lr", "-1"], "lr must be"),
        (["fit", "{reviews}", "--steps", "3", "--epochs", "2"], "steps"),
        (["predict", "/no/such/model", "{reviews}"], "/no/such/model"),
        (["predict", "{encoder}", "{reviews}"], "no trained classification head"),
        (["predict", "{encoder}", "nowhere.csv"], "nowhere.csv does not exist"),
        (["predict", "{encoder}", "{reviews}", "-o", "{reviews}.xlsx"], ".csv or .jsonl"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(world, tmp_path, capsys, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    places = {"reviews": world / "reviews.csv", "encoder": world / "encoder"}
    code, stdout, stderr = run(capsys, monkeypatch, *(each.format(**places) for each in arguments))
    assert code == 2
    assert stdout == ""
    assert stderr.startswith("steadytune: ")
    assert words in stderr
    assert "Traceback" not in stderr
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_is_not_installed_is_named_with_its_extra(tmp_path, capsys, monkeypatch):
    """`pip install steadytune` alone brings no scipy."""
    monkeypatch.setattr("steadytune.study.folder.read_results", lambda folder: import_module("scipy.nowhere"))
    monkeypatch.setitem(sys.modules, "scipy", None)
    code, stdout, stderr = run(capsys, monkeypatch, "study", "report", tmp_path)
    assert (code, stdout) == (2, "")
    assert "This needs scipy: pip install 'steadytune[report]'." in stderr
    assert "Traceback" not in stderr


def test_every_seed_failed_is_exit_code_1(world, tmp_path, capsys, monkeypatch):
    given = options(world, "--out", tmp_path / "fit", "--recipe", "standard", "--lr", "1e30", "--json")
    code, stdout, stderr = run(capsys, monkeypatch, "fit", world / "reviews.csv", *given)
    assert code == 1
    assert "All 2 seeds failed" in stderr
    assert json.loads(stdout)["status"] == "failed"


def test_a_reader_that_leaves_early_is_no_error(world, tmp_path):
    """`steadytune predict ... | head -1`"""
    folder = save_encoder(tmp_path / "model", head=True)
    write_csv(tmp_path / "many.csv", reviews(3000))
    command = f"{sys.executable} -m steadytune predict {folder} {tmp_path / 'many.csv'} | head -1"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, env=environment)
    assert done.stdout.startswith("row,text")
    assert done.stderr == ""


# --- the demo's table of methods


def test_every_registered_method_is_shown_and_said_something_about():
    torch.manual_seed(0)
    model = TINY["bert"]()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    generator = torch.get_rng_state()
    told = {item.name: effect(item, model, batch("bert")) for item in shown_methods()}
    assert told.keys() == all_methods().keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(generator, torch.get_rng_state())
    assert "layers are now MixedLinear" in told["mixout"]
    assert re.match(r"[\d,]+ of [\d,]+ parameters drawn anew", told["reinit"])
    assert "the same" in told["dropout"]
    assert "groups instead of 2" in told["layerwise_lr"]
    assert "apart" in told["adamw"]
    assert "from 8 rows through the model" in told["rdrop"]
    assert "becomes one of 8" in told["doubled_batch"]
    assert "900 steps instead of 300" in told["longer"]
    assert "mean of 3" in told["checkpoint_average"]


def test_the_demo_fits_the_bundled_data_and_says_where_everything_is(world, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("steadytune.demo.SETTINGS", {"steps": 2, "max_length": 32, "evaluations": 1})
    shorter = demo.STUDY.replace("steps: 64", "steps: 2").replace("evaluations: 4", "evaluations: 1")
    monkeypatch.setattr("steadytune.demo.STUDY", shorter.replace("acceptability: 1600", "acceptability: 60"))
    monkeypatch.setenv("COLUMNS", "200")
    arguments = ["demo", "--model", world / "encoder", "--out", tmp_path / "out"]
    code, stdout, _ = run(capsys, monkeypatch, *arguments, "--methods-only")
    assert code == 0
    assert "mixout:p=0.7" in stdout
    assert list(tmp_path.iterdir()) == []
    code, stdout, _ = run(capsys, monkeypatch, *arguments)
    assert code == 0
    assert "accuracy" in stdout
    for name in ("model", "model/README.md", "report.html", "predictions.csv"):
        assert str(tmp_path / "out" / "fit" / name) in stdout
    assert len(json.loads((tmp_path / "out" / "fit" / "fit.json").read_text())["seeds"]) == 3
    assert "6 of 6 trials have ended" in stdout
    assert str(tmp_path / "out" / "study" / "report.html") in stdout
    assert "Does bias correction matter?" in (tmp_path / "out" / "study" / "report.html").read_text()


def test_a_sparkline_follows_its_values():
    assert sparkline([0.0, 0.5, 1.0]) == "▁▄█"
    assert sparkline([]) == ""
    assert sparkline([0.0, 0.0]) == "▁▁"
    assert len(sparkline([1.0] * 1000)) == 24
