"""R-Drop on GLUE (appendix A.4): tables 1 and 2, figure 1.

Set-up (R6): BERT-base, and at full scale RoBERTa-large too; the settings of table 1, Adam(0.9, 0.98) with eps 1e-6,
decay 0.01, polynomial decay after the warm-up of the authors' README. The loss is the paper's: KL per example, so that
α means the same at every batch size (the published code sums it over the batch, D14). Scores are the R-Drop paper's:
Pearson's correlation for STS-B, Matthews' for CoLA, accuracy for all others, MRPC too; table 2's 84.30 to 86.51 of MRPC
are accuracies. How many seeds figure 1 has cannot be read; here 5.
At the small scale: 10 seeds, 3 epochs in batches of 32 as the few-sample studies have, whose learning rates are taken
over; and 1,000 rows of the tasks whose GLUE files are large or not at hand.
"""

from __future__ import annotations

from steadytune.papers import published
from steadytune.papers.catalogue.rdrop import GLUE, ROBERTA_LARGE
from steadytune.papers.settings import BERT_BASE, ROBERTA, SMALL_RECIPE, SMOKE_RECIPE, Setting
from steadytune.papers.studies.parts import Data, glue, lengthless, rated, some

STAND_INS = {"SST-2": "SST (1k)", "MNLI": "MNLI (1k)", "QNLI": "QNLI (1k)", "QQP": "QQP (1k)"}
BASELINE, RDROP = "Baseline", "R-Drop"
ALPHA_TASKS = ("MRPC", "SST-2", "MNLI", "QNLI")
ALPHAS = (0.1, 0.5, 1.0, 1.5)
METRICS = {"MRPC": "accuracy", "STS-B": "pearson"}  # where the few-sample paper has F1 and Spearman's correlation


def printed(what: str, task: str, setting: str = "") -> float:
    """A number of table 1."""
    found = published.load("rdrop/table-1").find(what, task, setting, "value")
    assert found is not None, (what, task)
    return found.value


def table_1(setting: Setting) -> Data:
    tasks = _tasks(setting, some(setting, ("RTE", "STS-B") if setting.scale == "smoke" else GLUE))
    alphas = {shown: {"add": [_rdrop(printed("Coefficient α", task))]} for task, shown in _shown(setting, GLUE).items()}
    own = {name: changes for name, changes in alphas.items() if name in tasks}
    variants: Data = {BASELINE: {}, RDROP: {"tasks": own}}
    if setting.scale == "full":
        larger = {"model": setting.model(ROBERTA)}
        variants |= {f"{name}, {ROBERTA_LARGE}": {**larger, **changes} for name, changes in variants.items()}
    return _study(setting, "R-Drop, table 1: eight GLUE tasks", tasks, variants)


def table_2(setting: Setting) -> Data:
    tasks = _tasks(setting, some(setting, ALPHA_TASKS, smoke=1))
    alphas = setting.pick(full=ALPHAS, small=ALPHAS, smoke=ALPHAS[:2])
    variants: Data = {f"{RDROP}, α={alpha}": {"add": [_rdrop(alpha)]} for alpha in alphas}
    return _study(setting, "R-Drop, table 2: the coefficient α", tasks, {BASELINE: {}} | variants)


def _study(setting: Setting, name: str, tasks: Data, variants: Data) -> Data:
    small = {**SMALL_RECIPE, "epochs": 3.0, "batch_size": 32, "evaluations": 5}
    length = setting.pick(full={}, small=small, smoke=SMOKE_RECIPE)
    return {
        "study": name,
        "base": {"preset": "rdrop", "model": setting.model(BERT_BASE), "methods": _METHODS, **length},
        "tasks": tasks,
        "variants": variants,
        "seeds": setting.pick(full=5, small=10, smoke=2),
        "report": {"split": "validation", "weights": "best"},
    }


# The preset without its R-Drop, which is a variant here.
_METHODS = [
    {"method": "adamw", "betas": [0.9, 0.98], "eps": 1e-6},
    {"method": "polynomial_schedule", "warmup": 0.06},
    {"method": "dropout", "p": 0.1},
]


def _rdrop(alpha: float) -> Data:
    return {"method": "rdrop", "alpha": alpha}


def _shown(setting: Setting, columns: tuple[str, ...]) -> dict[str, str]:
    """Published column -> the task that stands for it."""
    return {column: STAND_INS.get(column, column) if setting.scale == "small" else column for column in columns}


def _tasks(setting: Setting, columns: tuple[str, ...]) -> Data:
    made: Data = {}
    for column, shown in _shown(setting, columns).items():
        if setting.scale == "full":
            warmup = {"method": "polynomial_schedule", "warmup": int(printed("Warm-up Updates", column, "README"))}
            recipe: Data = {"lr": printed("Learning Rate", column), "steps": int(printed("Max Update", column))}
            recipe |= {"batch_size": int(printed("Max Sentence (Batch)", column)), "add": [warmup]}
        else:
            recipe = lengthless(setting, rated(setting, shown)) if setting.scale == "small" else {}
        made[shown] = glue(setting, shown, halves=False, recipe=recipe, metrics=METRICS)
    return made
