"""Eight methods with bias correction (few-sample paper, section 7, table 2), and mixout without it.

At full scale every method is tuned on its grid of appendix H by the mean validation score of 20 seeds, and Re-init and
Longer are those of table 1. At the small scale each has one value, that of its paper or preset, so that all have the
same number of runs; only the learning rate is chosen, by plain fine-tuning and for all alike.

Transfer via an intermediate task (V21) takes two studies: one run on MNLI whose model is kept, and this one, whose
recipe starts from it. Its head is new for every run.
"""

from __future__ import annotations

from steadytune.papers.catalogue.few_sample_terms import REINIT, SMALL, STANDARD
from steadytune.papers.settings import RATES, Setting, relative
from steadytune.papers.studies.parts import NOT_CORRECTED, Data, few_sample_base, glue, rated_tasks, some

INTERMEDIATE = "few-sample/intermediate"
GRIDS = {  # appendix H
    "LLRD": {"lr": [2e-5, 5e-5, 1e-4], "layerwise_lr.decay": [0.9, 0.95]},
    "Mixout": {"mixout.p": [0.1, 0.3, 0.5, 0.7, 0.9]},
    "Pre-trained WD": {"pretrained_decay.decay": [1e-3, 1e-2, 1e-1, 1.0]},
    "WD": {"weight_decay.decay": [1e-4, 1e-3, 1e-2, 1e-1]},
}
_METHODS = {
    "LLRD": {"method": "layerwise_lr", "decay": 0.95},
    "Mixout": {"method": "mixout", "p": 0.7},
    "Pre-trained WD": {"method": "pretrained_decay", "decay": 0.01},
    "WD": {"method": "weight_decay", "decay": 0.01},
}


def intermediate(setting: Setting) -> Data:
    """One run on MNLI. Of the small rates the middle one: it is a start, and not compared with anything."""
    rate = setting.pick(full={}, small={"lr": RATES[1]}, smoke={})
    return {
        "study": "Few-sample, section 7: a model fine-tuned on MNLI first",
        "base": few_sample_base(setting, **rate),
        "tasks": {"MNLI": glue(setting, "MNLI")},
        "variants": {STANDARD: {}},
        "seeds": 1,
        "keep_models": True,
    }


def table_2(setting: Setting) -> Data:
    swept = GRIDS if setting.scale == "full" else {}
    variants: Data = {STANDARD: {}, "Int. Task": {"start_from": _model_of_intermediate(setting)}}
    variants |= {
        name: {"add": [method]} | ({"sweep": swept[name]} if name in swept else {}) for name, method in _METHODS.items()
    }
    if setting.scale != "full":  # there the runs of table 1 are shown
        variants |= {
            REINIT: {"add": [{"method": "reinit", "layers": 2}]},  # of 6 blocks: the preset's quarter
            "Longer": {"add": [{"method": "longer", "times": 2.0}]},
        }
    over = [key for grid in swept.values() for key in grid]
    return {
        "study": "Few-sample, table 2: eight methods with bias correction",
        "base": few_sample_base(setting),
        "tasks": rated_tasks(setting, some(setting, SMALL, smoke=1)),
        "variants": variants,
        "seeds": setting.pick(full=20, small=20, smoke=2),
    } | ({"choose": {"seeds": 20, "over": over}} if over else {})


def without_correction(setting: Setting) -> Data:
    """What mixout gains where the correction is missing, as in the mixout paper (p = 0.7 of its table 1).

    At the small scale on two tasks; the mixout paper's own table 1 has more.
    """
    columns = setting.pick(full=SMALL, small=SMALL[:2], smoke=SMALL[:1])
    return {
        "study": "Few-sample, section 7.2: mixout without bias correction",
        "base": few_sample_base(setting),
        "tasks": rated_tasks(setting, columns),
        "variants": {
            f"{STANDARD}, no bias correction": {"add": [NOT_CORRECTED]},
            "Mixout, no bias correction": {"add": [NOT_CORRECTED, _METHODS["Mixout"]]},
        },
        "seeds": setting.pick(full=20, small=20, smoke=2),
    }


def _model_of_intermediate(setting: Setting) -> str:
    found = setting.earlier.get(INTERMEDIATE)
    key = found.trials[0].key if found is not None else "first"
    folder = setting.folder.parent / INTERMEDIATE.partition("/")[2]
    return relative(folder / "models" / key, setting.folder)
