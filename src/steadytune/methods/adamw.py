"""AdamW, with a switch for the bias correction that BERT's optimiser left out.

    w_t <- w_{t-1} - α λ w_{t-1}                          decoupled weight decay
    m_t = β1 m_{t-1} + (1 - β1) g_t                       few-sample paper, algorithm 1, line 7
    v_t = β2 v_{t-1} + (1 - β2) g_t²                      line 8
    m̂_t = m_t / (1 - β1^t),  v̂_t = v_t / (1 - β2^t)      lines 9 and 10: the bias correction; BERTAdam omits them
    w_t <- w_t - α m̂_t / (√v̂_t + ε)                      line 11; BERTAdam uses m_t and v_t as they are

Without the correction a step is r(t) = (1 - β1^t) / √(1 - β2^t) times as long: 3.2 times at the first, 6.6 times at
the twelfth, still 2.2 times at step 230, where three epochs of RTE end: a main cause of failed runs, the paper finds.

Relations: `correct_bias=True` is torch.optim.AdamW, bit for bit its `foreach=True` form where no kernel runs, and the
states are exchangeable.
On a CUDA device with Triton a step is one pass over the weights (kernels/adamw_triton.py), in which also decay toward
anchors, a factor of the gradient and zeroing it cost no pass of their own. Nothing waits for the device there, and with
learning rates that are tensors on it (`lr_on_device_`) the step can be captured in a CUDA graph.
Caveats: the first BERTAdam decayed the weights after the step; here decay comes first, as in torch. Its
configurations use eps = 1e-6 (V1). transformers' old AdamW added ε to √v_t before the correction, so with a visible ε
it was a third thing (D12). A graph holds the settings, but not the learning rates, of the time of its capture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steadytune.errors import SteadytuneError
from steadytune.kernels.adamw import adamw_ as adamw_  # the functional form
from steadytune.kernels.adamw import check_warm, is_fused
from steadytune.kernels.kept_gradients import KeptGradient
from steadytune.methods.adamw_step import AdamWStep, Decay
from steadytune.methods.base import FEW_SAMPLE, Method, ParamGroup, check_at_least, method


def bias_ratio(t: Any, beta1: float = 0.9, beta2: float = 0.999) -> Any:
    """r(t) = (1 - β1^t) / √(1 - β2^t): how many times too long a step is that omits the bias correction (V2, figure 1).

    `t` counts steps from 1: a number gives a float, a numpy array or a sequence an array, a tensor a tensor.
    """
    _check_betas((beta1, beta2), "bias_ratio")
    if isinstance(t, Tensor):
        exact = t.detach().to(torch.float64)
        _check_steps(bool((exact > 0).all()), t)
        ratio = (1.0 - beta1**exact) / torch.sqrt(1.0 - beta2**exact)
        return ratio.to(t.dtype) if t.is_floating_point() else ratio
    numbers = np.asarray(t, dtype=np.float64)
    _check_steps(bool((numbers > 0).all()), t)
    ratios = (1.0 - beta1**numbers) / np.sqrt(1.0 - beta2**numbers)
    return float(ratios) if isinstance(t, (int, float)) else ratios


class _OptimizerOrMethod(type):
    """`AdamW(params, ...)` is an optimiser; `AdamW(...)` without parameters is the method, for lists of methods."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if args or "params" in kwargs:
            return super().__call__(*args, **kwargs)
        unknown = sorted(set(kwargs) - set(AdamWMethod.__dataclass_fields__))
        if unknown:
            raise SteadytuneError(
                "AdamW without parameters is the method and takes correct_bias, betas and eps, not "
                f"{', '.join(unknown)}: learning rate and weight decay come with the parameter groups. For an "
                "optimiser, give the parameters first."
            )
        return AdamWMethod(**kwargs)


