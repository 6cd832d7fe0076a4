"""Many restarts of the digits network trained at once: every weight is [R, out, in], every layer one batched product.

    h' = LayerNorm(relu(h Wᵀ + b)) of R networks in a handful of kernels, instead of R times that handful

A network of 266,610 weights and 32 rows does not keep a GPU busy: launching its kernels takes longer than running
them. Stacked, a launch serves R restarts. A CPU gains less, what Python and separate Adam passes cost: about 1.5 times
(benchmarks/digits.py).

A replica has its own start, order of rows, noise, p, learning rate and length. A stack holds restarts of one kind (the
same method, mask, gradient and layers), because a kind decides which products there are; `train` sorts a mixed list
into stacks. Inside a stack the longest runs come first, so those that still train are always the first A replicas,
and a view of the tensors.

Nothing is summed over replicas but their losses, whose gradients do not mix: a replica that diverges spoils itself
only. The same restart trained alone (network.py) gives the same numbers up to rounding: batched products and fused
Adam add in another order, so after a few steps float64 agrees to 1e-6 of the way moved, float32 as two devices do.
Masks and orders agree exactly.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from steadytune.engine.batches import Order
from steadytune.papers.digits.data import Images
from steadytune.papers.digits.network import Restart, Training
from steadytune.papers.digits.saved import SAVE_EVERY, SavedStack, identity
from steadytune.papers.digits.stacked_adam import StackedAdam
from steadytune.papers.digits.stacked_noise import StackedNoise

Weights = dict[str, Tensor]  # by the names of the network's state dict, each with a first dimension of R
STACK = {"cpu": 32, "cuda": 512}  # restarts at once: on a CPU more do not fit its caches, on a GPU its memory
DRIFT_POINTS = 12


@dataclass(frozen=True, eq=False)
class Trained:
    """What came out, in the order of the restarts."""

    weights: Weights
    losses: Sequence[Sequence[float]]  # of each restart: mean training loss of each epoch
    drift: Sequence[Sequence[tuple[int, float]]]  # of each restart: (step, ||w_t - w_0||), steps evenly spread in log t


def train(
    starts: Sequence[Mapping[str, Tensor]],
    restarts: Sequence[Restart],
    training: Training,
    images: Images,
    *,
    at_once: int | None = None,
    folder: Path | None = None,
    save_every: float = SAVE_EVERY,
    say: Callable[[str], None] = lambda line: None,
) -> Trained:
    """Train restart i from starts[i]. Everything runs where `images` are, in the dtype of the starts.

    `at_once` limits a stack; `say` is told now and then how far it is. In `folder` each stack keeps where it is, and
    the same call goes on from there, with the same bits as if it had not been stopped.
    """
    device = images.labels.device
    stacks = list(_stacks(restarts, at_once or STACK.get(device.type, STACK["cpu"])))
    done: list[Trained] = []
    for number, positions in enumerate(stacks):
        these = [restarts[i] for i in positions]
        start = {name: torch.stack([starts[i][name] for i in positions]).to(device) for name in starts[0]}
        saved = SavedStack(None)
        if folder is not None:
            saved = SavedStack(folder / f"stack-{number}", identity(these, training, images, start), save_every)
        trained = sum(len(each.losses) for each in done)
        done.append(_train_stack(start, these, training, images, saved, partial(_tell, say, trained, len(restarts))))
        say(f"{trained + len(these)} of {len(restarts)} restarts are trained.")
    back = [position for positions in stacks for position in positions]
    order = sorted(range(len(back)), key=lambda i: back[i])  # where each restart stands in the concatenated stacks
    joined = {name: torch.cat([each.weights[name] for each in done])[order] for name in starts[0]}
    losses, drift = ([row for each in done for row in getattr(each, what)] for what in ("losses", "drift"))
    return Trained(joined, [losses[i] for i in order], [drift[i] for i in order])


def logits(weights: Weights, x: Tensor, masks: Mapping[str, Tensor] | None = None) -> Tensor:
    """The outputs [R, B, 10] of R networks for inputs [R, B, 784], or [B, 784] that all of them see.

    `masks` scale activations, by the names of the dropout layers ([R, B, units]).
    """
    h = x.expand(len(weights["output.weight"]), *x.shape[-2:])
    for number in (1, 2):
        h = functional.relu(_linear(weights, f"hidden_{number}", h))
        normed = functional.layer_norm(h, h.shape[-1:])
        h = torch.addcmul(_row(weights, f"norm_{number}.bias"), normed, _row(weights, f"norm_{number}.weight"))
        if masks:
            h = h * masks[f"dropout_{number}"]
    return _linear(weights, "output", h)


class _Linear(torch.autograd.Function):
    """h Wᵀ + b of R layers. Autograd's own gradient of W would be a transposed view, to be copied for fused Adam."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(h, weight)
        return torch.baddbmm(bias.unsqueeze(1), h, weight.transpose(1, 2))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        h, weight = ctx.saved_tensors
        grad_h = torch.bmm(grad, weight) if ctx.needs_input_grad[0] else None
        return grad_h, torch.bmm(grad.transpose(1, 2), h), grad.sum(1)


def _linear(weights: Weights, name: str, h: Tensor) -> Tensor:
    made: Tensor = _Linear.apply(h, weights[f"{name}.weight"], weights[f"{name}.bias"])
    return made


def _row(weights: Weights, name: str) -> Tensor:
    return weights[name].unsqueeze(1)  # broadcasts over the batch


