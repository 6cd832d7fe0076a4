"""A study made by hand, with known properties: what the words, tables, figures and pages of a report are tested on.

Variant k's good runs score `level + (0.15 + 0.03 k) * scale` with std 0.02 scale; exactly `round(FAILS[k] * seeds)` of
its runs fail (do not beat the level), and one of these diverged where there are three or more. The last of four tasks
is scored by perplexity, where lower is better.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence

import numpy as np

from steadytune.study.results import Score, StudyResults, TaskInfo, TrialResult, Variant
from steadytune.tasks.base import Baseline

FAILS = (0.4, 0.1)  # of the first two variants; the others never fail
HOSTILE = (
    "<script>alert(1)</script>",
    "../../x",
    "{{7*7}}",
    "$\\frac{a}{0}$ 100% a_b^c & #1 ~ \\input{/etc/passwd}",
    "=cmd|' /C calc'!A0",
    "שלום \u202e עולם",
    "]]><![CDATA[ \x1b[31m \x00 \ud83d",
    "[link](javascript:alert(1)) `code` | pipe \n newline",
    "long " * 200_000,
    "",
)
# name, metric, greater is better, level on test, scale: what one standard step of improvement is
TASKS = (
    ("rte", "accuracy", True, 0.525, 1.0),
    ("cola", "mcc", True, 0.0, 1.5),
    ("mrpc", "f1", True, 0.812, 0.5),
    ("wiki", "perplexity", False, 60.0, 100.0),
    ("stsb", "spearman", True, 0.0, 2.0),
    ("sst2", "accuracy", True, 0.491, 1.0),
    ("qnli", "accuracy", True, 0.505, 1.0),
    ("mnli", "accuracy", True, 0.318, 1.0),
)
FAMILIES = (
    ("standard", "", ()),
    ("mixout", "mixout.p", (0.1, 0.3, 0.5, 0.7, 0.9)),
    ("reinit", "reinit.layers", (1, 2, 3, 4, 5, 6)),
    ("rdrop", "rdrop.alpha", (0.1, 0.5, 1.0, 1.5)),
    ("longer", "steps", (200, 400, 800, 1600, 3200)),
    *((name, "", ()) for name in ("debiased Adam", "pretrained decay", "layer-wise lr", "weight decay")),
    *(
        (name, "", ())
        for name in ("fraternal dropout", "intermediate task", "re-init 5 with mixout and longer training")
    ),
)


def synthetic(
    tasks: int = 2,
    variants: int = 3,
    seeds: int = 20,
    swept: bool = False,
    grid: bool = False,
    tuned: bool = False,
    hostile: bool = False,
    unfinished: float = 0.0,
    *,
    crashed: float = 0.0,
    without_test: Sequence[int] = (),
    evaluations: int = 10,
    steps: int = 40,
    blocks: int = 6,
    noise: int = 0,
) -> StudyResults:
    """A study of so many tasks, variants (families, where swept) and seeds; `tuned` chooses among swept points.

    `unfinished` and `crashed` are shares of the trials; `without_test` are positions of tasks that have no test rows.
    """
    rng = np.random.default_rng(noise)
    infos = {info.name: info for info in (_task(i, hostile, i in without_test) for i in range(tasks))}
    made = _variants(variants, swept or tuned, hostile)
    groups: dict[str, list[str]] = {}
    for variant in made:
        groups.setdefault(variant.family, []).append(variant.name)
    if tuned:  # as planned: the groups are variants too, and stand first
        made = [Variant(name, name) for name in groups] + [each for each in made if each.name not in groups]
    side = max(2, round(math.sqrt(seeds)))
    pairs = [(i, j) for i in range(side) for j in range(side)] if grid else [(i, i) for i in range(seeds)]
    parts = ["embeddings", *(str(number) for number in range(1, blocks + 1)), "pooler", "head"]
    trials: list[TrialResult] = []
    chosen: dict[tuple[str, str], str] = {}

    def run(task: int, variant: str, gain: float, fails: float, phase: str, streams: list[tuple[int, int]]) -> None:
        count = round(fails * len(streams))
        failing = set(rng.permutation(len(streams))[:count].tolist())
        diverges = min(failing, default=None) if count >= 3 else None
        info = list(infos.values())[task]
        for place, (init, order) in enumerate(streams):
            fate = "diverged" if place == diverges else "degenerate" if place in failing else "good"
            draw = rng.random()
            if draw < unfinished:
                fate = "running" if draw < unfinished / 10 else "pending"
            elif draw < unfinished + crashed:
                fate = "failed"
            trials.append(_trial(rng, info, task, variant, gain, fate, phase, init, order, evaluations, steps, parts))

    for task, name in enumerate(infos):
        for number, (group, members) in enumerate(groups.items()):
            fails = FAILS[number] if number < len(FAILS) else 0.0
            gains = [0.15 + 0.03 * number + 0.02 * math.sin(1.3 * k + task) for k in range(len(members))]
            if len(members) == 1:
                gains = [0.15 + 0.03 * number]
            elif tuned:  # the candidates are run in the tuning phase; the group's name goes with the chosen one's runs
                for member, gain in zip(members, gains):
                    run(task, member, gain, fails, "choose", pairs[:8])
                best = int(np.argmax(gains))
                chosen[name, group] = members[best]
                members, gains = [group], [gains[best]]
            for member, gain in zip(members, gains):
                run(task, member, gain, fails, "report", pairs)
    return StudyResults(
        name=HOSTILE[0] if hostile else "synthetic",
        about="A study made by hand.",
        tasks=infos,
        variants={variant.name: variant for variant in made},
        trials=trials,
        baseline=made[0].name if made else "",
        chosen=chosen,
        text="study: synthetic\n",
        command="steadytune study run synthetic.yaml",
        folder="studies/synthetic",
    )


def _task(number: int, hostile: bool, without_test: bool) -> TaskInfo:
    name, metric, greater, level, _ = TASKS[number % len(TASKS)]
    name = HOSTILE[(number + 2) % len(HOSTILE)] + str(number) if hostile else name + str(number // len(TASKS) or "")
    levels = {"validation": level} if without_test else {"validation": level, "test": level}
    rows = {"train": 2490, "validation": 138} | ({} if without_test else {"test": 139})
    return TaskInfo(name, metric, greater, rows, Baseline("always 'yes'", **levels), "ab" * 32, f"data/{name[:40]}")


def _variants(count: int, swept: bool, hostile: bool) -> list[Variant]:
    made = []
    for number in range(count):
        name, setting, values = FAMILIES[number % len(FAMILIES)]
        name += str(number // len(FAMILIES) + 1) if number >= len(FAMILIES) else ""
        if hostile:
            name = HOSTILE[number % len(HOSTILE)] + str(number)
        if swept and values:
            short = setting.split(".")[-1]
            made += [Variant(f"{name}, {short}={value:g}", name, {setting: value}) for value in values]
        else:
            made.append(Variant(name, name))
    return made


def _trial(rng, info, task, variant, gain, fate, phase, init, order, evaluations, steps, parts) -> TrialResult:
    _, _, greater, level, scale = TASKS[task % len(TASKS)]
    sign = 1.0 if greater else -1.0
    key = hashlib.sha256(f"{info.name} {variant} {init} {order} {phase}".encode(errors="replace")).hexdigest()
    plan = {
        "key": key,
        "task": info.name,
        "variant": variant,
        "phase": phase,
        "streams": {"init": init, "order": order, "noise": order},
        "recipe": {"lr": 2e-5, "steps": steps, "methods": []},
        "steps": steps,
    }
    if fate in ("pending", "running"):
        return TrialResult(**plan, status=fate, attempts=int(fate == "running"))
    versions = {"python": "3.12.0", "torch": "2.13.0", "steadytune": "0.1.0", "device": "cpu"}
    if fate == "failed":
        error = "Traceback (most recent call last):\nRuntimeError: CUDA out of memory"
        return TrialResult(**plan, status="failed", attempts=3, error=error, versions=versions)
    good = fate == "good"
    if good:
        reached = level + sign * scale * (gain + 0.02 * rng.standard_normal())
        selected = reached + sign * scale * 0.01 * rng.standard_normal()
    else:
        reached, selected = (level - sign * scale * abs(0.01 * rng.standard_normal()) for _ in range(2))
    points = [-(-number * steps // evaluations) for number in range(1, evaluations + 1)]
    if fate == "diverged":
        points = points[: evaluations // 3]
    moved = np.sort(rng.random((len(points), len(parts))), axis=0) * np.linspace(0.5, 2.0, len(parts))
    history = []
    for place, step in enumerate(points):
        share = 1.0 - math.exp(-4.0 * step / steps)
        far = dict(zip(parts, moved[place].round(4).tolist()))
        history.append(
            {
                "step": step,
                "epoch": 3.0 * step / steps,
                "train_loss": 0.7 - (0.5 * share if good else 0.01),
                "validation": level + (selected - level) * share,
                "lr": 2e-5 * (1 - step / steps),
                "distances": {"start": far, "pretrained": {part: far[part] for part in parts if part != "head"}},
            }
        )
    done = points[-1] if points else 0
    curve = 0.7 - (0.5 if good else 0.01) * (1.0 - np.exp(-4.0 * np.arange(1, done + 1) / steps))
    losses = (curve + 0.03 * rng.standard_normal(done)).round(4).tolist()
    measured = {
        "history": history,
        "losses": [*losses, None] if fate == "diverged" else losses,
        "grad_norms": [1.0] * done,
        "seconds": 30.0 + 5.0 * rng.random(),
        "peak_memory": int(2e9 + 1e8 * rng.random()),
        "attempts": 1,
        "versions": versions,
    }
    if fate == "diverged":
        notes = ("The loss was not a finite number.",)
        return TrialResult(**plan, status="diverged", notes=notes, **measured)
    has_test = "test" in info.rows
    best = Score(points[-1], selected, reached if has_test else None)
    last = Score(steps, selected - sign * scale * 0.005, reached - sign * scale * 0.005 if has_test else None)
    truth = np.arange(60) % 2
    flips = rng.random(60) < 0.25
    labels = np.where(flips, 1 - truth, truth) if good else np.ones(60, dtype=np.int64)
    predictions = {split: labels for split in ("validation", "test") if split in info.rows}
    return TrialResult(**plan, status="finished", best=best, last=last, predictions=predictions, **measured)


def by_hand(
    scores: Mapping[str, Mapping[str, Sequence[float | str | None]]],
    *,
    levels: float | Mapping[str, float | None] | None = 0.5,
    greater_is_better: bool = True,
    metric: str = "accuracy",
    baseline: str = "",
    split: str = "test",
) -> StudyResults:
    """task -> variant -> a score per seed; None: diverged, "crashed", "pending". Test and validation are equal."""
    trials, infos = [], {}
    for task, lines in scores.items():
        level = levels.get(task) if isinstance(levels, Mapping) else levels
        always = Baseline("always 'yes'", validation=level, test=level)
        infos[task] = TaskInfo(
            task, metric, greater_is_better, {"validation": 50, "test": 50}, always, "ab" * 32, "x.csv"
        )
        for variant, values in lines.items():
            for seed, value in enumerate(values):
                known = isinstance(value, (int, float))
                status = "finished" if known else {"crashed": "failed", "pending": "pending", None: "diverged"}[value]
                found = Score(10, value, value) if known else None
                streams = {"init": seed, "order": seed, "noise": seed}
                plan = {"key": f"{task} {variant} {seed}", "task": task, "variant": variant, "phase": "report"}
                trials.append(TrialResult(**plan, streams=streams, recipe={}, status=status, best=found, last=found))
    names = list(dict.fromkeys(variant for lines in scores.values() for variant in lines))
    variants = {name: Variant(name, name) for name in names}
    first = baseline or (names[0] if names else "")
    return StudyResults("by hand", "", infos, variants, trials, first, split=split)
