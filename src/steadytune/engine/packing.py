"""Rows without their padding: the blocks of an encoder see real tokens only, one row behind the other.

    padded   [B, S, H]     what the embeddings make, and what pooler and head read
    packed   [1, T, H]     what the blocks see
    source   [T]           which of the B S places each token comes from: real ones in their order, then some padding
    place    [B S]         where each of them went, -1 for nowhere

    first block      packs its input          x[source]
    attention        pads query, key, value   x[place], 0 where that is -1; and packs its output
    last block       pads its output

All else in a block treats every token by itself, so it does the same work for fewer of them. T is known on the host
before (the lengths of the rows are), and rounded up so that there are few shapes; places that are padding fill it up.
Nobody attends to those and nobody reads what becomes of them, so their gradient is 0.

Whether a model can be packed is tried out: one whose blocks mix tokens anywhere but in transformers' attention
interface (relative positions, convolutions) says something else then, and stays as it is. Outside of
`packs(rows, tokens)` a model with a Packing is the plain one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from steadytune.engine.batches import collate
from steadytune.engine.encode import Encoded, Split
from steadytune.engine.lane import Lane
from steadytune.errors import SteadytuneError
from steadytune.kernels.rows import take_rows
from steadytune.layers import find_layers
from steadytune.recipe import Recipe

DEVICES = {"cuda"}  # where rows are packed
ATTENTION = "steadytune_packed"  # its name in transformers' registry
_GRAINS = 8  # numbers of tokens that a padded shape may be packed to: each is a CUDA graph of its own
_WORTH = 0.9  # of the padded tokens: with more than that, packing gains nothing
_NEAR = 1e-4  # of the largest number of a hidden state: how far packed ones may be from padded ones


class Plan(NamedTuple):
    """How one batch is packed."""

    source: Tensor
    place: Tensor
    padded: tuple[int, int]  # B, S

    @classmethod
    def of(cls, mask: Tensor, tokens: int) -> Plan:
        """`mask` [B, S] is not 0 where a token is real; of those there are no more than `tokens`."""
        real = mask.reshape(-1).bool()
        count = real.sum()
        rank = torch.where(real, real.cumsum(0) - 1, count + (~real).cumsum(0) - 1)  # a permutation
        source = torch.empty_like(rank).scatter_(0, rank, torch.arange(len(rank), device=rank.device))[:tokens]
        return cls(source, torch.where(rank < tokens, rank, -1), (mask.shape[0], mask.shape[1]))

    def pack(self, x: Tensor) -> Tensor:
        """[B, S, ...] -> [1, T, ...]"""
        return take_rows(x.reshape(len(self.place), -1), self.source, self.place).view(1, -1, *x.shape[2:])

    def pad(self, x: Tensor) -> Tensor:
        """[1, T, ...] -> [B, S, ...]"""
        return take_rows(x.reshape(len(self.source), -1), self.place, self.source).view(*self.padded, *x.shape[2:])


class Packing:
    """The hooks of one model. `remove_` takes them away."""

    def __init__(self, model: nn.Module) -> None:
        blocks = _blocks(model)
        self._model, self._blocks = model, blocks
        self._wanted: tuple[int, int] | None = None  # rows and tokens of the batch that comes
        self.plan: Plan | None = None
        _register()
        model.set_attn_implementation(ATTENTION)  # type: ignore[operator]
        self._handles = [
            model.register_forward_pre_hook(self._begin, with_kwargs=True),
            blocks[0].register_forward_pre_hook(self._pack, with_kwargs=True),
            blocks[-1].register_forward_hook(self._pad),
        ]
        for module in self._inside():
            vars(module)["packing"] = self

    def remove_(self) -> None:
        for handle in self._handles:
            handle.remove()
        for module in self._inside():
            vars(module).pop("packing", None)
        self._model.set_attn_implementation("sdpa")  # type: ignore[operator]

    def tokens(self, split: Split, rows: np.ndarray, width: int) -> int:
        """What these rows, padded to `width`, are packed to; 0 where they are better left padded."""
        return tokens_for(int(split.inputs["input_ids"].lengths[rows].sum()), len(rows), width)

    @contextmanager
    def packs(self, rows: int, tokens: int) -> Iterator[None]:
        """Forward passes inside are packed, of batches of `rows` rows with at most `tokens` real tokens; one that has
        them several times over, as R-Drop's, too. 0 tokens: not packed."""
        self._wanted = (rows, tokens) if tokens else None
        try:
            yield
        finally:
            self._wanted = self.plan = None

    def _begin(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.plan, mask = None, kwargs.get("attention_mask")
        if self._wanted is not None and mask is not None and mask.shape[0] % self._wanted[0] == 0:
            rows, tokens = self._wanted
            self.plan = Plan.of(mask, tokens * (mask.shape[0] // rows))

    def _pack(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.plan is None:
            return None
        if args:
            return (self.plan.pack(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": self.plan.pack(kwargs["hidden_states"])}

    def _pad(self, block: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        if self.plan is None:
            return None
        return (self.plan.pad(output[0]), *output[1:]) if isinstance(output, tuple) else self.plan.pad(output)

    def _inside(self) -> Iterator[nn.Module]:
        for block in self._blocks:
            yield from block.modules()


def packing_for(model: nn.Module, encoded: Encoded, recipe: Recipe, lane: Lane) -> Packing | None:
    """For a run whose rows have padding, if its model can do without. That is tried once in a process."""
    device = next(model.parameters()).device
    if device.type not in DEVICES or encoded.task.kind not in ("classification", "regression"):
        return None
    split = encoded.splits["train"]
    lengths, known = split.inputs["input_ids"].lengths, lane.lanes.packable
    if lengths.min() == lengths.max():
        return None
    kind = (recipe.model, recipe.start_from, str(recipe.methods), encoded.fingerprint)
    with lane.turn():
        if kind not in known:
            rows = np.array([lengths.argmin(), lengths.argmax()])
            known[kind] = can_be_packed(model, collate(encoded.encoder, split, rows, device, labels=False))
        return Packing(model) if known[kind] else None


def tokens_for(real: int, rows: int, width: int) -> int:
    """How many tokens a batch with `real` ones is packed to; 0 where it is better left padded."""
    grain = max(64, -(-rows * width // (_GRAINS * 64)) * 64)
    tokens = -(-real // grain) * grain
    return tokens if tokens <= _WORTH * rows * width else 0


def can_be_packed(model: nn.Module, batch: dict[str, Tensor]) -> bool:
    """Whether the model, packed, makes of a batch with padding what it makes of it padded. It is left as it was."""
    config = getattr(model, "config", None)
    if getattr(config, "_attn_implementation", None) != "sdpa" or getattr(model, "is_gradient_checkpointing", False):
        return False
    inputs = {name: each for name, each in batch.items() if name != "labels"}
    mask = inputs["attention_mask"]
    was_training = model.training
    model.eval()
    try:
        expected = _hidden(model, inputs)[mask.bool()]
        with Packing(model).packs(len(mask), int(mask.sum()) + 1):  # a place that is padding, too
            found = _hidden(model, inputs)[mask.bool()]
        return found.shape == expected.shape and bool((found - expected).abs().max() <= _NEAR * expected.abs().max())
    except (SteadytuneError, RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError):
        return False  # a block that does not take what it is given
    finally:
        forget_packing_(model)
        model.train(was_training)


@torch.no_grad()
def _hidden(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """What the last block says of every token: a logit would show less of what went wrong."""
    seen: list[Any] = []
    handle = _blocks(model)[-1].register_forward_hook(lambda block, args, output: seen.append(output))
    try:
        model(**inputs)
    finally:
        handle.remove()
    return seen[0][0] if isinstance(seen[0], tuple) else seen[0]


def forget_packing_(model: nn.Module) -> None:
    """Take away a model's Packing, if it has one."""
    for packing in {vars(module).get("packing") for module in model.modules()} - {None}:
        packing.remove_()  # type: ignore[union-attr]


def _blocks(model: nn.Module) -> list[nn.Module]:
    layers = find_layers(model)
    found = [list(layers.modules(number).values()) for number in range(1, layers.count + 1)]
    if not found or any(len(tops) != 1 for tops in found):
        raise SteadytuneError("The blocks of the model are not one module each.")
    return [tops[0] for tops in found]


def _register() -> None:
    """Under its name in transformers, which looks attention up there; again and again does no harm."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(ATTENTION, _attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """transformers' own, on padded rows. Query, key and value are [1, heads, T, size] where the model is packed."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    packing: Packing | None = vars(module).get("packing")
    plan = packing.plan if packing is not None else None
    if plan is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    query, key, value = (plan.pad(each.transpose(1, 2)).transpose(1, 2) for each in (query, key, value))
    made, weights = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    return plan.pack(made), weights
