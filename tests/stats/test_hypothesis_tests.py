import itertools
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from score_strategies import scale, scores, shift
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import DescrStatsW
from statsmodels.stats.weightstats import ttest_ind as statsmodels_ttest

from steadytune.errors import SteadytuneError
from steadytune.stats import (
    TestResult,
    brown_forsythe_test,
    holm,
    holm_corrected,
    mann_whitney_test,
    permutation_test,
    student_t_test,
    welch_t_test,
)

TAILS = ["two-sided", "greater", "less"]
STATSMODELS_TAIL = {"two-sided": "two-sided", "greater": "larger", "less": "smaller"}
rng = np.random.default_rng(20)
A, B = rng.normal(72.6, 1.6, 20), rng.normal(71.5, 2.5, 17)

EVERY_TEST = {
    "student": lambda a, b, tail, **more: student_t_test(a, b, tail=tail, paired=False, **more),
    "student paired": lambda a, b, tail, **more: student_t_test(a, b, tail=tail, paired=True, **more),
    "welch": lambda a, b, tail, **more: welch_t_test(a, b, tail=tail, **more),
    "permutation": lambda a, b, tail, **more: permutation_test(a, b, tail=tail, paired=False, **more),
    "permutation paired": lambda a, b, tail, **more: permutation_test(a, b, tail=tail, paired=True, **more),
    "mann-whitney": lambda a, b, tail, **more: mann_whitney_test(a, b, tail=tail, **more),
    "brown-forsythe": lambda a, b, tail, **more: brown_forsythe_test(a, b, tail=tail, **more),
}
every_test = pytest.mark.parametrize("run", EVERY_TEST.values(), ids=EVERY_TEST.keys())


@pytest.mark.parametrize("tail", TAILS)
class TestAgainstOracles:
    def test_student(self, tail):
        got = student_t_test(A, B, tail=tail, paired=False)
        statistic, p, _ = statsmodels_ttest(A, B, alternative=STATSMODELS_TAIL[tail], usevar="pooled")
        assert (got.statistic, got.p) == pytest.approx((statistic, p), abs=1e-10)

    def test_student_paired(self, tail):
        got = student_t_test(A[:17], B, tail=tail, paired=True)
        statistic, p, _ = DescrStatsW(A[:17] - B).ttest_mean(0, STATSMODELS_TAIL[tail])
        assert (got.statistic, got.p) == pytest.approx((statistic, p), abs=1e-10)

    def test_welch(self, tail):
        got = welch_t_test(A, B, tail=tail)
        statistic, p, _ = statsmodels_ttest(A, B, alternative=STATSMODELS_TAIL[tail], usevar="unequal")
        assert (got.statistic, got.p) == pytest.approx((statistic, p), abs=1e-10)

    @pytest.mark.parametrize("size", [5, 17])
    def test_mann_whitney(self, tail, size):
        got = mann_whitney_test(A[:size], B[:size], tail=tail)
        expected = stats.mannwhitneyu(A[:size], B[:size], alternative=tail)
        assert (got.statistic, got.p) == pytest.approx((expected.statistic, expected.pvalue), abs=1e-10)
        assert ("exact" in got.note) == (size == 5)

    def test_permutation_by_enumeration(self, tail):
        a, b = np.array([0.71, 0.68, 0.74, 0.70]), np.array([0.66, 0.69, 0.67])
        together = np.concatenate([a, b])
        null = np.array(
            [
                together[list(c)].mean() - np.delete(together, list(c)).mean()
                for c in itertools.combinations(range(7), 4)
            ]
        )
        observed = a.mean() - b.mean()
        above, below = (null >= observed - 1e-12).mean(), (null <= observed + 1e-12).mean()
        expected = {"greater": above, "less": below, "two-sided": min(1, 2 * min(above, below))}[tail]
        got = permutation_test(a, b, tail=tail, paired=False)
        assert (got.statistic, got.p) == pytest.approx((observed, expected), abs=1e-10)
        assert "exact over 35 relabellings" in got.note

    def test_paired_permutation_by_enumeration(self, tail):
        a, b = np.array([0.71, 0.68, 0.74, 0.70, 0.66]), np.array([0.70, 0.69, 0.67, 0.65, 0.64])
        null = np.array([(np.array(s) * (a - b)).mean() for s in itertools.product([1, -1], repeat=5)])
        observed = (a - b).mean()
        above, below = (null >= observed - 1e-12).mean(), (null <= observed + 1e-12).mean()
        expected = {"greater": above, "less": below, "two-sided": min(1, 2 * min(above, below))}[tail]
        assert permutation_test(a, b, tail=tail, paired=True).p == pytest.approx(expected, abs=1e-10)


def test_brown_forsythe_against_levene():
    got = brown_forsythe_test(A, B, tail="two-sided")
    expected = stats.levene(A, B, center="median")
    assert (got.statistic**2, got.p) == pytest.approx((expected.statistic, expected.pvalue), abs=1e-10)


