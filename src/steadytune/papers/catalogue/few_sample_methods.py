"""Sections 5 to 7 of the few-sample paper: re-initialised blocks, longer training, other methods."""

from __future__ import annotations

from steadytune.papers.catalogue.claim import Case, Cell, Claim, pairs
from steadytune.papers.catalogue.few_sample_terms import (
    ALL,
    LONG,
    REINIT,
    SHORT,
    SMALL,
    SMALL_1K,
    STANDARD,
    distance_claims,
    layers_claims,
    length_claims,
    loss_claims,
)
from steadytune.papers.catalogue.item import Item


def _lengths(row: str) -> tuple[Case, ...]:
    return tuple((Cell(row, task, LONG), Cell(row, task, SHORT)) for task in ALL)


_TABLE_1 = Item(
    "few-sample/table-1",
    "Table 1",
    "test score on 12 datasets: Standard and Re-init, each for 3 epochs and longer",
    ("V11", "V16"),
    (
        Claim(
            "Re-init has a higher mean than Standard on every dataset, with 3 epochs",
            "greater",
            pairs(REINIT, STANDARD, ALL, SHORT),
            "section 5, page 6",
        ),
        Claim(
            "Re-init varies less than Standard, usually",
            "steadier",
            pairs(REINIT, STANDARD, ALL, SHORT),
            "section 5, page 6",
            scope="most",
        ),
        Claim(
            "Longer training has a higher mean than 3 epochs, most of the time",
            "greater",
            _lengths(STANDARD) + _lengths(REINIT),
            "section 6, page 7",
            scope="most",
        ),
        Claim(
            "Standard varies less with longer training, most of the time",
            "steadier",
            _lengths(STANDARD),
            "section 6, page 7",
            scope="most",
        ),
        Claim(
            "Longer training narrows the gap between Standard and Re-init",
            "narrower",
            tuple(
                tuple(Cell(row, task, length) for length in (LONG, SHORT) for row in (REINIT, STANDARD)) for task in ALL
            ),
            "section 6, page 7",
        ),
        Claim(
            "On MRPC and MNLI, Re-init is better also with longer training",
            "greater",
            pairs(REINIT, STANDARD, ("MRPC", "MRPC (1k)", "MNLI (1k)"), LONG),
            "section 6, page 7",
        ),
        Claim(
            "The means of this library lie within one published standard deviation",
            "reproduces",
            tuple((Cell(row, task, length),) for row in (STANDARD, REINIT) for task in ALL for length in (SHORT, LONG)),
            "table 1, page 5",
        ),
    ),
    split="test",
)

_FIGURES = (
    Item(
        "few-sample/figure-5",
        "Figure 5",
        "distribution of validation scores on RTE and MRPC by the number of re-initialised blocks",
        ("V10", "V12"),
        layers_claims(("RTE", "MRPC"), "section 5, page 6"),
        split="validation",
        no_data="box plots only; the text gives their order, no number",
    ),
    Item(
        "few-sample/figure-6",
        "Figure 6",
        "training loss on RTE and MRPC by step, mean and range of 20 runs, Standard and Re-init",
        ("V13",),
        loss_claims(REINIT, STANDARD, ("RTE", "MRPC"), "section 5, page 6"),
        runs_of="few-sample/table-1",
        no_data="curves only; the text gives their order, no number",
    ),
    Item(
        "few-sample/figure-7",
        "Figure 7",
        "distance of blocks 6, 12, 18 and 24 to their start by step on RTE, by the number of re-initialised blocks",
        ("V14",),
        distance_claims("RTE", (6, 12, 18, 24), "section 5, page 6; figure 7, page 7"),
        no_data="curves only; the text gives their order, no number",
    ),
    Item(
        "few-sample/figure-8",
        "Figure 8",
        "validation score by training steps on 1k rows of RTE, MRPC, STS-B and CoLA, mean and range of 8 runs",
        ("V16",),
        length_claims(SMALL_1K, "section 6, page 7"),
        split="validation",
        no_data="curves only; the text gives their order, no number",
    ),
)

_TABLE_2 = Item(
    "few-sample/table-2",
    "Table 2",
    "test score of eight methods on four small datasets, all with bias correction",
    ("V17", "V18", "V19", "V20", "V21", "V22"),
    (
        Claim(
            "An intermediate task has a higher mean than Standard on every dataset",
            "greater",
            pairs("Int. Task", STANDARD, SMALL),
            "section 7.2, page 9",
        ),
        Claim(
            "Re-init has a higher mean than Standard on every dataset",
            "greater",
            pairs(REINIT, STANDARD, SMALL),
            "table 2, page 8",
        ),
        Claim(
            "Mixout does not have a higher mean than Standard everywhere",
            "greater",
            pairs("Mixout", STANDARD, SMALL),
            "section 7.2, page 9: 'less consistent'",
            scope="not every",
        ),
        Claim(
            "Layer-wise learning rates do not have a higher mean than Standard everywhere",
            "greater",
            pairs("LLRD", STANDARD, SMALL),
            "section 7.2, page 9: 'less consistent'",
            scope="not every",
        ),
        Claim(
            "Decay toward zero or toward the pretrained weights changes nothing: within one point of Standard",
            "no_difference",
            pairs("Pre-trained WD", STANDARD, SMALL) + pairs("WD", STANDARD, SMALL),
            "section 7.2, page 9",
            margin=0.01,
        ),
        Claim(
            "With bias correction mixout gains less over Standard than without",
            "narrower",
            tuple(
                tuple(Cell(row, task, bias) for bias in ("", "no bias correction") for row in ("Mixout", STANDARD))
                for task in SMALL
            ),
            "section 7.2, page 9; without correction: the set-up of the mixout paper, table 1",
        ),
        Claim(
            "The means of this library lie within one published standard deviation",
            "reproduces",
            tuple(
                (Cell(row, task),)
                for row in (STANDARD, "Int. Task", "LLRD", "Mixout", "Pre-trained WD", "WD", REINIT, "Longer")
                for task in SMALL
            ),
            "table 2, page 8",
        ),
    ),
    split="test",
)

FEW_SAMPLE_METHODS: tuple[Item, ...] = (_TABLE_1, *_FIGURES, _TABLE_2)
