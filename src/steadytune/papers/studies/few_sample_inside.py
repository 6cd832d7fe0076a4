"""Seeds (few-sample paper, appendix B), distances by block (figures 7, 15 to 18), other models (tables 6 and 7)."""

from __future__ import annotations

from collections.abc import Mapping

from steadytune.papers import published
from steadytune.papers.catalogue.few_sample_terms import REINIT, SMALL, STANDARD
from steadytune.papers.settings import BART, ELECTRA, ROBERTA, XLNET, Setting
from steadytune.papers.studies.parts import Data, few_sample_base, glue, lengthless, rated, rated_tasks, some

MODELS = {"XLNet": XLNET, "RoBERTa": ROBERTA, "ELECTRA": ELECTRA, "BART": BART}
OTHER_MODEL = "MiniLM"  # the row of the small scale
# Re-initialised blocks of the paper's 24, and of fewer: in their order, all different.
DISTANCE_LAYERS: Mapping[int, Mapping[str, int]] = {
    1: {"full": 1, "small": 1, "smoke": 1},
    3: {"full": 3, "small": 2, "smoke": 2},
    6: {"full": 6, "small": 3, "smoke": 3},
    10: {"full": 10, "small": 4, "smoke": 3},
}


def figure_9(setting: Setting) -> Data:
    """10 initialisations x 10 orders; L = 5 of 24 blocks, 2 of 6."""
    count = setting.pick(full=10, small=10, smoke=2)
    blocks = setting.pick(full=5, small=2, smoke=1)
    return {
        "study": "Few-sample, figure 9: initialisation and order",
        "about": f"Re-init 5 re-initialises {blocks} of {setting.blocks} blocks.",
        "base": few_sample_base(setting),
        "tasks": rated_tasks(setting, ("RTE",)),
        "variants": {STANDARD: {}, "Re-init 5": {"add": [{"method": "reinit", "layers": blocks}]}},
        "seeds": {"init": count, "order": count},
        "report": {"split": "validation", "weights": "best"},
    }


def distances(setting: Setting, task: str) -> Data:
    layers = {f"Re-init {number}": scales[setting.scale] for number, scales in DISTANCE_LAYERS.items()}
    told = ", ".join(f"{name}: {count}" for name, count in layers.items())
    return {
        "study": f"Few-sample: how far each block moves on {task}",
        "about": f"Re-initialised blocks of {setting.blocks}: {told}.",
        "base": few_sample_base(setting),
        "tasks": rated_tasks(setting, (task,)),
        "variants": {STANDARD: {}}
        | {name: {"add": [{"method": "reinit", "layers": count}]} for name, count in layers.items()},
        "seeds": setting.pick(full=20, small=5, smoke=2),
    }


def table_7(setting: Setting) -> Data:
    """Each model with the settings of table 6. Which L the paper took is not said; chosen like BERT's (V10).

    No weights of these four are at hand at the small scale: Standard and Re-init of table 2 are shown instead.
    """
    columns = some(setting, SMALL, smoke=1)
    layers = setting.pick(full=[1, 2, 3, 4, 5, 6], small=[1], smoke=[1])
    variants: Data = {}
    for name, model in MODELS.items():
        own = {"model": setting.model(model), "tasks": {task: settings(setting, name, task) for task in columns}}
        more = {"add": [{"method": "reinit", "layers": 1}], "sweep": {"reinit.layers": layers}}
        variants |= {f"{STANDARD}, {name}": own, f"{REINIT}, {name}": own | more}
    return {
        "study": "Few-sample, table 7: other pretrained models",
        "base": few_sample_base(setting),
        "tasks": {column: glue(setting, column, recipe=rated(setting, column)) for column in columns},
        "variants": variants,
        "seeds": setting.pick(full=20, small=20, smoke=2),
        "choose": {"seeds": setting.pick(full=20, small=20, smoke=1), "over": ["reinit.layers"]},
    }


def settings(setting: Setting, model: str, task: str) -> Data:
    """A row of table 6, from the published numbers, as changes to a recipe."""

    def number(what: str) -> published.Number:
        found = published.load("few-sample/table-6").find(model, task, what, "value")
        assert found is not None, (model, task, what)
        return found

    length, warmup = number("length"), number("warm-up")
    made: Data = {"lr": number("learning rate").value, "batch_size": int(number("batch size").value)}
    made["steps" if length.unit == "steps" else "epochs"] = int(length.value)
    part = setting.scale == "smoke" or warmup.unit == "percent"
    amount = (warmup.value / 100 if warmup.unit == "percent" else 0.1) if part else int(warmup.value)
    methods: list[Data] = [{"method": "linear_schedule", "warmup": amount}]
    if published.load("few-sample/table-6").find(model, task, "layer-wise decay", "value") is not None:
        methods.append({"method": "layerwise_lr", "decay": number("layer-wise decay").value})
    return {**lengthless(setting, made), "add": methods}
