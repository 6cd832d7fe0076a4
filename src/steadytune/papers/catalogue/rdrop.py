"""Tables, figures and sections of R-Drop's appendix (Liang et al. 2021); numbers are those of the appendix."""

from __future__ import annotations

from steadytune.papers.catalogue.claim import Cell, Claim, pairs
from steadytune.papers.catalogue.item import Item
from steadytune.papers.catalogue.rdrop_controls import RDROP_CONTROLS

GLUE = ("CoLA", "MRPC", "RTE", "SST-2", "MNLI", "QNLI", "QQP", "STS-B")
_ALPHAS = ("α=0.1", "α=0.5", "α=1.0", "α=1.5")
_RDROP, _BASE = "R-Drop", "Baseline"
ROBERTA_LARGE, VIT_L = "RoBERTa-large", "ViT-L/16"  # the larger of the paper's two models, as settings of a cell
_NOT_HERE = "its numbers are in the main paper, which is not among this project's sources"


def _best_alpha(task: str, best: str) -> tuple[Cell, ...]:
    return (Cell(_RDROP, task, best), *(Cell(_RDROP, task, alpha) for alpha in _ALPHAS if alpha != best))


_GLUE = (
    Item(
        "rdrop/table-1",
        "Table 1 of the appendix",
        "settings for GLUE, and with them R-Drop against plain fine-tuning on eight tasks",
        ("R6",),
        (
            Claim(
                "R-Drop has a higher score than plain fine-tuning on every task",
                "greater",
                pairs(_RDROP, _BASE, GLUE),
                "section A.4 of the appendix",
            ),
            Claim(
                "So it has with RoBERTa-large",
                "greater",
                pairs(_RDROP, _BASE, GLUE, ROBERTA_LARGE),
                "section A.4 of the appendix names the model; its scores are in the main paper",
            ),
        ),
        split="validation",
    ),
    Item(
        "rdrop/figure-1",
        "Figure 1 of the appendix",
        "score by random seed on eight GLUE tasks, plain fine-tuning and R-Drop",
        ("R7",),
        (
            Claim(
                "The improvement is consistent over seeds",
                "greater",
                pairs(_RDROP, _BASE, GLUE),
                "section A.4 of the appendix",
                uncounted="counted at rdrop/table-1",  # the same runs and test
            ),
        ),
        split="validation",
        runs_of="rdrop/table-1",
        no_data="curves only; the text gives their order, no number",
    ),
    Item(
        "rdrop/table-2",
        "Table 2 of the appendix",
        "score on four GLUE tasks by the coefficient α",
        ("R8",),
        (
            Claim(
                "α = 1 is best for most tasks: of the four for MRPC, SST-2 and QNLI",
                "best",
                tuple(_best_alpha(task, "α=1.0") for task in ("MRPC", "SST-2", "QNLI", "MNLI")),
                "section A.4 of the appendix",
                scope="most",
                statistic="value",
            ),
            Claim(
                "α = 0.5 is best for MNLI",
                "best",
                (_best_alpha("MNLI", "α=0.5"),),
                "table 2 of the appendix",
                statistic="value",
            ),
        ),
        split="validation",
    ),
)

_OTHER_TASKS = (
    Item(
        "rdrop/translation",
        "Section A.1 of the appendix",
        "translation from scratch: Transformer with and without R-Drop",
        ("R9",),
        (
            Claim(
                "R-Drop has a higher BLEU than the plain Transformer",
                "greater",
                pairs(_RDROP, _BASE, ("IWSLT14 De-En",)),
                "section C.1 of the appendix",
                statistic="value",
            ),
        ),
        split="test",
    ),
    Item(
        "rdrop/summarization",
        "Section A.2 of the appendix",
        "BART fine-tuned to summarise CNN/DailyMail, with and without R-Drop",
        ("R10",),
        (Claim("R-Drop has a higher ROUGE", "greater", pairs(_RDROP, _BASE, ("CNN/DailyMail",)), "abstract"),),
        split="test",
        no_data=_NOT_HERE,
    ),
    Item(
        "rdrop/language-modeling",
        "Section A.3 of the appendix",
        "a language model on WikiText-103, with and without R-Drop",
        ("R11",),
        (Claim("R-Drop has a lower perplexity", "less", pairs(_RDROP, _BASE, ("WikiText-103",)), "abstract"),),
        split="test",
        no_data=_NOT_HERE,
    ),
    Item(
        "rdrop/image-classification",
        "Section A.5 of the appendix",
        "ViT fine-tuned on CIFAR-100 and ImageNet, with and without R-Drop",
        ("R12",),
        (
            Claim(
                "R-Drop has a higher accuracy", "greater", pairs(_RDROP, _BASE, ("CIFAR-100", "ImageNet")), "abstract"
            ),
            Claim(
                "So it has with ViT-L/16",
                "greater",
                pairs(_RDROP, _BASE, ("CIFAR-100", "ImageNet"), VIT_L),
                "section A.5 of the appendix names the model; its scores are in the main paper",
            ),
        ),
        split="test",
        no_data=_NOT_HERE,
    ),
    Item(
        "rdrop/proposition-b1",
        "Proposition B.1",
        "the loss of the full model and the mean loss of its sub models differ by at most c times the root of their KL",
        ("R13",),
        (
            Claim(
                "|L(w) - E L(w, ξ)| <= c √ε for softmax(Norm(wᵀx)), where ε is the mean KL of two sub models",
                "bound",
                ((Cell("c √ε", "linear model"), Cell("|L(w) - E L(w, ξ)|", "linear model")),),
                "section B of the appendix; constants: D16",
                quantity="gap",
            ),
        ),
        kind="theory",
        no_data="an inequality; the paper evaluates it nowhere",
    ),
)

RDROP: tuple[Item, ...] = (*_GLUE, *_OTHER_TASKS, *RDROP_CONTROLS)
