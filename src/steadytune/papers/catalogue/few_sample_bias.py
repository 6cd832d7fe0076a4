"""Section 4 of the few-sample paper: Adam without bias correction."""

from __future__ import annotations

from steadytune.papers.catalogue.claim import Cell, Claim, along, pairs
from steadytune.papers.catalogue.few_sample_terms import BIASED, CORRECTED, SMALL, loss_claims
from steadytune.papers.catalogue.item import Item

FEW_SAMPLE_BIAS: tuple[Item, ...] = (
    Item(
        "few-sample/figure-1",
        "Figure 1",
        "the update of Adam without bias correction over the update with it, by step",
        ("V2",),
        tuple(
            Claim(
                text,
                "value",
                ((Cell("r(t)", step),),),
                "ACCEPTANCE V2",
                quantity="bias_ratio",
                uncounted="an identity",
                value=r,
                margin=margin,
            )
            for text, step, r, margin in (
                ("r(1) = 3.162", "t=1", 3.162, 0.0005),
                ("r(12) = 6.569", "t=12", 6.569, 0.0005),  # the greatest: theory/adam_bias.py looks at every step
                ("Where RTE ends, it is still 2.21", "t=230", 2.21, 0.005),
                ("Where MRPC ends, it is still 1.84", "t=348", 1.84, 0.005),
                ("Where CoLA ends, it is still 1.35", "t=800", 1.35, 0.005),
            )
        ),
        kind="theory",
        no_data="a formula; the figure prints no value (those of the claims are computed from it)",
    ),
    Item(
        "few-sample/figure-2",
        "Figure 2",
        "distribution of test scores of 50 runs with and without bias correction",
        ("V3",),
        (
            Claim(
                "Fewer runs are degenerate with bias correction",
                "fewer_degenerate",
                pairs(CORRECTED, BIASED, SMALL),
                "section 4, page 4",
            ),
            Claim(
                "Scores vary less over seeds with bias correction",
                "steadier",
                pairs(CORRECTED, BIASED, SMALL),
                "figure 2, page 4",
            ),
            Claim(
                "Without it, 48 % of runs on RTE have an accuracy below 55 %; at full scale, within 15 points",
                "value",
                ((Cell(BIASED, "RTE"),),),
                "section 4, page 4",
                statistic="share below 0.55",
                value=0.48,
                margin=0.15,
            ),
        ),
        split="test",
    ),
    Item(
        "few-sample/figure-3",
        "Figure 3",
        "training loss on RTE by step, mean and range of 50 runs, with and without bias correction",
        ("V4",),
        loss_claims(CORRECTED, BIASED, ("RTE",), "section 4, page 4"),
        runs_of="few-sample/figure-2",
        no_data="curves only; the text gives their order, no number",
    ),
    Item(
        "few-sample/figure-4",
        "Figure 4",
        "expected test score of the best of n runs, chosen on validation, by n",
        ("V5", "V25"),
        (
            Claim(
                "With at most 10 trials, bias correction has the higher expected test score",
                "greater",
                tuple(pair for n in ("n=1", "n=5", "n=10") for pair in pairs(CORRECTED, BIASED, SMALL, n)),
                "section 4, page 5",
                quantity="expected_score",
            ),
            Claim(
                "With too many trials the expected test score falls again, mostly",
                "peak",
                tuple(along(CORRECTED, task, ("n=1", "n=5", "n=10", "n=20", "n=50")) for task in SMALL),
                "section 4, page 5",
                scope="most",
                quantity="expected_score",
            ),
        ),
        split="test",
        runs_of="few-sample/figure-2",
    ),
)