def test_brown_forsythe_direction():
    steady, loose = np.linspace(-1, 1, 12), np.linspace(-5, 5, 12)
    assert brown_forsythe_test(steady, loose, tail="less").p < 0.001
    assert brown_forsythe_test(steady, loose, tail="greater").p > 0.999
    # the mean does not matter
    assert brown_forsythe_test(steady + 100, loose, tail="less").p < 0.001


def test_random_permutations_approach_the_t_test_and_follow_their_stream():
    got = permutation_test(A, B, tail="greater", paired=False, noise=1)
    assert got.p == pytest.approx(student_t_test(A, B, tail="greater", paired=False).p, abs=0.02)
    assert "10000 random relabellings, noise stream 1" in got.note
    assert got == permutation_test(A, B, tail="greater", paired=False, noise=1)
    assert len({permutation_test(A, B, tail="greater", paired=False, noise=noise).p for noise in range(5)}) > 1


def test_a_permutation_test_says_when_it_cannot_reach_significance():
    got = permutation_test([3.0, 4.0, 5.0], [0.0, 1.0, 2.0], tail="two-sided", paired=False)
    assert got.p == pytest.approx(0.1)
    assert "no p below 0.1 is possible" in got.sentence()


def test_permutation_sees_a_difference_without_spread_where_t_tests_cannot():
    flat, other = [0.0] * 6, [0.2] * 6
    assert student_t_test(flat, other, tail="less", paired=False).p is None
    assert permutation_test(flat, other, tail="less", paired=False).p == pytest.approx(1 / 924)


@every_test
def test_greater_means_the_first_is_greater(run):
    low, high = np.array([1.0, 2.0, 3.0, 4.5, 5.1, 6.0]), np.array([11.0, 14.0, 18.0, 26.0, 39.0, 51.0])
    assert run(high, low, "greater").p < 0.06
    assert run(high, low, "less").p > 0.9
    assert run(low, high, "less").p == pytest.approx(run(high, low, "greater").p, abs=1e-10)


@every_test
@pytest.mark.parametrize("n", [1, 2])
def test_fewer_than_three_runs_are_refused(run, n):
    got = run([0.1, 0.9][:n], [0.5, 0.4][:n], "two-sided")
    assert got.p is None
    assert got.significant() is None
    assert f"no p-value, because n = {n} is fewer than 3 runs" in got.sentence()


@every_test
def test_equal_scores_everywhere_are_refused(run):
    got = run([0.3] * 5, [0.3] * 5, "two-sided")
    assert got.p is None
    assert got.note


@every_test
def test_rounding_is_not_spread(run):
    tiny = [0.3, 0.1 + 0.2, 0.3, 0.1 + 0.2]
    assert run([0.3] * 4, [0.3] * 4, "two-sided").p is None
    if run not in (EVERY_TEST["mann-whitney"], EVERY_TEST["permutation paired"]):  # those compare exactly
        assert run(tiny, [0.3] * 4, "two-sided").p is None


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["student", "welch", "mann-whitney", "permutation", "brown-forsythe"])
def test_all_runs_of_one_method_degenerate_is_an_ordinary_case_without_warnings(name):
    for level in (0.0, 0.525, 0.1 + 0.2):
        spread = [level + gain for gain in (0.17, 0.21, 0.25, 0.19, 0.28, 0.2)]
        assert EVERY_TEST[name]([level] * 6, spread, "less").p < 0.05


def test_permutations_of_gridded_scores_count_ties_as_ties():
    # found by hypothesis: sums of the same accuracies in another order differ in the last bit
    a, b = [0.0, 0.0, 0.0, 0.0, 0.0, 0.001], [0.0, 0.0, 0.0, 0.0, -0.001, 0.002]
    again = [0.001, 0.0, 0.0, 0.0, 0.0, 0.0]
    whole = permutation_test([1000 * x for x in a], [1000 * x for x in b], tail="two-sided", paired=False).p
    assert permutation_test(a, b, tail="two-sided", paired=False).p == whole
    assert permutation_test(again, b, tail="two-sided", paired=False).p == whole


@every_test
def test_diverged_runs_are_floored_or_refused(run):
    a, b = [0.7, 0.72, float("nan"), 0.69], [0.6, 0.61, 0.65, 0.64]
    with pytest.raises(SteadytuneError, match="first method are not finite"):
        run(a, b, "two-sided")
    got = run(a, b, "two-sided", floor=0.5)
    assert got.n == (4, 4)
    assert got.p == run([0.7, 0.72, 0.5, 0.69], b, "two-sided").p
    assert "1 diverged run counted at the floor 0.5" in got.sentence()


@every_test
def test_an_unknown_tail_is_refused(run):
    with pytest.raises(SteadytuneError, match="tail must be one of"):
        run([1.0, 2.0, 3.0], [1.0, 2.0, 4.0], "one-sided")


