"""Tables and figures of the mixout paper on GLUE (Lee, Cho, Kang 2020, sections 5 and 6, supplements)."""

from __future__ import annotations

from steadytune.papers.catalogue.claim import Case, Cell, Claim, along, pairs
from steadytune.papers.catalogue.item import Item
from steadytune.papers.catalogue.mixout_theory import MIXOUT_THEORY

TASKS = ("RTE", "MRPC", "CoLA", "STS-B")
DROPOUT = "dropout(0.1) + wdecay(0, 0.01)"  # Devlin et al. 2018
DECAYS = tuple(f"wdecay(w_pre, {strength})" for strength in ("0.01", "0.04", "0.07", "0.10"))  # Wiese et al. 2017
MIXOUTS = tuple(f"mixout(w_pre, {p})" for p in ("0.7", "0.8", "0.9"))
BOTH = tuple(f"{mixout} + {DECAYS[0]}" for mixout in MIXOUTS)
_HEADS = ("head: none", "head: mixout(w_0, 0.7)", "head: dropout(0.7)")
_MIX, _DROP = "mixout(w_pre, p)", "dropout(p)"
_TENTHS = tuple(f"p={tenth / 10}" for tenth in range(10))


def _each(left: tuple[str, ...], right: tuple[str, ...], tasks: tuple[str, ...] = TASKS) -> tuple[Case, ...]:
    return tuple(pair for a in left for b in right for pair in pairs(a, b, tasks))


def _others(task: str, *without: str) -> Case:
    return tuple(Cell(_DROP, task, p) for p in _TENTHS[:6] if p not in without)


_TABLE_1 = Item(
    "mixout/table-1",
    "Table 1",
    "mean and best dev score of 20 restarts: dropout, decay toward the pretrained weights, mixout, and both",
    ("M17", "M18", "M20", "M21"),
    (
        Claim(
            "mixout(w_pre, 0.7 to 0.9) has a higher mean than dropout(0.1) with weight decay, on every task",
            "greater",
            _each(MIXOUTS, (DROPOUT,)),
            "section 5, page 7",
        ),
        Claim(
            "Decay toward the pretrained weights also has a higher mean than dropout, mostly",
            "greater",
            _each(DECAYS, (DROPOUT,)),
            "section 5, page 7",
            scope="most",
        ),
        Claim(
            "mixout has a higher mean than decay toward the pretrained weights, mostly",
            "greater",
            _each(MIXOUTS, DECAYS),
            "section 5, page 7: 'on average'",
            scope="most",
        ),
        Claim(
            "mixout with that decay has a higher mean than dropout, on every task",
            "greater",
            _each(BOTH, (DROPOUT,)),
            "section 5, page 8",
        ),
        Claim(
            "mixout with that decay has a higher mean than the decay alone, mostly",
            "greater",
            _each(BOTH, DECAYS),
            "section 5, page 8",
            scope="most",
        ),
        Claim(
            "The best of 20 restarts is also better with mixout than with dropout, mostly (STS-B is a tie)",
            "greater",
            _each(MIXOUTS, (DROPOUT,)),
            "section 5, page 8",
            scope="most",
            statistic="max",
        ),
        Claim(
            "The best of 20 restarts with decay toward the pretrained weights is above that with mixout, but for RTE",
            "greater",
            _each(DECAYS, MIXOUTS, TASKS[1:]),
            "section 5, page 8",
            scope="most",  # printed: 29 of 36 pairs
            statistic="max",
        ),
        Claim(
            "On RTE the best of 20 restarts with mixout is above that with decay toward the pretrained weights",
            "greater",
            _each(MIXOUTS, DECAYS, TASKS[:1]),
            "section 5, page 8",
            statistic="max",
        ),
    ),
    split="validation",
)

_FIGURE_3 = Item(
    "mixout/figure-3",
    "Figure 3",
    "distribution of the 20 dev scores per task, of dropout, decay toward w_pre, mixout(w_pre, 0.7) and both",
    ("M19", "M22"),
    (
        Claim(
            "Fewer runs fail with mixout(w_pre, 0.7), with or without decay, than with dropout or with decay alone",
            "fewer_degenerate",
            _each((MIXOUTS[0], BOTH[0]), (DROPOUT, DECAYS[0])),
            "figure 3, page 7",
        ),
        Claim(
            "On MRPC and CoLA more runs fail if wdecay(w_pre, 0.01) is added to mixout(w_pre, 0.7)",
            "fewer_degenerate",
            _each(MIXOUTS[:1], BOTH[:1], ("MRPC", "CoLA")),
            "section 5, page 7, of figure 3 (b, c)",
        ),
        Claim(
            "mixout(w_pre, 0.7) steadies fine-tuning: its scores spread less than those of dropout",
            "steadier",
            _each((MIXOUTS[0], BOTH[0]), (DROPOUT,)),
            "section 5, page 7",
        ),
    ),
    split="validation",
    runs_of="mixout/table-1",
)

