"""Every table and figure as an experiment: what is planned at each scale, and that all of it runs."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from steadytune.config import Document, load_yaml
from steadytune.errors import SteadytuneError
from steadytune.papers import published
from steadytune.papers.catalogue import ITEMS, PAPERS
from steadytune.papers.cost import cost, planned_study
from steadytune.papers.experiment import Computed, Shown
from steadytune.papers.experiments import EXPERIMENTS, find_experiment
from steadytune.papers.materials.text_models import save_model
from steadytune.papers.places import at_scale
from steadytune.papers.report import make_report
from steadytune.papers.report_files import print_report, write_files
from steadytune.papers.run import (
    Workshop,
    compute,
    read_part,
    run_experiment,
    run_inside,
    run_part,
    scale_of,
)
from steadytune.papers.settings import SCALES, SMOKE_MODELS, VIT_BASE, VIT_LARGE, Setting
from steadytune.papers.studies import mixout
from steadytune.papers.studies.few_sample_methods import INTERMEDIATE
from steadytune.papers.studies.parts import RATES_OF
from steadytune.papers.study_data import at_most, only, write_study
from steadytune.papers.study_parts import PARTS, in_order
from steadytune.study.file import read_study
from steadytune.study.folder import read_results

SHOWN = {id: each for id, each in EXPERIMENTS.items() if isinstance(each, Shown)}


@cache
def study(name, scale="full"):
    return planned_study(PARTS[name], scale)


def recipe(name, variant, task, scale="full"):
    return study(name, scale).groups[variant][0].recipes[task]


def methods(found):
    return {each.name: each for each in found.methods}


# --- What is planned ----------------------------------------------------------------------------------------------


def test_every_table_and_figure_has_an_experiment():
    assert list(EXPERIMENTS) == list(ITEMS)


def test_every_part_is_shown_and_comes_after_what_it_needs():
    used = {part.name for each in SHOWN.values() for scale in SCALES for part in in_order(each, scale)}
    assert used == set(PARTS)
    for each in SHOWN.values():
        for scale in SCALES:
            names = [part.name for part in in_order(each, scale)]
            for place, name in enumerate(names):
                needed = {other for other in PARTS[name].after if scale in PARTS[other].scales}
                assert needed <= set(names[:place])


def test_what_the_catalogue_calls_the_same_runs_is_the_same_study():
    for id, item in ITEMS.items():
        if item.runs_of and isinstance(EXPERIMENTS[id], Shown):
            shared = set(EXPERIMENTS[id].parts_at("full")) & set(EXPERIMENTS[item.runs_of].parts_at("full"))
            assert shared, id


@pytest.mark.parametrize("scale", SCALES)
def test_every_study_reads_as_a_study_file(scale):
    for part in PARTS.values():
        if scale in part.scales:
            made = study(part.name, scale)
            assert min(len(made.groups), len(made.tasks), len(made.seeds)) >= 1
            assert scale != "smoke" or len(made.seeds) <= 4


def lines_of(experiment, scale):
    """(variant, task) that the experiment shows, before anything has been run."""
    found = set()
    for name in experiment.parts_at(scale):
        planned = study(name, scale)
        reported = {(group, task) for group in planned.groups for task in planned.tasks}
        tried = {
            (each.variant.name, task) for many in planned.groups.values() for each in many for task in planned.tasks
        }
        if experiment.lines is None:
            found |= reported
        else:
            for line in experiment.lines:
                runs = tried if line.tuning else reported
                found |= {(line.shown.name, task) for variant, task in runs if variant == line.variant}
    families = {
        variant.name: variant.family
        for name in experiment.parts_at(scale)
        for variant in study(name, scale).variants.values()
    }
    return found | {(families.get(variant, variant), task) for variant, task in found}


@pytest.mark.parametrize("id", SHOWN)
def test_claims_find_their_runs_at_full_scale(id):
    """Names of variants and tasks are those of the published rows and columns, so every claim can be tested."""
    experiment = SHOWN[id]
    there = lines_of(experiment, "full")
    elsewhere = {"Devlin et al. (2018)"}  # a row that others measured
    joined = ("Transformer full-model deep ensembling", "Transformer full-model weight averaging (model)")
    for claim in ITEMS[id].claims:
        for cell in (cell for case in claim.cases for cell in case):
            place = at_scale(experiment.place(cell), "full", {})
            if cell.row not in elsewhere and not cell.row.startswith(joined):
                assert (place.variant, place.task) in there, cell


@pytest.mark.parametrize("id", SHOWN)
def test_some_case_of_every_item_is_run_at_the_small_scale(id):
    experiment = SHOWN[id]
    there = lines_of(experiment, "small")
    cells = [cell for claim in (*ITEMS[id].claims, *experiment.ours) for case in claim.cases for cell in case]
    places = [at_scale(experiment.place(cell), "small", dict(experiment.stand_ins)) for cell in cells]
    assert any((place.variant, place.task) in there for place in places)


def test_seeds_and_rules_of_selection_are_the_papers():
    seeds = {name: len(study(name).seeds) for name in PARTS if "full" in PARTS[name].scales}
    assert seeds["few-sample/figure-2"] == 50
    assert seeds["few-sample/figure-9"] == 100
    assert seeds["few-sample/table-5"] == 3
    twenty = [*(f"mixout/table-{i}" for i in range(1, 5)), "mixout/figure-4", "mixout/figure-6"]
    twenty += [f"few-sample/{name}" for name in ("table-2", "table-4", "table-7", "layers", "layers-1k", "longer-1k")]
    assert all(seeds[name] == 20 for name in twenty)
    layers, longer = study("few-sample/layers").choose, study("few-sample/longer-1k").choose
    assert (len(layers.seeds), layers.over) == (20, ("reinit.layers",))
    assert (len(longer.seeds), longer.over) == (8, ("longer.steps",))
    assert len(study("few-sample/table-2").choose.seeds) == 20


def test_evidence_has_enough_seeds_at_the_small_scale():
    names = [f"few-sample/{name}" for name in ("figure-2", "table-2", "layers-1k", "longer-1k", "layers", "table-4")]
    assert all(len(study(name, "small").seeds) >= 20 for name in [*names, "mixout/table-1"])
    assert len(study("few-sample/figure-9", "small").seeds) == 100
    assert all(len(study(f"rdrop/{name}", "small").seeds) >= 5 for name in ("translation", "table-1", "table-2"))
    table_2 = study("few-sample/table-2", "small")
    assert (len(table_2.groups), len(table_2.tasks), len(table_2.seeds), table_2.choose) == (8, 4, 20, None)


def test_small_runs_are_short():
    """A few hundred steps each; what has more rows is cut, and a large set is whole where that is the point."""
    limits = {task: each.limit for task, each in study("few-sample/table-2", "small").tasks.items()}
    assert limits.pop("RTE") == {}
    assert all(limit == {"train": 2500} for limit in limits.values())
    assert study("mixout/table-2", "small").tasks["SST-2"].limit == {}
    assert all(not each.limit for each in study("few-sample/table-2").tasks.values())  # full: all rows


def test_at_the_small_scale_every_rate_of_a_pretrained_model_is_a_chosen_one(monkeypatch):
    """A column whose rate nobody chose would silently have the default."""
    choosing = (*RATES_OF, mixout.RATES)
    tried = {(name, task) for name in choosing for task in study(name, "small").tasks}

    def chosen(setting, name, variant, task):
        return {"lr": 0.0123} if (name, task) in tried else {}

    monkeypatch.setattr(Setting, "chosen", chosen)
    for part in PARTS.values():
        if "small" not in part.scales or part.name in (*choosing, INTERMEDIATE):
            continue
        for variants in planned_study(part, "small").groups.values():
            for task, made in variants[0].recipes.items():
                assert made.from_config or made.lr == 0.0123, (part.name, task)


def test_the_mixout_papers_set_up():
    made = recipe("mixout/table-1", "dropout(0.1) + wdecay(0, 0.01)", "RTE")
    assert (made.model, made.lr, made.batch_size, made.epochs, made.weight_decay) == (
        "bert-large-uncased",
        *(2e-5, 32, 3.0, 0.01),
    )
    assert not methods(made)["adamw"].correct_bias
    assert methods(made)["dropout"].p == 0.1
    assert methods(made)["linear_schedule"].warmup == 0.1
    mixed = recipe("mixout/table-1", "mixout(w_pre, 0.8) + wdecay(w_pre, 0.01)", "CoLA")
    assert (methods(mixed)["mixout"].p, methods(mixed)["mixout"].gradient) == (0.8, "paper")
    assert (methods(mixed)["pretrained_decay"].decay, mixed.weight_decay) == (0.01, 0.0)
    assert "dropout" not in methods(mixed)
    planned = study("mixout/table-1")
    assert (planned.report.split, planned.report.weights) == ("validation", "last")
    published_rows = set(published.load("mixout/table-1").rows())
    assert published_rows <= set(planned.groups)
    swept = study("mixout/figure-4")
    nothing = swept.groups["mixout(w_pre, p), p=0.0"][0].recipes["RTE"]
    assert methods(nothing)["dropout"].p == 0.0  # no regulariser at all, not the model's own dropout


def test_the_few_sample_papers_set_up():
    made = recipe("few-sample/figure-2", "Bias correction", "RTE")
    settings = (made.model, made.lr, made.batch_size, made.epochs, made.clip, made.evaluations, made.precision)
    assert settings == ("bert-large-uncased", 2e-5, 32, 3.0, 1.0, 10, "fp16")
    biased = recipe("few-sample/figure-2", "No bias correction", "RTE")
    assert [methods(each)["adamw"].correct_bias for each in (made, biased)] == [True, False]
    grids = {name: [each.variant.point for each in many] for name, many in study("few-sample/table-2").groups.items()}
    counts = {"Standard": 1, "Int. Task": 1, "LLRD": 6, "Mixout": 5, "Pre-trained WD": 4, "WD": 4}
    assert {name: len(points) for name, points in grids.items()} == counts
    steps = [each.variant.point["longer.steps"] for each in study("few-sample/longer-1k").groups["Standard, longer"]]
    assert steps == [200, 400, 800, 1600, 3200]
    for name, tasks in (("longer-400", ("RTE", "MRPC")), ("longer-800", ("STS-B",)), ("longer-1600", ("CoLA",))):
        planned = study(f"few-sample/{name}")
        assert tuple(planned.tasks) == tasks
        rows = {"RTE": 2490, "MRPC": 3668, "STS-B": 5749, "CoLA": 8551}
        least = planned.groups["Standard, longer"][0].variant.point["longer.steps"]
        assert all(-(-rows[task] // 32) * 3 <= least for task in tasks)  # values below three epochs are skipped


def test_the_settings_of_other_models_are_those_of_table_6():
    xlnet = recipe("few-sample/table-7", "Re-init, XLNet", "CoLA")
    assert (xlnet.model, xlnet.lr, xlnet.steps, xlnet.batch_size) == ("xlnet-large-cased", 3e-5, 1200, 128)
    assert methods(xlnet)["linear_schedule"].warmup == 120
    electra = recipe("few-sample/table-7", "Standard, ELECTRA", "RTE")
    assert (electra.epochs, methods(electra)["layerwise_lr"].decay) == (10.0, 0.9)


def test_the_rdrop_papers_set_up():
    mnli = recipe("rdrop/table-1", "R-Drop", "MNLI")
    assert (mnli.lr, mnli.steps, mnli.batch_size, methods(mnli)["rdrop"].alpha) == (1e-5, 123_873, 32, 0.5)
    assert (methods(mnli)["adamw"].betas, methods(mnli)["adamw"].eps) == ((0.9, 0.98), 1e-6)
    own = {task: each.source.metric for task, each in study("rdrop/table-1").tasks.items()}
    assert {task: metric for task, metric in own.items() if metric} == {"MRPC": "accuracy", "STS-B": "pearson"}
    here = {task: each.source.metric for task, each in study("rdrop/table-2", "small").tasks.items()}
    assert {task: metric for task, metric in here.items() if metric} == {"MRPC": "accuracy"}, "others keep their keys"
    base = recipe("rdrop/table-1", "Baseline", "RTE")
    assert ("rdrop" in methods(base), base.batch_size) == (False, 8)
    translated = recipe("rdrop/translation", "R-Drop", "IWSLT14 De-En")
    assert (translated.from_config, translated.beams, methods(translated)["rdrop"].alpha) == (True, 5, 5.0)
    assert (translated.label_smoothing, methods(translated)["rdrop"].label_smoothing) == (0.0, 0.1)
    assert recipe("rdrop/translation", "Baseline", "IWSLT14 De-En").label_smoothing == 0.1
    larger = recipe("rdrop/table-1", "R-Drop, RoBERTa-large", "MNLI")
    assert (larger.model, larger.steps, methods(larger)["rdrop"].alpha) == ("roberta-large", 123_873, 0.5)
    assert recipe("rdrop/images", "R-Drop, ViT-L/16", "ImageNet").model == VIT_LARGE
    for column in ("CIFAR-100", "ImageNet"):
        found = methods(recipe("rdrop/images", "R-Drop", column))["rdrop"]
        assert (found.alpha, found.variant, found.alpha_schedule) == (0.6, "paper", "constant")
    of_table_4 = methods(recipe("rdrop/images-of-table-4", "R-Drop", "CIFAR-100"))["rdrop"]
    assert (of_table_4.alpha, of_table_4.alpha_schedule) == (0.6, "lr")  # section C.4
    assert list(study("rdrop/images-of-table-4").tasks) == ["CIFAR-100"]


def test_choices_of_earlier_studies_are_taken_over(tmp_path):
    """L and the rate of the second study are what validation chose in the first."""
    workshop = Workshop(tmp_path, "smoke")
    assert run_experiment("few-sample/figure-8", workshop, None) == 0
    rates, layers = (read_part(workshop, f"few-sample/{name}-1k") for name in ("rates", "layers"))
    longer = read_part(workshop, "few-sample/longer-1k")
    (task,) = longer.tasks
    rate = rates.variants[rates.chosen[task, "Standard"]].point["lr"]
    blocks = layers.variants[layers.chosen[task, "Re-init, 3 epochs"]].point["reinit.layers"]
    assert {trial.recipe["lr"] for trial in (*longer.trials, *layers.trials)} == {rate}
    again = [t for t in longer.trials if t.variant.startswith("Re-init")]
    found = {each["layers"] for t in again for each in t.recipe["methods"] if each["method"] == "reinit"}
    assert found == {blocks}


# --- Everything runs ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def console():
    from rich.console import Console

    with open(os.devnull, "w") as nowhere:
        yield Console(file=nowhere, width=150)


@pytest.mark.parametrize("paper", PAPERS)
def test_every_smoke_run_passes_and_is_reported(paper, tmp_path, console):
    workshop = Workshop(tmp_path / "out", "smoke")
    for id in (id for id, item in ITEMS.items() if item.paper == paper):
        assert run_experiment(id, workshop, None) == 0, id
        experiment = EXPERIMENTS[id]
        if isinstance(experiment, Shown):
            for name in experiment.parts_at("smoke"):
                found = read_part(workshop, name)
                assert all(trial.status in ("finished", "diverged") for trial in found.trials), name
        made = make_report(id, workshop)
        print_report(made, console)
        paths = write_files(made, tmp_path / "record" / id, ("svg",))
        names = {path.name for path in paths}
        stem = id.replace("/", "-")
        assert {f"{stem}.md", f"{stem}.json"} <= names
        assert made.verdicts
        if isinstance(experiment, Shown):
            assert len(made.verdicts) == len(ITEMS[id].claims) + len(experiment.ours)
            assert all(each.holds is None or each.p_value is None for each in made.verdicts)  # 2 seeds show nothing
        record = (tmp_path / "record" / id / f"{stem}.json").read_text()
        assert json.loads(record)["id"] == id
        assert all(str(tmp_path) not in path.read_text() for path in paths)  # no absolute paths in what is kept
        assert scale_of(id, workshop.out) == "smoke"
    again = next(id for id, item in ITEMS.items() if item.paper == paper)
    assert run_experiment(again, workshop, None) == 0


ARCHITECTURES = {  # a part of the full scale, variants that cover its models, and its task
    "mixout/table-1": ["dropout(0.1) + wdecay(0, 0.01)", "mixout(w_pre, 0.9) + wdecay(w_pre, 0.01)"],
    "few-sample/table-7": [f"{row}, {name}" for row in ("Standard", "Re-init") for name in ("XLNet", "BART")]
    + ["Re-init, RoBERTa", "Re-init, ELECTRA"],
    "few-sample/table-2": ["LLRD", "Pre-trained WD"],
    "rdrop/table-1": ["Baseline", "R-Drop", "R-Drop, RoBERTa-large"],
    "rdrop/translation": ["R-Drop", "FD"],
    "rdrop/summarization": ["R-Drop"],
    "rdrop/language-modeling": ["R-Drop"],
    "rdrop/images": ["R-Drop", "FD", "R-Drop, ViT-L/16"],
    "rdrop/images-of-table-4": ["R-Drop"],
}


@pytest.fixture(scope="module")
def materials(tmp_path_factory):
    """The generated data under the names that the full scale expects."""
    from steadytune.papers.materials.smoke import write_materials

    folder = write_materials(tmp_path_factory.mktemp("full") / "data")
    shutil.copytree(folder / "multi30k", folder / "iwslt14")
    shutil.copytree(folder / "wikitext-2", folder / "wikitext-103")
    (folder / "cnn_dailymail").mkdir()
    rows = "".join(f"w1 w{i} w3 w4,w{i} w3\n" for i in range(20))
    for part in ("train", "validation", "test"):
        (folder / "cnn_dailymail" / f"{part}.csv").write_text("article,highlights\n" + rows)
    return folder


def shortened(data, kept):
    """The study of the full scale with the same recipes but for their length, on one seed and the first task."""
    task, source = next(iter(data["tasks"].items()))
    short = {"steps": 2, "evaluations": 1, "batch_size": 4, "max_length": 16, "max_target_length": 6, "beams": 2}
    short |= {"precision": "fp32", "micro_batches": min(2, data["base"].get("micro_batches", 1))}
    recipe = {key: value for key, value in source.get("recipe", {}).items() if key == "add"}
    warm = {"method": "linear_schedule", "warmup": 0.5}
    variants = {}
    for name in kept:
        found = data["variants"][name]
        own = found.get("tasks", {}).get(task, {})
        more = [each for each in (*found.get("add", []), *own.get("add", [])) if "schedule" not in each["method"]]
        plain = {key: found[key] for key in ("model", "label_smoothing", "weight_decay") if key in found}
        variants[name] = {**plain, "add": [*more, warm]}
    limit = {"limit": {"train": 12, "validation": 4, "test": 4}} if "images" not in source else {}
    if source.get("halves") is False or "language_model" in source:
        limit = {"limit": {"train": 12, "validation": 4}}
    tasks = {task: {key: value for key, value in source.items() if key != "recipe"} | limit}
    if "add" in recipe:
        recipe["add"] = [each for each in recipe["add"] if "schedule" not in each["method"]]
        tasks[task]["recipe"] = recipe
    if "images" in source:
        tasks[task]["images"] = str(Path(source["images"]).parent / "images.npz")
    base = {key: value for key, value in data["base"].items() if key != "epochs"} | short
    return {"study": data["study"], "base": base, "tasks": tasks, "variants": variants, "seeds": 1}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_full_configuration_runs_on_a_tiny_model_of_the_same_architecture(name, tmp_path, materials):
    models = {hub: str(materials / place) for hub, place in SMOKE_MODELS.items()}
    setting = Setting("full", materials, tmp_path / "full" / name, models)
    setting.folder.mkdir(parents=True)
    part = PARTS[name]
    if part.prepare is not None:
        part.prepare(setting)
        for file in setting.folder.parent.rglob("config.json"):  # the paper's own architecture, but small
            config = json.loads(file.read_text())
            config |= {"d_model": 16, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
            file.write_text(json.dumps(config))
    data = part.make(setting)
    read_study(Document(name, data, {}))  # the whole of it is a study
    file = write_study(setting.folder, shortened(data, ARCHITECTURES[name]))
    assert run_inside(file) == 0
    found = read_results(setting.folder)
    assert [trial.status for trial in found.trials] == ["finished"] * len(ARCHITECTURES[name])
    assert all(trial.last.validation is not None for trial in found.trials)
    for trial in found.trials:  # it was trained: every part of the model has moved
        moved = trial.history[-1]["distances"]["start"]
        assert len(moved) > 2, moved
        assert min(moved.values()) > 0.0, (trial.variant, moved)


def test_every_model_of_the_full_scale_is_among_them():
    there = {made.model for part in PARTS.values() if "full" in part.scales for made in recipes_of(part.name)}
    tried = {made.model for name, kept in ARCHITECTURES.items() for made in recipes_of(name, kept)}
    assert tried == there
    assert there > set(SMOKE_MODELS)  # and Marian's, which has no name on the hub


def recipes_of(name, kept=None):
    for group, variants in study(name).groups.items():
        if kept is None or group in kept:
            yield from (recipe for each in variants for recipe in each.recipes.values())


def test_the_docs_say_where_the_full_scale_looks_for_its_data():
    page = (Path(__file__).parents[2] / "docs" / "papers.md").read_text(encoding="utf-8")
    table = page.partition("### What `--data` holds at full scale")[2].partition("\n## ")[0]
    looked_for = {"mnist", "emnist-digits", "iwslt14"}  # read by what prepares or computes
    for part in PARTS.values():
        if "full" in part.scales:
            tasks = part.make(Setting("full", Path("data"), Path("out"))).get("tasks", {})
            places = [str(value) for task in tasks.values() for value in task.values() if "/data/" in str(value)]
            looked_for |= {place.partition("/data/")[2].partition("/")[0] for place in places}
    assert looked_for >= {"glue", "cifar-100", "imagenet", "cnn_dailymail", "wikitext-103"}
    assert all(f"| `{folder}/" in table for folder in looked_for), looked_for


def test_imagenet_is_read_from_files_of_different_sizes(tmp_path):
    """The task of the full scale as it is, on a tiny model for colours."""
    image = pytest.importorskip("PIL.Image")
    draw = np.random.default_rng(0)
    for number in range(36):
        folder = tmp_path / "data/imagenet" / ("test" if number % 4 == 3 else "train") / "abc"[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 255, ((20, 30) if number % 2 else (31, 17)) + (3,), dtype=np.uint8)
        image.fromarray(pixels).save(folder / f"{number}.png")
    vit = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "num_hidden_layers": 2}
    save_model(tmp_path / "vit", "ViTConfig", {**vit, "image_size": 16, "patch_size": 8}, None, "ViTModel")
    setting = Setting("full", tmp_path / "data", tmp_path / "study", {VIT_BASE: str(tmp_path / "vit")})
    setting.folder.mkdir()
    data = PARTS["rdrop/images"].make(setting)
    task = data["tasks"]["ImageNet"]
    assert task["size"] == 224
    data = shortened({**data, "tasks": {"ImageNet": task}}, ["R-Drop"])
    data["tasks"]["ImageNet"] = {**task, "size": 24}
    assert run_inside(write_study(setting.folder, data)) == 0
    found = read_results(setting.folder)
    assert found.tasks["ImageNet"].rows == {"train": 24, "validation": 3, "test": 9}
    assert [trial.status for trial in found.trials] == ["finished"]


def test_models_that_are_joined_are_scored(tmp_path):
    workshop = Workshop(tmp_path, "smoke")
    assert run_experiment("rdrop/table-5", workshop, None) == 0
    found = json.loads((workshop.folder("rdrop/models") / "joined.json").read_text())
    assert [list(each) for each in found.values()] == [["1 model", "2 models"]] * 2
    made = make_report("rdrop/table-5", workshop)
    numbers = {(cell["row"], cell["setting"]): cell for cell in made.cells}
    assert numbers["Transformer full-model deep ensembling", "2 models"]["n"] == 1


def test_a_study_that_was_stopped_is_an_exit_code(tmp_path):
    workshop = Workshop(tmp_path, "small", data=tmp_path)
    seen = []

    def stopped(file, known, alone):
        seen.append(file)
        return 130

    assert run_experiment("mixout/figure-6", workshop, stopped) == 130
    assert [file.name for file in seen] == ["study.yaml"]
    assert "Which learning rate?" in seen[0].read_text(), "what comes after it waits"
    assert str(tmp_path) not in seen[0].read_text()


def test_runs_whose_time_is_compared_have_their_gpu_alone(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from steadytune import cli_paper

    told = {}

    def run_study(file, **options):
        told[str(Path(file).parent.relative_to(tmp_path / "small"))] = options["per_gpu"]
        return 130

    def each_part(id, workshop, run_file, say):
        for part in (PARTS["mixout/supplement-e"], PARTS["mixout/figure-4"]):
            assert run_part(part, workshop.setting(part.name), run_file, workshop) == 130
        return 0

    monkeypatch.setattr("steadytune.study.command.run_study", run_study)
    monkeypatch.setattr("steadytune.papers.run.run_experiment", each_part)
    words = ["run", "mixout/supplement-e", "--scale", "small", "--per-gpu", "auto"]
    ran = CliRunner().invoke(cli_paper.paper, [*words, "--data", str(tmp_path), "--out", str(tmp_path)])
    assert ran.exit_code == 0, ran.output
    assert told == {"mixout/supplement-e": None, "mixout/figure-4": "auto"}


def test_some_of_the_tasks_can_be_run_first_and_the_rest_later(tmp_path):
    chosen = Workshop(tmp_path, "smoke", tasks=("MRPC",))
    assert run_experiment("few-sample/table-4", chosen, None) == 0
    report = make_report("few-sample/table-4", Workshop(tmp_path, "smoke"))
    assert {cell["column"] for cell in report.cells} == {"MRPC"}
    assert report.notes[-1] == "Not run here: CoLA."
    assert report.record()["command"].endswith("few-sample/table-4 --scale smoke --task MRPC")
    before = {trial.key: trial.seconds for trial in read_part(chosen, "few-sample/table-4").trials}
    assert run_experiment("few-sample/table-4", Workshop(tmp_path, "smoke"), None) == 0
    after = {trial.key: trial.seconds for trial in read_part(chosen, "few-sample/table-4").trials}
    assert len(after) == 2 * len(before)
    assert before.items() <= after.items(), "what was run is not run again"
    whole = make_report("few-sample/table-4", Workshop(tmp_path, "smoke"))
    assert not any("Not run here" in note for note in whole.notes)
    assert "--task" not in whole.record()["command"]


@pytest.mark.parametrize(("id", "whole"), [("few-sample/table-4", 4), ("few-sample/figure-9", 8)])
def test_some_of_the_seeds_can_be_run_first_and_the_rest_later(tmp_path, id, whole):
    """Of a grid, some of both sides."""
    first = Workshop(tmp_path, "smoke", tasks=("MRPC",) if "table" in id else (), seeds=1)
    assert run_experiment(id, first, None) == 0
    ran = {trial.key for trial in read_part(first, id).trials}
    assert len(ran) == 2
    report = make_report(id, Workshop(tmp_path, "smoke"))
    assert "Run with 1 of 2 seeds." in report.notes
    # "Re-init 5" is the paper's, of 24 blocks; of a smaller model it is not 5.
    assert ("Re-init 5 re-initialises 1 of 4 blocks." in report.notes) == (id == "few-sample/figure-9")
    assert report.record()["command"].endswith(" --seeds 1")
    assert run_experiment(id, replace(first, seeds=None), None) == 0
    found = read_part(first, id).trials
    assert (len(found), ran < {trial.key for trial in found}) == (whole, True)
    assert not any("seeds" in note for note in make_report(id, Workshop(tmp_path, "smoke")).notes)


def test_more_seeds_than_there_are_is_all_of_them(tmp_path):
    data = study_data("few-sample/figure-9")
    assert at_most(data, 100) == at_most(data, None) == data
    assert at_most(data, 3)["seeds"] == {"init": 3, "order": 3}


def study_data(name):
    return PARTS[name].make(Workshop(Path("out"), "small").setting(name))


def test_a_study_without_the_chosen_task_is_neither_run_nor_missed(tmp_path):
    task = next(iter(study("rdrop/images", "smoke").tasks))
    assert run_experiment("rdrop/table-4", Workshop(tmp_path, "smoke", tasks=(task,)), None) == 0
    assert not (tmp_path / "smoke/rdrop/translation").exists()
    report = make_report("rdrop/table-4", Workshop(tmp_path, "smoke"))
    assert {cell["task"] for cell in report.cells} == {task}
    assert report.notes[-1].startswith("Not run here:")


def test_learning_rates_of_other_tasks_are_not_chosen(tmp_path):
    ran = []

    def stopped(file, known, alone):
        ran.append((file.parent.name, list(load_yaml(file).data["tasks"])))
        return 130

    for id, task in (("rdrop/table-2", "SST (1k)"), ("few-sample/table-2", "CoLA")):
        run_experiment(id, Workshop(tmp_path, "small", tmp_path, tasks=(task,)), stopped)
    assert ran == [("rates-1k", ["SST (1k)"]), ("rates", ["CoLA"])]


def test_a_task_that_others_start_from_is_always_run():
    made = study("few-sample/table-2", "smoke")
    first = PARTS[INTERMEDIATE].make(Setting("smoke", Path(), Path()))
    assert only(first, list(made.tasks)) == first
    longer = PARTS["few-sample/longer-1k"].make(Setting("small", Path(), Path("few-sample/longer-1k")))
    one = only(longer, ["SST (1k)"])
    assert list(one["tasks"]) == ["SST (1k)"]
    assert [list(each["tasks"]) for each in one["variants"].values() if "tasks" in each] == [["SST (1k)"]]


# --- Sentences ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda path: find_experiment("mixout/tabel-1"), "Did you mean 'mixout/table-1'"),
        (
            lambda path: run_experiment("few-sample/figure-2", Workshop(path, "small", path, tasks=("COLA",)), None),
            "only RTE, MRPC, STS-B, CoLA. Did you mean 'CoLA'",
        ),
        (lambda path: Setting("tiny", path, path), "no scale 'tiny'"),
        (lambda path: Setting("small", path, path).model("roberta-large"), "--model roberta-large=DIR"),
        (lambda path: scale_of("mixout/table-1", path), "steadytune paper run mixout/table-1"),
        (lambda path: make_report("mixout/table-1", Workshop(path, "smoke")), "steadytune paper run mixout/table-1"),
        (lambda path: make_report("mixout/figure-5", Workshop(path, "smoke")), "Run it first"),
        (
            lambda path: run_part(
                PARTS["rdrop/translation"], Workshop(path, "small", path).setting("a/b"), None, Workshop(path, "small")
            ),
            "has no train.de",
        ),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(act, says, tmp_path):
    with pytest.raises(SteadytuneError, match=says.replace("(", r"\(")):
        act(tmp_path)


def test_costs_grow_with_the_scale():
    for experiment in EXPERIMENTS.values():
        full, small, smoke = (cost(experiment, scale) for scale in SCALES)
        assert full.seconds >= small.seconds * 0.5
        assert smoke.seconds < 60
        assert isinstance(experiment, Computed) == (full.trials == 0)
        assert smoke.words().endswith(" s")


def test_the_list_is_for_people_and_machines():
    code = "from steadytune.papers.listing import print_list; print_list(['rdrop'], as_json={})"
    run = [sys.executable, "-c"]
    options = {"capture_output": True, "text": True, "timeout": 120, "check": True}
    data = json.loads(subprocess.run([*run, code.format(True)], **options).stdout)
    assert {each["id"] for each in data} == {id for id, item in ITEMS.items() if item.paper == "rdrop"}
    assert all(each["cost"]["full"]["seconds"] > 0 for each in data)
    for width in ("40", "80", "160"):
        text = subprocess.run([*run, code.format(False)], **options, env={**os.environ, "COLUMNS": width}).stdout
        assert all(each["id"] in text for each in data), "an id that is cut cannot be typed again"
        assert "mixout" not in text
        told = " ".join(text.split())
        assert all(each["title"].split()[0] in told for each in data)
        assert "with two forwards but without the KL term" in told, "what an item shows, however narrow"


def test_what_is_computed_says_where(tmp_path):
    workshop = Workshop(tmp_path, "smoke")
    for id in ("few-sample/figure-1", "mixout/figure-2"):
        assert run_experiment(id, workshop, None) == 0
        record = make_report(id, workshop).record()
        assert record["made_with"]["device"] == "cpu"
        assert all(each["n"] == len(each["values"]) == 3 for each in record["cells"])
    assert len(record["cells"]) == 4 * 4 * 3, (
        "of the digits: every restart, by form of mixout, by what was measured, by p"
    )


def test_the_command_runs_and_reports(tmp_path):
    from typer.testing import CliRunner

    from steadytune.cli_paper import paper

    def steadytune(*arguments):
        return CliRunner().invoke(paper, [*map(str, arguments), "--out", str(tmp_path / "out")])

    ran = steadytune("run", "mixout/supplement-e", "--scale", "smoke")
    assert ran.exit_code == 0, ran.output
    assert "steadytune paper report mixout/supplement-e --scale smoke" in " ".join(ran.output.split())
    told = steadytune("report", "mixout/supplement-e", "--record", tmp_path / "record")
    assert told.exit_code == 0, told.output
    assert "843" in told.output  # the paper's seconds
    assert "mixout costs 32.5 % more time than dropout" in told.output
    assert (tmp_path / "out/smoke/mixout/supplement-e/report.html").is_file()
    assert {path.suffix for path in (tmp_path / "record").iterdir()} == {".md", ".json", ".csv", ".svg"}
    as_data = steadytune("report", "mixout/supplement-e", "--json", "--no-pages")
    assert json.loads(as_data.output)["verdicts"][0]["n"] == 2
    noted = steadytune("report", "mixout/supplement-e", "--json", "--no-pages", "--note", "On a borrowed machine.")
    assert json.loads(noted.output)["notes"][-1] == "On a borrowed machine."
    several = steadytune("run", "mixout/figure-4", "mixout/supplement-e", "--scale", "smoke")
    assert several.exit_code == 0, several.output
    assert re.search(r"mixout/figure-4 took \d+ s\.", several.output)
    assert "paper report mixout/figure-4 mixout/supplement-e --scale smoke" in " ".join(several.output.split())
    both = steadytune("report", "mixout/figure-4", "mixout/supplement-e", "--json", "--no-pages")
    assert [each["id"] for each in json.loads(both.output)] == ["mixout/figure-4", "mixout/supplement-e"]
    unknown = steadytune("run", "mixout/figure-4", "mixout/nothing", "--scale", "smoke")
    assert "no experiment 'mixout/nothing'" in str(unknown.exception)
    wrong = steadytune("run", "mixout/table-1", "--scale", "small", "--data", tmp_path / "nowhere")
    assert isinstance(wrong.exception, SteadytuneError)
    assert "--data DIR" in str(wrong.exception)


def test_digits_go_on_where_they_were_stopped(tmp_path, monkeypatch):
    from steadytune.papers.digits import experiment as digits

    whole = Workshop(tmp_path / "whole", "smoke")
    compute(EXPERIMENTS["mixout/figure-2"], whole, print)
    stopped = Workshop(tmp_path / "stopped", "smoke")
    folder = stopped.folder("mixout/digits")
    with monkeypatch.context() as patched:
        patched.setattr(digits, "measure", lambda *given: 1 / 0)  # all is trained, and nothing written
        with pytest.raises(ZeroDivisionError):
            compute(EXPERIMENTS["mixout/figure-2"], stopped, print)
    assert sorted(path.name for path in (folder / "unfinished").iterdir()) == ["fine-tuning", "pretraining"]
    with monkeypatch.context() as patched:
        patched.setattr("steadytune.papers.digits.stacked.StackedAdam.step_", lambda *given: 1 / 0)
        compute(EXPERIMENTS["mixout/figure-2"], stopped, print)
    results = [json.loads((each.folder("mixout/digits") / "result.json").read_text()) for each in (whole, stopped)]
    assert [{**each, "seconds": None} for each in results] == [{**results[0], "seconds": None}] * 2
    assert [path.name for path in folder.iterdir()] == ["result.json"]


def test_two_processes_do_not_compute_the_same(tmp_path):
    from steadytune.locks import held

    workshop = Workshop(tmp_path, "smoke")
    folder = workshop.folder("mixout/figure-5")
    folder.mkdir(parents=True)
    with held(folder / ".lock", "busy"), pytest.raises(SteadytuneError, match=r"Another process computes mixout/fig"):
        compute(EXPERIMENTS["mixout/figure-5"], workshop, print)
    assert compute(EXPERIMENTS["mixout/figure-5"], workshop, print) is None


def test_digits_say_how_far_they_are(tmp_path):
    said = []
    compute(EXPERIMENTS["mixout/figure-2"], Workshop(tmp_path, "smoke"), said.append)
    assert said[0].startswith("Pretraining")
    assert any("restarts are trained" in line for line in said)
    assert said[-1].startswith(str(tmp_path))
