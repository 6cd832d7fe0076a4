"""What the mixout paper proves, and checks on least squares and on digits (Lee, Cho, Kang 2020, sections 3 and 4)."""

from __future__ import annotations

from steadytune.papers.catalogue.claim import Cell, Claim, along
from steadytune.papers.catalogue.item import Item

_TENTHS = tuple(f"p={tenth / 10}" for tenth in range(1, 10))
_NAMED = ("p=0.1", "p=0.2", "p=0.3")  # of figure 2, whose grid of p is not stated (D8)
_MIX, _DROP = "mixout(w_pre, p)", "dropout(p)"

_THEORY = (
    Item(
        "mixout/theorem-1",
        "Theorem 1",
        "a random mixture of w and u costs at least a penalty on ||w - u||² that grows with the mask's variance",
        ("M10",),
        (
            Claim(
                "E L(Φ(w; u, M)) >= L(w) + m σ²/(2μ²) ||w - u||² for an m-strongly convex loss",
                "bound",
                ((Cell("E L(Φ)", "strongly convex"), Cell("L(w) + penalty", "strongly convex")),),
                "theorem 1, page 4; proof in supplement A",
                quantity="gap",
            ),
            Claim(
                "For a quadratic loss it is an equality; as it turns out, only with Hessian m I (D3)",
                "no_difference",
                ((Cell("E L(Φ)", "Hessian m I"), Cell("L(w) + penalty", "Hessian m I")),),
                "section 3, page 4",
                quantity="gap",
                margin=1e-6,
            ),
        ),
        kind="theory",
        no_data="an inequality; the paper evaluates it nowhere",
    ),
    Item(
        "mixout/corollary-1.1",
        "Corollary 1.1",
        "mixout(u, p) is an L2 penalty toward u of strength m p/(1 - p)",
        ("M11",),
        (
            Claim(
                "E L(Φ(w; u, B)) >= L(w) + m p/(2(1 - p)) ||w - u||²",
                "bound",
                ((Cell("E L(Φ)", "strongly convex"), Cell("L(w) + penalty", "strongly convex")),),
                "corollary 1.1, page 4",
                quantity="gap",
            ),
            Claim(
                "The strength m p/(1 - p) of the penalty grows with p, without bound",
                "rising",
                (along("penalty", "strongly convex", ("p=0.0", "p=0.3", "p=0.6", "p=0.9")),),
                "section 3.1, page 4",
                quantity="gap",
            ),
        ),
        kind="theory",
        no_data="an inequality; the paper evaluates it nowhere",
    ),
    Item(
        "mixout/equation-10",
        "Equation 10",
        "how far the weights move from their start, by step",
        ("M13",),
        (
            Claim(
                "||w_t - w_0|| grows with log t (Hoffer et al. 2017)",
                "rising",
                (along("any", "any", ("step 1", "step 10", "step 100")),),
                "equation 10, page 4",
                quantity="distance",
            ),
        ),
        no_data="quoted from Hoffer et al. 2017; no number is printed",
    ),
    Item(
        "mixout/figure-5",
        "Figure 5",
        "least squares with mixout(u, p): the fitted line goes from the true one to the target's as p grows",
        ("M12",),
        (
            Claim(
                "The fit comes nearer to the target u as p grows",
                "falling",
                (along("mixout(u, p)", "||w - u||", ("p=0.0", "p=0.3", "p=0.6", "p=0.9")),),
                "supplement D, pages 15-16",
                quantity="distance",
            ),
            Claim(
                "The fit moves away from the true parameters as p grows",
                "rising",
                (along("mixout(u, p)", "||w - w*||", ("p=0.0", "p=0.3", "p=0.6", "p=0.9")),),
                "supplement D, pages 15-16",
                quantity="distance",
            ),
        ),
        kind="theory",
        no_data="data, truth and target are drawn at random and not printed",
    ),
)

_DIGITS = Item(
    "mixout/figure-2",
    "Figure 2",
    "digits to digits: distance to w_pre, accuracy on the new task and on the old one, by p of mixout and of dropout",
    ("M14", "M15", "M16"),
    (
        Claim(
            "(a) With mixout(w_pre, p), ||w_ft - w_pre||² falls with p",
            "falling",
            (along(_MIX, "distance", _NAMED),),
            "figure 2, page 5",
            quantity="distance",
        ),
        Claim(
            "(a) With dropout(p), ||w_ft - w_pre||² rises with p",
            "rising",
            (along(_DROP, "distance", _NAMED),),
            "figure 2, page 5",
            quantity="distance",
        ),
        Claim(
            "(b) Both have a high accuracy on the new task for p of 0.1, 0.2, 0.3: within 0.01 of p = 0",
            "no_difference",
            tuple((Cell(row, "MNIST", p), Cell(row, "MNIST", "p=0.0")) for row in (_MIX, _DROP) for p in _NAMED),
            "figure 2, page 5",
            margin=0.01,
        ),
        Claim(
            "(b) Accuracy on the new task depends less on p with mixout than with dropout",
            "flatter",
            (along(_MIX, "MNIST", _TENTHS) + along(_DROP, "MNIST", _TENTHS),),
            "section 4, page 5",
        ),
        Claim(
            "(c) mixout(w_pre, p) keeps more accuracy on the old task than dropout(p), for all p",
            "greater",
            tuple((Cell(_MIX, "EMNIST Digits", p), Cell(_DROP, "EMNIST Digits", p)) for p in _NAMED),
            "figure 2, page 5",
            quantity="source_score",
        ),
        Claim(
            "(c) With mixout the accuracy on the old task is about the same regardless of p: within 0.02",
            "no_difference",
            tuple((Cell(_MIX, "EMNIST Digits", p), Cell(_MIX, "EMNIST Digits", "p=0.1")) for p in _NAMED[1:]),
            "section 4, page 5",
            quantity="source_score",
            margin=0.02,
        ),
    ),
    split="validation",
)

MIXOUT_THEORY: tuple[Item, ...] = (*_THEORY, _DIGITS)
