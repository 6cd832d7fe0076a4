"""The digits as cells of a table, with a number of every restart: what a record keeps, so that claims are checked."""

from __future__ import annotations

import numpy as np

from steadytune.papers.catalogue import Cell
from steadytune.papers.digits.claims import CHANCE
from steadytune.papers.digits.results import DigitsResult
from steadytune.papers.samples import Place, Sample

DISTANCE = "||w_ft - w_pre||²"
_MIXOUT, _DROPOUT = "mixout(w_pre, p)", "dropout(p)"


def cells(result: DigitsResult) -> dict[Cell, Sample]:
    """By row (form of mixout, or dropout), column and p. p = 0 is one run for all rows."""
    main = result.plan.mixouts()[0]
    rows = [(_MIXOUT, "mixout", main)]
    for layers, gradient in result.plan.mixouts()[1:]:
        what = f"layers: {layers}" if gradient == main[1] else f"gradient: {gradient}"
        rows.append((f"{_MIXOUT}, {what}", "mixout", (layers, gradient)))
    rows.append((_DROPOUT, "dropout", main))
    columns = {DISTANCE: "distance", f"{DISTANCE}, mixed layers": "distance_mixed"}
    columns |= {
        f"accuracy, {result.target}": "validation",
        f"accuracy on the old task, {result.source}": "source_validation",
    }
    return {
        Cell(row, column, f"p={p}"): _sample(row, column, result.values(method, p, what, form))
        for row, method, form in rows
        for column, what in columns.items()
        for p in sorted(result.plan.ps)
    }


def _sample(row: str, column: str, values: list[float]) -> Sample:
    """A restart that diverged has the accuracy of chance, and no distance."""
    found = np.array(values)
    diverged = ~np.isfinite(found)
    if column.startswith(DISTANCE):
        seeds = tuple(np.flatnonzero(~diverged).tolist())
        return Sample(Place(row, column), found[~diverged], seeds, diverged=int(diverged.sum()))
    settled = np.where(diverged, CHANCE, found)
    return Sample(Place(row, column), settled, tuple(range(len(found))), diverged=int(diverged.sum()))