_ABLATIONS = (
    Item(
        "mixout/table-2",
        "Table 2",
        "on a large training set, SST-2, mixout does no harm",
        ("M23",),
        (
            Claim(
                "On SST-2 mixout(w_pre, 0.7) with decay and dropout with weight decay are within half a point",
                "no_difference",
                pairs(BOTH[0], DROPOUT, ("SST-2",)),
                "section 6.1, page 9: 'little difference'",
                margin=0.005,
            ),
        ),
        split="validation",
    ),
    Item(
        "mixout/table-3",
        "Table 3",
        "how to regularise the new output layer, with mixout(w_pre, 0.7) on the others",
        ("M24",),
        (
            Claim(
                "mixout(w_0, 0.7) on the new layer has a higher mean than nothing there",
                "greater",
                pairs(_HEADS[1], _HEADS[0], TASKS),
                "section 6.2, page 9",
            ),
            Claim(
                "mixout(w_0, 0.7) on the new layer has a higher mean than dropout(0.7) there",
                "greater",
                pairs(_HEADS[1], _HEADS[2], TASKS),
                "section 6.2, page 9",
            ),
        ),
        split="validation",
    ),
    Item(
        "mixout/table-4",
        "Table 4",
        "test score of the run that is best on dev",
        ("M26",),
        (
            Claim(
                "mixout on body and head has a higher test score than dropout with weight decay, set up alike",
                "greater",
                pairs(f"{MIXOUTS[0]} + {_HEADS[1]}", DROPOUT, TASKS),
                "supplement C.3, page 15",
                statistic="value",
            ),
            Claim(
                "It also has a higher test score than Devlin et al. report, except on MRPC",
                "greater",
                pairs(f"{MIXOUTS[0]} + {_HEADS[1]}", "Devlin et al. (2018)", ("RTE", "CoLA", "STS-B")),
                "supplement C.3, page 15",
                statistic="value",
            ),
        ),
        split="test",
    ),
    Item(
        "mixout/figure-4",
        "Figure 4",
        "distribution of dev scores on RTE by p, of mixout and of dropout",
        ("M25",),
        (
            Claim(
                "The mean dev score of mixout(w_pre, p) rises with p",
                "rising",
                (along(_MIX, "RTE", _TENTHS),),
                "section 6.3, page 10",
            ),
            Claim(
                "The mean dev score of dropout(p) falls with p",
                "falling",
                (along(_DROP, "RTE", _TENTHS),),
                "section 6.3, page 10",
            ),
            Claim(
                "mixout(w_pre, 0.7 to 0.9) has a higher mean than dropout(p), for all p",
                "greater",
                tuple((Cell(_MIX, "RTE", a), Cell(_DROP, "RTE", b)) for a in _TENTHS[7:] for b in _TENTHS),
                "section 6.3, page 10",
            ),
            Claim(
                "Fewer runs fail with mixout(w_pre, 0.7 to 0.9) than with dropout(p), for all p",
                "fewer_degenerate",
                tuple((Cell(_MIX, "RTE", a), Cell(_DROP, "RTE", b)) for a in _TENTHS[7:] for b in _TENTHS),
                "figure 4, page 10",
            ),
            Claim(
                "With p below 0.4 mixout(w_pre, p) does not improve on dropout({0.0, 0.1, 0.2}): by 2 points at most",
                "no_better",
                tuple((Cell(_MIX, "RTE", a), Cell(_DROP, "RTE", b)) for a in _TENTHS[1:4] for b in _TENTHS[:3]),
                "section 6.3, page 10",
                margin=0.02,
            ),
        ),
        split="validation",
    ),
    Item(
        "mixout/supplement-e",
        "Supplement E",
        "time of a run with mixout and with dropout, here of p = 0.7 and 0.1",
        ("M27",),
        (
            Claim(
                "mixout costs 32.5 % more time than dropout: an upper bound for this library",
                "ratio_at_most",
                ((Cell(_MIX, "RTE"), Cell(_DROP, "RTE")),),
                "supplement E, page 16",
                quantity="seconds",
                statistic="value",
                value=1.325,
                margin=0.001,
            ),
        ),
    ),
    Item(
        "mixout/figure-6",
        "Figure 6",
        "distribution of dev scores by p of dropout(p), p of 0.0 to 0.5",
        ("M28",),
        (
            Claim(
                "dropout(0.1) has the highest mean on MRPC and STS-B",
                "best",
                tuple((Cell(_DROP, task, "p=0.1"), *_others(task, "p=0.1")) for task in ("MRPC", "STS-B")),
                "supplement F, page 17",
            ),
            Claim(
                "dropout(0.0) has the highest mean on RTE and CoLA, dropout(0.1) the second",
                "best",
                (
                    *((Cell(_DROP, task, "p=0.0"), *_others(task, "p=0.0")) for task in ("RTE", "CoLA")),
                    *((Cell(_DROP, task, "p=0.1"), *_others(task, "p=0.0", "p=0.1")) for task in ("RTE", "CoLA")),
                ),
                "supplement F, page 17",
            ),
        ),
        split="validation",
    ),
)

MIXOUT: tuple[Item, ...] = (*MIXOUT_THEORY, _TABLE_1, _FIGURE_3, *_ABLATIONS)
