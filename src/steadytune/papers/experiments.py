"""Every table and figure of the papers that can be run: which studies it shows, and how.

EXPERIMENTS["mixout/table-1"]
"""

from __future__ import annotations

from collections.abc import Mapping

from steadytune.errors import SteadytuneError
from steadytune.papers import places
from steadytune.papers.catalogue import ITEMS, Cell, Claim
from steadytune.papers.catalogue.claim import pairs
from steadytune.papers.catalogue.few_sample_terms import LARGE_1K, LONG, REINIT, SHORT, SMALL, SMALL_1K, STANDARD
from steadytune.papers.catalogue.mixout import BOTH, DECAYS, DROPOUT, MIXOUTS, TASKS
from steadytune.papers.catalogue.rdrop import VIT_L
from steadytune.papers.catalogue.rdrop_controls import IWSLT, MODELS
from steadytune.papers.computed import COMPUTED
from steadytune.papers.experiment import Experiment, Shown
from steadytune.papers.joined import joined_numbers
from steadytune.papers.settings import Scale
from steadytune.papers.studies import (
    few_sample_bias,
    few_sample_inside,
    few_sample_layers,
    mixout,
    other_tasks,
    rdrop_glue,
    translation,
)
from steadytune.papers.views import line
from steadytune.strict import nearest

_NOT_FULL: tuple[Scale, ...] = ("small", "smoke")
_GRADIENT = Claim(
    "(ours, D1) Which gradient mixout(w_pre, 0.7) has, exact or g⊙M, makes no difference: within one point",
    "no_difference",
    pairs(mixout.EXACT, MIXOUTS[0], TASKS),
    "ACCEPTANCE D1",
    margin=0.01,
)
_MIXOUT = (
    Shown("mixout/table-1", ("mixout/table-1",), ours=(_GRADIENT,)),
    Shown(
        "mixout/figure-3",
        ("mixout/table-1",),
        lines=[line(name) for name in (DROPOUT, DECAYS[0], MIXOUTS[0], BOTH[0])],
    ),
    *(Shown(f"mixout/{name}", (f"mixout/{name}",)) for name in ("table-2", "table-3", "figure-4", "figure-6")),
    Shown("mixout/table-4", ("mixout/table-4",), place=places.by_trials),
    Shown(
        "mixout/supplement-e",
        ("mixout/supplement-e",),
        ("time",),
        lines=[line(name, variant) for name, variant in mixout.TIMED.items()],
    ),
)

_FIGURE_2 = ("few-sample/figure-2",)
_BIAS = (
    Shown("few-sample/figure-2", _FIGURE_2),
    Shown("few-sample/figure-3", _FIGURE_2, ("loss",), tasks=("RTE",)),
    Shown("few-sample/figure-4", _FIGURE_2, ("best-of-n",), place=places.by_trials),
    Shown("few-sample/figure-11", _FIGURE_2, ("loss",)),
    Shown("few-sample/figure-12", _FIGURE_2, ("best-of-n",), place=places.by_trials),
    Shown("few-sample/table-4", ("few-sample/table-4",)),
    Shown(
        "few-sample/table-5",
        ("few-sample/table-5",),
        place=places.by_split,
        stand_ins=few_sample_bias.LARGE_STAND_IN,
    ),
)

