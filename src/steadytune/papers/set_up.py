"""The tables that show no runs: the datasets (few-sample, table 3) and the settings of other models (table 6).

What they print is held against what this library reads from the files, and against what its full configurations say.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from steadytune.config import Document
from steadytune.errors import SteadytuneError
from steadytune.papers import published
from steadytune.papers.catalogue import Cell
from steadytune.papers.experiment import Data, Say
from steadytune.papers.settings import Setting
from steadytune.papers.studies import few_sample_inside
from steadytune.papers.tables import beside, printed_items
from steadytune.papers.verdicts import CODE, Verdict
from steadytune.report.study.table_formats import Item, Table
from steadytune.report.words import number

PUBLIC_HALVES = {"RTE": (138, 139), "MRPC": (203, 205), "CoLA": (521, 522)}  # D11
_DATA, _SETTINGS = "few-sample/table-3", "few-sample/table-6"


def read_data(setting: Setting, say: Say) -> Data:
    """Rows and majority baselines of the eight tasks, as the studies split them; of those whose files are there."""
    from steadytune.tasks import glue

    there = [name for name in glue.TASKS if (setting.data / "glue" / name).is_dir()]
    if not there:  # an empty result would stay, and be reported
        raise SteadytuneError(
            f"{setting.data} has no folder of a GLUE task, such as glue/RTE. Name the folder that holds glue/ with "
            "--data DIR or in STEADYTUNE_DATA."
        )
    away = [name for name in glue.TASKS if name not in there]
    if away:
        say(f"Not there, and left out: {', '.join(away)}.")
    tasks: Data = {}
    for name in there:
        data = glue.load(setting.data / "glue" / name)
        base = data.baselines[0] if data.baselines else None
        tasks[name] = {
            **{f"{part} samples": len(rows) for part, rows in data.splits().items()},
            "majority baseline (validation)": base and base.validation,
            "majority baseline (test)": base and base.test,
            "metric": data.task.metric,
            "notes": [said for said in data.notes.sentences() if "not GLUE" in said],
        }
    return {"scale": setting.scale, "tasks": tasks}


def data_table(data: Data) -> list[Table]:
    here: dict[Cell, Item] = {}
    for task, found in data["tasks"].items():
        for name, value in found.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                row = name.replace("train samples", "training samples")
                here[Cell(row, task)] = Item(value, f"{value:,}" if isinstance(value, int) else number(value))
    odd = "; ".join(sorted(task for task, found in data["tasks"].items() if found["notes"]))
    metrics = ", ".join(f"{task} {found['metric']}" for task, found in data["tasks"].items())
    caption = f"Metrics: {metrics}."
    caption += f" Not GLUE's own files: {odd}." if odd else ""
    return [beside("few-sample-table-3", "The datasets", caption, here, printed_items(_DATA))]


def data_verdicts(data: Data) -> list[Verdict]:
    """The halves of the public code, and the printed baselines, for tasks whose files are GLUE's own."""
    own = {task: found for task, found in data["tasks"].items() if not found["notes"] and data["scale"] != "smoke"}
    halves = {
        task: (own[task]["validation samples"], own[task]["test samples"]) for task in PUBLIC_HALVES if task in own
    }
    printed = published.load(_DATA)
    apart = []
    for task in (task for task in ("RTE", "MRPC", "STS-B", "CoLA") if task in own):
        for split in ("validation", "test"):
            row = f"majority baseline ({split})"
            found = printed.find(row, task, statistic="value")
            if found is not None and own[task][row] is not None:
                apart.append(abs(found.scaled - own[task][row]))
    there = bool(own)
    right = sum(halves[task] == PUBLIC_HALVES[task] for task in halves)
    return [
        Verdict(
            "(ours) The development sets are halved as the public code does it: 138/139, 203/205, 521/522",
            right == len(halves) == len(PUBLIC_HALVES) if there else None,
            None,
            len(halves),
            "ACCEPTANCE D11",
            "compared",
            ", ".join(f"{task} {a}/{b}" for task, (a, b) in halves.items()),
            uncounted=CODE,
        ),
        Verdict(
            "The majority baselines of the four small tasks are the printed ones: within 0.1 points",
            max(apart) <= 0.001 if apart else None,
            None,
            len(apart),
            "table 3, page 13",
            "compared",
            f"largest difference {max(apart):.4f}" if apart else "no files of GLUE's own",
        ),
    ]


def read_settings(setting: Setting, say: Say) -> Data:
    """The settings of table 6 as the full configuration of table 7 has them; needs neither models nor data."""
    from steadytune.study.file import read_study

    full = Setting("full", Path("data"), Path("few-sample/table-7"))
    study = read_study(Document("table-7", few_sample_inside.table_7(full), {}))
    found: Data = {}
    for model in few_sample_inside.MODELS:
        (candidate,) = study.groups[f"Standard, {model}"]
        found[model] = {task: _settings_of(candidate.recipes[task].to_data()) for task in candidate.recipes}
    return {"scale": setting.scale, "models": found}


def _settings_of(recipe: dict[str, Any]) -> dict[str, float]:
    methods = {each["method"]: each for each in recipe["methods"]}
    made = {"learning rate": recipe["lr"], "length": recipe["steps"] or recipe["epochs"]}
    warmup = methods["linear_schedule"]["warmup"]
    made |= {"batch size": recipe["batch_size"], "warm-up": warmup if isinstance(warmup, int) else 100 * warmup}
    decay = methods.get("layerwise_lr")
    return made | ({"layer-wise decay": decay["decay"]} if decay else {})


def settings_table(data: Data) -> list[Table]:
    here = {
        Cell(model, task, name): Item(value, f"{value:g}")
        for model, tasks in data["models"].items()
        for task, found in tasks.items()
        for name, value in found.items()
    }
    caption = "Warm-up and length in steps, or in percent and epochs: as the paper prints each."
    return [beside("few-sample-table-6", "Settings of other models", caption, here, printed_items(_SETTINGS))]


def settings_verdicts(data: Data) -> list[Verdict]:
    numbers = [each for each in published.load(_SETTINGS).numbers if each.row in data["models"]]
    same = [
        math.isclose(data["models"][each.row][each.column].get(each.setting, math.nan), each.value) for each in numbers
    ]
    text = "(ours) The full configuration of table 7 has every setting of table 6"
    told = f"{sum(same)} of {len(same)} settings are the printed ones"
    return [Verdict(text, all(same), None, len(same), "table 6, page 17", "compared", told, uncounted=CODE)]
