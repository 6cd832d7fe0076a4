"""One run: build, step, evaluate, checkpoint, result. The function `_run` is meant to be read from top to bottom.

    encoded = encode(data, recipe)
    result, model = train(recipe, encoded, Streams(init=0, order=0, noise=0), folder="runs/0")

A run is a function of (recipe, data, streams): the head comes from the stream init, the rows of a step from order,
dropout and mixout from noise. What lies in `folder` lets the same call go on where an earlier one was killed, with the
same bits as if it had not been. A loss that is not a number ends the run as "diverged", which is a result and not an
error: it is never tried again.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from steadytune.apply import apply_, remove_
from steadytune.engine.batches import Order
from steadytune.engine.distances import Ruler
from steadytune.engine.encode import Encoded
from steadytune.engine.evaluate import Predictions, Search, predict, score
from steadytune.engine.gradients import BatchGradient
from steadytune.engine.lane import Lane
from steadytune.engine.noise import private_randomness
from steadytune.engine.packing import forget_packing_
from steadytune.engine.processes import Processes, join
from steadytune.engine.quick import unquicken_
from steadytune.engine.result import RunResult, Scores, Status, peak_memory, versions
from steadytune.engine.saving import RunFolder, copied, load_weights_, pack, unpack_, weights
from steadytune.engine.state import Progress, State
from steadytune.engine.update import Update
from steadytune.errors import SteadytuneError
from steadytune.methods.averaging import CheckpointAverage, average_weights
from steadytune.methods.base import Moment
from steadytune.models import load_model
from steadytune.recipe import Recipe
from steadytune.rng import Streams

_READ_AFTER = 20  # steps whose losses may wait on a GPU before somebody looks at them

Stop = Callable[[], bool] | threading.Event


def train(
    recipe: Recipe,
    encoded: Encoded,
    streams: Streams,
    folder: str | Path | None = None,
    device: str | torch.device | None = None,
    progress: Callable[[Progress], None] | None = None,
    stop: Stop | None = None,
    *,
    bucket: bool = True,
    graphs: bool = True,
    save_every: float = 60.0,
    deterministic: bool = False,
    lane: Lane | None = None,
    keep_weights: bool = True,
) -> tuple[RunResult, nn.Module | None]:
    """The record of a run, and the model with its best weights: plain, in eval mode, on its device.

    The model is None unless the run finished. Under torchrun or accelerate every process calls this alike.

    Args:
        folder: checkpoints go there every `save_every` seconds and at the end; a run that is there already goes on, or,
            finished, is returned as it is. Another recipe, data or streams there are refused.
        stop: asked after each step; true means checkpoint, and end as "stopped".
        bucket: cut batches by length (batches.py); without, each is one chunk, as in Trainer.
        graphs: on a GPU, record steps as CUDA graphs and replay them. The notes say where that was not possible.
        deterministic: only kernels that give the same bits every time. On a CPU they do anyway; on a GPU it costs time.
        lane: the run's place among others of this process (lane.py), which has private_randomness around all of them.
        keep_weights: leave the best weights in `folder` at the end; without, only the record.
    """
    encoded.check(recipe)
    processes = join(device)
    options = _Options(progress, stop, bucket, graphs, save_every, keep_weights)
    if lane is not None:
        with lane.used():
            return _run(recipe, encoded, streams, folder, processes, lane, options)
    lane = Lane(processes.device)
    with private_randomness(processes.device, deterministic), lane.used():
        return _run(recipe, encoded, streams, folder, processes, lane, options)


@dataclass(frozen=True)
class _Options:
    """What changes how a run goes, and not what comes out; as in `train`."""

    progress: Callable[[Progress], None] | None
    stop: Stop | None
    bucket: bool
    graphs: bool
    save_every: float
    keep_weights: bool

    def asked_to_stop(self) -> bool:
        stop = self.stop
        return stop is not None and (stop.is_set() if isinstance(stop, threading.Event) else stop())


def _run(
    recipe: Recipe,
    encoded: Encoded,
    streams: Streams,
    folder: str | Path | None,
    processes: Processes,
    lane: Lane,
    options: _Options,
) -> tuple[RunResult, nn.Module | None]:
    began = saved_at = time.perf_counter()
    device, task = processes.device, encoded.task
    if device.type == "cuda" and not lane.lanes.several:
        torch.cuda.reset_peak_memory_stats(device)

    # --- Build. All of it is a function of (recipe, data, streams), so a resumed run builds the same.

    with lane.turn():
        model, notes = load_model(recipe, task, streams.init, encoded.encoder.tokenizer)
    model.to(device).train()
    ruler = Ruler(model)
    with lane.turn():
        applied = apply_(model, recipe.methods, streams=streams)
    ruler.begin(model, applied.site.reinitialised)
    optimizer = applied.optimizer(recipe.lr, recipe.weight_decay)
    scaler = torch.amp.GradScaler(device.type, enabled=recipe.precision == "fp16")
    scaler.scale(torch.zeros((), device=device))  # makes its numbers now: recorded, every replay would make them anew
    gradient = BatchGradient(applied, recipe, encoded, streams, processes, scaler, lane, options.bucket, options.graphs)
    order = Order(len(encoded.splits["train"]), applied.batch_size(recipe.batch_size), streams)
    planned = recipe.planned_steps(order.steps_per_epoch)
    steps = applied.length(planned, order.steps_per_epoch).steps
    lr_factor = applied.scheduler(optimizer, planned, order.steps_per_epoch).lr_lambdas[0]
    gradient.expect(order, steps)
    update = Update(optimizer, gradient, scaler, recipe.clip, lane)
    points = evaluation_points(steps, recipe.evaluations)
    average = _average(recipe, len(points))
    state = State(notes=[*encoded.notes, *notes, *ruler.notes, *_left_to_others(recipe)])
    best: dict[str, Tensor] = {}  # weights of the best evaluation
    kept: deque[dict[str, Tensor]] = deque(maxlen=average.last if average else 0)  # of the newest evaluations

    # --- Go on where an earlier call stopped. Weights and moments are loaded; the rest was built above.

    identity = {"recipe": recipe.to_data(), "data": encoded.fingerprint, "streams": asdict(streams)}
    setting = {**versions(device), "processes": processes.count, "bucket": options.bucket, "graphs": options.graphs}
    run_folder = RunFolder(folder, identity, setting)
    found, said = run_folder.find()
    processes.check_same(-1 if found is None else found.step, "checkpoints")
    if found is not None and "result" in found.data:
        result = RunResult.from_data(found.data["result"])
        best = found.tensors.get("best", {})
        return result, (_plain(model, best) if best and result.status == "finished" else None)
    if found is not None:
        load_weights_(model, found.tensors["model"])
        unpack_(optimizer, found.tensors["optimizer"], found.data["optimizer"])
        applied.load_state_dict(found.data["applied"])
        scaler.load_state_dict(found.data["scaler"])
        best = found.tensors.get("best", {})
        kept.extend(found.tensors[f"kept-{number}"] for number in range(found.data["kept"]))
        state = State(**found.data["state"])
        state.notes += said
        if state.limit is not None:
            gradient.limit_(state.limit)
    earlier = state.seconds

    def save() -> None:
        state.seconds = earlier + time.perf_counter() - began
        moments, rest = pack(optimizer)
        tensors = {"model": weights(model), "optimizer": moments} | ({"best": best} if best else {})
        tensors |= {f"kept-{number}": each for number, each in enumerate(kept)}
        data = {"state": asdict(state), "optimizer": rest, "applied": applied.state_dict(), "kept": len(kept)}
        if processes.first:
            run_folder.write(state.step, tensors, data | {"scaler": scaler.state_dict()})

    def scored(step: int, known: dict[str, Predictions]) -> tuple[Scores, dict[str, Predictions]]:
        """The model on validation and test, where they exist and are not known already."""
        names = [name for name in ("validation", "test") if name in encoded.splits]
        made = {name: known[name] if name in known else predicted(name) for name in names}
        return Scores(step, **{name: score(task, encoded.splits[name], each) for name, each in made.items()}), made

    def predicted(name: str) -> Predictions:
        search = Search(recipe.beams, recipe.length_penalty)
        split = encoded.splits[name]
        return predict(model, encoded.encoder, split, precision=recipe.precision, search=search, processes=processes)

    # --- Train.

    status: Status = "finished"
    waiting: list[Tensor] = []  # (loss, gradient norm) of steps, still on the device
    newest: dict[str, Predictions] = {}  # of the newest evaluation
    of_best: dict[str, Predictions] = {}  # of the best one, if it was in this call
    for rows in order.batches(state.step, steps):
        if recipe.patience is not None and state.stale >= recipe.patience:
            state.notes.append(
                f"Stopped early after step {state.step} of {steps}: no better evaluation in {state.stale}."
            )
            break
        factor = lr_factor(state.step)
        loss = gradient(rows, Moment(state.step, steps, factor))
        norm = update(factor)
        state.step += 1
        waiting.append(torch.stack([loss, norm]))
        state.limit, state.notes, gradient.notes = gradient.cutter.limit, state.notes + gradient.notes, []

        # Looking at a loss waits for the GPU, so there it is done now and then.
        due = folder is not None and time.perf_counter() - saved_at >= options.save_every
        asked, due = processes.agree([options.asked_to_stop(), due])
        look = device.type == "cpu" or len(waiting) >= _READ_AFTER or state.step in points or asked or due
        problem = state.read_(waiting, scaler.is_enabled()) if look else None

        if state.step in points and problem is None:
            entry: dict[str, Any] = {"step": state.step, "epoch": state.step / order.steps_per_epoch}
            entry |= {"train_loss": state.train_loss(), "lr": recipe.lr * factor, "validation": None}
            entry["distances"] = ruler.measure(model)
            if "validation" in encoded.splits:
                newest = {"validation": predicted("validation")}
                entry["validation"] = score(task, encoded.splits["validation"], newest["validation"])
                if not math.isfinite(entry["validation"]):
                    problem = f"The validation score was not a finite number at step {state.step}."
            if problem is None:
                state.history.append(entry)
                if state.take_(entry["validation"], task.greater_is_better):
                    best, of_best = copied(model), newest
                if average is not None:
                    kept.append(copied(model))
        if problem is not None:
            status = "diverged"
            state.notes.append(problem)
            break
        if options.progress is not None:
            seconds = earlier + time.perf_counter() - began
            validation = state.history[-1]["validation"] if state.history else None
            options.progress(
                Progress(state.step, steps, seconds, state.losses[-1] if state.losses else None, validation)
            )
        if asked and state.step < steps:
            save()
            status = "stopped"
            break
        if due and state.step < steps:
            save()
            saved_at = time.perf_counter()

    # --- Finish: score the last weights and the best ones on validation and test.

    best_scores = Scores(**state.best) if state.best else None
    last: Scores | None = None
    predictions: dict[str, Predictions] = {}
    if status == "finished":
        is_best = state.best["step"] == state.step
        if average is not None:
            load_weights_(model, average_weights(list(kept)))  # fewer than asked for where the run stopped early
            newest = {}
        last, predictions = scored(state.step, newest)
        if average is not None:
            is_best = state.take_(last.validation, task.greater_is_better)
            best = copied(model) if is_best else best
        best_scores = last
        if not is_best:
            load_weights_(model, best)
            best_scores, predictions = scored(state.best["step"], of_best)
    elif status == "diverged" and best:
        load_weights_(model, best)
        best_scores, predictions = scored(state.best["step"], of_best)
    state.notes += gradient.remarks() + update.remarks()
    optimizer.zero_grad(set_to_none=True)  # the model outlives the run; on a GPU its gradients are there until now
    result = RunResult(
        status=status,
        recipe=recipe,
        streams=streams,
        task=task.name,
        metric=task.metric,
        data=encoded.data,
        steps=steps,
        best=best_scores,
        last=last,
        history=state.history,
        losses=state.losses,
        grad_norms=state.grad_norms,
        seconds=earlier + time.perf_counter() - began,
        peak_memory=0 if lane.lanes.several else peak_memory(device),
        notes=state.notes,
        predictions=predictions,
        versions=versions(device),
    )
    if status != "stopped" and processes.first:
        left = {"best": best} if best and options.keep_weights else {}
        run_folder.write(state.step, left, {"result": result.to_data()}, keep=1)
    return result, (_plain(model, best) if status == "finished" else None)


def evaluation_points(steps: int, evaluations: int) -> set[int]:
    """The steps after which the run is scored: evenly spaced, the last among them; all where there are fewer."""
    return {-(-number * steps // evaluations) for number in range(1, evaluations + 1)}


def _average(recipe: Recipe, evaluations: int) -> CheckpointAverage | None:
    """The method that averages the weights of the last evaluations, if there is one."""
    found = next((m for m in recipe.methods if isinstance(m, CheckpointAverage) and not m.is_null()), None)
    if found is not None and found.last > evaluations:
        raise SteadytuneError(
            f"{found} averages the weights of that many evaluations, and the run has {evaluations}. Set evaluations "
            f"to at least {found.last}, or average fewer."
        )
    return found


def _left_to_others(recipe: Recipe) -> list[str]:
    joining = [m for m in recipe.methods if m.place == "finish" and not m.is_null()]
    return [f"{m} joins several runs; this is one of them." for m in joining if not isinstance(m, CheckpointAverage)]


def _plain(model: nn.Module, best: dict[str, Tensor]) -> nn.Module:
    forget_packing_(model)
    unquicken_(model)
    remove_(model)
    load_weights_(model, best)
    return model.eval()
