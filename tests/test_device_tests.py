"""benchmarks/device_tests.py and goals.py: what they make of tests and parts that fail, end early or say too much."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
FILES = {
    "bad": "def test_a(): assert False\n\n@pytest.mark.skip(reason='no device')\ndef test_b(): pass\n",
    "ends": "import os\n\ndef test_a(): pass\n\ndef test_b(): os._exit(3)\n\ndef test_c(): pass\n",
    "broken": "import nothing_of_this_name\n",
    "good": "@pytest.fixture\ndef leaves():\n    yield\n    assert False\n\ndef test_a(leaves): pass\n",
    "unnamed": "def test_a(): pass\n",
}
RUN = """
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import device_tests

device_tests.TESTS = Path(sys.argv[2])
device_tests._NAMED = set(sys.argv[4:])
device_tests.GROUPS = {name: device_tests.Group((name,), 60) for name in sys.argv[4:]}
sys.exit(device_tests.run_here(sys.argv[3], Path(sys.argv[2])))
"""


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def test_outcomes_of_device_tests(load, tmp_path):
    tests = load("device_tests")
    for name, source in FILES.items():
        (tmp_path / f"test_{name}_gpu.py").write_text(f"import pytest\n\npytestmark = pytest.mark.gpu\n\n{source}")
    names, found = list(FILES)[:-1], {}
    for name in names:
        subprocess.run([sys.executable, "-c", RUN, BENCHMARKS, tmp_path, name, *names], capture_output=True)
        found[name] = tests.read(tmp_path / f"{name}.jsonl")
    assert {name: [each.outcome for each in of.values()] for name, of in found.items()} == {
        "bad": ["failed", "skipped"],
        "ends": ["passed", "unfinished"],
        "broken": ["failed"],
        "good": ["failed", "passed"],  # what a fixture does at the end; and the file that no group names
    }
    said = "\n".join(tests.table(found["bad"] | found["ends"]))
    assert "skipped, 1: no device\n" in said
    # how much of its path pytest names a test by depends on where it runs
    told = [(outcome, Path(test).name) for outcome, test in map(str.split, said.splitlines()[-2:])]
    assert told == [("failed:", "test_bad_gpu.py::test_a"), ("unfinished:", "test_ends_gpu.py::test_b")]
    assert "NOT PASSED: 2 tests" in tests.verdict(found["bad"] | found["ends"], [])
    (skipped, passed) = (
        {name: each for name, each in found["bad"].items() if each.outcome == "skipped"},
        {name: each for name, each in found["good"].items() if each.outcome == "passed"},
    )
    assert "NOTHING WAS TESTED" in tests.verdict(skipped, [])
    assert tests.verdict(skipped | passed, []) == ""
    assert "1 groups" in tests.verdict(passed, ["left out: no time"])


def test_a_command_that_takes_too_long_is_stopped_with_what_it_started(load, tmp_path):
    ended, output = load("common").ended, tmp_path / "said.txt"
    assert ended([sys.executable, "-c", "print('here'); raise SystemExit(3)"], output, 60) == 3
    assert output.read_text() == "here\n"
    sleeps = (
        "import subprocess, time; subprocess.Popen(['sleep', '1000']); print('begun', flush=True); time.sleep(1000)"
    )
    assert "stopped after 2 s" in str(ended([sys.executable, "-c", sleeps], output, 2))


def test_json_that_is_not_the_last_that_was_said(load):
    last_json = load("goals").last_json
    assert last_json('{"a": 1}\n{"b": 2}\n{no json\nException ignored in: x\n') == {"b": 2}
    assert last_json("nothing\n") == {}