class AdamW(torch.optim.Optimizer, metaclass=_OptimizerOrMethod):
    """AdamW (the formula is at the top of this file) as a torch optimiser.

    Called without parameters, as in `methods=[AdamW(correct_bias=False)]`, it is the method `AdamWMethod` instead.

    Args:
        params: parameters, or groups of them; a group may carry any of the settings below.
        lr: α. A tensor of no dimension, float32 or float64, on the parameters' CUDA device is read there by the
            kernel; any other is read back to the host in every step.
        betas: (β1, β2).
        eps: ε.
        weight_decay: λ, decoupled, on every parameter of the group.
        correct_bias: True is torch.optim.AdamW; False is BERTAdam, which omits the bias correction.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        correct_bias: bool = True,
    ) -> None:
        check_at_least("lr", float(lr), 0.0, "AdamW")
        _check_betas(betas, "AdamW")
        check_at_least("eps", eps, 0.0, "AdamW")
        check_at_least("weight_decay", weight_decay, 0.0, "AdamW")
        defaults = {
            "lr": lr,
            "betas": tuple(betas),
            "eps": eps,
            "weight_decay": weight_decay,
            "correct_bias": correct_bias,
        }
        super().__init__(params, defaults)
        self._step = AdamWStep()

    @torch.no_grad()
    def __setstate__(self, state: dict[str, Any]) -> None:
        """Also runs at the end of `load_state_dict`, where the state may be that of a torch.optim.AdamW."""
        before: dict[Tensor, dict[str, Tensor]] = self.__dict__.get("state", {})
        rates = [group["lr"] for group in self.__dict__.get("param_groups", [])]
        super().__setstate__(state)
        self._step = self.__dict__.get("_step") or AdamWStep()  # a copy begins with none: no decays, no tables
        for group in self.param_groups:
            for other in ("amsgrad", "maximize"):
                if group.get(other):
                    raise SteadytuneError(
                        f"AdamW: the state is of an optimiser with {other}=True, which this one has not."
                    )
            group.setdefault("correct_bias", self.defaults["correct_bias"])
        for p, held in self.state.items():
            where = p.device if isinstance(p, Tensor) and is_fused(p) else "cpu"
            held["step"] = torch.as_tensor(held["step"], dtype=torch.float32, device=where)
        # What a CUDA graph may have captured stays where it is and takes the values that were loaded.
        for group, rate in zip(self.param_groups, rates):
            if isinstance(rate, Tensor):
                loaded = group["lr"]
                group["lr"] = rate.copy_(loaded) if isinstance(loaded, Tensor) else rate.fill_(loaded)
        for p, old in before.items():
            if old and is_fused(p):
                self.state[p] = {key: _overwritten(old[key], self.state[p].get(key)) for key in old}

    def state_dict(self) -> dict[str, Any]:
        """As torch.optim.AdamW has it; step counts that are on a device come to the host."""
        packed = super().state_dict()
        packed["state"] = {
            number: {key: value.cpu() if key == "step" else value for key, value in held.items()}
            for number, held in packed["state"].items()
        }
        return packed

    def lr_on_device_(self) -> None:
        """Make every group's learning rate a number on the device of its parameters, so that a step can be captured.

        From then on write it with `group["lr"].fill_(value)`, as torch's schedulers do.
        """
        for group in self.param_groups:
            if not isinstance(group["lr"], Tensor):
                where = group["params"][0].device
                group["lr"] = torch.full((), group["lr"], dtype=torch.float64, device=where)

    def capturable(self) -> bool:
        """Whether a CUDA graph can hold the step, once learning rates are on the device and a step was taken."""
        return not self._step.why_not_capturable([p for group in self.param_groups for p in group["params"]])

    def in_one_pass_(self) -> None:
        """On a CPU, step as torch's fused AdamW does from now on: a sixth of the time, other last bits."""
        self._step.one_pass = True

    def forget_captured_(self) -> None:
        """The CUDA graphs that hold a step are gone: gradients and tables that only they read need no memory."""
        self._step.forget_captured_()

    def merge_(self, decay: Decay) -> None:
        """From now on `decay` is a part of each step, before the group's own weight decay."""
        self._step.merge_(decay)

    def why_not_kept(self, params: list[Tensor]) -> str:
        """Why these parameters cannot have gradients of kept columns, as a sentence; empty where they can."""
        if self._optimizer_step_pre_hooks:
            return "AdamW: a hook before the step may look at gradients."
        return self._step.why_not_kept(self, params)

    def read_kept_(self, kept: Mapping[Tensor, KeptGradient]) -> None:
        """From now on these parameters' gradients are there, where `.grad` is None (kernels/kept_gradients.py)."""
        self._step.read_kept_(kept)

    @torch.no_grad()
    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        grad_factor: Tensor | None = None,
        zero_grads: bool = False,
    ) -> Any:
        """One step; `closure` evaluates the model again and returns the loss.

        Args:
            grad_factor: a tensor of no dimension that every gradient is multiplied by in this step, such as
                min(1, clip / norm); `.grad` keeps what it has, unless decay of the form l2 changes it anyway.
            zero_grads: leave zeros in every `.grad`, in the memory where it is.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._step.repeat_(self, grad_factor, zero_grads):
            return loss
        self._step.check_capture(self)
        for group in self.param_groups:
            for p in group["params"]:
                if self._step.has_gradient(p):
                    self._prepare_state_(p)
        self._step.run_(self, grad_factor, zero_grads)
        return loss

    def _prepare_state_(self, p: Tensor) -> None:
        """m, v and t of one parameter, under torch.optim's names: zeros at its first gradient."""
        if p.grad is not None and p.grad.layout != torch.strided:
            raise SteadytuneError(
                f"AdamW: a parameter of shape {tuple(p.shape)} has a sparse gradient. Build its embedding with "
                "sparse=False, or give it an optimiser of its own (torch.optim.SparseAdam)."
            )
        if p.is_complex():
            raise SteadytuneError(
                f"AdamW: a parameter of shape {tuple(p.shape)} is complex; only real ones are supported."
            )
        state = self.state[p]
        check_warm(bool(state))
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=p.device if is_fused(p) else "cpu")
            state["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(p, memory_format=torch.preserve_format)


@method("adamw", place="optimizer", paper=FEW_SAMPLE, items="V1 V2", null={"correct_bias": True})
class AdamWMethod(Method):
    """Train with AdamW; written `AdamW(correct_bias=...)`. Learning rate and weight decay come with the groups."""

    correct_bias: bool = True  # False is BERTAdam: early steps are up to 6.6 times too long
    betas: tuple[float, float] = (0.9, 0.999)  # decay rates of the two moments
    eps: float = 1e-8  # added to the denominator; BERT's own configurations use 1e-6

    def __post_init__(self) -> None:
        _check_betas(self.betas, "AdamW")
        object.__setattr__(self, "betas", tuple(self.betas))  # a list in a YAML file
        check_at_least("eps", self.eps, 0.0, "AdamW")
        if not isinstance(self.correct_bias, bool):
            raise SteadytuneError(f"AdamW: correct_bias must be true or false, not {self.correct_bias!r}.")

    def replaces(self) -> frozenset[str]:
        return frozenset({"optimizer"})

    def build_optimizer(self, groups: list[ParamGroup], lr: float) -> torch.optim.Optimizer:
        return AdamW(groups, lr=lr, betas=self.betas, eps=self.eps, correct_bias=self.correct_bias)


def _overwritten(old: Tensor, new: Tensor | None) -> Tensor:
    """`new` in the memory of `old`, where it fits; zeros for None."""
    if new is None:
        return old.zero_()
    fits = (old.shape, old.dtype, old.device) == (new.shape, new.dtype, new.device)
    return old.copy_(new) if fits else new


def _check_betas(betas: Any, owner: str) -> None:
    good = isinstance(betas, (tuple, list)) and len(betas) == 2
    if not good or not all(isinstance(b, (int, float)) and 0.0 <= b < 1.0 for b in betas):
        raise SteadytuneError(f"{owner}: betas are two numbers in [0, 1), such as (0.9, 0.999), not {betas!r}.")


def _check_steps(positive: bool, t: Any) -> None:
    if not positive:
        raise SteadytuneError(f"bias_ratio: steps count from 1, so t must be positive, not {t!r}.")
