"""R-Drop's loss with its gradient worked out by hand: from hidden states in chunks, or from the logits of few classes.

    L = c · (NLL_1, NLL_2) + α · 2f · ½ [ KL(P_1 ‖ P_2) + KL(P_2 ‖ P_1) ]         f = ½ and c = (1, 1) are the paper's

`chunked_rdrop_loss` is for large vocabularies. With hidden states h_i, [N, d], and an output matrix W, [V, d], the
logits z_i = h_i Wᵀ + b of both passes are 2NV numbers, of which the direct form holds about ten copies. Here they exist
for a chunk of positions at a time: the forward pass makes a chunk's logits, turns them into ∂L/∂z_i (rdrop_rows.py has
the formula), and multiplies those at once into

    ∂L/∂h_i = ∂L/∂z_i W,    ∂L/∂W = Σ_i (∂L/∂z_i)ᵀ h_i,    ∂L/∂b = Σ_i Σ_n ∂L/∂z_i

so there are as many matrix products as in the direct form, and the backward pass only scales by what comes from above.
Products are in the logits' type (autocast's, where it is on), everything else in float32; ∂L/∂W is added up in float32.

How many chunks there are depends on shapes alone and nothing waits for the device, so a CUDA graph can hold it all.
Caveats: second derivatives are refused. Gradients exist once the loss does, so a loss whose gradient is not wanted
should be computed under torch.no_grad(). With no label at all the loss is NaN, as torch's is, and its gradient 0.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional

from steadytune.errors import SteadytuneError
from steadytune.kernels.rdrop_autograd import FromHidden, FromLogits
from steadytune.kernels.rdrop_rows import Terms, is_one_kernel, row_losses_torch_

NLL = {"sum": (1.0, 1.0), "mean": (0.5, 0.5), "half-first": (0.5, 0.0)}  # how much each pass's NLL counts
KL = ("mean", "sum", "batchmean", "elements")

# Logits that a chunk holds, both passes together: many enough that reading and writing ∂L/∂W once per chunk is little
# beside the products, few enough to be little in memory. Plain torch holds about six copies of them in float32.
CHUNK = {"triton": 2**27, "cuda": 2**24, "cpu": 2**21}

_FP16_GAIN = 64.0  # what the largest weight becomes in float16, whose smallest number is 6e-8 and largest 65504


def chunked_rdrop_loss(
    hidden_1: Tensor,
    hidden_2: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    *,
    alpha: float | Tensor = 1.0,
    label_smoothing: float = 0.0,
    nll: str = "sum",
    kl: str = "mean",
    factor: float = 0.5,
    mask: Tensor | None = None,
    offset: Tensor | None = None,
    dtype: torch.dtype | None = None,
    ignore_index: int = -100,
    chunk: int | None = None,
) -> Tensor:
    """`rdrop_loss` of the logits hidden_i @ weight.T + bias + offset, without ever holding them.

    hidden_i are [..., d], labels [...]; positions whose label is `ignore_index` count in neither term. `mask`, of the
    labels' shape and true where a position COUNTS, says instead which positions the divergence takes. `nll`, `kl` and
    `factor` are those of a row of methods.rdrop.VARIANTS. `offset`, [V], is a constant added to the product (BART's
    final_logits_bias). `dtype` is what the product is computed in: autocast's, or the tensors' own. `chunk` is how many
    positions are done at a time. The result is float32, or float64 for float64.
    """
    if hidden_1.shape != hidden_2.shape or hidden_1.shape[:-1] != labels.shape:
        raise SteadytuneError(
            f"chunked_rdrop_loss: hidden states of shapes {list(hidden_1.shape)} and {list(hidden_2.shape)} do not "
            f"belong to labels of shape {list(labels.shape)}: one row for each label is needed, of both passes."
        )
    if chunk is not None and chunk < 1:
        raise SteadytuneError(f"chunked_rdrop_loss: chunk must be a number of positions of at least 1, not {chunk}.")
    device, classes, labels = hidden_1.device.type, len(weight), labels.to(hidden_1.device)
    if dtype is None:
        autocast = torch.is_autocast_enabled(device) and hidden_1.dtype != torch.float64
        dtype = torch.get_autocast_dtype(device) if autocast else hidden_1.dtype
    positions = labels.numel()
    terms, count, unit = _terms(labels, mask, alpha, label_smoothing, nll, kl, factor, ignore_index, classes, dtype)
    chunk = chunk or _chunk(positions, classes, device, dtype)
    flat = (each.reshape(positions, each.shape[-1]) for each in (hidden_1, hidden_2))
    if offset is not None:
        offset = offset.detach().reshape(classes)
    with torch.autocast(device, enabled=False):  # types are chosen here; and its cache must not see no_grad's casts
        if _is_traced_for_a_gpu(device):
            loss = _direct(flat, weight, bias, terms, offset, unit, dtype)
        else:
            loss = FromHidden.apply(*flat, weight, bias, terms, offset, unit, dtype, chunk)
    return torch.where(count > 0, loss, torch.nan)


def _is_traced_for_a_gpu(device: str) -> bool:
    """Inductor's code for the chunks, which overwrite logits with gradients, had zeros for gradients (torch 2.11)."""
    return device == "cuda" and torch.compiler.is_compiling()


