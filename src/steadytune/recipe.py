"""What a run is: a model, a few numbers, and methods. A frozen record with a key, and the presets.

    recipe = preset("recommended").updated({"lr": 1e-4})           # strict: an unknown name is an error
    recipe = recipe.with_methods(parse_method("mixout:p=0.7"))     # takes the place of what it replaces
    recipe.key()                                                   # sha256 of its canonical JSON

Seeds and data are not part of it: the same recipe runs with many streams, on many tasks.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, Literal

from steadytune.errors import SteadytuneError
from steadytune.methods import all_methods
from steadytune.methods.adamw import AdamWMethod
from steadytune.methods.base import Method, check_at_least, check_count, check_methods, check_probability
from steadytune.methods.dropout import Dropout
from steadytune.methods.mixout import Mixout
from steadytune.methods.rdrop import RDrop
from steadytune.methods.reinit import Reinit
from steadytune.methods.schedules import LinearSchedule, PolynomialSchedule
from steadytune.strict import BadValue, Path, build, convert, nearest, settings_from_text, types_of

Precision = Literal["fp32", "bf16", "fp16"]
_EPOCHS = 3.0  # where neither epochs nor steps are given: what became the habit (few-sample paper, section 6)


@dataclass(frozen=True)
class Recipe:
    """What a run is. Field comments are the --help."""

    model: str = "builtin:minilm"  # a transformers name or directory, or builtin:minilm
    methods: tuple[Method, ...] = ()  # in any order; kept in that of the places of a run
    lr: float = 2e-5  # peak learning rate
    weight_decay: float = 0.0  # decoupled, toward zero; biases and norms never decay
    batch_size: int = 32  # rows per optimiser step, over all processes
    epochs: float | None = None  # passes over the data; 3 where steps are not given either
    steps: int | None = None  # optimiser steps, instead of epochs
    min_steps: int = 0  # with epochs: train at least so many steps, however few the rows
    clip: float = 1.0  # largest gradient norm; 0 is off
    max_length: int = 128  # tokens per row; longer ones are cut
    max_target_length: int | None = None  # tokens of a translation or summary; none: max_length
    precision: Precision = "fp32"  # of the forward pass: fp32, or autocast to bf16 or fp16
    micro_batches: int = 1  # gradient accumulation: cut each batch into at least so many parts
    evaluations: int = 10  # how often the run is scored on validation, evenly spaced, the last step included
    patience: int | None = None  # stop after so many evaluations without a better one; none: never
    label_smoothing: float = 0.0  # of the plain cross-entropy
    beams: int = 5  # of beam search, for translation and summaries
    length_penalty: float = 1.0  # of beam search; above 1 favours long outputs
    trust_remote_code: bool = False  # run the code that comes with a model of the hub
    start_from: str | None = None  # a run or model directory whose body replaces the pretrained one (V21)
    from_config: bool = False  # take only the configuration of `model`, and train from random weights

    def __post_init__(self) -> None:
        object.__setattr__(self, "methods", _in_order(self.methods))
        for name, hint in types_of(type(self)).items():
            object.__setattr__(self, name, convert(getattr(self, name), hint, f"Recipe: {name}", (name,)))
        if self.epochs is None and self.steps is None:
            object.__setattr__(self, "epochs", _EPOCHS)  # written down, so that the run's record says it
        self._check()

    def _check(self) -> None:
        for name in ("batch_size", "max_length", "micro_batches", "evaluations", "beams"):
            check_count(name, getattr(self, name), "Recipe")
        for name in ("steps", "patience", "max_target_length"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), "Recipe")
        for name in ("weight_decay", "clip", "min_steps"):
            check_at_least(name, getattr(self, name), 0, "Recipe")
        check_probability("label_smoothing", self.label_smoothing, "Recipe")
        for name in ("lr", "epochs"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value < math.inf:
                raise BadValue(f"Recipe: {name} must be a number above 0, not {value!r}.", (name,))
        if not math.isfinite(self.length_penalty):
            raise BadValue(f"Recipe: length_penalty must be a number, not {self.length_penalty!r}.")
        if self.steps is not None and (self.epochs is not None or self.min_steps):
            raise BadValue("Recipe: steps stand instead of epochs and min_steps: give one or the other.", ("steps",))
        if not self.model.strip():
            raise BadValue("Recipe: model is empty. Give a name, a directory, or builtin:minilm.", ("model",))
        if self.from_config and self.start_from is not None:
            raise BadValue("Recipe: from_config trains from random weights, start_from does not: keep one.")
        own = next((item for item in self.methods if "loss" in item.replaces()), None)
        if self.label_smoothing and own is not None:
            raise BadValue(
                f"Recipe: {type(own).__name__} makes its own loss, so label_smoothing of the recipe would do nothing. "
                f"Give it to {type(own).__name__}.",
                ("label_smoothing",),
            )

    def planned_steps(self, steps_per_epoch: int) -> int:
        """Optimiser steps on data of this size, before a method (`Longer`) makes it more."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return max(self.min_steps, math.ceil(self.epochs * steps_per_epoch))

    def updated(self, changes: Mapping[str, Any]) -> Recipe:
        """With these settings instead, as a file or a command line gives them. A new length replaces the old one."""
        data = self.to_data()
        if "steps" in changes or "epochs" in changes:
            data = {key: value for key, value in data.items() if key not in ("steps", "epochs", "min_steps")}
        return Recipe.from_data({**data, **changes})

    def with_methods(self, *methods: Method) -> Recipe:
        """With these methods as well; one that is of the same name, or replaces the same thing, makes way."""
        taken = {item.name for item in methods} | {thing for item in methods for thing in item.replaces()}
        stay = [item for item in self.methods if item.name not in taken and not item.replaces() & taken]
        return self.updated({"methods": [item.describe() for item in (*stay, *methods)]})

    def to_data(self) -> dict[str, Any]:
        """As plain data: what JSON and YAML hold."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**plain, "methods": [item.describe() for item in self.methods]}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Recipe:
        """The inverse of `to_data`, for settings that somebody wrote; what is left out has its default."""
        if not isinstance(data, Mapping):
            raise BadValue(f"A recipe is a list of settings and their values, not {data!r}.")
        return build(cls, {**data, "methods": _methods_from_data(data.get("methods", []))}, "Recipe")

    def key(self) -> str:
        """sha256 of the canonical JSON: the same for the same settings, however they were written."""
        text = json.dumps(self.to_data(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()


def method_from_data(data: Any, path: Path = ()) -> Method:
    """{"method": "mixout", "p": 0.7} -> Mixout(p=0.7)"""
    if not isinstance(data, Mapping) or not isinstance(data.get("method"), str):
        raise BadValue(f"A method is written {{method: mixout, p: 0.7}}, not {data!r}.", path)
    cls = _method_class(data["method"], (*path, "method"))
    return build(cls, {key: value for key, value in data.items() if key != "method"}, cls.__name__, path)


def parse_method(text: str) -> Method:
    """`mixout:p=0.7,layers=all` -> Mixout(p=0.7, layers="all"); a value may contain commas."""
    name, _, rest = text.partition(":")
    cls = _method_class(name.strip())
    return build(cls, settings_from_text(cls, rest, cls.__name__), cls.__name__)


def _method_class(name: str, path: Path = ()) -> type[Method]:
    known = all_methods()
    if name not in known:
        raise BadValue(f"There is no method {name!r}. {nearest(name, known)}", path)
    return known[name]


def _methods_from_data(data: Any) -> tuple[Method, ...]:
    if not isinstance(data, (list, tuple)):
        raise BadValue(f"methods is a list, such as [{{method: mixout, p: 0.7}}], not {data!r}.", ("methods",))
    return tuple(
        item if isinstance(item, Method) else method_from_data(item, ("methods", number))
        for number, item in enumerate(data)
    )


def _in_order(methods: Method | Iterable[Method]) -> tuple[Method, ...]:
    """Checked, and in one order whatever order they were given in, so that equal recipes have equal keys."""
    try:
        given = sorted(check_methods(methods), key=lambda item: item.name)
    except SteadytuneError as error:
        raise BadValue(str(error), ("methods",)) from error
    for one, other in pairwise(given):
        if one.name == other.name:
            raise BadValue(f"Recipe: {type(one).__name__} is there twice: keep one.", ("methods",))
    return tuple(check_methods(method_from_data(item.describe()) for item in given))


@dataclass(frozen=True)
class Preset:
    """A recipe with a name, a line that says what it is, and where its numbers come from."""

    recipe: Recipe
    describe: str
    source: str


_WARM_UP = LinearSchedule(warmup=0.1)  # and down to 0: all but R-Drop

PRESETS: dict[str, Preset] = {
    # Bias correction, warm-up, re-init, enough steps: V25. A quarter of the blocks is the paper's largest L, 6 of 24;
    # 800 is the middle of its grid of steps (V16); 5e-5 is the largest rate that BERT's authors try. Looked at with
    # builtin:minilm on one H200 (demo data, CoLA, MRPC, STS-B, RTE; 300 and 1,000 rows), a hint, not a study:
    # with one seed 2e-5 leaves the model half-trained (demo, 300 steps: MCC .27; .71 at 5e-5) and 2e-4 without re-init
    # is unsteady (.59 and .86 in two runs of 1,000 steps, where 1e-4 has .98); with two seeds 2 of 6 blocks drawn anew
    # cost no task more than a point, and STS-B on 300 rows rose from .74 to .78.
    "recommended": Preset(
        Recipe(methods=(AdamWMethod(), _WARM_UP, Reinit(layers=0.25)), lr=5e-5, epochs=3.0, min_steps=800),
        "bias-corrected AdamW, warm-up, re-initialised top blocks, and enough steps",
        "few-sample paper, sections 4 to 6 (V25)",
    ),
    # Batch 32, 2e-5, three epochs, clipping at 1, no decay, the model's own dropout (0.1 in BERT): V9.
    "standard": Preset(
        Recipe(methods=(AdamWMethod(), _WARM_UP)),
        "plain fine-tuning: three epochs at 2e-5 with bias-corrected AdamW",
        "few-sample paper, section 3 (V9)",
    ),
    # The baseline of both papers: no bias correction, eps 1e-6 (V1), dropout(0.1) and wdecay(0, 0.01) (M17, M20).
    "devlin": Preset(
        Recipe(methods=(AdamWMethod(correct_bias=False, eps=1e-6), _WARM_UP, Dropout(p=0.1)), weight_decay=0.01),
        "BERT's own recipe: AdamW without bias correction, which fails for some seeds",
        "Devlin et al. 2019, as in the mixout paper, section 5 (M17, M20)",
    ),
    # mixout(w_pre, 0.8) instead of dropout and decay, the best mean of table 1 without decay (M21); corrected (V22).
    "mixout": Preset(
        Recipe(methods=(AdamWMethod(), _WARM_UP, Mixout(p=0.8))),
        "three epochs at 2e-5 with mixout toward the pretrained weights instead of dropout",
        "mixout paper, table 1 (M20, M21), with bias correction (V22)",
    ),
    # 20 epochs, warm-up over 10% of all of them, decay 0.01, eps 1e-6, batch 16; the best evaluation is kept: D17.
    "mosbach": Preset(
        Recipe(methods=(AdamWMethod(eps=1e-6), _WARM_UP), weight_decay=0.01, batch_size=16, epochs=20.0),
        "twenty epochs at 2e-5, warm-up over a tenth of them",
        "Mosbach et al. 2021 (D17)",
    ),
    # Appendix, table 1: 1e-5, batch 16 and alpha 1 on most tasks; its updates are 10 epochs (MRPC: 2,296 of 230). R6.
    "rdrop": Preset(
        Recipe(
            methods=(AdamWMethod(betas=(0.9, 0.98), eps=1e-6), PolynomialSchedule(warmup=0.06), RDrop(alpha=1.0)),
            lr=1e-5,
            weight_decay=0.01,
            batch_size=16,
            epochs=10.0,
        ),
        "ten epochs at 1e-5 with R-Drop: two dropout passes that must agree",
        "R-Drop appendix, table 1 (R6)",
    ),
}


def preset(name: str) -> Recipe:
    """The recipe of that name, or an error with the nearest one."""
    if not isinstance(name, str) or name not in PRESETS:
        raise BadValue(f"There is no recipe {name!r}. {nearest(name, PRESETS)}", ("preset",))
    return PRESETS[name].recipe
