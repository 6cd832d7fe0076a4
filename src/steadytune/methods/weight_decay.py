"""Weight decay: pull the weights toward zero, or toward anchors.

    decoupled    w <- w - α λ (w - u)          before each step, α the learning rate of w's group (V17, V18)
    l2           g <- g + λ (w - u)            before each step: the gradient of (λ/2) ||w - u||²  (M7: wdecay(u, λ))

with u = 0 here, and u = the pretrained weights in `pretrained_decay.py`. Biases and norms are never decayed.

Relations: decoupled with u = 0 is torch.optim.AdamW(weight_decay=λ), l2 is torch.optim.Adam or SGD(weight_decay=λ),
bit for bit. For plain SGD the two forms are the same; for Adam, l2 is divided by √v̂ like any gradient.
Caveats: l2 is added after gradients were clipped, as torch.optim does. For the penalty inside the clipped gradient,
add `decay_penalty(...)` to the loss. After an l2 step `.grad` holds the sum. A deep-copied or unpickled optimiser has
lost its hooks: attach again. A GradScaler with a *fused* torch optimiser hides scale and overflow from hooks and is
refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from steadytune.errors import NoEffect, SteadytuneError
from steadytune.methods.adamw import AdamW
from steadytune.methods.adamw_step import Pull
from steadytune.methods.base import FEW_SAMPLE, Method, ParamGroup, Site, StepHook, check_at_least, check_choice, method

Form = Literal["decoupled", "l2"]
FORMS = ("decoupled", "l2")

_BIAS = re.compile(r"(^|[._])bias($|[._])")  # also XLNet's r_w_bias, T5's relative_attention_bias, attention's bias_k


def decayed_names(model: nn.Module) -> set[str]:
    """Names of the parameters that weight decay may touch: all but biases, norms, and other vectors and scalars."""
    return {
        name
        for name, p in model.named_parameters()
        if p.dim() >= 2
        and not _BIAS.search(name)
        and "Norm" not in type(model.get_submodule(name.rpartition(".")[0])).__name__
    }


@torch.no_grad()
def decay_(params: Sequence[Tensor], amount: float, anchors: Sequence[Tensor] | None = None) -> None:
    """w <- w - a (w - u) in place, where a = α λ and u = 0 without anchors."""
    if not params:
        return
    if anchors is None:
        torch._foreach_mul_(list(params), 1 - amount)
    else:
        _check_anchors(params, anchors)
        torch._foreach_lerp_(list(params), list(anchors), amount)  # w + a (u - w): exactly w where w = u


@torch.no_grad()
def add_decay_(params: Sequence[Tensor], decay: float, anchors: Sequence[Tensor] | None = None) -> None:
    """g <- g + λ (w - u) in place, for the gradient g of each parameter; u = 0 without anchors."""
    if not params:
        return
    grads = [p.grad for p in params if p.grad is not None and p.grad.layout == torch.strided]
    if len(grads) != len(params):
        raise SteadytuneError("Weight decay of the form l2 adds to dense gradients, and one is missing or sparse.")
    pull: Sequence[Tensor] = params
    if anchors is not None:
        _check_anchors(params, anchors)
        pull = torch._foreach_sub(list(params), list(anchors))
    torch._foreach_add_(grads, list(pull), alpha=decay)


def decay_penalty(params: Iterable[Tensor], decay: float, anchors: Iterable[Tensor] | None = None) -> Tensor:
    """(λ/2) Σ ||w - u||², to be added to a loss (M7); u = 0 without anchors. Its gradient is λ (w - u)."""
    weights = list(params)
    targets = None if anchors is None else [u.detach() for u in anchors]
    if not weights:
        raise NoEffect("decay_penalty: there are no parameters to penalise.")
    if targets is not None:
        _check_anchors(weights, targets)
    away = weights if targets is None else [w - u for w, u in zip(weights, targets)]
    squares = [d.square().sum(dtype=torch.promote_types(d.dtype, torch.float32)).to(away[0].device) for d in away]
    return 0.5 * decay * torch.stack(squares).sum()


def _check_anchors(params: Sequence[Tensor], anchors: Sequence[Tensor]) -> None:
    if len(params) != len(anchors):
        raise SteadytuneError(f"Weight decay: {len(anchors)} anchors for {len(params)} parameters; one each is needed.")
    for p, u in zip(params, anchors):
        if p.shape != u.shape:
            raise SteadytuneError(
                f"Weight decay: an anchor has shape {tuple(u.shape)}, its parameter {tuple(p.shape)}; they must be "
                "equal."
            )


class DecayHook:
    """Decays the named parameters of a model before each step of the optimiser it is attached to.

    A steadytune.AdamW runs it as a part of its step, on a GPU in the same pass over the weights. `anchors`, by name,
    stay as they were taken; copies on the device and in the dtype of the parameters are made once, at the first step.
    With `takes_over`, groups that hold a named parameter lose a `weight_decay` of their own.
    """

    def __init__(
        self,
        model: nn.Module,
        names: Iterable[str],
        decay: float,
        form: Form,
        anchors: Mapping[str, Tensor] | None = None,
        *,
        takes_over: bool,
        owner: str,
    ) -> None:
        self.anchors: dict[str, Tensor] = dict(anchors or {})
        self.form = form
        self._model, self._names, self._decay = model, set(names), decay
        self._anchored, self._takes_over, self._owner = anchors is not None, takes_over, owner
        self._named: dict[Tensor, str] = {}
        self._near: dict[str, Tensor] = {}

    def attach_(self, optimizer: torch.optim.Optimizer) -> None:
        while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
            optimizer = inner  # accelerate's wrapper runs no hooks of its own
        self._named = {p: name for name, p in self._model.named_parameters() if name in self._names}
        if not any(p in self._named for group in optimizer.param_groups for p in group["params"]):
            raise NoEffect(
                f"{self._owner}: the optimiser holds none of the parameters to decay. Build it from the parameters of "
                "the model that the method was applied to."
            )
        self.take_over_(optimizer)
        if isinstance(optimizer, AdamW):
            optimizer.merge_(self)
        else:
            optimizer.register_step_pre_hook(self._before_step)

    def take_over_(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups if self._takes_over else []:
            if "weight_decay" in group and any(p in self._named for p in group["params"]):
                group["weight_decay"] = 0.0

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        if getattr(optimizer, "found_inf", None) is not None:
            raise SteadytuneError(
                f"{self._owner} cannot see the loss scale of a GradScaler inside a fused optimiser. Build the "
                "optimiser with fused=False (in the Hugging Face trainer: optim='adamw_torch'), use "
                "steadytune.AdamW, or train in bf16."
            )
        self.take_over_(optimizer)  # again: a group may have been added, or loaded from a checkpoint
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._decay_(optimizer)
            return None
        # Gradients exist only once the closure has run, so decay after it, as torch.optim does.
        again = False

        def closure_then_decay() -> Any:
            nonlocal again
            loss = closure()
            if self.form == "l2" or not again:  # LBFGS calls it many times: each time new gradients, but one step
                self._decay_(optimizer)
            again = True
            return loss

        return (args[0], closure_then_decay), {}

    def _decay_(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            self.decay_(group, [p for p in group["params"] if p.grad is not None])

    def decay_(self, group: ParamGroup, params: list[Tensor]) -> None:
        """Decay those of a group's parameters that are named."""
        found = [p for p in params if p in self._named]
        if not found:
            return
        anchors = [self._anchor(self._named[p], p) for p in found] if self._anchored else None
        if self.form == "decoupled":
            decay_(found, float(group["lr"]) * self._decay, anchors)
        else:
            add_decay_(found, self._decay, anchors)

    def pull(self, p: Tensor) -> Pull | None:
        """λ and u of a parameter, None where it is not named."""
        name = self._named.get(p)
        return None if name is None else (self._decay, self._anchor(name, p) if self._anchored else None)

    def _anchor(self, name: str, p: Tensor) -> Tensor:
        near = self._near.get(name)
        if near is None or near.device != p.device or near.dtype != p.dtype:
            near = self._near[name] = self.anchors[name].to(device=p.device, dtype=p.dtype)
        return near


