"""AdamW's step for lists of tensors: in plain torch, and as the kernel of adamw_triton.py where that runs.

    w <- w - α λ w,   m <- β1 m + (1 - β1) g,   v <- β2 v + (1 - β2) g²
    w <- w - α m̂ / (√v̂ + ε)                                  m̂, v̂ with or without bias correction: methods/adamw.py

`adamw_` is plain torch: the reference, and what runs on the CPU; there `one_pass` takes torch's own pass over the
weights for all of it, a sixth of the time and other last bits, for float32 tensors without gaps. `FusedStep` is the
kernel, with decay toward anchors in the same pass; it runs on CUDA devices that have Triton, for float32, bfloat16 and
float16 tensors without gaps.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from steadytune.errors import SteadytuneError
from steadytune.kernels.adamw_tables import Kind, Row, Settings, Slot, Tables

DEVICES = ("cuda",)  # where the kernel runs; tests add the CPU, where Triton's interpreter stands in for a device

_HAS_TRITON = find_spec("triton") is not None
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_RATES = (torch.float32, torch.float64)
_PLAIN = (Tensor, nn.Parameter)  # not a subclass, such as a DTensor, whose memory is not simply there


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
    one_pass: bool = False,
) -> None:
    """One step of the formula above for parameters w with gradients g, moments m and v, and step counts t, in place.

    `steps` are scalar tensors on the CPU, one per parameter, as in torch.optim.
    """
    whole, rest = _split_whole(params, grads, exp_avgs, exp_avg_sqs) if one_pass else ([], list(range(len(params))))
    one = torch.tensor(1.0, device="cpu")  # wrapped once: a bare 1 would be wrapped for every parameter
    torch._foreach_add_(steps, one, alpha=1.0)
    lists = (params, grads, exp_avgs, exp_avg_sqs, steps)
    if whole:
        ws, gs, ms, vs, ts = ([of[i] for i in whole] for of in lists)
        _one_pass_(ws, gs, ms, vs, ts, lr, Settings(beta1, beta2, eps, correct_bias, weight_decay, 0.0, 0.0))
    for chosen in _by_device_and_dtype(params, rest):
        # Operations and their order are those of torch.optim's foreach form: other orders round differently.
        ws, gs, ms, vs, ts = ([of[i] for i in chosen] for of in lists)
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


def _one_pass_(
    ws: list[Tensor],
    gs: list[Tensor],
    ms: list[Tensor],
    vs: list[Tensor],
    ts: list[Tensor],
    lr: float,
    settings: Settings,
) -> None:
    """The step as torch.optim's fused form takes it: with c1 = 1 - β1^t and c2 = 1 - β2^t

        w <- w - α λ w,    w <- w - (α / c1) m / (√v / √c2 + ε)

    Without bias correction that is the same with α r, λ / r and ε / √c2 for α, λ and ε, where r = c1 / √c2.
    """
    beta1, beta2, eps, correct_bias, weight_decay, *_ = settings
    counts = [t.item() for t in ts]
    for count in sorted(set(counts)):  # all parameters usually share one
        same = [i for i, other in enumerate(counts) if other == count]
        root = 1.0 if correct_bias else (1 - beta2**count) ** 0.5
        ratio = 1.0 if correct_bias else (1 - beta1**count) / root
        torch._fused_adamw_(
            [ws[i] for i in same],
            [gs[i] for i in same],
            [ms[i] for i in same],
            [vs[i] for i in same],
            [],
            [ts[i] for i in same],
            lr=lr * ratio,
            beta1=beta1,
            beta2=beta2,
            weight_decay=weight_decay / ratio,
            eps=eps / root,
            amsgrad=False,
            maximize=False,
        )


def _split_whole(params: list[Tensor], *others: list[Tensor]) -> tuple[list[int], list[int]]:
    """Positions of the parameters on a CPU that torch's fused step can take, and of the rest."""
    can = [
        all(each.device.type == "cpu" and each.dtype == torch.float32 and _is_whole(each) for each in tensors)
        for tensors in zip(params, *others)
    ]
    return [i for i, yes in enumerate(can) if yes], [i for i, yes in enumerate(can) if not yes]


def _is_whole(x: Tensor) -> bool:
    return type(x) in _PLAIN and x.layout == torch.strided and x.is_contiguous()


def _by_device_and_dtype(params: list[Tensor], chosen: list[int]) -> list[list[int]]:
    """Positions of the chosen parameters that one call can treat together."""
    kinds: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for i in chosen:
        kinds.setdefault((params[i].device, params[i].dtype), []).append(i)
    return list(kinds.values())


