"""What the registry holds: studies that are run (Part), items that show their runs (Shown), items that are computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steadytune.papers.catalogue import Cell, Claim
from steadytune.papers.places import plain
from steadytune.papers.samples import Place, Sample
from steadytune.papers.settings import SCALES, Scale, Setting
from steadytune.papers.verdicts import Verdict
from steadytune.papers.views import Line

if TYPE_CHECKING:
    from steadytune.report.study.figures import Figure
    from steadytune.report.study.table_formats import Table
    from steadytune.study.results import StudyResults

Data = dict[str, Any]
Say = Callable[[str], None]  # is told how far something is that takes long
UNFINISHED = "unfinished"  # in the folder of what is computed: where it keeps what it has, until the result is there


@dataclass(frozen=True)
class Part:
    """A study, in a folder of its own. Several items may show its runs."""

    name: str  # "few-sample/layers": its folder
    make: Callable[[Setting], Data]  # the study as plain data, as in a study file
    after: tuple[str, ...] = ()  # parts whose results or models it needs
    prepare: Callable[[Setting], None] | None = None  # makes what is needed besides data: tokenizers, configurations
    finish: Callable[[Setting, StudyResults], None] | None = None  # evaluates the kept models together
    scales: tuple[Scale, ...] = SCALES  # at which it is needed
    for_all: bool = False  # whatever task is asked for needs it; else only its own do
    timed: bool = False  # how long its runs take is compared: none is taken over, and each has its GPU alone


@dataclass(frozen=True)
class Shown:
    """A table or figure that shows runs of studies."""

    id: str
    parts: tuple[str, ...] | Mapping[Scale, tuple[str, ...]]
    figures: tuple[str, ...] = ("distribution",)  # names of figures of a study's report, or of figures.py
    lines: Sequence[Line] | None = None  # None: every reported variant, under its own name
    tasks: tuple[str, ...] | None = None  # published columns; None: all
    place: Callable[[Cell], Place] = plain
    stand_ins: Mapping[str, str] = field(default_factory=dict)  # at the small scale: published column -> task
    ours: tuple[Claim, ...] = ()  # claims that no paper makes, tested beside the paper's
    listed: Callable[[Cell], bool] = lambda cell: True  # which cells of the claims stand in the table
    more: tuple[Cell, ...] = ()  # cells that no claim speaks of, for the table
    numbers: Callable[[Path], Mapping[Cell, float]] | None = None  # single numbers that a part's `finish` has left

    def parts_at(self, scale: Scale) -> tuple[str, ...]:
        return self.parts[scale] if isinstance(self.parts, Mapping) else self.parts


@dataclass(frozen=True)
class Computed:
    """An item that is computed at once: a theorem, the digits, the settings of a table. Its result is one JSON file."""

    id: str
    name: str  # of its folder; two items may show one result
    compute: Callable[[Setting, Say], Data]
    verdicts: Callable[[Data], list[Verdict]]
    figures: Callable[[Data], list[Figure]] = lambda data: []
    tables: Callable[[Data], list[Table]] = lambda data: []
    samples: Callable[[Data], Mapping[Cell, Sample]] = lambda data: {}  # for the record: what came out of every seed
    seconds: Mapping[Scale, float] = field(default_factory=dict)  # roughly, on two CPU cores
    reads_data: bool = False  # of --data; theory needs none


Experiment = Shown | Computed


def reads_data(experiment: Experiment) -> bool:
    """Whether it needs the files of --data, at any scale but smoke."""
    return isinstance(experiment, Shown) or experiment.reads_data
