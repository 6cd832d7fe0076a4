"""Claims about initialisations times orders (few-sample figures 9 and 10); how the cases of a claim are told apart."""

import numpy as np
import pytest

from steadytune.papers.case_tests import judge_case
from steadytune.papers.catalogue import Cell, Claim
from steadytune.papers.claim_tests import judge
from steadytune.papers.samples import Place, Sample
from steadytune.papers.tables import own_std
from steadytune.stats import crossed_t_test

RNG = np.random.default_rng(0)
GRID = [(i, j, j) for i in range(10) for j in range(10)]
GREATER = Claim("a claim", "greater", ((Cell("a", "every order"), Cell("b", "every order")),), "nowhere")


def on_grid(mean, order_effect, seeds=GRID):
    lucky = np.random.default_rng(1).normal(0, 0.03, 10)
    lucky -= lucky.mean()
    values = np.array([mean + order_effect * lucky[seed[1]] for seed in seeds]) + RNG.normal(0, 0.01, len(seeds))
    return Sample(Place(f"{mean} {order_effect}", "RTE"), values, tuple(seeds))


def test_runs_of_a_grid_are_not_independent():
    """A hundred pairs, but only ten orders: what ten lucky orders give is not shown by the hundred."""
    reinit, standard = on_grid(0.62, 2.0), on_grid(0.61, 0.0)
    found = judge_case(GREATER, [reinit, standard])
    rows, columns = zip(*(seed[:2] for seed in GRID))
    assert found.p == crossed_t_test(reinit.values, standard.values, rows=rows, columns=columns, tail="greater").p
    assert "10 x 10 seeds" in found.how
    assert found.holds is False
    assert judge_case(GREATER, [on_grid(0.70, 1.0), standard]).holds


def test_only_a_grid_is_tested_as_one():
    one_row = [(3, j, j) for j in range(10)]
    same_seed = [(i, i, i) for i in range(10)]
    for seeds in (one_row, same_seed):
        assert on_grid(0.7, 0.0, seeds).grid is None
        assert judge_case(GREATER, [on_grid(0.7, 0.0, seeds), on_grid(0.6, 0.0, seeds)]).how.startswith("Student")
    holes = judge_case(GREATER, [on_grid(0.7, 0.0, GRID[1:]), on_grid(0.6, 0.0, GRID[1:])])
    assert holes.holds is None
    assert "missing" in holes.how


def test_spreads_have_a_spread_of_their_own():
    spreads = Sample(Place("Standard", "RTE", fixed="init"), np.array([0.01, 0.02, 0.03]), (0, 1, 2))
    assert spreads.number("std") == pytest.approx(0.02)
    assert own_std(spreads) == pytest.approx(0.01)


def test_the_worst_run_may_be_shown_to_be_worse():
    values = RNG.normal(0.7, 0.001, 20)
    worst = Claim("a claim", "greater", ((Cell("a", "b"), Cell("c", "b")),), "nowhere", statistic="min")
    low, high, same = (Sample(Place("a", "b"), each, tuple(range(20))) for each in (values - 0.1, values, values[::-1]))
    assert judge_case(worst, [low, high]).reversed
    assert not judge_case(worst, [high, low]).reversed
    assert not judge_case(worst, [high, same]).reversed


@pytest.mark.parametrize(
    ("cases", "names"),
    [
        ([("a", "RTE", ""), ("a", "MRPC", "")], ["RTE", "MRPC"]),
        ([("a, L=1", "MRPC", ""), ("a, L=2", "MRPC", "")], ["a, L=1", "a, L=2"]),
        ([("a", "RTE", "p=0.1"), ("a", "RTE", "p=0.3")], ["p=0.1", "p=0.3"]),
        ([("a", "RTE", "dev"), ("b", "MRPC", "dev")], ["a, RTE", "b, MRPC"]),
    ],
)
def test_cases_are_called_by_what_tells_them_apart(cases, names):
    made = tuple((Cell(*first), Cell("Standard", first[1])) for first in cases)
    claim = Claim("a claim", "greater", made, "nowhere")

    def read(cell):
        return Sample(Place(*cell[:2], split=cell.setting), RNG.normal(0.7, 0.01, 5), tuple(range(5)))

    told = judge(claim, read, lambda *_: None, full=False).measured
    assert [part.rpartition(": ")[0] for part in told.split("; ") if ": " in part] == names


def test_the_second_cells_tell_cases_apart_where_the_first_are_the_same():
    made = tuple((Cell("mix", "RTE", "p=0.1"), Cell("drop", "RTE", f"p={p}")) for p in (0.0, 0.5))
    claim = Claim("a claim", "greater", made, "nowhere")

    def read(cell):
        return Sample(Place(cell.row, cell.column, split=cell.setting), RNG.normal(0.7, 0.01, 5), tuple(range(5)))

    assert "; p=0.5: " in judge(claim, read, lambda *_: None, full=False).measured
