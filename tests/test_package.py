"""The package as a whole: light to import, layered, and with the public names that scripts rely on."""

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import steadytune

SOURCE = Path(steadytune.__file__).parent

PROMISED = [
    *("Mixout", "Dropout", "Reinit", "LayerwiseLR", "AdamW", "PretrainedDecay", "WeightDecay", "RDrop"),
    *("FraternalDropout", "Longer", "SteadyTrainer", "NoEffect", "apply_", "remove_", "layerwise_lr", "mixout"),
    *("mixout_", "reinit_", "rdrop_loss", "symmetric_kl", "bias_ratio"),
]


def fresh(code):
    """Run code in a new interpreter; returns what it printed."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", PROMISED)
def test_promised_names_are_public(name):
    assert name in steadytune.__all__
    assert getattr(steadytune, name)


def test_every_public_name_resolves_and_is_listed():
    for name in steadytune.__all__:
        assert getattr(steadytune, name)
        assert name in dir(steadytune)
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        steadytune.Nonsense  # noqa: B018


def test_import_is_light():
    code = (
        "import sys, time; start = time.process_time(); import steadytune; spent = time.process_time() - start; "
        "print(spent, any(m in sys.modules for m in ('torch', 'transformers', 'numpy', 'scipy')))"
    )
    seconds, heavy = fresh(code).split()
    assert heavy == "False"
    assert float(seconds) < 0.3


def test_help_is_quick():
    code = (
        "import resource, subprocess, sys; subprocess.run([sys.executable, '-m', 'steadytune', '--help'], check=True, "
        "stdout=subprocess.DEVNULL); u = resource.getrusage(resource.RUSAGE_CHILDREN); print(u.ru_utime + u.ru_stime)"
    )
    # Best of three: CPU seconds still vary with what else the machine does.
    assert min(float(fresh(code)) for _ in range(3)) < 0.5


def test_methods_are_listed_for_people_and_machines():
    run = [sys.executable, "-m", "steadytune", "methods"]
    rows = json.loads(subprocess.run([*run, "--json"], capture_output=True, text=True, check=True, timeout=120).stdout)
    by_name = {row["name"]: row for row in rows}
    assert by_name["mixout"]["defaults"]["p"] == 0.7
    assert by_name["mixout"]["place"] == "model"
    assert "Mixout" in by_name["mixout"]["paper"]
    assert {"reinit", "rdrop", "adamw", "layerwise_lr", "weight_decay", "pretrained_decay", "longer"} <= by_name.keys()
    text = subprocess.run(run, capture_output=True, text=True, check=True, timeout=120).stdout
    assert all(row["class"] in text for row in rows)


# Imports go down this list only: a file may import what stands before it, or its own folder.
LEVELS = [
    ["errors"],
    ["rng", "module_tree", "strict", "checkpoint", "signals", "locks", "packages", "hub"],
    ["layers"],
    ["kernels"],
    ["methods"],
    ["recipe"],
    ["config"],
    ["apply"],
    ["tasks", "stats"],
    ["models"],
    ["engine"],
    ["study"],
    ["trained", "report"],
    ["predicting"],
    ["fitting"],
    ["integrations", "listing", "effects"],
    ["papers"],
    ["demo"],
    ["cli_study"],
    ["cli_paper"],
    ["cli"],
    ["__main__"],
]


def test_imports_go_one_way():
    level = {name: number for number, names in enumerate(LEVELS) for name in names}
    for file in SOURCE.rglob("*.py"):
        here = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        if here == "__init__":
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("steadytune."):
                there = node.module.split(".")[1]
                assert there == here or level[there] < level[here], f"{file.relative_to(SOURCE)} imports {node.module}"


def test_it_knows_its_version_without_being_installed(tmp_path):
    """From its source alone, as on a machine without pip: records then say what they were made with."""
    (tmp_path / "steadytune").symlink_to(SOURCE)
    code = (
        "import importlib.metadata as metadata; from steadytune.packages import package_versions; "
        "print(any(metadata.distributions(name='steadytune')), *package_versions(('steadytune', 'nonsense')).values())"
    )
    source = {"PYTHONPATH": str(tmp_path)}  # and -S: without site-packages, where this one may be installed
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, timeout=120, env=source)
    assert done.stdout.split() == ["False", steadytune.__version__, "unknown"], done.stderr


def test_the_oldest_versions_that_are_tested_are_those_that_are_allowed():
    here = Path(__file__).parents[1]
    wanted = tomllib.loads((here / "pyproject.toml").read_text())["project"]["dependencies"]
    least = dict(each.split(">=") for each in wanted)
    pins = [line.split("==") for line in (here / "constraints-oldest.txt").read_text().splitlines() if "==" in line]
    tested = {name: version.split(".") for name, version in pins}
    for name in ("torch", "transformers"):
        assert tested[name][: len(least[name].split("."))] == least[name].split(".")