@method("weight_decay", place="optimizer", paper=FEW_SAMPLE, items="M7 V18", null={"decay": 0.0})
class WeightDecay(Method):
    """Decay the weights toward zero, instead of whatever weight decay the optimiser's groups carry."""

    decay: float = 0.01  # λ; 0 leaves everything as it is, the groups' own weight decay too
    form: Form = "decoupled"  # "decoupled" (AdamW's) or "l2" (added to the gradient)

    def __post_init__(self) -> None:
        check_at_least("decay", self.decay, 0.0, "WeightDecay")
        check_choice("form", self.form, FORMS, "WeightDecay")

    def replaces(self) -> frozenset[str]:
        return frozenset() if self.is_null() else frozenset({"weight decay"})

    def check(self, site: Site) -> None:
        if not self.is_null() and not _trained(site):
            raise NoEffect(
                f"WeightDecay: {type(site.model).__name__} has no trainable parameter to decay; biases and norms "
                "never are."
            )

    def step_hook(self, site: Site) -> StepHook | None:
        if self.is_null():
            return None
        return DecayHook(site.model, _trained(site), self.decay, self.form, takes_over=True, owner="WeightDecay")


def _trained(site: Site) -> list[str]:
    names = decayed_names(site.model)
    return [name for name, p in site.model.named_parameters() if name in names and p.requires_grad]
