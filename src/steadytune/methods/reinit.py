"""Re-initialisation: start the pooler and the top L blocks from random weights instead of pretrained ones.

    W ~ N(0, initializer_range²),   biases 0,   LayerNorm weight 1 and bias 0      (few-sample paper, section 5)

The top layers are specialised to the pretraining task and a bad place to start from; L of 1 to 6 is chosen on
validation. Each architecture has its own rule, and it is the one it was pretrained from: a Hugging Face model's
`_init_weights`, which for BERT and its relatives is the line above.
Relations: L = 0 is the standard start; re-initialising everything is training from scratch.
Caveats: draws come from a stream of their own, so that the head has the same bytes with and without re-init (appendix
B), and a block gets the same values whatever L is. In an encoder-decoder the decoder's blocks are the top ones.
RoBERTa's pooler is `classifier.dense`; ELECTRA, XLNet, BART and T5 have none (D12). Re-initialised layers have no
pretrained value: mixout takes their random start as target, decay toward the pretrained weights leaves them out.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import nn

from steadytune.errors import NoEffect, SteadytuneError
from steadytune.layers import POOLER, Layers, Part, find_layers
from steadytune.methods.base import FEW_SAMPLE, Method, Site, method
from steadytune.methods.mixed_layers import mixed_layers
from steadytune.rng import Streams, stream_seed, streams_from_torch


def reinit_(
    model: nn.Module, layers: int | float = 1, pooler: bool | None = None, streams: Streams | None = None
) -> list[str]:
    """Draw the top `layers` blocks anew, and the pooler with them; returns the names of the parameters that were drawn.

    `layers`: a number of blocks; or a fraction below 1, that part of them: 0.25 is 2 of 6, 3 of 12, 6 of 24. A part is
    rounded up, but never to all of them: of ALBERT's one shared block it is none, and the pooler alone is drawn.
    `pooler`: True or False decides; None means "with the blocks, if the model has one". Pooler alone, the paper's L =
    0, is `reinit_(model, layers=0, pooler=True)`.
    """
    parts = find_layers(model)
    drawn: list[str] = []
    changed = False
    streams = streams or streams_from_torch()
    chosen = parts_to_draw(parts, layers, pooler)
    _refuse_frozen(parts, chosen)
    for part in chosen:
        seed = stream_seed("init", streams.init, "reinit", part)
        for name, module in parts.modules(part).items():
            before = {n: p.detach().clone() for n, p in module.named_parameters(name)}
            _draw_(module, _initialiser(model), seed)
            drawn += before
            changed |= any(not torch.equal(p, before[n]) for n, p in module.named_parameters(name))
    if drawn and not changed:
        raise NoEffect(f"Reinit: no parameter of {type(model).__name__} changed.")
    return drawn


def parts_to_draw(parts: Layers, layers: int | float, pooler: bool | None) -> list[Part]:
    """What `Reinit(layers, pooler)` means in this model; an error where there are not as many blocks, or no pooler."""
    _check_layers(layers)
    count = layers if isinstance(layers, int) else min(math.ceil(layers * parts.top_count), parts.top_count - 1)
    blocks: list[Part] = [*parts.top_blocks(count)] if count > 0 else []
    has_pooler = bool(parts.parameters(POOLER))
    if pooler and not has_pooler:
        raise NoEffect(f"Reinit: a {parts.family} model of this kind has no pooler to re-initialise.")
    with_pooler = has_pooler and (layers > 0 if pooler is None else pooler)
    if layers > 0 and not blocks and not with_pooler:
        raise NoEffect(f"Reinit: {layers:g} of the blocks of this {parts.family} model, less than all, is none.")
    return [*blocks, POOLER] if with_pooler else blocks


def _refuse_frozen(parts: Layers, chosen: list[Part]) -> None:
    """What never trains would stay random; and who saves an adapter alone loads it onto the pretrained values again."""
    for part in chosen:
        for name, module in parts.modules(part).items():
            frozen = next((n for n, p in module.named_parameters(name) if not p.requires_grad), None)
            if frozen is not None:
                raise SteadytuneError(
                    f"Reinit: {frozen} is frozen, so its random values would never be trained, and an adapter that is "
                    "saved without it would be loaded onto other weights. Let what is re-initialised train, or leave "
                    "Reinit out."
                )


def _check_layers(layers: int | float) -> None:
    if isinstance(layers, float) and 0.0 <= layers < 1.0:
        return
    if isinstance(layers, bool) or not isinstance(layers, int) or layers < 0:
        raise SteadytuneError(
            f"Reinit: layers must be a whole number of blocks, 0 or more, or a part of them below 1, not {layers!r}."
        )


def _initialiser(model: nn.Module) -> Any:
    """The Hugging Face model inside any wrappers, which knows how its layers are initialised; None for plain
    modules."""
    return next((m for m in model.modules() if hasattr(m, "_init_weights") and hasattr(m, "config")), None)


def _draw_(module: nn.Module, initialiser: Any, seed: int) -> None:
    """Initialise a copy on the CPU, so that every device gets the same values, and copy it in.

    The copy starts as NaN: what is still NaN afterwards, the architecture's own rule did not cover.
    """
    fresh = copy.deepcopy(module).to("cpu")
    for parameter in fresh.parameters():
        parameter.data.fill_(float("nan"))
    with torch.random.fork_rng(devices=[]), torch.no_grad():  # the global generator is as it was afterwards
        torch.manual_seed(seed)
        if initialiser is not None:
            for child in reversed(list(fresh.modules())):  # as in transformers: a parent's rule comes after its parts'
                initialiser._init_weights(child)
        for child in fresh.modules():
            for name, parameter in child.named_parameters(recurse=False):
                if parameter.isnan().any():
                    _draw_parameter_(child, name, parameter)
        for parameter, drawn in zip(module.parameters(), fresh.parameters()):
            parameter.copy_(drawn)


def _draw_parameter_(owner: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """The paper's rule, for modules that have no rule of their own."""
    if "Norm" in type(owner).__name__ and name == "weight":
        parameter.fill_(1.0)
    elif parameter.dim() < 2 or name.endswith("bias"):
        parameter.zero_()
    else:
        parameter.normal_(0.0, 0.02)


@method("reinit", place="model", paper=FEW_SAMPLE, items="V10 D12 T4", null={"layers": 0, "pooler": None})
class Reinit(Method):
    """Re-initialise the pooler and the top blocks before training."""

    layers: int | float = 1  # how many blocks from the top (the paper chooses 1 to 6 of 24), or which part (0.25)
    pooler: bool | None = None  # the pooler too; None: with the blocks, where there is one

    def __post_init__(self) -> None:
        _check_layers(self.layers)

    def replaces(self) -> frozenset[str]:
        return frozenset({"start of the top blocks"})

    def check(self, site: Site) -> None:
        _refuse_frozen(site.layers, parts_to_draw(site.layers, self.layers, self.pooler))
        mixed = next(mixed_layers(site.model), None)
        if mixed and not self.is_null():
            raise SteadytuneError(
                f"Reinit: {mixed[0]} is mixed already, with its old value as target. Apply both in one call, "
                "apply_(model, [Reinit(...), Mixout(...)]), or call remove_(model) first."
            )

    def model_(self, site: Site) -> None:
        site.reinitialised.update(reinit_(site.model, self.layers, self.pooler, site.streams))
