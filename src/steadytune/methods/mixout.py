"""Mixout: while training, swap random weights for the ones that fine-tuning started from.

    Φ(w; u, M) = μ⁻¹ ((I - M) u + M w - (1 - μ) u)          (mixout paper, equation 4)
               = u + (M/μ)(w - u),      E M_i = μ,  so  E Φ = w

mixout(u, p) draws M from Bernoulli(1 - p), one draw for all weights that leave the same input neuron (equation 8): for
a weight [out, in] one per column. A swapped column is u exactly, a kept one is w + p/(1-p) (w - u). For an m-strongly
convex loss, E L(Φ) >= L(w) + m p / (2 (1 - p)) ||w - u||² (corollary 1.1): mixout is an adaptive pull toward u.

Relations: dropout(p) is mixout with u = 0; dropconnect(p) is mixout with u = 0 and a mask per element; mixconnect is
mixout with a mask per element; Gaussian dropout and variational dropout are u = 0 with Gaussian masks of the same mean
and variance; decay toward the pretrained weights pulls the same way with a constant strength.
Caveats: public code back-propagates g⊙M, which is not the gradient of its own forward (g⊙M/μ); that form is
`gradient="paper"`. Adam hides the difference, but for eps, clipping and decay. One mask holds for all rows of a batch,
so R-Drop over a mixed model needs two forwards (it takes them).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from steadytune.errors import NoEffect, SteadytuneError
from steadytune.layers import find_layers
from steadytune.methods.base import MIXOUT, Method, Site, check_choice, check_probability, method
from steadytune.methods.dropout import head_dropout_sites, set_dropout_
from steadytune.methods.mixed_layers import mix_layer_, weight_name
from steadytune.methods.mixing import Mix, mix
from steadytune.methods.mixout_selection import select_layers
from steadytune.rng import Streams, stream_seed, streams_from_torch

MASKS = ("neuron", "element")
DISTRIBUTIONS = ("bernoulli", "gaussian", "variational")
GRADIENTS = ("exact", "paper")


def mixout(
    w: Tensor,
    target: Tensor,
    p: float,
    mask: Tensor | None = None,
    gradient: Literal["exact", "paper"] = "exact",
    *,
    distribution: str = "bernoulli",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Φ(w; u, M) = u + (M/μ)(w - u) with μ = 1 - p.

    Args:
        w: the weight; the last dimension counts input neurons, as in nn.Linear. target: u, of the same shape. p:
        probability of swapping; 0 gives w, 1 gives the target with zero gradient. mask: M, broadcastable to w; without
        it one entry per input neuron is drawn, with mean μ and variance p(1-p). gradient: "exact" is that of Φ, g⊙M/μ;
        "paper" is g⊙M (equation 2, and the public code). distribution: of the drawn mask: "bernoulli"; "gaussian" (one
        per neuron); "variational" (Gaussian, one per weight). generator: to draw from; torch's global one by default.
    """
    check_probability("p", p, "mixout")
    check_choice("gradient", gradient, GRADIENTS, "mixout")
    check_choice("distribution", distribution, DISTRIBUTIONS, "mixout")
    if target.shape != w.shape:
        raise SteadytuneError(
            f"mixout: the target has shape {tuple(target.shape)}, the weight {tuple(w.shape)}; they must be equal."
        )
    if p == 0.0:
        return w
    if p == 1.0:
        return torch.lerp(target.detach(), w, torch.zeros((), dtype=w.dtype, device=w.device))
    if mask is None:
        shape = w.shape if distribution == "variational" else w.shape[-1:]
        if distribution == "bernoulli":
            mask = torch.rand(shape, dtype=torch.float64, device=w.device, generator=generator) >= p
        else:
            noise = torch.randn(shape, dtype=w.dtype, device=w.device, generator=generator)
            mask = (1.0 - p) + (p * (1.0 - p)) ** 0.5 * noise
    try:
        fits = torch.broadcast_shapes(mask.shape, w.shape) == w.shape
    except RuntimeError:
        fits = False
    if not fits:
        raise SteadytuneError(f"mixout: a mask of shape {tuple(mask.shape)} does not broadcast to {tuple(w.shape)}.")
    return mix(w, target.detach().to(w.dtype), mask.to(w.dtype) / (1.0 - p), p, gradient)


