"""Re-initialised blocks and longer training (few-sample paper, sections 5 and 6): table 1, figures 5, 6, 8, 13, 14.

The paper chooses twice: first L of 1 to 6 by the mean validation score of 20 seeds with 3 epochs (V10), then the steps
by that of 8 seeds, with that L for Re-init (V16); values below three epochs are skipped. So there are two studies, and
the second is told what the first has chosen. Figures 5 and 13 show the runs of the first choice, 8 and 14 those of the
second.

At the small scale three of the 1k sets (THOUSANDS_HERE), L of 1, 2 and 4 of 6 blocks, and 200 or 400 steps; on 1k sets
both are chosen by 5 seeds.
"""

from __future__ import annotations

from collections.abc import Mapping

from steadytune.papers.catalogue.few_sample_terms import LARGE_1K, LONG, REINIT, SHORT, SMALL, SMALL_1K, STANDARD
from steadytune.papers.settings import Setting
from steadytune.papers.studies.parts import Data, few_sample_base, rated_tasks, some

THOUSANDS = (*SMALL_1K, *LARGE_1K)
THOUSANDS_HERE = ("RTE (1k)", "MRPC (1k)", "SST (1k)")
# Columns of each study of section 6, and the steps that are tried. Three epochs: 234 steps of RTE, 345 of MRPC, 540 of
# STS-B, 804 of CoLA, 96 of a 1k set (94 of MNLI's 999 rows).
LENGTHS: Mapping[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "few-sample/longer-400": (("RTE", "MRPC"), (400, 800, 1600, 3200)),
    "few-sample/longer-800": (("STS-B",), (800, 1600, 3200)),
    "few-sample/longer-1600": (("CoLA",), (1600, 3200)),
    "few-sample/longer-1k": (THOUSANDS, (200, 400, 800, 1600, 3200)),
}
_FIRST_GUESS = 2  # L where nothing has been chosen yet


def layers(setting: Setting) -> Data:
    """Full rows: all four tasks; at the small scale MRPC, the one of figure 5 that this encoder learns."""
    return _layers(setting, setting.pick(full=SMALL, small=("MRPC",), smoke=SMALL[:1]))


def layers_1k(setting: Setting) -> Data:
    return _layers(setting, _thousands(setting), choosing=5)


def _thousands(setting: Setting) -> tuple[str, ...]:
    return setting.pick(full=THOUSANDS, small=THOUSANDS_HERE, smoke=THOUSANDS[:1])


def tried_layers(setting: Setting) -> list[int]:
    """L: up to a quarter of 24 blocks in the paper; of 6 blocks up to 4, so that there is something to see."""
    return setting.pick(full=[1, 2, 3, 4, 5, 6], small=[1, 2, 4], smoke=[1, 2])


def _layers(setting: Setting, columns: tuple[str, ...], choosing: int = 20) -> Data:
    """`choosing`: how many seeds choose L at the small scale."""
    variants: Data = {
        f"{STANDARD}, {SHORT}": {},
        f"{REINIT}, pooler": {"add": [{"method": "reinit", "layers": 0, "pooler": True}]},
        f"{REINIT}, {SHORT}": {
            "add": [{"method": "reinit", "layers": 1}],
            "sweep": {"reinit.layers": tried_layers(setting)},
        },
    }
    if columns == THOUSANDS_HERE:
        del variants[f"{REINIT}, pooler"]
    return {
        "study": "Few-sample, section 5: how many blocks to re-initialise",
        "base": few_sample_base(setting),
        "tasks": rated_tasks(setting, columns),
        "variants": variants,
        "choose": {"seeds": setting.pick(full=20, small=choosing, smoke=2), "over": ["reinit.layers"]},
        "seeds": setting.pick(full=20, small=20, smoke=2),
    }


def longer(setting: Setting, name: str) -> Data:
    columns, grid = LENGTHS[name]
    columns = _thousands(setting) if columns == THOUSANDS else some(setting, columns, smoke=1)
    first = "few-sample/layers-1k" if name.endswith("1k") else "few-sample/layers"
    steps = setting.pick(full=list(grid), small=[200, 400], smoke=[4, 5])
    chosen = {
        task: setting.chosen(first, f"{REINIT}, {SHORT}", task).get("reinit.layers", _FIRST_GUESS) for task in columns
    }
    more = {"add": [{"method": "longer", "steps": steps[0]}], "sweep": {"longer.steps": steps}}
    reinit = {task: {"add": [{"method": "reinit", "layers": count}]} for task, count in chosen.items()}
    return {
        "study": "Few-sample, section 6: how long to train",
        "base": few_sample_base(setting),
        "tasks": rated_tasks(setting, columns),
        "variants": {f"{STANDARD}, {LONG}": more, f"{REINIT}, {LONG}": {**more, "tasks": reinit}},
        "choose": {"seeds": setting.pick(full=8, small=5, smoke=1), "over": ["longer.steps"]},
        "seeds": setting.pick(full=20, small=20, smoke=2),
    }
