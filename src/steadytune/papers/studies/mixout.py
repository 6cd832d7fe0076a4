"""The mixout paper on GLUE (section 5 and 6, supplements E and F): tables 1 to 4, figures 4 and 6, the time of a run.

Set-up (M17, M18): bert-large-uncased, BERT's own Adam without bias correction, 2e-5, batches of 32, 3 epochs, 10% of
warm-up; 20 restarts, the same for every method; the score of the last step on the whole dev set. wdecay(w_pre, λ) is
the penalty of section 2, wdecay(0, 0.01) that of BERT's optimiser; rows with one regulariser have no other, so dropout
is off. mixout has the gradient of the public code, g⊙M (D1); beside it, `exact gradient` is this library's default.

At the small scale RTE, MRPC and CoLA; of table 1 the rows that figure 3 shows, with 20 restarts; elsewhere 10,
but 5 of table 2, whose runs are long, and of supplement E.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from steadytune.papers.catalogue.mixout import BOTH, DECAYS, DROPOUT, MIXOUTS, TASKS
from steadytune.papers.settings import BERT_LARGE, SMALL_RECIPE, SMOKE_RECIPE, Setting
from steadytune.papers.studies.parts import Data, glue, rate_sweep, some

RATES = "mixout/rates"
EXACT = "mixout(w_pre, 0.7), exact gradient"
TIMED = {"dropout(p)": "dropout(0.1)", "mixout(w_pre, p)": "mixout(w_pre, 0.7)"}  # row of supplement E -> variant
_TENTHS = [tenth / 10 for tenth in range(10)]
_NO_DROPOUT = {"method": "dropout", "p": 0.0}
_FREE_HEAD = {"method": "dropout", "p": 0.1, "head": 0.0}  # section 6.3: nothing regularises the output layer
_LARGE_1K = "SST (1k)"  # SST-2 has the rate of 1,000 of its rows
_BODY = "mixout(w_pre, 0.7) + head: mixout(w_0, 0.7)"


def _base(setting: Setting) -> Data:
    scale = setting.pick(full={}, small=SMALL_RECIPE, smoke=SMOKE_RECIPE)
    return {"preset": "devlin", "model": setting.model(BERT_LARGE), "evaluations": 3, **scale}


def rates(setting: Setting) -> Data:
    """For the rule of settings.py: what the paper compares with, at each of the rates."""
    columns = some(setting, (*_here(setting, TASKS), _LARGE_1K), smoke=1)
    tasks = {column: glue(setting, column, halves=False) for column in columns}
    return rate_sweep(setting, _base(setting), tasks, DROPOUT)


def _task(setting: Setting, column: str, *, halves: bool = False) -> Data:
    like = _LARGE_1K if column == "SST-2" else column
    rate = setting.chosen(RATES, DROPOUT, like) if setting.scale != "full" else {}
    return glue(setting, column, halves=halves, recipe=rate)


def _study(setting: Setting, name: str, variants: Data, tasks: Iterable[str], **more: Any) -> Data:
    return {
        "study": name,
        "base": _base(setting),
        "tasks": {task: _task(setting, task) for task in _here(setting, tasks)},
        "variants": variants,
        "seeds": setting.pick(full=20, small=10, smoke=2),
        "report": {"split": "validation", "weights": "last"},
        **more,
    }


def _here(setting: Setting, tasks: Iterable[str]) -> tuple[str, ...]:
    left_out = setting.pick(full=(), small=("STS-B",), smoke=())
    return some(setting, (task for task in tasks if task not in left_out))


def _decay(strength: float) -> Data:
    return {"method": "pretrained_decay", "decay": strength, "form": "l2"}


def _mixout(p: float, **changes: Any) -> Data:
    return {"method": "mixout", "p": p, "gradient": "paper", **changes}


def _only(*methods: Mapping[str, Any]) -> Data:
    """These regularisers, and neither dropout nor decay toward zero."""
    without = [] if any(each["method"] == "mixout" for each in methods) else [_NO_DROPOUT]
    return {"weight_decay": 0.0, "add": [*without, *map(dict, methods)]}


# Section 6.3. mixout(w_pre, 0) is no regulariser at all, so dropout is off in its own right.
_DROPPED: Data = {"weight_decay": 0.0, "add": [_FREE_HEAD]}
_MIXED: Data = {"weight_decay": 0.0, "add": [_NO_DROPOUT, _mixout(0.7, replace_dropout=False)]}


def table_1(setting: Setting) -> Data:
    """Table 1 and figure 3."""
    decays = dict(zip(DECAYS, (0.01, 0.04, 0.07, 0.10)))
    ps = dict(zip(MIXOUTS, (0.7, 0.8, 0.9)))
    variants: Data = {DROPOUT: {}}
    variants |= {name: _only(_decay(strength)) for name, strength in decays.items()}
    variants |= {name: _only(_mixout(p)) for name, p in ps.items()}
    variants |= {both: _only(_mixout(p), _decay(0.01)) for both, p in zip(BOTH, ps.values())}
    variants |= {EXACT: _only(_mixout(0.7, gradient="exact"))}
    if setting.scale != "full":
        variants = {name: variants[name] for name in (DROPOUT, DECAYS[0], MIXOUTS[0], BOTH[0], EXACT)}
    made = _study(setting, "Mixout, table 1: dropout, decay toward w_pre, mixout", variants, TASKS)
    return made | {"seeds": setting.pick(full=20, small=20, smoke=2)}


def table_2(setting: Setting) -> Data:
    variants = {DROPOUT: {}, BOTH[0]: _only(_mixout(0.7), _decay(0.01))}
    # One epoch and 5 restarts at the small scale: 2,105 steps are many, which is the point.
    made = _study(setting, "Mixout, table 2: a large training set", variants, ("SST-2",))
    base = setting.pick(full={}, small={"epochs": 1.0}, smoke={})
    return made | {"base": made["base"] | base, "seeds": setting.pick(full=20, small=5, smoke=2)}


def table_3(setting: Setting) -> Data:
    heads = {"none": "none", "mixout(w_0, 0.7)": "mixout", "dropout(0.7)": "dropout"}
    variants = {f"head: {name}": _only(_mixout(0.7, head=head)) for name, head in heads.items()}
    return _study(setting, "Mixout, table 3: how to regularise the new output layer", variants, TASKS)


def table_4(setting: Setting) -> Data:
    """Test scores by the GLUE server, which nobody can ask offline: half of the dev set stands for it (M26)."""
    made = _study(
        setting,
        "Mixout, table 4: the run that is best on dev, on rows that it was not chosen on",
        {DROPOUT: {}, _BODY: _only(_mixout(0.7, head="mixout"))},
        TASKS,
        report={"split": "test", "weights": "last"},
    )
    return made | {"tasks": {task: _task(setting, task, halves=True) for task in made["tasks"]}}


def figure_4(setting: Setting) -> Data:
    ps = setting.pick(full=_TENTHS, small=[0.0, 0.1, 0.3, 0.5, 0.7, 0.9], smoke=[0.0, 0.7])
    variants = {"dropout(p)": _DROPPED | {"sweep": {"dropout.p": ps}}}
    variants |= {"mixout(w_pre, p)": _MIXED | {"sweep": {"mixout.p": ps}}}
    return _study(setting, "Mixout, figure 4: mixout(w_pre, p) and dropout(p) by p", variants, ("RTE",))


def supplement_e(setting: Setting) -> Data:
    """How long runs of figure 4 take, of one p each, scored once at the end.

    The paper's own time is the same for every p; here mixout is the quicker the higher p is.
    """
    variants = {TIMED["dropout(p)"]: _DROPPED, TIMED["mixout(w_pre, p)"]: _MIXED}
    made = _study(setting, "Mixout, supplement E: the time of a run", variants, ("RTE",))
    return made | {"base": made["base"] | {"evaluations": 1}, "seeds": setting.pick(full=5, small=5, smoke=2)}


def figure_6(setting: Setting) -> Data:
    ps = setting.pick(full=_TENTHS[:6], small=[0.0, 0.1, 0.3, 0.5], smoke=[0.0, 0.1])
    variants = {"dropout(p)": _DROPPED | {"sweep": {"dropout.p": ps}}}
    return _study(setting, "Mixout, figure 6: dropout(p) by p", variants, TASKS)