def mixout_(
    model: nn.Module,
    p: float = 0.7,
    *,
    layers: str = "paper",
    target: Literal["start", "zero"] | Mapping[str, Tensor] = "start",
    head: Literal["none", "mixout", "dropout"] = "none",
    mask: Literal["neuron", "element"] = "neuron",
    distribution: Literal["bernoulli", "gaussian", "variational"] = "bernoulli",
    gradient: Literal["exact", "paper"] = "exact",
    share_qkv: bool = False,
    replace_dropout: bool = True,
    ranks: Literal["same", "own"] = "same",
    streams: Streams | None = None,
) -> list[str]:
    """Mix layers of a model in place, from now on, whenever it trains; returns their names. `remove_` undoes it.

    The arguments are those of `Mixout`; here `target` may also be a state dict to pull toward. p = 0 changes nothing.
    """
    selected = select_layers(model, layers, head)
    targets = _targets(selected, target)
    if p == 0.0:
        return list(selected)
    streams = streams or streams_from_torch()
    shared_key = {name: group[0] for group in (find_layers(model).same_input() if share_qkv else []) for name in group}
    offset = 0
    if ranks == "own" and torch.distributed.is_available() and torch.distributed.is_initialized():
        offset = torch.distributed.get_rank() << 26  # another stretch of the same stream
    for name, module in selected.items():
        key = stream_seed("noise", streams.noise, "mixout", shared_key.get(name, name))
        mix_layer_(module, Mix(targets[name], p, mask, distribution, gradient, offset), key, share_qkv)
    if replace_dropout:
        set_dropout_(model, 0.0)
    if head == "dropout":
        for module, attribute in head_dropout_sites(model):
            setattr(module, attribute, p)
    return list(selected)


def _targets(selected: Mapping[str, nn.Module], target: str | Mapping[str, Tensor]) -> dict[str, Tensor]:
    """u for each layer. The start is the pretrained value, or the random start of a head or re-initialised layer
    (M8)."""
    targets: dict[str, Tensor] = {}
    by_weight: dict[int, Tensor] = {}  # tied weights share one target
    for name, module in selected.items():
        weight = getattr(module, weight_name(module))
        key = f"{name}.{weight_name(module)}" if name else weight_name(module)
        if isinstance(target, Mapping):
            if key not in target:
                raise SteadytuneError(f"Mixout: the target has no {key}.")
            if target[key].shape != weight.shape:
                raise SteadytuneError(
                    f"Mixout: the target of {key} has shape {tuple(target[key].shape)}, "
                    f"the weight {tuple(weight.shape)}."
                )
            made = target[key].detach().to(weight).clone()
        elif target == "zero" or ".lora_A." in name:  # W + B A is mixed with W when A is mixed with 0
            made = torch.zeros_like(weight)
        else:
            made = weight.detach().clone()
        targets[name] = by_weight.setdefault(id(weight), made)
    return targets


@method("mixout", place="model", paper=MIXOUT, items="M1-M9", null={"p": 0.0})
class Mixout(Method):
    """Swap weights for those that fine-tuning started from, with probability p, while training."""

    p: float = 0.7  # probability of swapping an input neuron's weights; the paper uses 0.7, 0.8, 0.9
    layers: str = "paper"  # "paper", "linear", "all", or patterns of module names, comma-separated
    target: str = "start"  # "start": pretrained weights (a head's random start); "zero": dropout and dropconnect
    head: str = "none"  # what to do with the output layer: "none", "mixout" (toward its start), "dropout"
    mask: str = "neuron"  # "neuron": one draw per input neuron; "element": one per weight (mixconnect)
    distribution: str = "bernoulli"  # of the mask: "bernoulli", "gaussian", "variational"
    gradient: str = "exact"  # "exact": g*M/(1-p); "paper": g*M, as the public code
    share_qkv: bool = False  # one mask for query, key and value, which leave the same neurons (equation 8)
    replace_dropout: bool = True  # set the model's dropout to 0
    ranks: str = "same"  # "same": all processes draw the same masks; "own": each its own

    def __post_init__(self) -> None:
        check_probability("p", self.p, "Mixout")
        check_choice("target", self.target, ("start", "zero"), "Mixout")
        check_choice("head", self.head, ("none", "mixout", "dropout"), "Mixout")
        check_choice("mask", self.mask, MASKS, "Mixout")
        check_choice("distribution", self.distribution, DISTRIBUTIONS, "Mixout")
        check_choice("gradient", self.gradient, GRADIENTS, "Mixout")
        check_choice("ranks", self.ranks, ("same", "own"), "Mixout")
        if self.distribution == "variational" and self.gradient == "paper":
            raise SteadytuneError("Mixout: the variational form draws at the outputs and has only its exact gradient.")

    def replaces(self) -> frozenset[str]:
        return frozenset({"mixing"} | ({"dropout"} if self.replace_dropout and self.p > 0 else set()))

    def check(self, site: Site) -> None:
        select_layers(site.model, self.layers, self.head)
        if self.head == "dropout" and not head_dropout_sites(site.model):
            raise NoEffect(f"Mixout: {type(site.model).__name__} has no dropout in its head to set.")

    def model_(self, site: Site) -> None:
        mixout_(
            site.model,
            self.p,
            layers=self.layers,
            target=self.target,  # type: ignore[arg-type]
            head=self.head,  # type: ignore[arg-type]
            mask=self.mask,  # type: ignore[arg-type]
            distribution=self.distribution,  # type: ignore[arg-type]
            gradient=self.gradient,  # type: ignore[arg-type]
            share_qkv=self.share_qkv,
            replace_dropout=self.replace_dropout,
            ranks=self.ranks,  # type: ignore[arg-type]
            streams=site.streams,
        )
