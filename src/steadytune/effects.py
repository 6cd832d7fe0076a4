"""What a method does to a model, measured: one sentence per method, by the place it acts in.

    model, weights   parameters, modules and dropout rates that changed; how far the logits moved (in eval mode)
    groups           how many parameter groups, and their learning rates
    optimizer        where three steps lead, against three steps of plain AdamW
    loss             the value on one batch against the plain loss, and how many rows the model saw for it
    schedule         the factor of the learning rate over the run, drawn, and the number of steps
    finish           what came out of several sets of weights, against the last of them

`steadytune demo` prints it for every registered method: a new method is shown without being named here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from steadytune.apply import Applied, apply_
from steadytune.errors import SteadytuneError
from steadytune.methods import all_methods
from steadytune.methods.base import Length, Method
from steadytune.methods.dropout import dropout_sites
from steadytune.methods.loss import plain_loss
from steadytune.rng import Streams

LR, STEPS, RUN = 1e-4, 3, Length(steps=300, steps_per_epoch=100)
BARS = "▁▂▃▄▅▆▇█"

# The default is shown; where it is the baseline, or needs a longer run than this one, something else is.
SHOWN: dict[str, dict[str, Any]] = {
    "dropout": {"p": 0.2},
    "adamw": {"correct_bias": False},
    "constant_schedule": {"warmup": 0.1},
    "inverse_sqrt_schedule": {"warmup": 30},
    "checkpoint_average": {"last": 3},
    "ensemble": {"size": 3},
}


def shown_methods() -> list[Method]:
    """One of every registered method, in the order of places."""
    return [cls(**SHOWN.get(name, {})) for name, cls in all_methods().items()]


def effect(method: Method, model: nn.Module, batch: dict[str, Any], streams: Streams | None = None) -> str:
    """What `method` changes, as a sentence. `model` itself is left as it is: every measurement works on a copy."""
    with torch.random.fork_rng():  # the global generator is as it was afterwards
        return _MEASURES[method.place](method, model, batch, streams or Streams())


def _on_model(method: Method, model: nn.Module, batch: dict[str, Any], streams: Streams) -> str:
    after, _ = _applied(method, model, streams)
    old, new = dict(model.named_parameters()), dict(after.named_parameters())
    moved = sum(p.numel() for name, p in new.items() if name not in old or not torch.equal(p, old[name]))
    total = sum(p.numel() for p in new.values())
    kinds = {name: type(module) for name, module in model.named_modules()}
    swapped = [module for name, module in after.named_modules() if kinds.get(name) is not type(module)]
    rates, new_rates = _rates(model), _rates(after)
    changed = [name for name in new_rates if new_rates[name] != rates.get(name)]
    said = []
    if moved:
        said.append(f"{moved:,} of {total:,} parameters drawn anew ({moved / total:.0%})")
    if swapped:
        said.append(f"{len(swapped)} layers are now {type(swapped[0]).__name__}")
    if changed:
        values = sorted({new_rates[name] for name in changed})
        said.append(f"{len(changed)} dropout rates set to {', '.join(f'{value:g}' for value in values)}")
    before, later = _logits(model, batch), _logits(after, batch)
    same = torch.equal(before, later)
    said.append("logits in eval mode: the same" if same else f"logits move by up to {(later - before).abs().max():.2f}")
    return "; ".join(said)


def _on_groups(method: Method, model: nn.Module, batch: dict[str, Any], streams: Streams) -> str:
    plain = apply_(model, [], streams=streams).groups(LR)  # touches nothing: groups only hold parameters
    groups = apply_(model, method, streams=streams).groups(LR)
    rates = sorted(group["lr"] for group in groups)
    decays = sorted({group.get("weight_decay", 0.0) for group in groups})
    ending = f", weight decay {', '.join(f'{value:g}' for value in decays)}" if decays != [0.0] else ""
    return f"{len(groups)} groups instead of {len(plain)}; learning rates {rates[0]:.2g} to {rates[-1]:.2g}{ending}"


def _on_optimizer(method: Method, model: nn.Module, batch: dict[str, Any], streams: Streams) -> str:
    start = _flat(model)
    plain = _after_steps([], model, batch, streams) - start
    moved = _after_steps([method], model, batch, streams) - start
    if torch.equal(moved, plain):
        return f"after {STEPS} steps the weights are those of plain AdamW, bit for bit"
    own, usual, apart = (float(way.norm() / start.norm()) for way in (moved, plain, moved - plain))
    moves = f"moved by {own:.1e} of their size, plain AdamW by {usual:.1e}; {apart:.1e} apart"
    return f"after {STEPS} steps the weights {moves}"


def _on_loss(method: Method, model: nn.Module, batch: dict[str, Any], streams: Streams) -> str:
    rows = len(batch["labels"])
    if (size := method.batch_size(rows)) != rows:
        return f"a batch of {rows} rows becomes one of {size}; the loss is the plain one"
    after, applied = _applied(method, model, streams)
    with _counted_rows(after) as seen, torch.no_grad():
        torch.manual_seed(0)
        own = float(applied.loss(after, dict(batch))[0])
        torch.manual_seed(0)
        plain = float(plain_loss(after, dict(batch))[0])
    return f"loss {own:.4f} from {seen[0] - rows} rows through the model; plain: {plain:.4f} from {rows}"


def _on_schedule(method: Method, model: nn.Module, batch: dict[str, Any], streams: Streams) -> str:
    applied = apply_(model, method, streams=streams)  # touches nothing: a schedule is numbers
    length = applied.length(RUN.steps, RUN.steps_per_epoch)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    factor = applied.scheduler(optimizer, RUN.steps, RUN.steps_per_epoch).lr_lambdas[0]
    factors = [float(factor(step)) for step in range(length.steps)]
    steps = f"{length.steps} steps"
    if length != RUN:
        steps += f" instead of {RUN.steps}"
    return f"{sparkline(factors)} {steps}, the last at {factors[-1]:.2g} of the learning rate"


def _on_finish(method: Method, model: nn.Module, batch: dict[str, Any], streams: Streams) -> str:
    count = max(value for value in vars(method).values() if isinstance(value, int))
    models = [_trained(model, batch, streams, steps) for steps in range(1, count + 1)]
    try:
        made = method.finish(models)
    except SteadytuneError:  # made of weights, not of models
        made = method.finish([each.state_dict() for each in models])
    if isinstance(made, Mapping):
        last = models[-1]
        before = _logits(last, batch)
        last.load_state_dict(made)
        what = f"the mean of {count} sets of weights"
    else:
        before, last, what = _logits(models[-1], batch), made, f"one model that asks {count} and averages"
    gap = (torch.softmax(_logits(last, batch), -1) - torch.softmax(before, -1)).abs().max()
    return f"{what}; probabilities move by up to {gap:.1e} against the last one"


_MEASURES: dict[str, Callable[[Method, nn.Module, dict[str, Any], Streams], str]] = {
    "weights": _on_model,
    "model": _on_model,
    "groups": _on_groups,
    "optimizer": _on_optimizer,
    "loss": _on_loss,
    "schedule": _on_schedule,
    "finish": _on_finish,
}


def sparkline(values: list[float], width: int = 24) -> str:
    """The values as one line of bars, 0 to their largest."""
    if not values:
        return ""
    width = min(width, len(values))
    picked = [values[round(i * (len(values) - 1) / max(1, width - 1))] for i in range(width)]
    top = max(picked) or 1.0
    return "".join(BARS[min(len(BARS) - 1, max(0, int(value / top * len(BARS) - 1e-9)))] for value in picked)


def _applied(method: Method, model: nn.Module, streams: Streams) -> tuple[nn.Module, Applied]:
    after = copy.deepcopy(model).train()
    return after, apply_(after, method, streams=streams)


def _trained(model: nn.Module, batch: dict[str, Any], streams: Streams, steps: int) -> nn.Module:
    after = copy.deepcopy(model).train()
    _run_(apply_(after, [], streams=streams), after, batch, steps)
    return after


def _after_steps(methods: list[Method], model: nn.Module, batch: dict[str, Any], streams: Streams) -> Tensor:
    after = copy.deepcopy(model).train()
    _run_(apply_(after, methods, streams=streams), after, batch, STEPS)
    return _flat(after)


def _run_(applied: Applied, model: nn.Module, batch: dict[str, Any], steps: int) -> None:
    optimizer = applied.optimizer(lr=LR)
    for step in range(steps):
        torch.manual_seed(step)  # the same dropout for every method
        applied.loss(model, dict(batch))[0].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


@torch.no_grad()
def _logits(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    was_training = model.training
    logits = model.eval()(**{name: value for name, value in batch.items() if name != "labels"}).logits
    model.train(was_training)
    return logits.clone()


def _flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def _rates(model: nn.Module) -> dict[str, float]:
    return {name: float(getattr(module, attribute)) for module, attribute, name in dropout_sites(model)}


@contextmanager
def _counted_rows(model: nn.Module) -> Iterator[list[int]]:
    seen = [0]

    def count(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        given = kwargs.get("input_ids")
        seen[0] += len(given if given is not None else args[0])

    handle = model.register_forward_pre_hook(count, with_kwargs=True)
    try:
        yield seen
    finally:
        handle.remove()
