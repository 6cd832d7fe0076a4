"""Study files: what they mean, and what is refused with file and line."""

import pytest

from steadytune.errors import SteadytuneError
from steadytune.study.file import load_study
from steadytune.study.status import study_folder

WHOLE = """\
study: Everything
about: all keys at once
base: {preset: standard, lr: 2e-5}
tasks:
  RTE: {glue: data/RTE, rows: 1000}
  mine: {file: mine.csv, text: [a, b], label: c, recipe: {epochs: 7}, limit: {train: 50}}
variants:
  standard: {}
  longer: {epochs: 10, tasks: {RTE: {epochs: 20}}}
  mixout: {add: [{method: mixout}], sweep: {mixout.p: [0.1, 0.9]}}
sweep: {lr: [1e-5, 2e-5]}
seeds: 3
choose: {seeds: 2, over: [lr]}
report: {split: validation, weights: last}
baseline: longer
"""


def study(tmp_path, text):
    (tmp_path / "s.yaml").write_text(text, encoding="utf-8")
    return load_study(tmp_path / "s.yaml")


def test_whole_file(tmp_path):
    made = study(tmp_path, WHOLE)
    assert list(made.groups) == ["standard", "longer", "mixout, p=0.1", "mixout, p=0.9"]
    assert [each.variant.name for each in made.groups["mixout, p=0.9"]] == [
        "mixout, p=0.9, lr=1e-05",
        "mixout, p=0.9, lr=2e-05",
    ]
    candidate = made.groups["mixout, p=0.9"][1]
    assert candidate.variant.family == "mixout, p=0.9"
    assert candidate.recipes["RTE"].lr == 2e-5
    assert [m.p for m in candidate.recipes["RTE"].methods if m.name == "mixout"] == [0.9]
    assert made.variants["mixout, p=0.1"].point == {"mixout.p": 0.1}
    # base (3 epochs), then the task, then the variant, then the variant on one task
    epochs = {name: {task: r.epochs for task, r in made.groups[name][0].recipes.items()} for name in made.groups}
    assert epochs["standard"] == {"RTE": 3.0, "mine": 7.0}
    assert epochs["longer"] == {"RTE": 20.0, "mine": 10.0}
    assert (made.baseline, made.report.split, made.report.weights) == ("longer", "validation", "last")
    assert [s.init for s in made.seeds] == [0, 1, 2]
    assert len(made.choose.seeds) == 2


def test_seeds(tmp_path):
    plain = "study: s\ntasks: {d: {acceptability: 50}}\nvariants: {a: {}}\nseeds: "
    assert [s.order for s in study(tmp_path, plain + "[4, 2]").seeds] == [4, 2]
    grid = study(tmp_path, plain + "{init: 2, order: 3}").seeds
    assert [(s.init, s.order, s.noise) for s in grid] == [(i, j, j) for i in range(2) for j in range(3)]


REFUSED = [
    ("sedes: 3", "line 12: A study file has no 'sedes'. Did you mean 'seeds'?", "seeds: 3"),
    ("seeds: 0", "line 12: seeds must be a number of runs", "seeds: 3"),
    ("seeds: [1, 1]", "line 12: A seed is given twice", "seeds: 3"),
    ("seeds: true", "line 12: seeds must be", "seeds: 3"),
    ("seeds: {init: 2}", "line 12: seeds must be", "seeds: 3"),
    ("seeds: 3\nseeds: 4", "line 13: 'seeds' is given twice, first in line 12", "seeds: 3"),
    ("seeds: !!int 3", "line 12: the tag", "seeds: 3"),
    ("seeds: &a 3", "line 12: anchors", "seeds: 3"),
    (
        "baseline: londer",
        "line 15: There is no variant 'londer' to compare with. Did you mean 'longer'?",
        "baseline: longer",
    ),
    ("choose: {seeds: 2, over: [p]}", "line 13: 'p' is not swept", "choose: {seeds: 2, over: [lr]}"),
    ("choose: {over: [lr]}", "line 13: choose needs seeds", "choose: {seeds: 2, over: [lr]}"),
    ("sweep: {lr: 1e-5}", "line 11: sweep: lr needs a list", "sweep: {lr: [1e-5, 2e-5]}"),
    ("sweep: {lr: [1e-5, 1e-5]}", "line 11: sweep: lr has a value twice", "sweep: {lr: [1e-5, 2e-5]}"),
    ("sweep: {lr: [-1]}", "line 11: Recipe: lr must be a number above 0", "sweep: {lr: [1e-5, 2e-5]}"),
    ("sweep: {learning: [1]}", "line 11: Recipe has no setting 'learning'", "sweep: {lr: [1e-5, 2e-5]}"),
    ("sweep: {mixout.q: [1]}", "line 10: Mixout has no setting 'q'", "sweep: {mixout.p: [0.1, 0.9]}"),
    ("sweep: {rdrop.alpha: [1]}", "line 10: rdrop.alpha cannot be swept", "sweep: {mixout.p: [0.1, 0.9]}"),
    ("tasks: {RET: {", "line 9: There is no task 'RET'. Did you mean 'RTE'?", "tasks: {RTE: {"),
    ("standard: {epcohs: 3}", "line 8: Recipe has no setting 'epcohs'. Did you mean 'epochs'?", "standard: {}"),
    ("standard: {add: [{method: mixotu}]}", "line 8: There is no method 'mixotu'", "standard: {}"),
    ("standard: {preset: devlin}", "line 8: Only base may start from a preset", "standard: {}"),
    ("glue: data/RTE, rwos", "line 5: A glue task has no setting 'rwos'", "glue: data/RTE, rows"),
    ("RTE: {images: x, glue", "line 5: A task names its data with one of", "RTE: {glue"),
    ("RTE: {gleu", "line 5: A task names its data", "RTE: {glue"),
    ("limit: {trian: 50}", "line 6: There is no split 'trian'", "limit: {train: 50}"),
    ("limit: {train: 0}", "line 6: limit of train must be", "limit: {train: 50}"),
    ("recipe: {epochs: -7}", "line 6: Recipe: epochs must be", "recipe: {epochs: 7}"),
    ("report: {split: train", "line 14: report: split must be one of", "report: {split: validation"),
]


@pytest.mark.parametrize(("new", "message", "old"), REFUSED, ids=[new for new, _, _ in REFUSED])
def test_refused_with_file_and_line(tmp_path, new, message, old):
    text = WHOLE.replace(old, new, 1)
    assert text != WHOLE
    with pytest.raises(SteadytuneError) as caught:
        study(tmp_path, text)
    assert "s.yaml, " in str(caught.value)
    assert message in str(caught.value)


def test_folder_of_a_study(tmp_path):
    (tmp_path / "t.yaml").touch()
    assert study_folder(tmp_path / "t.yaml") == tmp_path / "t-study"
    assert study_folder(tmp_path) == tmp_path
    with pytest.raises(SteadytuneError, match="neither a study file nor"):
        study_folder(tmp_path / "none.yaml")
