"""The trials of a study as flat rows: one row per trial, one cell per column, the same for every format."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from steadytune.study.results import Score, StudyResults, TrialResult

Kind = Literal["text", "whole", "number", "yes or no"]
HISTORY = ("step", "epoch", "train_loss", "validation", "lr")  # of each evaluation; distances are long

FIRST_COLUMNS: dict[str, Kind] = {
    "study": "text",
    "key": "text",
    "task": "text",
    "metric": "text",
    "variant": "text",
    "family": "text",
}
LAST_COLUMNS: dict[str, Kind] = {
    "phase": "text",
    "chosen": "text",
    "init": "whole",
    "order": "whole",
    "noise": "whole",
    "status": "text",
    "score": "number",
    "score_without_learning": "number",
    "best_step": "whole",
    "best_validation": "number",
    "best_test": "number",
    "last_step": "whole",
    "last_validation": "number",
    "last_test": "number",
    "steps": "whole",
    "seconds": "number",
    "peak_memory": "whole",
    "attempts": "whole",
    "error": "text",
    "notes": "text",
    "history": "text",
    "versions": "text",
    "recipe": "text",
    "data": "text",
}


def kinds_of_columns(results: StudyResults) -> dict[str, Kind]:
    """Name -> kind of every column, in order. Each swept setting is a column, such as `mixout.p`."""
    columns = dict(FIRST_COLUMNS)
    for name in swept(results):
        columns[_column(name)] = _kind([variant.point.get(name) for variant in results.variants.values()])
    return columns | LAST_COLUMNS


def swept(results: StudyResults) -> list[str]:
    """The settings that any variant sweeps, in the order of the study file."""
    return list(dict.fromkeys(name for variant in results.variants.values() for name in variant.point))


def rows(results: StudyResults) -> Iterator[dict[str, Any]]:
    """One flat row per trial, with the columns of `kinds_of_columns`."""
    columns = kinds_of_columns(results)
    names = swept(results)
    for trial in results.trials:
        point = settings(results, trial)
        points = {_column(name): _cell(point.get(name), columns[_column(name)]) for name in names}
        row = _plan(results, trial) | points | _outcome(results, trial)
        yield {name: row[name] for name in columns}


def chosen(results: StudyResults, trial: TrialResult) -> str | None:
    """The variant that validation chose for this task, where the trial is of a family that is chosen from."""
    family = results.variants[trial.variant].family
    return results.chosen.get((trial.task, trial.variant)) or results.chosen.get((trial.task, family))


def settings(results: StudyResults, trial: TrialResult) -> dict[str, Any]:
    """What is swept, with the trial's values: its variant's, and those of the family it was chosen for or from."""
    variant = results.variants[trial.variant]
    parts = [results.variants.get(variant.family), variant]
    if trial.phase == "report":
        parts.append(results.variants.get(chosen(results, trial) or ""))
    return {name: value for part in parts if part is not None for name, value in part.point.items()}


def _plan(results: StudyResults, trial: TrialResult) -> dict[str, Any]:
    task, choice = results.tasks[trial.task], chosen(results, trial)
    return {
        "study": _text(results.name),
        "key": trial.key,
        "task": _text(trial.task),
        "metric": _text(task.metric),
        "variant": _text(trial.variant),
        "family": _text(results.variants[trial.variant].family),
        "phase": trial.phase,
        "chosen": None if choice is None else _text(choice),
        **{stream: trial.streams.get(stream) for stream in ("init", "order", "noise")},
        "score_without_learning": results.level(trial.task),
        "steps": trial.steps,
        "recipe": to_json(trial.recipe),
        "data": _text(task.fingerprint),
    }


def _outcome(results: StudyResults, trial: TrialResult) -> dict[str, Any]:
    history = [{name: each[name] for name in HISTORY if name in each} for each in trial.history]
    return {
        "status": trial.status,
        "score": results.score(trial),
        **_score("best", trial.best),
        **_score("last", trial.last),
        "seconds": _finite(trial.seconds),
        "peak_memory": trial.peak_memory,
        "attempts": trial.attempts,
        "error": _text(what_happened(trial.error)),
        "notes": to_json(list(trial.notes)),
        "history": to_json(history),
        "versions": to_json(trial.versions),
    }


def what_happened(error: str) -> str:
    """The line of a traceback that names the error: the first that is not indented after the last frame."""
    lines = [line for line in error.splitlines() if line.strip() and not line.startswith("Traceback (most recent")]
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    after = lines[frames[-1] :] if frames else lines
    return next((line.strip() for line in after if not line[0].isspace()), lines[-1].strip() if lines else "")


def to_json(value: Any) -> str:
    """Canonical JSON: sorted keys, no spaces; what is not a finite number is null."""
    return _text(json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return _finite(value)
    return value if value is None or isinstance(value, (str, int)) else str(value)


def _score(which: str, score: Score | None) -> dict[str, Any]:
    if score is None:
        return {f"{which}_step": None, f"{which}_validation": None, f"{which}_test": None}
    return {
        f"{which}_step": score.step,
        f"{which}_validation": _finite(score.validation),
        f"{which}_test": _finite(score.test),
    }


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _text(value: str) -> str:
    """Half of a surrogate pair is no character and cannot be written as UTF-8."""
    return value.encode("utf-8", "replace").decode("utf-8") if not value.isascii() else value


def _column(setting: str) -> str:
    """A setting as a column; one that is called like a column of ours, such as `steps`, is told apart."""
    name = _text(setting)
    return f"recipe.{name}" if name in FIRST_COLUMNS or name in LAST_COLUMNS else name


def _kind(values: list[Any]) -> Kind:
    found = [value for value in values if value is not None]
    if found and all(isinstance(value, bool) for value in found):
        return "yes or no"
    if any(isinstance(value, bool) or not isinstance(value, (int, float)) for value in found):
        return "text"
    whole = all(isinstance(value, int) and -(2**63) <= value < 2**63 for value in found)
    return "whole" if found and whole else "number"


def _cell(value: Any, kind: Kind) -> Any:
    if value is None or kind in ("whole", "yes or no"):
        return value
    if kind == "number":
        return _finite(value)
    return _text(value) if isinstance(value, str) else to_json(value)
