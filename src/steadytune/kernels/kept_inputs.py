"""Kept columns of X that are made again in the backward pass, by the layer that made X.

    G = dYᵀ X_k        what mixout needs of X in the backward pass: its kept columns (mixout_columns.py)

An activation that made X keeps what it made X of, since its own backward pass needs it (activation.py). That pass comes
after those of all that read X, and goes over the same numbers once more; so it can write X_k on its way, and nothing of
X has to be taken in the forward pass and kept until then:

    source = Source()                         # one for each forward pass of the layer that makes X
    handed = Handed(..., source)              # to those that read X (handed_on.py)
    source.want_(wanted)                      # in the backward pass of one that reads X: dY, and where G is to be
    wanted = source.claim_()                  # in the backward pass of the source, which makes each X_k, and then
    multiply_(wanted, kept)                   # G

Only for gradients that stay where they are written (kept_gradients.py): through autograd G would have to be there
before the source's pass. A backward pass that ends before the source's leaves G undone, which
`KeptGradients.finish_` refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from steadytune.kernels.kept_gradients import KeptGradient
from steadytune.kernels.products import weight_product_


class Wanted(NamedTuple):
    """A weight gradient that waits for its kept columns of X."""

    kept: KeptGradient
    rows: Tensor  # dY

    @property
    def slots(self) -> Tensor:
        """Which columns: those of the list, in its order; -1 for none (mixout_masks.py)."""
        return self.kept.columns.kept


class Source:
    """One forward pass of a layer that can make columns of X again in its backward pass."""

    def __init__(self) -> None:
        self._wanted: list[Wanted] = []

    def want_(self, wanted: Sequence[Wanted]) -> None:
        self._wanted += wanted
        for each in wanted:
            each.kept.is_awaited = True

    def claim_(self) -> list[Wanted]:
        """What is wanted; not to be claimed again."""
        wanted, self._wanted = self._wanted, []
        return wanted


def multiply_(wanted: Sequence[Wanted], kept: Sequence[Tensor]) -> None:
    """Every G from its X_k."""
    for each, columns in zip(wanted, kept, strict=True):
        weight_product_(each.kept, each.rows, columns)
        each.kept.is_awaited = False


def columns_of(rows: Tensor, slots: Tensor) -> Tensor:
    """X_k in plain torch: 0 where the list has -1, but 1 in its last slot, which gives the bias its gradient."""
    taken = rows.index_select(1, slots.clamp(min=0)).masked_fill_(slots < 0, 0.0)
    taken[:, -1:].masked_fill_(slots[-1:] < 0, 1.0)
    return taken
