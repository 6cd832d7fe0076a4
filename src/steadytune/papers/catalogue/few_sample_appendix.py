"""Tables and figures of the few-sample paper's appendix (Zhang et al. 2021)."""

from __future__ import annotations

from itertools import pairwise

from steadytune.papers.catalogue.claim import Case, Cell, Claim, pairs
from steadytune.papers.catalogue.few_sample_terms import (
    BIASED,
    CORRECTED,
    LARGE_1K,
    REINIT,
    SMALL,
    SMALL_1K,
    STANDARD,
    distance_claims,
    layers_claims,
    length_claims,
    loss_claims,
)
from steadytune.papers.catalogue.item import Item

_EVERY = ("every order", "every init")
_BLOCKS = tuple(range(1, 25))


def _models(models: tuple[str, ...], tasks: tuple[str, ...] = SMALL) -> tuple[Case, ...]:
    return tuple(pair for model in models for pair in pairs(REINIT, STANDARD, tasks, model))


def _one_seed_fixed() -> tuple[Case, ...]:
    fixed = [*((f"order {i}", _EVERY[1]) for i in range(10)), *((_EVERY[0], f"init {i}") for i in range(10))]
    return tuple((Cell("Re-init 5", *seeds), Cell(STANDARD, *seeds)) for seeds in fixed)


_TABLES = (
    Item(
        "few-sample/table-3",
        "Table 3",
        "the datasets: rows, metric, majority baseline",
        ("V7", "V8"),
        kind="set-up",
    ),
    Item(
        "few-sample/table-4",
        "Table 4",
        "test score with mixed and with full precision",
        ("V24",),
        (
            Claim(
                "Mixed and full precision do not differ: within one point",
                "no_difference",
                pairs("Mixed precision", "Full precision", ("CoLA", "MRPC", "RTE", "STS-B")),
                "appendix C, pages 14-15; the paper: two-tailed t-test, no significant difference",
                margin=0.01,
            ),
        ),
        split="test",
    ),
    Item(
        "few-sample/table-5",
        "Table 5",
        "accuracy on the full MNLI with and without bias correction",
        ("V6",),
        (
            Claim(
                "On a large dataset bias correction makes no difference: within half a point",
                "no_difference",
                (*pairs(CORRECTED, BIASED, ("MNLI",), "dev"), *pairs(CORRECTED, BIASED, ("MNLI",), "test")),
                "appendix D, page 15",
                margin=0.005,
            ),
        ),
    ),
    Item(
        "few-sample/table-6",
        "Table 6",
        "fine-tuning settings of BERT, XLNet, RoBERTa, ELECTRA and BART",
        ("V15",),
        kind="set-up",
        runs_of="few-sample/table-7",
    ),
    Item(
        "few-sample/table-7",
        "Table 7",
        "test score of XLNet, RoBERTa, ELECTRA and BART, Standard and Re-init",
        ("V15",),
        (
            Claim(
                "XLNet is better with Re-init on every dataset",
                "greater",
                _models(("XLNet",)),
                "appendix F, page 17",
            ),
            Claim(
                "RoBERTa is better with Re-init on RTE and MRPC",
                "greater",
                _models(("RoBERTa",), ("RTE", "MRPC")),
                "table 7, page 17",
            ),
            Claim(
                "ELECTRA and BART are not better with Re-init everywhere",
                "greater",
                _models(("ELECTRA", "BART")),
                "appendix F, page 17",
                scope="not every",
            ),
            Claim(
                "Re-init varies less than Standard, in most cases",
                "steadier",
                _models(("XLNet", "RoBERTa", "ELECTRA", "BART")),
                "appendix F, page 17",
                scope="most",
            ),
        ),
        split="test",
    ),
)