def _direct(
    hidden: Iterable[Tensor],
    weight: Tensor,
    bias: Tensor | None,
    terms: Terms,
    offset: Tensor | None,
    unit: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """The same loss from whole logits, by autograd: what a compiler can make its own of."""
    vector = None if bias is None else bias.to(dtype)
    z = torch.stack([functional.linear(each.to(dtype), weight.to(dtype), vector) for each in hidden])
    loss = row_losses_torch_(z, terms, offset, gradient=False).sum()
    return loss if unit is None else loss * unit


def fused_rdrop_loss(
    logits_1: Tensor,
    logits_2: Tensor,
    labels: Tensor,
    *,
    alpha: float | Tensor = 1.0,
    label_smoothing: float = 0.0,
    nll: str = "sum",
    kl: str = "mean",
    factor: float = 0.5,
    mask: Tensor | None = None,
    ignore_index: int = -100,
) -> Tensor:
    """`rdrop_loss` of logits [..., C] and labels [...], value and gradient in one pass; for few classes.

    Options as in `chunked_rdrop_loss`. On a CUDA device with Triton, the pass is one kernel.
    """
    if logits_1.shape != logits_2.shape or logits_1.shape[:-1] != labels.shape:
        raise SteadytuneError(
            f"fused_rdrop_loss: logits of shapes {list(logits_1.shape)} and {list(logits_2.shape)} do not belong to "
            f"labels of shape {list(labels.shape)}: one row for each label is needed, of both passes."
        )
    classes, labels = logits_1.shape[-1], labels.to(logits_1.device)
    precise = torch.promote_types(logits_1.dtype, torch.float32)
    terms, count, _ = _terms(labels, mask, alpha, label_smoothing, nll, kl, factor, ignore_index, classes, precise)
    loss = FromLogits.apply(logits_1, logits_2, terms, precise)
    return torch.where(count > 0, loss, torch.nan)


def _terms(
    labels: Tensor,
    mask: Tensor | None,
    alpha: float | Tensor,
    smoothing: float,
    nll: str,
    kl: str,
    factor: float,
    ignore_index: int,
    classes: int,
    dtype: torch.dtype,
) -> tuple[Terms, Tensor, Tensor | None]:
    """The weights of the formula, how many labels there are, and the unit that gradients are kept in (None: 1).

    A gradient with respect to logits has a factor 1/(number of labels), too small for float16 before a gradient scaler
    has multiplied it, and it is made before. There, weights are relative to the largest one, and the unit is made up
    for at the end, in float32.
    """
    if nll not in NLL or kl not in KL:
        raise SteadytuneError(f"R-Drop: nll is one of {', '.join(NLL)} and kl of {', '.join(KL)}, not {nll!r}, {kl!r}.")
    precise = torch.promote_types(dtype, torch.float32)
    batch, flat = labels.shape[0], labels.reshape(-1)
    labelled = flat != ignore_index
    count = labelled.sum()
    nu = count.clamp(min=1).to(precise).reciprocal()
    compared = labelled if mask is None else mask.reshape(-1).to(flat.device, torch.bool)
    strength = (alpha.detach() if isinstance(alpha, Tensor) else alpha) * (2.0 * factor)
    if kl in ("sum", "batchmean"):
        kappa = nu.new_ones(()) * (strength / (max(1, batch) if kl == "batchmean" else 1))
    else:
        share = nu if mask is None else compared.sum().clamp(min=1).to(precise).reciprocal()
        kappa = share * (strength / (classes if kl == "elements" else 1))
    unit = None
    if dtype == torch.float16:
        unit = torch.maximum(nu, kappa) / _FP16_GAIN
        nu, kappa = nu / unit, kappa / unit
    safe = flat.where(labelled, 0).long()
    return Terms(safe, labelled, compared, nu, kappa.to(precise), NLL[nll], float(smoothing)), count, unit


def _chunk(positions: int, classes: int, device: str, dtype: torch.dtype) -> int:
    """Positions per chunk, so that all chunks are about equally long."""
    logits = CHUNK["triton"] if is_one_kernel(device, dtype) else CHUNK.get(device, CHUNK["cuda"])
    most = max(1, logits // (2 * max(1, classes)))
    chunks = max(1, -(-positions // most))
    return max(1, -(-positions // chunks))
