"""AdamW, with a switch for the bias correction that BERT's optimiser left out.

    w_t <- w_{t-1} - α λ w_{t-1}                          decoupled weight decay
    m_t = β1 m_{t-1} + (1 - β1) g_t                       few-sample paper, algorithm 1, line 7
    v_t = β2 v_{t-1} + (1 - β2) g_t²                      line 8
    m̂_t = m_t / (1 - β1^t),  v̂_t = v_t / (1 - β2^t)      lines 9 and 10: the bias correction; BERTAdam omits them
    w_t <- w_t - α m̂_t / (√v̂_t + ε)                      line 11; BERTAdam uses m_t and v_t as they are

Without the correction a step is r(t) = (1 - β1^t) / √(1 - β2^t) times as long: 3.2 times at the first, 6.6 times at
the twelfth, still 2.2 times at step 230, where three epochs of RTE end: a main cause of failed runs, the paper finds.

Relations: `correct_bias=True` is torch.optim.AdamW, bit for bit its `foreach=True` form, and the states are
exchangeable.
Caveats: the first BERTAdam decayed the weights after the step; here decay comes first, as in torch. Its
configurations use eps = 1e-6 (V1). transformers' old AdamW added ε to √v_t before the correction, so with a visible ε
it was a third thing (D12). Step counts live on the host, so a step neither waits for a GPU nor can be captured in a
CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from steadytune.errors import SteadytuneError
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


@torch.no_grad()
def adamw_(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    steps: list[Tensor],
    *,
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    correct_bias: bool,
) -> None:
    """One step of the formula above for parameters w with gradients g, moments m and v, and step counts t, in place.

    `steps` are scalar tensors on the CPU, one per parameter, as in torch.optim.
    """
    for chosen in _by_device_and_dtype(params):
        # A faster kernel for one kind of device and dtype branches off here. Operations and their order are those of
        # torch.optim's foreach form: other orders round differently.
        ws, gs, ms, vs, ts = ([of[i] for i in chosen] for of in (params, grads, exp_avgs, exp_avg_sqs, steps))
        one = torch.tensor(1.0, device="cpu")  # wrapped once: a bare 1 would be wrapped for every parameter
        torch._foreach_add_(ts, one, alpha=1.0)
        if weight_decay != 0.0:
            torch._foreach_mul_(ws, 1 - lr * weight_decay)
        torch._foreach_lerp_(ms, gs, 1 - beta1)
        torch._foreach_mul_(vs, beta2)
        torch._foreach_addcmul_(vs, gs, gs, 1 - beta2)
        denominators = torch._foreach_sqrt(vs)
        if correct_bias:
            counts = [t.item() for t in ts]
            step_sizes = {t: -(lr / (1 - beta1**t)) for t in set(counts)}  # all parameters usually share one count
            roots = {t: (1 - beta2**t) ** 0.5 for t in set(counts)}
            torch._foreach_div_(denominators, [roots[t] for t in counts])
            torch._foreach_add_(denominators, eps)
            torch._foreach_addcdiv_(ws, ms, denominators, [step_sizes[t] for t in counts])
        else:
            torch._foreach_add_(denominators, eps)
            torch._foreach_addcdiv_(ws, ms, denominators, -lr)


def _by_device_and_dtype(params: list[Tensor]) -> list[list[int]]:
    """Positions of the parameters that one call can treat together."""
    kinds: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for i, p in enumerate(params):
        kinds.setdefault((p.device, p.dtype), []).append(i)
    return list(kinds.values())


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
        lr: α. A tensor is read back to the host in every step.
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

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Also runs at the end of `load_state_dict`, where the state may be that of a torch.optim.AdamW."""
        super().__setstate__(state)
        for group in self.param_groups:
            for other in ("amsgrad", "maximize"):
                if group.get(other):
                    raise SteadytuneError(
                        f"AdamW: the state is of an optimiser with {other}=True, which this one has not."
                    )
            group.setdefault("correct_bias", self.defaults["correct_bias"])
        for held in self.state.values():
            held["step"] = torch.as_tensor(held["step"], dtype=torch.float32, device="cpu")  # fused ones sit on the GPU

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; `closure` evaluates the model again and returns the loss."""
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise SteadytuneError(
                "AdamW: a captured step would repeat one learning rate and one step count for ever. Capture forward "
                "and backward only, or use torch.optim.AdamW(capturable=True)."
            )
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            states = [self._state_of(p) for p in params]
            beta1, beta2 = group["betas"]
            adamw_(
                params,
                [p.grad for p in params],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [state["step"] for state in states],
                lr=float(group["lr"]),
                beta1=beta1,
                beta2=beta2,
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                correct_bias=group["correct_bias"],
            )
        return loss

    def _state_of(self, p: Tensor) -> dict[str, Tensor]:
        """m, v and t of one parameter, under torch.optim's names; zeros at its first gradient."""
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
        if not state:
            state["step"] = torch.tensor(0.0, dtype=torch.float32, device="cpu")
            state["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(p, memory_format=torch.preserve_format)
        return state


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


def _check_betas(betas: Any, owner: str) -> None:
    good = isinstance(betas, (tuple, list)) and len(betas) == 2
    if not good or not all(isinstance(b, (int, float)) and 0.0 <= b < 1.0 for b in betas):
        raise SteadytuneError(f"{owner}: betas are two numbers in [0, 1), such as (0.9, 0.999), not {betas!r}.")


def _check_steps(positive: bool, t: Any) -> None:
    if not positive:
        raise SteadytuneError(f"bias_ratio: steps count from 1, so t must be positive, not {t!r}.")