_LAYERS, _LAYERS_1K, _LONGER_1K = ("few-sample/layers",), ("few-sample/layers-1k",), ("few-sample/longer-1k",)
_LONGER = tuple(name for name in few_sample_layers.LENGTHS if name not in _LONGER_1K)
_TABLE_1: dict[Scale, tuple[str, ...]] = {
    "full": (*_LAYERS, *_LAYERS_1K, *_LONGER, *_LONGER_1K),
    **dict.fromkeys(_NOT_FULL, (*_LAYERS_1K, *_LONGER_1K)),
}
_METHODS = ("few-sample/table-2", "few-sample/table-2-uncorrected")
_TABLE_2: dict[Scale, tuple[str, ...]] = {
    "full": (*_METHODS, *_LAYERS, *_LONGER),
    **dict.fromkeys(_NOT_FULL, _METHODS),
}
_ALL_METHODS = (STANDARD, "Int. Task", "LLRD", "Mixout", "Pre-trained WD", "WD", REINIT, "Longer")
_BY_LAYERS = [
    line(STANDARD, f"{STANDARD}, {SHORT}"),
    line(f"{REINIT}, pooler"),
    *(line(f"{REINIT}, L={L}", f"{REINIT}, {SHORT}, layers={L}", tuning=True, L=L) for L in range(1, 7)),
]
_BY_STEPS = [
    each
    for row in (STANDARD, REINIT)
    for each in (
        line(f"{row}, 96 steps", f"{row}, {SHORT}", steps=96),
        *(
            line(f"{row}, {steps} steps", f"{row}, {LONG}, steps={steps}", tuning=True, steps=steps)
            for steps in (200, 400, 800, 1600, 3200)
        ),
    )
]
_FEW_SAMPLE = (
    Shown(
        "few-sample/table-1",
        _TABLE_1,
        lines=[line(f"{row}, {length}") for row in (STANDARD, REINIT) for length in (SHORT, LONG)],
    ),
    Shown("few-sample/figure-5", _LAYERS, lines=_BY_LAYERS, tasks=("RTE", "MRPC")),
    Shown(
        "few-sample/figure-6",
        _LAYERS,
        ("loss",),
        lines=[line(row, f"{row}, {SHORT}") for row in (STANDARD, REINIT)],
        tasks=("RTE", "MRPC"),
    ),
    Shown(
        "few-sample/figure-13",
        {"full": (*_LAYERS, *_LAYERS_1K), **dict.fromkeys(_NOT_FULL, _LAYERS_1K)},
        lines=_BY_LAYERS,
        tasks=("STS-B", "CoLA", *SMALL_1K, *LARGE_1K),
    ),
    Shown("few-sample/figure-8", _LAYERS_1K + _LONGER_1K, ("sweep-1",), lines=_BY_STEPS, tasks=SMALL_1K),
    Shown("few-sample/figure-14", _LAYERS_1K + _LONGER_1K, ("sweep-1",), lines=_BY_STEPS, tasks=LARGE_1K),
    Shown(
        "few-sample/table-2",
        _TABLE_2,
        lines=[
            *(line(name) for name in _ALL_METHODS),
            line(REINIT, f"{REINIT}, {SHORT}"),  # at full scale these two are table 1's, as in the paper
            line("Longer", f"{STANDARD}, {LONG}"),
            *(line(f"{name}, no bias correction") for name in (STANDARD, "Mixout")),
        ],
    ),
)


def _is_average(cell: Cell) -> bool:
    return cell.column == "average"


def _is_everything(cell: Cell) -> bool:
    return cell.column == "every order" and cell.setting == "every init"


_OTHER = few_sample_inside.OTHER_MODEL
_INSIDE = (
    Shown("few-sample/figure-9", ("few-sample/figure-9",), ("grid",), place=places.by_seed, listed=_is_everything),
    Shown("few-sample/figure-10", ("few-sample/figure-9",), ("grid",), place=places.by_seed, listed=_is_average),
    Shown(
        "few-sample/figure-7",
        ("few-sample/figure-7",),
        ("distance-curves",),
        place=places.by_block,
        more=tuple(Cell(STANDARD, f"block {block}", "RTE") for block in (6, 12, 18, 24)),
    ),
    Shown("few-sample/figure-15", ("few-sample/figure-7",), ("all-blocks",), place=places.by_block),
    *(
        Shown(f"few-sample/figure-{number}", (f"few-sample/figure-{number}",), ("all-blocks",), place=places.by_block)
        for number in (16, 17, 18)
    ),
    Shown(
        "few-sample/table-7",
        {"full": ("few-sample/table-7",), "small": ("few-sample/table-2",), "smoke": ("few-sample/table-7",)},
        lines=[
            *(line(f"{row}, {model}") for model in few_sample_inside.MODELS for row in (STANDARD, REINIT)),
            *(line(f"{row}, {_OTHER}", row) for row in (STANDARD, REINIT)),
        ],
        ours=(
            Claim(
                f"(ours) {_OTHER}, the encoder at hand at the small scale, is better with Re-init on every dataset",
                "greater",
                pairs(REINIT, STANDARD, SMALL, _OTHER),
                "appendix F, page 17, of other models",
            ),
            Claim(
                f"(ours) {_OTHER} varies less with Re-init, in most cases",
                "steadier",
                pairs(REINIT, STANDARD, SMALL, _OTHER),
                "appendix F, page 17, of other models",
                scope="most",
            ),
        ),
    ),
)