@torch.no_grad()
def accuracy(weights: Weights, images: Images, rows_at_once: int = 250) -> list[float]:
    """Share of rows that each network gets right; NaN for one whose weights are not finite."""
    some = weights["output.weight"]
    hits = torch.zeros(len(some), dtype=torch.int64, device=some.device)
    for at in range(0, len(images), rows_at_once):
        part = slice(at, at + rows_at_once)
        hits += (logits(weights, images.rows(part, some.dtype)).argmax(-1) == images.labels[part]).sum(-1)
    share = hits.double() / len(images)
    return torch.where(finite(weights), share, torch.nan).tolist()


def finite(weights: Weights) -> Tensor:
    """Which of the R networks have finite weights only."""
    return torch.stack([each.flatten(1).isfinite().all(1) for each in weights.values()]).all(0)


@torch.no_grad()
def squared_distances(weights: Weights, start: Weights) -> dict[str, Tensor]:
    """||w - w_0||² of every parameter tensor of each network, summed in float64."""
    moved = {name: each - start[name][: len(each)] for name, each in weights.items()}
    return {name: each.flatten(1).square().sum(1, dtype=torch.float64) for name, each in moved.items()}


def _stacks(restarts: Sequence[Restart], at_once: int) -> Iterator[list[int]]:
    """Positions of the restarts that train together, longest first, equal schedules side by side."""

    def kind(i: int) -> tuple[str, ...]:
        return restarts[i].method, restarts[i].mask, restarts[i].gradient, restarts[i].layers

    for _, of_one_kind in itertools.groupby(sorted(range(len(restarts)), key=kind), key=kind):
        ordered = sorted(of_one_kind, key=lambda i: (-restarts[i].epochs, restarts[i].lr))
        for at in range(0, len(ordered), at_once):
            yield ordered[at : at + at_once]


def _tell(say: Callable[[str], None], trained: int, restarts: int, these: int, epoch: int, epochs: int) -> None:
    say(f"Restarts {trained + 1} to {trained + these} of {restarts}: epoch {epoch} of {epochs}.")


def _train_stack(
    start: Weights,
    restarts: Sequence[Restart],
    training: Training,
    images: Images,
    saved: SavedStack,
    tell: Callable[[int, int, int], None],
) -> Trained:
    weights = {name: each.clone() for name, each in start.items()}
    noise = StackedNoise(restarts, like=weights["output.weight"])
    optimizer = StackedAdam(restarts, training, weights, len(images))
    orders = [Order(len(images), training.batch_size, restart.streams) for restart in restarts]
    epochs = restarts[0].epochs  # the longest run comes first
    per_epoch = training.steps_per_epoch(len(images))
    drift_at = _drift_steps(per_epoch * epochs)
    losses: list[Tensor] = []
    drift: dict[int, Tensor] = {}
    begin = 0
    if (found := saved.find(images.labels.device)) is not None:
        begin = found.step
        for name, each in weights.items():
            each.copy_(found.tensors["weights"][name])
        if begin < epochs:
            optimizer.resume_(found.tensors, begin * per_epoch)
            tell(len(restarts), begin, epochs)
        losses = [found.tensors["losses"][str(epoch)] for epoch in range(begin)]
        drift = {at: found.tensors["drift"][str(at)] for at in sorted(map(int, found.tensors["drift"]))}
    step = begin * per_epoch
    for epoch in range(begin, epochs):
        active = sum(restart.epochs > epoch for restart in restarts)
        rows = torch.stack([torch.from_numpy(order.epoch(epoch)) for order in orders[:active]]).to(images.labels.device)
        leaves = {name: each[:active].detach().requires_grad_() for name, each in weights.items()}
        total = torch.zeros(active, device=rows.device)
        for chosen in rows.split(training.batch_size, dim=1):
            x, labels = images.rows(chosen, weights["output.weight"].dtype), images.labels[chosen]
            mixed, masks = noise.draw(leaves, start, step, chosen.shape[1])
            out = logits(mixed, x, masks)
            by_row = functional.cross_entropy(out.flatten(0, 1), labels.flatten(), reduction="none")
            loss = by_row.view(active, -1).mean(1)
            grads = torch.autograd.grad(loss.sum(), list(leaves.values()))
            optimizer.step_(noise.scaled(dict(zip(leaves, grads))), step)
            total += loss.detach() * (chosen.shape[1] / len(images))
            step += 1
            if step in drift_at:
                drift[step] = torch.stack([*squared_distances(leaves, start).values()]).sum(0).sqrt()
        losses.append(total)
        last = epoch + 1 == epochs
        if last or saved.due():
            measured = {"losses": dict(enumerate(losses)), "drift": drift}
            tensors = {what: {str(at): each for at, each in of.items()} for what, of in measured.items()}
            saved.save(epoch + 1, {"weights": weights, **tensors, **({} if last else optimizer.moments())})
            if not last:
                tell(len(restarts), epoch + 1, epochs)
    walks = _by_replica([*drift.values()])
    return Trained(weights, _by_replica(losses), [[*zip(drift, walk)] for walk in walks])


def _drift_steps(steps: int) -> set[int]:
    return {round(steps ** (i / (DRIFT_POINTS - 1))) for i in range(DRIFT_POINTS)}


def _by_replica(measured: Sequence[Tensor]) -> list[list[float]]:
    """What was measured of the first A replicas, for a falling A: the list of each replica."""
    by_time = [each.tolist() for each in measured]
    return [[row[i] for row in by_time if i < len(row)] for i in range(len(by_time[0]))]
