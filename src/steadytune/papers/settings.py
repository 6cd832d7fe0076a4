"""What the three scales mean, and what a study function is told about the scale, the data and the studies before it.

    full     exactly the paper's set-up: its models by their names on the hub, its data under --data, its
             hyper-parameters, seeds, rule of selection, metric and precision
    small    the same experiment with all-MiniLM-L6-v2 (6 blocks, 384 wide) in place of BERT, or a small model from
             scratch, on the files of --data that are at hand; one GPU, minutes
    smoke    tiny random models, generated data, 2 seeds, a few steps: whether it runs, nothing else

Learning rates at the small scale are chosen by one rule, the same for all variants of a task: of RATES the one with
the best mean validation score of the paper's plain fine-tuning over RATE_SEEDS seeds. Plain is with bias correction in
the few-sample and R-Drop papers, and without it in the mixout paper, as in BERT's own code; hence two sets of rates.

Rows at the small scale. A run is to take a few hundred steps: MRPC, STS-B and CoLA have 2,500 training rows
(SMALL_ROWS), about as many as RTE; sets that are only sampled from (`(1k)`) are validated on 500 rows and tested on
1,000. Which rows is fixed, and reports say how many. Where a large set is the point (SST-2), all of it is used.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from steadytune.errors import SteadytuneError
from steadytune.strict import nearest

if TYPE_CHECKING:
    from steadytune.study.results import StudyResults

Scale = Literal["full", "small", "smoke"]
SCALES: tuple[Scale, ...] = ("full", "small", "smoke")
RATES = (5e-5, 1e-4, 2e-4)
RATE_SEEDS = 3
SMALL_ROWS = 2500

BERT_LARGE, BERT_BASE = "bert-large-uncased", "bert-base-cased"  # R-Drop's script has the cased one (D15)
XLNET, ROBERTA = "xlnet-large-cased", "roberta-large"
ELECTRA, BART = "google/electra-large-discriminator", "facebook/bart-large"
VIT_BASE, VIT_LARGE = "google/vit-base-patch16-224-in21k", "google/vit-large-patch16-224-in21k"
GPT2 = "gpt2"
BLOCKS: Mapping[Scale, int] = {"full": 24, "small": 6, "smoke": 4}  # of the encoder that stands for BERT-large

_SMALL_MODELS = {BERT_LARGE: "builtin:minilm", BERT_BASE: "builtin:minilm"}
SMOKE_MODELS = {  # directories of the generated materials
    BERT_LARGE: "models/bert",
    BERT_BASE: "models/bert",
    XLNET: "models/xlnet",
    ROBERTA: "models/roberta",
    ELECTRA: "models/electra",
    BART: "models/bart",
    VIT_BASE: "models/vit",
    VIT_LARGE: "models/vit",
    GPT2: "models/gpt2",
}
# What every run of a small study has: mixed precision as in the papers, which takes half the time also on a CPU.
SMALL_RECIPE = {"precision": "bf16"}
# What every run of a smoke study has, whatever its experiment says.
SMOKE_RECIPE = {"steps": 3, "batch_size": 4, "evaluations": 2, "max_length": 16, "lr": 1e-3, "precision": "fp32"}


@dataclass(frozen=True)
class Setting:
    """What the plain data of a study depends on."""

    scale: Scale
    data: Path  # the folder with glue/, multi30k/, ...; at smoke scale that of the generated materials
    folder: Path  # of the study: the paths in its file are relative to it
    models: Mapping[str, str] = field(default_factory=dict)  # name on the hub -> directory to take instead
    earlier: Mapping[str, StudyResults] = field(default_factory=dict)  # by name; empty while studies are only counted

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise SteadytuneError(f"There is no scale {self.scale!r}. {nearest(self.scale, SCALES)}")

    def pick(self, *, full: Any, small: Any, smoke: Any) -> Any:
        """The value of this scale."""
        return {"full": full, "small": small, "smoke": smoke}[self.scale]

    def path(self, name: str) -> str:
        """A place under the data folder, as the study's file names it."""
        return relative(self.data / name, self.folder)

    def model(self, name: str) -> str:
        """What stands for a model of the hub at this scale."""
        if name in self.models:
            given = Path(self.models[name])
            return relative(given, self.folder) if given.is_dir() else self.models[name]
        if self.scale == "smoke":
            return self.path(SMOKE_MODELS[name])
        if self.scale == "small":
            if name not in _SMALL_MODELS:
                raise SteadytuneError(f"{name} has no stand-in at the small scale; give one with --model {name}=DIR.")
            return _SMALL_MODELS[name]
        return name

    def chosen(self, study: str, variant: str, task: str) -> Mapping[str, Any]:
        """The swept settings that validation chose in an earlier study; nothing while that is not known."""
        found = self.earlier.get(study)
        name = None if found is None else found.chosen.get((task, variant))
        return {} if found is None or name is None else found.variants[name].point

    @property
    def blocks(self) -> int:
        return BLOCKS[self.scale]


def relative(path: Path, folder: Path) -> str:
    """The path as seen from a folder, so that both may move together."""
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:  # another drive of Windows
        return str(path.resolve())
