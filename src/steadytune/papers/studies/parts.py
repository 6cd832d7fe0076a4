"""What the studies share: GLUE columns as tasks, the recipes of each scale, chosen rates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from steadytune.papers.catalogue.few_sample_terms import LARGE_1K, SMALL, SMALL_1K
from steadytune.papers.settings import (
    BERT_LARGE,
    RATE_SEEDS,
    RATES,
    SMALL_RECIPE,
    SMALL_ROWS,
    SMOKE_RECIPE,
    Setting,
)

Data = dict[str, Any]
_FOLDERS = {"SST": "SST-2"}
_SMOKE_ROWS, _SMOKE_LIMIT = 24, {"train": 24, "validation": 12, "test": 12}
_CUT = ("MRPC", "STS-B", "CoLA")  # to SMALL_ROWS
_EVALUATED = {"validation": 500, "test": 1000}  # of a sampled set at the small scale
RATES_OF: Mapping[str, tuple[str, ...]] = {
    "few-sample/rates": SMALL,
    "few-sample/rates-1k": (*SMALL_1K, *LARGE_1K),
}
NOT_SMALL = ("STS-B (1k)", "CoLA (1k)")  # shown by nothing at the small scale
NOT_CORRECTED: Data = {"method": "adamw", "correct_bias": False}


def glue(
    setting: Setting,
    column: str,
    *,
    halves: bool = True,
    recipe: Mapping[str, Any] | None = None,
    metrics: Mapping[str, str] | None = None,
) -> Data:
    """A column of a paper's table as a task: "RTE"; or "SST (1k)", 1,000 training rows of it.

    `metrics`: of tasks that this paper scores otherwise than the few-sample paper does.
    """
    name, _, thousand = column.partition(" (")
    made: Data = {"glue": setting.path(f"glue/{_FOLDERS.get(name, name)}")}
    if thousand:
        made["rows"] = setting.pick(full=1000, small=1000, smoke=_SMOKE_ROWS)
    if not halves:
        made["halves"] = False
    if metrics is not None and name in metrics:
        made["metric"] = metrics[name]
    if setting.scale == "smoke":
        made["limit"] = dict(_SMOKE_LIMIT) if halves else {"train": 24, "validation": 12}
    if setting.scale == "small" and (thousand or name in _CUT):
        made["limit"] = dict(_EVALUATED) if thousand else {"train": SMALL_ROWS}
    return made | ({"recipe": dict(recipe)} if recipe else {})


def some(setting: Setting, columns: Iterable[str], *, smoke: int = 2) -> tuple[str, ...]:
    """The columns of a table; of many, a smoke run takes the first."""
    found = tuple(columns)
    return found[:smoke] if setting.scale == "smoke" else found


def few_sample_base(setting: Setting, **changes: Any) -> Data:
    """Section 3 of the few-sample paper (V9): 2e-5, batches of 32, 3 epochs, 10 evaluations, mixed precision.

    At the small scale 5 evaluations, and bfloat16 in the place of float16.
    """
    model = {"preset": "standard", "model": setting.model(BERT_LARGE)}
    made = setting.pick(full={"precision": "fp16"}, small={**SMALL_RECIPE, "evaluations": 5}, smoke=SMOKE_RECIPE)
    return {**model, **made, **lengthless(setting, changes)}


def lengthless(setting: Setting, changes: Mapping[str, Any]) -> Data:
    """Changes to a recipe, without those that would make a smoke run long."""
    left_out = SMOKE_RECIPE if setting.scale == "smoke" else ()
    return {key: value for key, value in changes.items() if (key not in left_out and key != "epochs") or not left_out}


def rates(setting: Setting, name: str) -> Data:
    """Plain fine-tuning at each of the rates: what is best on validation is the rate of all variants of a task."""
    tasks = some(setting, RATES_OF[name], smoke=1)
    if setting.scale == "small":
        tasks = tuple(column for column in tasks if column not in NOT_SMALL)
    return rate_sweep(
        setting, few_sample_base(setting), {column: glue(setting, column) for column in tasks}, "Standard"
    )


def rate_sweep(setting: Setting, base: Data, tasks: Data, plain: str) -> Data:
    """The study that chooses, with a variant called `plain`, which is `base` as it is."""
    return {
        "study": "Which learning rate?",
        "about": "The rate with the best mean validation score of plain fine-tuning, for all variants elsewhere.",
        "base": base,
        "tasks": tasks,
        "variants": {plain: {"sweep": {"lr": list(RATES if setting.scale != "smoke" else RATES[:2])}}},
        "choose": {"seeds": setting.pick(full=RATE_SEEDS, small=RATE_SEEDS, smoke=1), "over": ["lr"]},
        "seeds": 1,
    }


def rated(setting: Setting, column: str) -> Data:
    """The rate that was chosen for a column, as changes to its recipe; the paper's own at full scale."""
    study = next(name for name, tasks in RATES_OF.items() if column in tasks)
    return dict(setting.chosen(study, "Standard", column)) if setting.scale != "full" else {}


def rated_tasks(setting: Setting, columns: Iterable[str]) -> Data:
    return {column: glue(setting, column, recipe=rated(setting, column)) for column in columns}
