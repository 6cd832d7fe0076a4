"""R-Drop's loss of each position and its gradient with respect to both passes' logits, in one go.

For logits z_1, z_2 of one position, P_i = softmax(z_i) over V classes, δ = log P_1 - log P_2, label y, smoothing ε:

    ℓ      = ν [ w_1 NLL_1 + w_2 NLL_2 ] + κ · ½ [ KL_12 + KL_21 ]
    NLL_i  = -(1 - ε) log P_i(y) - ε/V Σ_v log P_i(v)
    KL_12  = KL(P_1 ‖ P_2) = Σ_v P_1 δ,       KL_21 = KL(P_2 ‖ P_1) = -Σ_v P_2 δ

    ∂ℓ/∂z_1 = ν w_1 [ P_1 - (1 - ε) e_y - ε/V ] + κ/2 [ P_1 (δ - KL_12) + P_1 - P_2 ]
    ∂ℓ/∂z_2 = ν w_2 [ P_2 - (1 - ε) e_y - ε/V ] + κ/2 [ P_2 (-δ - KL_21) + P_2 - P_1 ]

ν and κ are the weights of the terms, such as 1/(number of labels) and α/(number of positions); w_i says which passes'
NLL counts. The divergence itself is taken as ½ Σ (P_1 - P_2) δ, no term of which is negative. Softmax and sums are
in float32 (float64 for float64 logits) whatever type the logits have. Here in plain torch; rdrop_triton.py has the same
as one kernel, which is what runs on a CUDA device.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

_HAS_TRITON = find_spec("triton") is not None


class Terms(NamedTuple):
    """What the formula above needs besides logits, for all positions [N] of a batch."""

    labels: Tensor  # int64; any class where `labelled` is false
    labelled: Tensor  # bool: NLL counts here
    compared: Tensor  # bool: the divergence counts here
    nu: Tensor  # ν, a number on the device
    kappa: Tensor  # κ, a number on the device
    passes: tuple[float, float]  # w_1, w_2
    smoothing: float  # ε

    def part(self, start: int, stop: int) -> Terms:
        """The same for the positions start:stop."""
        return self._replace(
            labels=self.labels[start:stop],
            labelled=self.labelled[start:stop],
            compared=self.compared[start:stop],
        )


def row_losses_(z: Tensor, terms: Terms, offset: Tensor | None = None, gradient: bool = True) -> Tensor:
    """ℓ of each position, [N], from the logits z of both passes, [2, N, V], which its gradient then overwrites.

    `offset`, [V], is added to the logits first, in full precision. Without `gradient`, z is left as it is.
    """
    # torch.compile may lay z out anew, and the kernel goes by the stride that it was traced with.
    if is_one_kernel(z.device.type, z.dtype) and not torch.compiler.is_compiling():
        from steadytune.kernels.rdrop_triton import row_losses_triton_

        return row_losses_triton_(z, terms, offset, gradient)
    return row_losses_torch_(z, terms, offset, gradient)


def row_losses_torch_(z: Tensor, terms: Terms, offset: Tensor | None = None, gradient: bool = True) -> Tensor:
    """`row_losses_` in plain torch: the reference, and what runs on the CPU."""
    classes, epsilon = z.shape[-1], terms.smoothing
    precise = torch.promote_types(z.dtype, torch.float32)
    log_p = functional.log_softmax(z if offset is None else z.to(precise) + offset, -1, dtype=precise)
    p = log_p.exp()
    other = p.flip(0)  # the same of the other pass, here and in `delta`, which is δ, -δ
    # A class that both passes forbid (-inf) has no difference. A NaN that came in is in every p of its row anyway.
    delta = (log_p - log_p.flip(0)).nan_to_num_(nan=0.0, posinf=torch.inf, neginf=-torch.inf)

    own = torch.stack([terms.labelled * (terms.nu * weight) for weight in terms.passes])  # ν w_i, [2, N]
    half = terms.compared * (0.5 * terms.kappa)  # κ/2, [N]
    picked = terms.labels.expand(2, -1).unsqueeze(-1)
    nll = log_p.gather(-1, picked).squeeze(-1) * (epsilon - 1.0)
    if epsilon:
        nll -= log_p.sum(-1) * (epsilon / classes)
    losses = (own * nll).sum(0) + half * ((p[0] - other[0]) * delta[0]).sum(-1)
    if gradient:
        kl = (p * delta).sum(-1)  # KL_12, KL_21
        wide = half.unsqueeze(-1)
        grad = torch.addcmul((own + half - half * kl).unsqueeze(-1), delta, wide).mul_(p)
        grad.addcmul_(other, wide, value=-1.0)
        if epsilon:
            grad -= own.unsqueeze(-1) * (epsilon / classes)
        z.copy_(grad.scatter_add_(-1, picked, own.unsqueeze(-1) * (epsilon - 1.0)))
    return losses.where(terms.labelled | terms.compared, 0.0)


def is_one_kernel(device: str, dtype: torch.dtype) -> bool:
    """Whether `row_losses_` is the Triton kernel there: nothing but the logits is then in memory."""
    return device == "cuda" and dtype != torch.float64 and _HAS_TRITON