_BASE, _RDROP = translation.BASELINE, translation.RDROP
_IMAGES, _MODELS = ("rdrop/images",), ("rdrop/models", "rdrop/checkpoints")
_TRANSLATION = ("rdrop/translation",)
_R_DROP = (
    Shown("rdrop/table-1", ("rdrop/table-1",), stand_ins=rdrop_glue.STAND_INS),
    Shown(
        "rdrop/figure-1",
        ("rdrop/table-1",),
        ("by-seed",),
        lines=[line(_BASE), line(_RDROP)],
        stand_ins=rdrop_glue.STAND_INS,
    ),
    Shown("rdrop/table-2", ("rdrop/table-2",), stand_ins=rdrop_glue.STAND_INS),
    Shown(
        "rdrop/translation",
        _TRANSLATION,
        lines=[line(_BASE), line(_RDROP)],
        stand_ins=translation.STAND_INS,
    ),
    Shown(
        "rdrop/figure-2",
        (*_TRANSLATION, "rdrop/step-time"),
        ("curves",),
        lines=[line(name) for name in (_BASE, translation.DOUBLE, _RDROP)],
        place=places.with_step_time,
        stand_ins=translation.STAND_INS,
    ),
    Shown(
        "rdrop/section-c2",
        _TRANSLATION,
        lines=[line(name) for name in (_BASE, translation.NLL, _RDROP)],
        stand_ins=translation.STAND_INS,
    ),
    Shown(
        "rdrop/table-3",
        ("rdrop/table-3",),
        ("curves",),
        place=places.by_minutes,
        stand_ins=translation.STAND_INS,
    ),
    Shown(
        "rdrop/table-4",
        {"full": ("rdrop/images-of-table-4", *_TRANSLATION), **dict.fromkeys(_NOT_FULL, (*_IMAGES, *_TRANSLATION))},
        lines=[line(name) for name in (_BASE, translation.FRATERNAL, _RDROP)],
        tasks=("CIFAR-100", IWSLT),
        stand_ins={**translation.STAND_INS, **other_tasks.STAND_INS},
    ),
    Shown(
        "rdrop/table-5",
        _MODELS,
        lines=[line(f"{row}, {models}") for row in translation.CHECKPOINTS.values() for models in MODELS],
        stand_ins=translation.STAND_INS,
        numbers=joined_numbers,
    ),
    *(
        Shown(f"rdrop/{name}", (f"rdrop/{name}",), stand_ins=other_tasks.STAND_INS)
        for name in ("summarization", "language-modeling")
    ),
    Shown(
        "rdrop/image-classification",
        _IMAGES,
        lines=[line(f"{row}{model}") for model in ("", f", {VIT_L}") for row in (_BASE, _RDROP)],
        stand_ins=other_tasks.STAND_INS,
    ),
)

_SHOWN: tuple[Experiment, ...] = (*_MIXOUT, *_BIAS, *_FEW_SAMPLE, *_INSIDE, *_R_DROP)
_ALL: Mapping[str, Experiment] = {each.id: each for each in (*_SHOWN, *COMPUTED)}
EXPERIMENTS: Mapping[str, Experiment] = {id: _ALL[id] for id in ITEMS if id in _ALL}  # in the papers' order


def find_experiment(id: str) -> Experiment:
    if id not in EXPERIMENTS:
        raise SteadytuneError(f"There is no experiment {id!r}. {nearest(id, EXPERIMENTS)} See `steadytune paper list`.")
    return EXPERIMENTS[id]
