"""The studies behind the papers' tables and figures, by the names of their folders.

PARTS["few-sample/layers"]
in_order(EXPERIMENTS["few-sample/table-2"], "small")      # the studies it needs, each after those it is after
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from steadytune.papers.catalogue.few_sample_terms import SMALL
from steadytune.papers.experiment import Part, Shown
from steadytune.papers.joined import join_models
from steadytune.papers.settings import Scale
from steadytune.papers.studies import (
    few_sample_bias,
    few_sample_inside,
    few_sample_layers,
    few_sample_methods,
    mixout,
    other_tasks,
    parts,
    rdrop_glue,
    translation,
)

_RATES, _RATES_1K = ("few-sample/rates",), ("few-sample/rates-1k",)
_BOTH_RATES = _RATES + _RATES_1K
_LENGTHS = few_sample_layers.LENGTHS
_NOT_FULL: tuple[Scale, ...] = ("small", "smoke")


def _longer(name: str) -> Part:
    last = name.endswith("1k")
    after = (*_RATES_1K, "few-sample/layers-1k") if last else (*_RATES, "few-sample/layers")
    make = partial(few_sample_layers.longer, name=name)
    return Part(name, make, after) if last else Part(name, make, after, scales=("full",))


def _distances(number: int, task: str) -> Part:
    return Part(f"few-sample/figure-{number}", partial(few_sample_inside.distances, task=task), _RATES)


PARTS: Mapping[str, Part] = {
    part.name: part
    for part in (
        Part(mixout.RATES, mixout.rates, scales=_NOT_FULL),
        Part("mixout/table-1", mixout.table_1, (mixout.RATES,)),
        Part("mixout/table-2", mixout.table_2, (mixout.RATES,)),
        Part("mixout/table-3", mixout.table_3, (mixout.RATES,)),
        Part("mixout/table-4", mixout.table_4, (mixout.RATES,)),
        Part("mixout/figure-4", mixout.figure_4, (mixout.RATES,)),
        Part("mixout/supplement-e", mixout.supplement_e, (mixout.RATES,), timed=True),
        Part("mixout/figure-6", mixout.figure_6, (mixout.RATES,)),
        *(Part(name, partial(parts.rates, name=name), scales=_NOT_FULL) for name in parts.RATES_OF),
        Part("few-sample/figure-2", few_sample_bias.figure_2, _RATES),
        Part("few-sample/table-4", few_sample_bias.table_4, _RATES),
        Part("few-sample/table-5", few_sample_bias.table_5, _RATES_1K),
        Part("few-sample/layers", few_sample_layers.layers, _RATES),
        Part("few-sample/layers-1k", few_sample_layers.layers_1k, _RATES_1K),
        *(_longer(name) for name in _LENGTHS),
        Part(few_sample_methods.INTERMEDIATE, few_sample_methods.intermediate, for_all=True),
        Part("few-sample/table-2", few_sample_methods.table_2, (*_RATES, few_sample_methods.INTERMEDIATE)),
        Part("few-sample/table-2-uncorrected", few_sample_methods.without_correction, _RATES),
        Part("few-sample/table-7", few_sample_inside.table_7, _RATES, scales=("full", "smoke")),
        Part("few-sample/figure-9", few_sample_inside.figure_9, _RATES),
        *(_distances(number, task) for number, task in zip((7, 16, 17, 18), SMALL)),
        Part("rdrop/table-1", rdrop_glue.table_1, _BOTH_RATES),
        Part("rdrop/table-2", rdrop_glue.table_2, _BOTH_RATES),
        Part("rdrop/translation", translation.controls, prepare=translation.prepare),
        Part("rdrop/step-time", translation.step_time, prepare=translation.prepare, timed=True),
        Part("rdrop/table-3", translation.by_time, prepare=translation.prepare, timed=True),
        Part("rdrop/models", translation.models, prepare=translation.prepare, finish=join_models),
        Part("rdrop/checkpoints", translation.checkpoints, prepare=translation.prepare),
        Part("rdrop/summarization", other_tasks.summaries, prepare=other_tasks.prepare_summaries),
        Part("rdrop/language-modeling", other_tasks.language_model, prepare=other_tasks.prepare_language_model),
        Part("rdrop/images", other_tasks.images, prepare=other_tasks.prepare_images),
        Part("rdrop/images-of-table-4", other_tasks.images_of_table_4, scales=("full",)),
    )
}


def in_order(experiment: Shown, scale: Scale) -> list[Part]:
    """The parts that an item needs at a scale, each after those that it is after."""
    found: dict[str, Part] = {}

    def add(name: str) -> None:
        part = PARTS[name]
        if scale in part.scales:
            for earlier in part.after:
                add(earlier)
            found.setdefault(name, part)

    for name in experiment.parts_at(scale):
        add(name)
    return list(found.values())