def test_unequal_pairs_are_refused():
    for test in (student_t_test, permutation_test):
        with pytest.raises(SteadytuneError, match="same seeds on both sides"):
            test([1.0, 2.0, 3.0], [1.0, 2.0], tail="less", paired=True)


@given(scores(), scores(), shift, scale)
def test_t_tests_ignore_shift_and_scale(a, b, move, stretch):
    for run in (EVERY_TEST["student"], EVERY_TEST["welch"]):
        plain = run(a, b, "greater")
        assume(plain.p is not None)
        moved = run([stretch * x + move for x in a], [stretch * x + move for x in b], "greater")
        assert moved.p == pytest.approx(plain.p, abs=1e-6)


@given(scores(), scores())
def test_mann_whitney_sees_only_ranks(a, b):
    plain = mann_whitney_test(a, b, tail="greater")
    bent = mann_whitney_test(np.exp(a), np.exp(b), tail="greater")
    assert (plain.p, plain.statistic) == (bent.p, bent.statistic)


@settings(max_examples=40)
@given(scores(3, 5), scores(3, 5), st.randoms(use_true_random=False))
def test_the_order_of_runs_does_not_matter_when_unpaired(a, b, random):
    shuffled = random.sample(a, len(a))
    for name in ("student", "welch", "permutation", "mann-whitney", "brown-forsythe"):
        plain, again = EVERY_TEST[name](a, b, "two-sided"), EVERY_TEST[name](shuffled, b, "two-sided")
        assert again.p == pytest.approx(plain.p, abs=1e-9)


def test_false_alarms_come_at_the_stated_rate():
    draw = np.random.default_rng(3)
    hits = dict.fromkeys(EVERY_TEST, 0)
    repeats = 500
    for _ in range(repeats):
        a, b = draw.normal(size=8), draw.normal(size=8)
        for name, run in EVERY_TEST.items():
            more = {"draws": 200} if name.startswith("permutation") else {}
            hits[name] += run(a, b, "two-sided", **more).significant(0.1)
    for name, count in hits.items():
        # 0.1 within 3.3 standard errors; Brown-Forsythe is known to be conservative at n = 8
        low = 0.03 if name == "brown-forsythe" else 0.06
        assert low < count / repeats < 0.14, name


class TestHolm:
    def test_against_statsmodels(self):
        p = [0.01, 0.04, 0.03, 0.005, 0.6, 0.04]
        assert holm(p) == pytest.approx(multipletests(p, method="holm")[1], abs=1e-10)

    @settings(max_examples=40)
    @given(st.lists(st.integers(0, 200).map(lambda p: p / 200), min_size=1, max_size=8))
    def test_any_against_statsmodels(self, p):
        assert holm(p) == pytest.approx(multipletests(p, method="holm")[1], abs=1e-10)

    def test_a_test_that_made_no_claim_does_not_count(self):
        assert holm([0.02, None, 0.5]) == (0.04, None, 0.5)
        assert holm([]) == ()

    def test_results_say_that_they_are_adjusted(self):
        results = [
            student_t_test(A, B, tail="greater", paired=False),
            student_t_test([1.0], B, tail="less", paired=False),
        ]
        adjusted = holm_corrected([results[0], results[0], results[1]])
        assert adjusted[0].p == pytest.approx(2 * results[0].p)
        assert adjusted[2] is results[1]
        assert "Holm-adjusted over 2 tests" in adjusted[0].sentence()


class TestResults:
    def test_the_sentence_states_test_tail_pairing_and_n(self):
        assert (
            student_t_test(A, B, tail="greater", paired=False)
            .sentence()
            .startswith("Student's t-test, unpaired, one-tailed (first greater), n = 20 and 17: statistic ")
        )
        paired = student_t_test(A[:17], B, tail="two-sided", paired=True).sentence()
        assert paired.startswith("Student's t-test, paired, two-tailed, n = 17 pairs: ")

    def test_a_p_value_from_two_runs_cannot_even_be_written_down(self):
        with pytest.raises(SteadytuneError, match="3 runs are the fewest"):
            TestResult("t", "less", False, (2, 50), 1.0, 0.001, "")

    def test_no_p_value_needs_a_reason(self):
        with pytest.raises(SteadytuneError, match="must say why"):
            TestResult("t", "less", False, (2, 50), 1.0, None, "")

    @pytest.mark.parametrize("p", [float("nan"), -0.1, 1.1])
    def test_a_p_value_is_a_probability(self, p):
        with pytest.raises(SteadytuneError, match="not a probability"):
            TestResult("t", "less", False, (5, 5), 1.0, p, "")

    def test_it_is_frozen(self):
        with pytest.raises(FrozenInstanceError):
            student_t_test(A, B, tail="less", paired=False).p = 0.0