def is_fused(p: Tensor, *others: Tensor) -> bool:
    """Whether the kernel can do a step for the parameter `p`, given also its gradient, moments and anchor."""
    device, dtype = p.device, p.dtype
    if device.type not in DEVICES or dtype not in _DTYPES or not _HAS_TRITON or type(p) not in _PLAIN:
        return False
    return p.is_contiguous() and all(
        x.dtype == dtype and x.device == device and type(x) in _PLAIN and x.is_contiguous() for x in others
    )


def is_rate(lr: Any, device: torch.device) -> bool:
    """Whether the kernel can read this learning rate where it is."""
    return isinstance(lr, Tensor) and lr.dim() == 0 and lr.device == device and lr.dtype in _RATES


def is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def check_warm(warm: bool) -> None:
    """While a graph is captured nothing can be set up: it would be set up again in every replay."""
    if not warm and is_capturing():
        raise SteadytuneError(
            "AdamW: the step to be captured must have been taken before, with the same arguments and with gradients in "
            "the same memory. Take steps before the capture, and keep the gradients: step(zero_grads=True) or "
            "zero_grad(set_to_none=False)."
        )


class FusedStep:
    """Steps of one optimiser through the kernel: keeps the tables as long as nothing has moved.

    A CUDA graph that holds a step reads its tables in every replay. So they are kept, with the tensors that they point
    to, until they are forgotten: keep the optimiser as long as the graph.
    """

    def __init__(self) -> None:
        self._tables: dict[Kind, Tables] = {}
        self._warm: set[tuple[Any, ...]] = set()  # variants of the kernel that are compiled and loaded
        self._captured: list[tuple[Tables, list[Slot]]] = []
        self._rates: dict[torch.device, tuple[list[float], list[Tensor]]] = {}

    def forget_captured_(self) -> None:
        """The graphs that hold a step are gone."""
        self._captured.clear()

    def rates(self, device: torch.device, values: list[float]) -> list[Tensor]:
        """Learning rates that are numbers on the host, on the device: written there where they have changed."""
        written, rates = self._rates.get(device, ([], []))
        if len(rates) != len(values):
            rates = list(torch.zeros(len(values), dtype=torch.float64, device=device).unbind())
        if written != values:
            torch._foreach_zero_(rates)
            torch._foreach_add_(rates, values)  # by value, exactly, and without waiting for the device
            self._rates[device] = (list(values), rates)
        return rates

    def step_(self, slots: list[Slot], grad_factor: Tensor | None = None, zero_grads: bool = False) -> list[Tables]:
        """One step for every slot; see `adamw_triton_`. Returns the tables, for `launch_`."""
        kinds: dict[Kind, tuple[list[Row], list[Slot]]] = {}
        for slot in slots:
            row = slot.row()
            rows, chosen = kinds.setdefault(Kind.of(slot, row), ([], []))
            rows.append(row)
            chosen.append(slot)
        found = []
        for kind, (rows, chosen) in kinds.items():
            tables = self._tables.get(kind)
            moved = tables is None or tables.rows != rows
            check_warm(not moved and _variant(kind, grad_factor, zero_grads) in self._warm)
            if tables is None or moved:
                tables = self._tables[kind] = Tables.of(kind, rows, tables)
            if is_capturing():
                self._captured.append((tables, chosen))
            found.append(tables)
        self.launch_(found, grad_factor, zero_grads)
        return found

    def moved(self, tables: Tables, gradients: list[int]) -> Tables | None:
        """The tables with gradients at other addresses, in the order of the slots; None if that takes new ones."""
        made = tables.with_gradients(gradients)
        if made is not None:
            self._tables[tables.kind] = made
        return made

    def launch_(self, found: list[Tables], grad_factor: Tensor | None = None, zero_grads: bool = False) -> None:
        """A step whose tables are known to be right."""
        from steadytune.kernels.adamw_triton import adamw_triton_

        for tables in found:
            device, factor = tables.kind.device, grad_factor
            if factor is not None and (factor.device != device or not factor.is_floating_point()):
                factor = factor.to(device, torch.float32)
            if not is_capturing():
                tables.record_stream_()
            with torch.cuda.device(device if device.type == "cuda" else -1):  # where Triton launches
                adamw_triton_(tables, factor, zero_grads)
            self._warm.add(_variant(tables.kind, grad_factor, zero_grads))


def _variant(kind: Kind, factor: Tensor | None, zero_grads: bool) -> tuple[Any, ...]:
    """What Triton compiles a kernel of its own for."""
    return (kind, zero_grads, None if factor is None else (factor.dtype, factor.data_ptr() % 16 == 0))
