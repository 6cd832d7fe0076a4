"""One trial in a worker process: its data, its run, its outcome.

A worker runs many trials, so what they share is read once: the data of a task, and its tokens for a model.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from steadytune.engine.encode import Encoded, encode
from steadytune.engine.lane import Lane, Lanes
from steadytune.engine.noise import use_deterministic_
from steadytune.engine.processes import join
from steadytune.engine.result import RunResult
from steadytune.engine.state import Progress
from steadytune.engine.train import train
from steadytune.errors import SteadytuneError
from steadytune.models import source
from steadytune.recipe import Recipe
from steadytune.rng import Streams
from steadytune.study.data import StudyTask, located
from steadytune.study.outcome import Outcome, Run, Stopped
from steadytune.tasks.base import Data

SAVE_EVERY = 60.0  # seconds between checkpoints: what a killed worker costs at most


class Context:
    """What the trials of a study share in one process."""

    def __init__(
        self,
        tasks: Mapping[str, StudyTask],
        base: Path,
        device: str | None = None,
        models: Path | None = None,
        data: Mapping[str, Data] | None = None,
        save_every: float = SAVE_EVERY,
        replicas: int = 1,
        deterministic: bool = False,
    ) -> None:
        self.tasks, self.base, self.device, self.models = tasks, base, device, models
        self.save_every, self.deterministic = save_every, deterministic
        self.lanes = Lanes(several=replicas > 1)
        self._own = threading.local()
        self.data: dict[str, Data] = dict(data or {})  # handed in where the files are not to be had (Ray)
        self.encoded: dict[tuple[Any, ...], Encoded] = {}

    def lane(self) -> Lane:
        """The place of this thread on the device."""
        if not hasattr(self._own, "lane"):
            self._own.lane = Lane(join(self.device).device, self.lanes)
            if self.deterministic and self._own.lane.device.type == "cuda":
                use_deterministic_()  # of the whole process; no run of it switches that off for the others
        return self._own.lane

    def rows(self, task: str, fingerprint: str) -> Data:
        with self.lanes.lock:
            if task not in self.data:
                self.data[task] = self.tasks[task].load(self.base)
        data = self.data[task]
        if data.fingerprint != fingerprint:
            raise SteadytuneError(
                f"The data of task {task!r} is not what it was when the study was planned. Put the old files back, or "
                "plan a new study."
            )
        return data

    def numbers(self, task: str, data: Data, recipe: Recipe) -> Encoded:
        key = (task, source(recipe), recipe.max_length, recipe.max_target_length)
        with self.lanes.lock:
            if key not in self.encoded:
                self.encoded[key] = encode(data, recipe)
        return self.encoded[key]


def make_run(
    meta: Mapping[str, Any],
    folder: Path,
    device: str | None = None,
    data: Mapping[str, Data] | None = None,
    replicas: int = 1,
    deterministic: bool = False,
) -> Run:
    """What a worker calls for each trial of the study whose ledger has this `meta` and lies in `folder`.

    With `replicas` it may be called from that many threads at a time. `deterministic`: the same bits every time.
    """
    tasks = {name: StudyTask.from_data(spec) for name, spec in meta["sources"].items()}
    every = float(meta.get("save_every", SAVE_EVERY))
    context = Context(tasks, folder / meta["base"], device, folder / "models", data, every, replicas, deterministic)
    return lambda spec, place, progress, stop: run_trial(spec, place, progress, stop, context=context)


def run_trial(
    spec: Mapping[str, Any],
    folder: Path,
    progress: Callable[[dict[str, Any]], None],
    stop: threading.Event,
    *,
    context: Context,
) -> Outcome:
    """Train, from the last checkpoint in `folder` if there is one. Raises Stopped when it was asked to stop."""
    content = spec["content"]
    recipe = located(Recipe.from_data(content["recipe"]), context.base)
    data = context.rows(spec["task"], content["data"])
    encoded = context.numbers(spec["task"], data, recipe)

    def heard(now: Progress) -> None:
        progress({name: getattr(now, name) for name in ("step", "steps", "seconds", "loss", "validation")})

    streams = Streams(**content["streams"])
    keep = bool(spec.get("keep_model"))
    result, model = train(
        recipe,
        encoded,
        streams,
        folder,
        context.device,
        heard,
        stop,
        save_every=context.save_every,
        deterministic=context.deterministic,
        lane=context.lane() if context.lanes.several else None,
        keep_weights=keep or bool(spec.get("keep")),
    )
    if result.status == "stopped":
        raise Stopped
    if keep and model is not None and context.models is not None:
        target = context.models / folder.name
        model.save_pretrained(target)  # type: ignore[operator]
        if encoded.encoder.tokenizer is not None:
            encoded.encoder.tokenizer.save_pretrained(target)
    return outcome(result)


def outcome(result: RunResult) -> Outcome:
    """A run's record in two parts: what every reader wants, and the predictions."""
    plain = dataclasses.replace(result, predictions={}).to_data()
    del plain["recipe"], plain["predictions"]  # the first is in the trial's spec
    arrays: dict[str, np.ndarray] = {}
    for split, made in result.predictions.items():
        if isinstance(made.values, np.ndarray):
            arrays[split] = made.values
            if made.probabilities is not None:
                arrays[f"{split} probabilities"] = made.probabilities.astype(np.float32)
        else:
            arrays[f"{split} texts"] = np.frombuffer(json.dumps(list(made.values)).encode(), dtype=np.uint8)
    return Outcome("diverged" if result.status == "diverged" else "finished", plain, arrays)
