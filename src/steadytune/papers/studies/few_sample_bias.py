"""Adam with and without bias correction (few-sample paper, section 4, appendices D and E), and precision (C)."""

from __future__ import annotations

from steadytune.papers.catalogue.few_sample_terms import BIASED, CORRECTED, SMALL
from steadytune.papers.settings import Setting
from steadytune.papers.studies.parts import NOT_CORRECTED, Data, few_sample_base, glue, rated, rated_tasks, some

LARGE_STAND_IN = {"MNLI": "SST-2"}  # at the small scale: the MNLI at hand has 10,000 rows, SST-2 has 67,000
TABLE_4 = ("CoLA", "MRPC", "RTE", "STS-B")  # in the order of its columns
_VARIANTS = {CORRECTED: {}, BIASED: {"add": [NOT_CORRECTED]}}


def figure_2(setting: Setting) -> Data:
    """Figures 2, 3, 4, 11 and 12: 50 runs each."""
    return {
        "study": "Few-sample, figure 2: with and without bias correction",
        "base": few_sample_base(setting),
        "tasks": rated_tasks(setting, some(setting, SMALL)),
        "variants": _VARIANTS,
        "seeds": setting.pick(full=50, small=20, smoke=2),
    }


def table_5(setting: Setting) -> Data:
    """The full MNLI: 3 epochs, 3 seeds.

    At the small scale another large set stands for it, for one epoch, with the rate of 1,000 of its rows.
    """
    column = setting.pick(full="MNLI", small=LARGE_STAND_IN["MNLI"], smoke="MNLI")
    rate = setting.pick(full={}, small=rated(setting, "SST (1k)"), smoke={})
    return {
        "study": "Few-sample, table 5: bias correction on a large dataset",
        "base": few_sample_base(setting, **setting.pick(full={}, small={"epochs": 1.0}, smoke={})),
        "tasks": {column: glue(setting, column, recipe=rate)},
        "variants": _VARIANTS,
        "seeds": setting.pick(full=3, small=5, smoke=2),
    }


def table_4(setting: Setting) -> Data:
    """Mixed precision is fp16 as in the paper; elsewhere bf16, which a CPU has too, so that the runs are figure 2's."""
    columns = setting.pick(full=TABLE_4, small=TABLE_4, smoke=("CoLA", "MRPC"))
    mixed = setting.pick(full="fp16", small="bf16", smoke="bf16")
    return {
        "study": "Few-sample, table 4: mixed and full precision",
        "base": few_sample_base(setting),
        "tasks": rated_tasks(setting, columns),
        "variants": {"Full precision": {"precision": "fp32"}, "Mixed precision": {"precision": mixed}},
        "seeds": setting.pick(full=20, small=20, smoke=2),
    }
