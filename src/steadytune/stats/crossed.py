"""Two methods on a grid of seeds, each initialisation with each order: is one better for others of these seeds, too?

    d_ij = a_ij - b_ij = mean + row_i + column_j + rest_ij,    all three random
    t = mean_d / sqrt(V),    V = (MS_rows + MS_columns - min(MS_rows, MS_columns, MS_rest)) / (I J)

The I J differences are not independent: a lucky order is in I of them. A paired t-test over all of them takes each for
news, and finds differences where there are none. Mean squares and df as in a two-way analysis of variance with random
effects (Satterthwaite 1946: df of a sum of mean squares; the quasi-F of Clark 1973). No component of variance counts
as negative, hence the min.
Relations: without effects of rows and columns V is that of the paired t-test over all pairs, on average. With one
column for all it would be the paired t-test over the rows. `split_variance` says how large the parts are.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np

from steadytune.errors import SteadytuneError
from steadytune.stats.hypothesis_tests import Tail, TestResult
from steadytune.stats.scores import FEWEST_RUNS, Array, Scores, all_equal


def crossed_t_test(
    a: Scores, b: Scores, *, rows: Sequence[Hashable], columns: Sequence[Hashable], tail: Tail
) -> TestResult:
    """`rows` and `columns` are the two seeds of each pair. Nothing is said of a grid with holes."""
    from scipy import stats

    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    table = _table(first, second, rows, columns)
    name = f"t-test over a grid of {table.shape[0]} x {table.shape[1]} seeds, both random"
    n = (first.size, second.size)
    reason = ""
    if min(table.shape) < FEWEST_RUNS:
        reason = f"a side of the grid has fewer than {FEWEST_RUNS} seeds"
    elif np.isnan(table).any():
        reason = f"{int(np.isnan(table).sum())} of its runs are missing"
    elif all_equal(table.ravel(), float(np.abs(np.concatenate([first, second])).max())):
        reason = "all paired differences are the same number"
    if reason:
        return TestResult(name, tail, True, n, math.nan, None, reason)
    mean = table.mean()
    by_row, by_column = table.mean(1, keepdims=True) - mean, table.mean(0, keepdims=True) - mean
    rest = table - mean - by_row - by_column
    found = []  # mean square, degrees of freedom
    for part, free in (
        (by_row, table.shape[0] - 1),
        (by_column, table.shape[1] - 1),
        (rest, (table.shape[0] - 1) * (table.shape[1] - 1)),
    ):
        found.append((float((np.broadcast_to(part, table.shape) ** 2).sum()) / free, free))
    squares = [square for square, _ in found]
    total = squares[0] + squares[1] - min(squares)
    used = found if min(squares) == squares[2] else [max(found[:2])]  # the smallest cancels where it is one of the two
    df = total**2 / sum(square**2 / free for square, free in used)
    t = float(mean / math.sqrt(total / table.size))
    above = float(stats.t.sf(t, df))
    p = {"greater": above, "less": 1 - above, "two-sided": 2 * min(above, 1 - above)}[tail]
    return TestResult(name, tail, True, n, t, p, "")


def _table(a: Array, b: Array, rows: Sequence[Hashable], columns: Sequence[Hashable]) -> Array:
    """Differences by row and column, NaN where there is no pair."""
    if not a.size == b.size == len(rows) == len(columns) == len(set(zip(rows, columns))):
        raise SteadytuneError(
            f"A test over a grid of seeds needs one run of each method for a pair of seeds, but there are {a.size} and "
            f"{b.size} runs for {len(set(zip(rows, columns)))} pairs of seeds."
        )
    at_row, at_column = ({seed: i for i, seed in enumerate(dict.fromkeys(side))} for side in (rows, columns))
    table = np.full((len(at_row), len(at_column)), np.nan)
    table[[at_row[row] for row in rows], [at_column[column] for column in columns]] = a - b
    return table
