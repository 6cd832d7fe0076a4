"""rdrop_rows.py as one Triton kernel: a program per position reads both passes' logits twice and writes each gradient.

The first sweep keeps, for each pass, the running maximum m, Σ exp(z - m), Σ exp(z - m)(z_1 - z_2) and Σ z, so that both
KL terms are known when the second sweep writes gradients over the logits. The value of the divergence comes from the
second sweep, as Σ (P_1 - P_2) δ: the first sweep's sums cancel where the passes agree, which gradients do not feel.
Bytes: one read and one write per logit if the row stays in the cache between the sweeps, two reads if not.

Sums are kept per lane and added up once at the end; only the maximum is needed by all lanes in each block. A row of
logits may be longer than its classes (`STRIDE`), with zeros behind: so rows begin at multiples of 16 and are read 16
bytes at a time whatever the number of classes is.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from steadytune.kernels.rdrop_rows import Terms

LONGEST_BLOCK = 2048  # classes that a program holds at a time


@triton.jit
def _load(row, columns, offset, CLASSES: tl.constexpr, STRIDE: tl.constexpr, HAS_OFFSET: tl.constexpr):  # type: ignore[no-untyped-def]
    z = tl.load(row + columns, mask=columns < STRIDE, other=0.0).to(tl.float32)
    if HAS_OFFSET:
        z += tl.load(offset + columns, mask=columns < CLASSES, other=0.0).to(tl.float32)
    return tl.where(columns < CLASSES, z, float("-inf"))


@triton.jit
def _rows(  # type: ignore[no-untyped-def]
    z, picked, labels, labelled, compared, nu, kappa, offset, losses,
    rows, w_1, w_2, epsilon,
    CLASSES: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr,
    HAS_OFFSET: tl.constexpr, SMOOTHED: tl.constexpr, GRADIENT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    row_1, row_2 = z + row * STRIDE, z + (rows + row) * STRIDE
    has_label, is_compared = tl.load(labelled + row) != 0, tl.load(compared + row) != 0
    lanes = tl.arange(0, BLOCK)
    if has_label | is_compared:
        m_1, m_2 = -3.0e38, -3.0e38  # not -inf, whose difference from itself is NaN
        s_1, s_2 = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
        x_1, x_2 = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
        sum_1, sum_2 = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
        for start in range(0, CLASSES, BLOCK):
            columns = start + lanes
            z_1 = _load(row_1, columns, offset, CLASSES, STRIDE, HAS_OFFSET)
            z_2 = _load(row_2, columns, offset, CLASSES, STRIDE, HAS_OFFSET)
            gap = tl.where(z_1 == z_2, 0.0, z_1 - z_2)  # 0 also where both are -inf
            new_1, new_2 = tl.maximum(m_1, tl.max(z_1, 0)), tl.maximum(m_2, tl.max(z_2, 0))
            old_1, old_2 = tl.exp(m_1 - new_1), tl.exp(m_2 - new_2)
            e_1, e_2 = tl.exp(z_1 - new_1), tl.exp(z_2 - new_2)
            s_1, s_2 = s_1 * old_1 + e_1, s_2 * old_2 + e_2
            x_1, x_2 = x_1 * old_1 + e_1 * gap, x_2 * old_2 + e_2 * gap
            if SMOOTHED:
                sum_1 += tl.where(columns < CLASSES, z_1, 0.0)
                sum_2 += tl.where(columns < CLASSES, z_2, 0.0)
            m_1, m_2 = new_1, new_2
        total_1, total_2 = tl.sum(s_1, 0), tl.sum(s_2, 0)
        lse_1, lse_2 = m_1 + tl.log(total_1), m_2 + tl.log(total_2)
        shift = lse_1 - lse_2
        kl_12, kl_21 = tl.sum(x_1, 0) / total_1 - shift, shift - tl.sum(x_2, 0) / total_2

        label = tl.load(labels + row)
        y_1, y_2 = tl.load(picked + row).to(tl.float32), tl.load(picked + rows + row).to(tl.float32)
        if HAS_OFFSET:
            added = tl.load(offset + label).to(tl.float32)
            y_1, y_2 = y_1 + added, y_2 + added
        nll_1, nll_2 = lse_1 - y_1, lse_2 - y_2
        if SMOOTHED:
            nll_1 += epsilon * (y_1 - tl.sum(sum_1, 0) / CLASSES)
            nll_2 += epsilon * (y_2 - tl.sum(sum_2, 0) / CLASSES)
        weight = tl.where(has_label, tl.load(nu), 0.0)
        own_1, own_2, half = weight * w_1, weight * w_2, tl.where(is_compared, tl.load(kappa), 0.0) * 0.5
        spread_1, spread_2 = own_1 * epsilon / CLASSES, own_2 * epsilon / CLASSES

        divergence = tl.zeros([BLOCK], tl.float32)
        for start in range(0, CLASSES, BLOCK):
            columns = start + lanes
            z_1 = _load(row_1, columns, offset, CLASSES, STRIDE, HAS_OFFSET)
            z_2 = _load(row_2, columns, offset, CLASSES, STRIDE, HAS_OFFSET)
            p_1, p_2 = tl.exp(z_1 - lse_1), tl.exp(z_2 - lse_2)
            delta = tl.where(z_1 == z_2, 0.0, z_1 - z_2) - shift
            divergence += (p_1 - p_2) * delta
            if GRADIENT:
                g_1 = p_1 * (own_1 + half * (1.0 + delta - kl_12)) - half * p_2 - spread_1
                g_2 = p_2 * (own_2 + half * (1.0 - delta - kl_21)) - half * p_1 - spread_2
                g_1 -= tl.where(columns == label, own_1 * (1.0 - epsilon), 0.0)
                g_2 -= tl.where(columns == label, own_2 * (1.0 - epsilon), 0.0)
                g_1, g_2 = tl.where(columns < CLASSES, g_1, 0.0), tl.where(columns < CLASSES, g_2, 0.0)
                tl.store(row_1 + columns, g_1.to(z.dtype.element_ty), mask=columns < STRIDE)
                tl.store(row_2 + columns, g_2.to(z.dtype.element_ty), mask=columns < STRIDE)
        fitted = tl.where(has_label, own_1 * nll_1 + own_2 * nll_2, 0.0)
        tl.store(losses + row, fitted + tl.where(is_compared, half * tl.sum(divergence, 0), 0.0))
    else:
        tl.store(losses + row, 0.0)
        if GRADIENT:
            nothing = tl.zeros([BLOCK], z.dtype.element_ty)
            for start in range(0, CLASSES, BLOCK):
                columns = start + lanes
                tl.store(row_1 + columns, nothing, mask=columns < STRIDE)
                tl.store(row_2 + columns, nothing, mask=columns < STRIDE)


def row_losses_triton_(z: Tensor, terms: Terms, offset: Tensor | None = None, gradient: bool = True) -> Tensor:
    """`rdrop_rows.row_losses_` for float32, bfloat16 and float16 logits, whose rows lie one after the other."""
    _, rows, classes = z.shape
    losses = torch.empty(rows, dtype=torch.float32, device=z.device)
    if not rows:
        return losses
    labels = terms.labels.contiguous()
    picked = z.gather(-1, labels.expand(2, -1).unsqueeze(-1))  # also what notices a label that is no class
    block = min(LONGEST_BLOCK, max(16, triton.next_power_of_2(classes)))
    with torch.cuda.device_of(z):
        _rows[(rows,)](
            z,
            picked,
            labels,
            terms.labelled.contiguous(),
            terms.compared.contiguous(),
            terms.nu,
            terms.kappa,
            picked if offset is None else offset.contiguous(),  # an address is needed, and never read
            losses,
            rows,
            *terms.passes,
            terms.smoothing,
            CLASSES=classes,
            STRIDE=z.stride(1),
            BLOCK=block,
            HAS_OFFSET=offset is not None,
            SMOOTHED=terms.smoothing > 0.0,
            GRADIENT=gradient,
            num_warps=8 if block >= 2048 else 4 if block >= 512 else 1,
        )
    return losses
