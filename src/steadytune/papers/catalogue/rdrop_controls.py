"""Section C of R-Drop's appendix: what else could explain its gain on translation (Liang et al. 2021)."""

from __future__ import annotations

from steadytune.papers.catalogue.claim import Cell, Claim, along, pairs
from steadytune.papers.catalogue.item import Item

IWSLT = "IWSLT14 De-En"
MINUTES = tuple(f"{minutes} minutes" for minutes in (10, 30, 60, 90, 150, 200, 300))
MODELS = ("1 model", *(f"{number} models" for number in range(2, 7)))
_RDROP, _BASE = "R-Drop", "Baseline"
_ENSEMBLE = "Transformer full-model deep ensembling"
_AVERAGED_MODELS = "Transformer full-model weight averaging (model)"
_AVERAGED_CHECKPOINTS = "Transformer full-model weight averaging (checkpoint)"
_RDROP_CHECKPOINTS = "R-Drop full-model weight averaging (checkpoint)"

RDROP_CONTROLS: tuple[Item, ...] = (
    Item(
        "rdrop/figure-2",
        "Figure 2 of the appendix",
        "BLEU by training step: Transformer, with twice the batch, and with R-Drop",
        ("R14",),
        (
            Claim(
                "R-Drop has a higher BLEU than training with twice the batch",
                "greater",
                pairs(_RDROP, "Double batch", (IWSLT,)),
                "section C.1 of the appendix",
                statistic="value",
            ),
            Claim(
                "Twice the batch has a slightly higher BLEU than the baseline",
                "greater",
                pairs("Double batch", _BASE, (IWSLT,)),
                "section C.1 of the appendix",
                statistic="value",
            ),
            Claim(
                "A step of R-Drop costs about 1.1 times a step with twice the batch",
                "ratio_at_most",
                pairs(_RDROP, "Double batch", ("time per step",)),
                "section C.1 of the appendix",
                quantity="seconds",
                statistic="value",
                value=1.1,
                margin=0.05,
            ),
        ),
        split="test",
    ),
    Item(
        "rdrop/section-c2",
        "Section C.2 of the appendix",
        "BLEU with two forwards but without the KL term",
        ("R15",),
        (
            Claim(
                "Without the KL term most of the gain is gone: R-Drop has a higher BLEU",
                "greater",
                pairs(_RDROP, "NLL only", (IWSLT,)),
                "section C.2 of the appendix",
                statistic="value",
            ),
            Claim(
                "Two forwards without the KL term have a slightly higher BLEU than the baseline",
                "greater",
                pairs("NLL only", _BASE, (IWSLT,)),
                "section C.2 of the appendix",
                statistic="value",
            ),
        ),
        split="test",
    ),
    Item(
        "rdrop/table-3",
        "Table 3 of the appendix",
        "BLEU after so many minutes of training: baseline, and R-Drop with half the batch",
        ("R16",),
        (
            Claim(
                "R-Drop needs more time: up to 60 minutes the baseline is ahead",
                "greater",
                tuple((Cell(_BASE, IWSLT, at), Cell(_RDROP, IWSLT, at)) for at in MINUTES[:3]),
                "section C.3 of the appendix",
                statistic="value",
            ),
            Claim(
                "The time to reach the baseline's final BLEU is comparable: at 90 minutes R-Drop is ahead",
                "greater",
                pairs(_RDROP, _BASE, (IWSLT,), "90 minutes"),
                "section C.3 of the appendix",
                statistic="value",
            ),
            Claim(
                "The final model is better: R-Drop after 300 minutes, the baseline after 90",
                "greater",
                ((Cell(_RDROP, IWSLT, "300 minutes"), Cell(_BASE, IWSLT, "90 minutes")),),
                "section C.3 of the appendix",
                statistic="value",
            ),
            Claim(
                "R-Drop goes on improving with time",
                "rising",
                (along(_RDROP, IWSLT, MINUTES),),
                "table 3 of the appendix",
                statistic="value",
            ),
        ),
    ),
    Item(
        "rdrop/table-4",
        "Table 4 of the appendix",
        "R-Drop against fraternal dropout, on images and on translation",
        ("R17",),
        (
            Claim(
                "R-Drop is better than fraternal dropout on both tasks",
                "greater",
                pairs(_RDROP, "FD", ("CIFAR-100", IWSLT)),
                "section C.4 of the appendix",
                statistic="value",
            ),
            Claim(
                "Fraternal dropout is better than the baseline on both tasks",
                "greater",
                pairs("FD", _BASE, ("CIFAR-100", IWSLT)),
                "table 4 of the appendix",
                statistic="value",
            ),
        ),
        split="test",
    ),
    Item(
        "rdrop/table-5",
        "Table 5 of the appendix",
        "BLEU of ensembles of 1 to 6 models, and of averaged weights of models and of checkpoints",
        ("R18",),
        (
            Claim(
                "An ensemble is better the more models it has",
                "rising",
                (along(_ENSEMBLE, IWSLT, MODELS),),
                "section C.5 of the appendix",
                statistic="value",
            ),
            Claim(
                "The averaged weights of independent models are useless: BLEU 0, here less than 1",
                "value",
                tuple((Cell(_AVERAGED_MODELS, IWSLT, number),) for number in MODELS[1:]),
                "section C.5 of the appendix",
                statistic="value",
                value=0.0,
                margin=1.0,
            ),
            Claim(
                "Averaging checkpoints of one run helps a little, the more the better",
                "rising",
                (along(_AVERAGED_CHECKPOINTS, IWSLT, MODELS),),
                "section C.5 of the appendix",
                statistic="value",
            ),
            Claim(
                "Averaging checkpoints of R-Drop changes next to nothing: within 0.5 BLEU of one",
                "no_difference",
                tuple(
                    (Cell(_RDROP_CHECKPOINTS, IWSLT, number), Cell(_RDROP_CHECKPOINTS, IWSLT, MODELS[0]))
                    for number in MODELS[1:]
                ),
                "table 5 of the appendix",
                statistic="value",
                margin=0.5,
            ),
            Claim(
                "One model with R-Drop is better than an ensemble of 6 without",
                "greater",
                ((Cell(_RDROP_CHECKPOINTS, IWSLT, MODELS[0]), Cell(_ENSEMBLE, IWSLT, MODELS[-1])),),
                "section C.5 of the appendix",
                statistic="value",
            ),
        ),
        split="test",
    ),
)
