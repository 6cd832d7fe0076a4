"""Two methods on a grid of seeds: the test keeps its level where a paired t-test over all runs does not."""

import numpy as np
import pytest
from scipy import stats as scipy_stats

from steadytune.errors import SteadytuneError
from steadytune.stats import crossed_t_test, student_t_test

ROWS = [i for i in range(10) for _ in range(10)]
COLUMNS = [j for _ in range(10) for j in range(10)]
NOTHING = np.zeros(100)


def grid(random, row=0.0, column=0.0, rest=1.0, mean=0.0):
    effects = row * random.normal(size=(10, 1)) + column * random.normal(size=(1, 10))
    return (mean + effects + rest * random.normal(size=(10, 10))).ravel()


def test_it_is_the_two_way_analysis_of_variance():
    """Mean squares as statsmodels has them."""
    import pandas
    from statsmodels.formula.api import ols
    from statsmodels.stats.anova import anova_lm

    random = np.random.default_rng(0)
    differences = grid(random, row=0.5, column=1.0, mean=0.3)
    frame = pandas.DataFrame({"d": differences, "row": ROWS, "column": COLUMNS})
    table = anova_lm(ols("d ~ C(row) + C(column)", frame).fit())
    rows, columns, rest = (table["sum_sq"] / table["df"])[["C(row)", "C(column)", "Residual"]]
    variance = rows + columns - rest
    df = variance**2 / (rows**2 / 9 + columns**2 / 9 + rest**2 / 81)
    t = differences.mean() / np.sqrt(variance / 100)
    found = crossed_t_test(differences, NOTHING, rows=ROWS, columns=COLUMNS, tail="greater")
    assert found.statistic == pytest.approx(t, abs=1e-10)
    assert found.p == pytest.approx(scipy_stats.t.sf(t, df), abs=1e-10)
    less, both = (
        crossed_t_test(differences, NOTHING, rows=ROWS, columns=COLUMNS, tail=tail) for tail in ("less", "two-sided")
    )
    assert less.p == pytest.approx(1 - found.p)
    assert both.p == pytest.approx(2 * min(found.p, less.p))


@pytest.mark.parametrize(("row", "column"), [(0.0, 0.0), (0.5, 0.0), (0.5, 0.5), (0.0, 2.0), (2.0, 2.0)])
def test_equal_methods_differ_in_one_case_of_twenty(row, column):
    random = np.random.default_rng(1)
    draws = [grid(random, row, column) for _ in range(400)]
    crossed, paired = (
        np.mean([test(each) < 0.05 for each in draws])
        for test in (
            lambda d: crossed_t_test(d, NOTHING, rows=ROWS, columns=COLUMNS, tail="greater").p,
            lambda d: student_t_test(d, NOTHING, tail="greater", paired=True).p,
        )
    )
    assert crossed < 0.085  # 0.05 and three standard errors
    if row + column >= 1:
        assert paired > 0.15  # the reason for this test


def test_a_real_difference_is_found():
    random = np.random.default_rng(2)
    draws = [grid(random, 0.3, 0.3, mean=0.6) for _ in range(50)]
    found = [crossed_t_test(each, NOTHING, rows=ROWS, columns=COLUMNS, tail="greater").p < 0.05 for each in draws]
    assert np.mean(found) > 0.9


def test_the_order_of_the_runs_is_nothing():
    random = np.random.default_rng(3)
    a, b = grid(random, 1.0, 1.0), grid(random)
    mixed = random.permutation(100)
    one = crossed_t_test(a, b, rows=ROWS, columns=COLUMNS, tail="two-sided")
    two = crossed_t_test(
        a[mixed], b[mixed], rows=np.array(ROWS)[mixed], columns=np.array(COLUMNS)[mixed], tail="two-sided"
    )
    assert one.p == pytest.approx(two.p)
    assert "10 x 10" in one.setting()


def test_what_cannot_be_said():
    a = grid(np.random.default_rng(4))
    assert "1 of its runs" in crossed_t_test(a[1:], a[1:] * 0, rows=ROWS[1:], columns=COLUMNS[1:], tail="less").note
    assert "fewer than 3" in crossed_t_test(a[:20], a[:20] * 0, rows=ROWS[:20], columns=COLUMNS[:20], tail="less").note
    assert "the same number" in crossed_t_test(a + 1, a, rows=ROWS, columns=COLUMNS, tail="less").note
    with pytest.raises(SteadytuneError, match="one run of each method"):
        crossed_t_test(a, a, rows=[0] * 100, columns=COLUMNS, tail="less")