_SEEDS = (
    Item(
        "few-sample/figure-9",
        "Figure 9",
        "validation accuracy on RTE by seed of initialisation and seed of order and dropout, Standard and Re-init 5",
        ("V23",),
        (
            Claim(
                "Re-init 5 is better on average over the 10 x 10 seeds",
                "greater",
                ((Cell("Re-init 5", *_EVERY), Cell(STANDARD, *_EVERY)),),
                "appendix B, page 13",
            ),
            Claim(
                "Re-init 5 is usually better whichever initialisation or order is fixed",
                "greater",
                _one_seed_fixed(),
                "appendix B, page 13",
                scope="most",
            ),
        ),
        split="validation",
    ),
    Item(
        "few-sample/figure-10",
        "Figure 10",
        "standard deviation of the same runs with one of the two seeds fixed",
        ("V23",),
        (
            Claim(
                "Re-init 5 varies less than Standard, whichever seed is fixed, usually",
                "steadier",
                _one_seed_fixed(),
                "appendix B, page 13",
                scope="most",
            ),
            Claim(
                "Fixing the initialisation leaves about as much spread as fixing the order: within one point",
                "no_difference",
                tuple(
                    (Cell(row, "average", "init fixed"), Cell(row, "average", "order fixed"))
                    for row in (STANDARD, "Re-init 5")
                ),
                "appendix B, page 13",
                statistic="std",
                margin=0.01,
            ),
        ),
        split="validation",
        runs_of="few-sample/figure-9",
        no_data="the figure prints numbers, but none is legible in the text at hand",
    ),
)

_CURVES = (
    Item(
        "few-sample/figure-11",
        "Figure 11",
        "training loss by step on all four small datasets, with and without bias correction",
        ("V4",),
        loss_claims(CORRECTED, BIASED, SMALL, "appendix E, pages 15-16"),
        runs_of="few-sample/figure-2",
        no_data="curves only; the text gives their order, no number",
    ),
    Item(
        "few-sample/figure-12",
        "Figure 12",
        "expected validation score of the best of n runs, by n",
        ("V5",),
        (
            Claim(
                "The expected validation score never falls with the number of trials",
                "bound",
                tuple(
                    (Cell(row, task, more), Cell(row, task, fewer))
                    for row in (CORRECTED, BIASED)
                    for task in SMALL
                    for fewer, more in pairwise(("n=1", "n=5", "n=10", "n=20", "n=50"))
                ),
                "appendix E, page 15",
                quantity="expected_score",
                uncounted="an identity",  # the best of more runs, by the very score that is shown
                margin=1e-9,  # of rounding
            ),
            Claim(
                "With at most 10 trials, bias correction has the higher expected validation score",
                "greater",
                tuple(pair for n in ("n=1", "n=5", "n=10") for pair in pairs(CORRECTED, BIASED, SMALL, n)),
                "appendix E, page 15",
                quantity="expected_score",
            ),
        ),
        split="validation",
        runs_of="few-sample/figure-2",
        no_data="curves only; the text gives their order, no number",
    ),
    Item(
        "few-sample/figure-13",
        "Figure 13",
        "distribution of validation scores by the number of re-initialised blocks, on the other datasets",
        ("V12",),
        layers_claims(("STS-B", "CoLA", *SMALL_1K, *LARGE_1K), "appendix F, page 15"),
        split="validation",
        no_data="box plots only; the text gives their order, no number",
    ),
    Item(
        "few-sample/figure-14",
        "Figure 14",
        "validation score by training steps on 1k rows of SST-2, QNLI, QQP and MNLI, mean and range of 8 runs",
        ("V16",),
        length_claims(LARGE_1K, "appendix G, page 17"),
        split="validation",
        no_data="curves only; the text gives their order, no number",
    ),
)

_DISTANCES = tuple(
    Item(
        f"few-sample/figure-{number}",
        f"Figure {number}",
        f"distance of all 24 blocks to their start during training on {task}, by the number of re-initialised blocks",
        ("V14",),
        distance_claims(task, _BLOCKS, f"section 5, page 6; figure {number}, page {number + 4}"),
        runs_of="few-sample/figure-7" if task == "RTE" else "",
        no_data="curves only; the text gives their order, no number",
    )
    for number, task in zip(range(15, 19), ("RTE", "MRPC", "STS-B", "CoLA"))
)

FEW_SAMPLE_APPENDIX: tuple[Item, ...] = (*_TABLES, *_SEEDS, *_CURVES, *_DISTANCES)
