"""Names and kinds of statements that several figures of the few-sample paper share (Zhang et al. 2021)."""

from __future__ import annotations

from steadytune.papers.catalogue.claim import Cell, Claim, along, pairs

SMALL = ("RTE", "MRPC", "STS-B", "CoLA")
SMALL_1K = tuple(f"{task} (1k)" for task in SMALL)
LARGE_1K = ("SST (1k)", "QNLI (1k)", "QQP (1k)", "MNLI (1k)")
ALL = (*SMALL, *SMALL_1K, *LARGE_1K)
ITERATIONS = tuple(f"{steps} steps" for steps in (96, 200, 400, 800, 1600, 3200))
LAYERS = tuple(f"L={layers}" for layers in range(1, 7))
STANDARD, REINIT = "Standard", "Re-init"
SHORT, LONG = "3 epochs", "longer"
CORRECTED, BIASED = "Bias correction", "No bias correction"


def loss_claims(left: str, right: str, tasks: tuple[str, ...], source: str) -> tuple[Claim, ...]:
    """The first converges faster: lower training loss on average, and a smaller range over runs."""
    cases = pairs(left, right, tasks)
    text = f"The mean training loss with {left} is below that with {right}"
    return (
        Claim(text, "less", cases, source, quantity="train_loss"),
        Claim(
            f"Training loss varies less over runs with {left} than with {right}",
            "steadier",
            cases,
            source,
            quantity="train_loss",
        ),
    )


def layers_claims(tasks: tuple[str, ...], source: str) -> tuple[Claim, ...]:
    """Validation scores by the number L of re-initialised blocks."""
    return (
        Claim(
            "Re-initialising helps the worst run: the lowest score is above Standard's, for most L",
            "greater",
            tuple((Cell(REINIT, task, each), Cell(STANDARD, task)) for task in tasks for each in LAYERS),
            source,
            scope="most",
            statistic="min",
        ),
        Claim(
            "Re-initialising the pooler alone already helps, mostly",
            "greater",
            tuple((Cell(REINIT, task, "pooler"), Cell(STANDARD, task)) for task in tasks),
            source,
            scope="most",
        ),
        Claim(
            "More blocks help up to a point: the best L is below 6, mostly",
            "peak",
            tuple(along(REINIT, task, LAYERS) for task in tasks),
            source,
            scope="most",
        ),
    )


def length_claims(tasks: tuple[str, ...], source: str) -> tuple[Claim, ...]:
    """Validation scores by the number of training steps."""
    return (
        Claim(
            "Longer training gives a higher mean validation score, mostly",
            "rising",
            tuple(along(row, task, ITERATIONS) for row in (STANDARD, REINIT) for task in tasks),
            source,
            scope="most",
        ),
        Claim(
            "Longer training narrows the gap between Standard and Re-init",
            "narrower",
            tuple(
                tuple(Cell(row, task, steps) for steps in (ITERATIONS[-1], ITERATIONS[0]) for row in (REINIT, STANDARD))
                for task in tasks
            ),
            source,
        ),
        Claim(
            "With few steps Re-init is ahead of Standard",
            "greater",
            pairs(REINIT, STANDARD, tasks, ITERATIONS[0]),
            source,
        ),
    )


def distance_claims(task: str, blocks: tuple[int, ...], source: str) -> tuple[Claim, ...]:
    """How far each block moves from its initial values, by the number of re-initialised blocks."""
    top = tuple(f"block {block}" for block in blocks if block >= 18)
    bottom = f"block {blocks[0]}"
    return (
        Claim(
            "Re-initialising makes the top blocks (18 to 24) move less",
            "less",
            tuple(
                (Cell(f"Re-init {n}", block, task), Cell(STANDARD, block, task)) for n in (1, 3, 6, 10) for block in top
            ),
            source,
            quantity="distance",
        ),
        Claim(
            "The more blocks are re-initialised, the less the top ones move",
            "falling",
            tuple(tuple(Cell(f"Re-init {n}", block, task) for n in (1, 3, 6, 10)) for block in top),
            source,
            quantity="distance",
        ),
        Claim(
            "Re-initialising 10 blocks makes the bottom one move more",
            "greater",
            ((Cell("Re-init 10", bottom, task), Cell(STANDARD, bottom, task)),),
            source,
            quantity="distance",
        ),
    )
