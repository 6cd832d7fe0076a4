import time

import numpy as np
import pytest
from hypothesis import given, settings
from scipy import stats
from score_strategies import scale, scores, shift

from steadytune.errors import SteadytuneError
from steadytune.stats import bootstrap_difference, bootstrap_improvement, bootstrap_interval, effect_size
from steadytune.stats.interval_levels import bca_levels, expanded_quantile

rng = np.random.default_rng(50)
RUNS = rng.gamma(2.0, 1.0, 30)  # skewed, so that BCa and percentile differ
OTHER = rng.normal(1.5, 1.0, 22)
THIRD = rng.exponential(1.0, 9)
SCIPY_METHOD = {"bca": "BCa", "percentile": "percentile"}


def scipy_limits(data, statistic, method, paired=False):
    got = stats.bootstrap(
        data, statistic, method=SCIPY_METHOD[method], n_resamples=2000, paired=paired, rng=np.random.default_rng(7)
    )
    return got.confidence_interval.low, got.confidence_interval.high


@pytest.mark.parametrize("method", ["percentile", "bca"])
class TestAgainstScipy:
    @pytest.mark.parametrize(
        ("name", "statistic"),
        [
            ("mean", np.mean),
            ("median", np.median),
            ("IQM", lambda x, axis: stats.trim_mean(x, 0.25, axis=axis)),
            ("std", lambda x, axis: np.std(x, axis=axis, ddof=1)),
        ],
    )
    def test_one_set(self, method, name, statistic):
        got = bootstrap_interval(RUNS, name, method=method, expanded=False, draws=2000, noise=7)
        assert (got.low, got.high) == pytest.approx(scipy_limits((RUNS,), statistic, method), abs=1e-10)
        assert got.estimate == pytest.approx(statistic(RUNS, axis=0), abs=1e-10)

    def test_stratified_over_tasks(self, method):
        def averaged(x, y, z, axis):
            return (x.mean(axis) + y.mean(axis) + z.mean(axis)) / 3

        tasks = {"RTE": RUNS, "MRPC": OTHER, "CoLA": THIRD}
        got = bootstrap_interval(tasks, method=method, expanded=False, draws=2000, noise=7)
        assert (got.low, got.high) == pytest.approx(scipy_limits((RUNS, OTHER, THIRD), averaged, method), abs=1e-10)
        assert got.n == (30, 22, 9)

    def test_stratified_and_pooled(self, method):
        def pooled(x, y, axis):
            return stats.trim_mean(np.concatenate([x, y], axis=axis), 0.25, axis=axis)

        got = bootstrap_interval(
            {"RTE": RUNS, "MRPC": OTHER}, "IQM", pooled=True, method=method, expanded=False, draws=2000, noise=7
        )
        assert (got.low, got.high) == pytest.approx(scipy_limits((RUNS, OTHER), pooled, method), abs=1e-10)

    def test_unpaired_difference(self, method):
        def difference(x, y, axis):
            return np.median(x, axis) - np.median(y, axis)

        got = bootstrap_difference(
            RUNS, OTHER, "median", paired=False, method=method, expanded=False, draws=2000, noise=7
        )
        assert (got.low, got.high) == pytest.approx(scipy_limits((RUNS, OTHER), difference, method), abs=1e-10)

    def test_paired_difference(self, method):
        def difference(x, y, axis):
            return stats.trim_mean(x, 0.25, axis=axis) - stats.trim_mean(y, 0.25, axis=axis)

        first = RUNS[:22]
        got = bootstrap_difference(first, OTHER, "IQM", paired=True, method=method, expanded=False, draws=2000, noise=7)
        expected = scipy_limits((first, OTHER), difference, method, paired=True)
        assert (got.low, got.high) == pytest.approx(expected, abs=1e-10)

    def test_probability_of_improvement(self, method):
        def improvement(x, y, axis):
            return (x[..., :, None] > y[..., None, :]).mean(axis=(-1, -2))

        got = bootstrap_improvement(RUNS, THIRD, method=method, expanded=False, draws=2000, noise=7)
        assert (got.low, got.high) == pytest.approx(scipy_limits((RUNS, THIRD), improvement, method), abs=1e-10)
        assert got.estimate == pytest.approx(effect_size(RUNS, THIRD, paired=False).probability_of_improvement)


class TestCoverage:
    """95% intervals must cover the truth in 94-96% of simulated studies. Standard error here: 0.34 points."""

    STUDIES = 4000

    @pytest.mark.parametrize("method", ["percentile", "bca"])
    def test_the_mean_of_twenty_normal_runs(self, method):
        draw = np.random.default_rng(1)
        hits = 0
        for study in range(self.STUDIES):
            got = bootstrap_interval(draw.normal(0.7, 0.02, 20), method=method, draws=2000, noise=study)
            hits += got.low <= 0.7 <= got.high
        assert 0.94 <= hits / self.STUDIES <= 0.96

    @pytest.mark.parametrize("method", ["percentile", "bca"])
    def test_the_average_over_four_tasks_of_unequal_size_and_spread(self, method):
        draw = np.random.default_rng(2)
        hits, studies = 0, 2500
        for study in range(studies):
            tasks = {str(n): draw.normal(n, 1 + n / 10, n) for n in (6, 8, 10, 20)}
            got = bootstrap_interval(tasks, method=method, draws=1000, noise=study)
            hits += got.low <= 11.0 <= got.high
        assert 0.94 <= hits / studies <= 0.96

    @pytest.mark.parametrize("method", ["percentile", "bca"])
    def test_plain_limits_are_too_short_for_ten_runs_as_the_docstring_says(self, method):
        draw = np.random.default_rng(3)
        hits = {True: 0, False: 0}
        for study in range(1000):
            runs = draw.normal(size=10)
            for expanded in hits:
                got = bootstrap_interval(runs, method=method, expanded=expanded, draws=1000, noise=study)
                hits[expanded] += got.low <= 0 <= got.high
        assert hits[False] / 1000 < 0.92 < 0.93 < hits[True] / 1000


class TestExpanded:
    def test_one_set_uses_students_quantile_and_the_n_minus_one_variance(self):
        u = rng.normal(size=10)
        assert expanded_quantile(0.025, [u]) == pytest.approx(stats.t(9).ppf(0.025) * np.sqrt(10 / 9), abs=1e-10)

    def test_two_sets_use_welchs_degrees_of_freedom(self):
        a, b = rng.normal(0, 1, 8), rng.normal(0, 3, 15)
        va, vb = a.var(ddof=1) / 8, b.var(ddof=1) / 15
        welch = (va + vb) ** 2 / (va**2 / 7 + vb**2 / 14)
        stretch = np.sqrt((va + vb) / (va * 7 / 8 + vb * 14 / 15))
        got = expanded_quantile(0.05, [a - a.mean(), b - b.mean()])
        assert got == pytest.approx(stats.t(welch).ppf(0.05) * stretch, abs=1e-10)

    def test_the_mean_of_many_draws_is_close_to_the_t_interval(self):
        x = np.random.default_rng(4).normal(size=20)
        got = bootstrap_interval(x, method="percentile", draws=50_000)
        low, high = stats.t(19, x.mean(), x.std(ddof=1) / np.sqrt(20)).interval(0.95)
        assert (got.low, got.high) == pytest.approx((low, high), abs=0.05 * (high - low))

    def test_past_its_pole_bca_ends_at_the_extreme(self):
        # influence with strong positive skew: 1 - a (z0 - z) < 0 for a large -z
        u = np.array([8.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0])
        low, high = bca_levels(-60.0, np.array([-1.0, 1.0]), 0.0, [u])
        assert 0.0 < low < 0.5
        assert high == 1.0


@settings(max_examples=30)
@given(scores(8, 12), shift, scale)
def test_limits_move_and_stretch_with_the_scores(x, move, stretch):
    for method in ("percentile", "bca"):
        plain = bootstrap_interval(x, method=method, draws=200)
        moved = bootstrap_interval([stretch * value + move for value in x], method=method, draws=200)
        if plain.low is None:
            assert moved.low is None
            continue
        assert plain.low <= plain.high
        assert min(x) - 1e-9 <= plain.low
        assert plain.high <= max(x) + 1e-9
        if method == "percentile":  # BCa counts values below the estimate, which rounding after a shift may flip
            assert (moved.low, moved.high) == pytest.approx(
                (stretch * plain.low + move, stretch * plain.high + move), abs=1e-8
            )


def test_a_paired_interval_is_shorter_when_seeds_carry_over():
    seed_effect = rng.normal(0, 1, 20)
    a, b = seed_effect + 0.1 + rng.normal(0, 0.05, 20), seed_effect
    paired, unpaired = (bootstrap_difference(a, b, paired=p) for p in (True, False))
    assert paired.high - paired.low < 0.2 * (unpaired.high - unpaired.low)
    assert paired.low > 0 > unpaired.low


def test_tasks_are_matched_by_name_and_not_by_order():
    a, b = {"RTE": RUNS, "CoLA": THIRD}, {"CoLA": THIRD + 1.0, "RTE": RUNS + 1.0}
    assert bootstrap_difference(a, b, paired=True, method="percentile").estimate == pytest.approx(-1.0)
    with pytest.raises(SteadytuneError, match="only one of them has CoLA"):
        bootstrap_difference(a, {"RTE": RUNS}, paired=True)


def test_the_noise_stream_decides_the_draws():
    one, same, other = (bootstrap_interval(RUNS, noise=noise) for noise in (1, 1, 2))
    assert one == same
    assert one.low != other.low


def test_ten_thousand_draws_of_fifty_runs_take_milliseconds():
    x = rng.normal(size=50)
    bootstrap_interval(x)
    start = time.process_time()
    for _ in range(5):
        bootstrap_interval(x)
    assert (time.process_time() - start) / 5 < 0.1  # about 0.008 s; the slack is for a busy machine


def test_a_large_bootstrap_runs_in_batches_with_a_smooth_result():
    x = rng.normal(size=500)
    got = bootstrap_interval(x, draws=5000, expanded=False, method="percentile")
    assert got.high - got.low == pytest.approx(2 * 1.96 * x.std() / np.sqrt(500), rel=0.06)


@pytest.mark.parametrize("n", [1, 2])
def test_fewer_than_three_runs_have_no_interval(n):
    got = bootstrap_interval([0.5, 0.6][:n])
    assert (got.low, got.high) == (None, None)
    assert f"no interval, because n = {n} is fewer than 3 runs" in got.sentence()
    assert bootstrap_interval({"RTE": RUNS, "CoLA": [0.1, 0.2]}).low is None


def test_runs_without_spread_have_no_interval():
    got = bootstrap_interval([0.3, 0.1 + 0.2, 0.3, 0.3])
    assert got.low is None
    assert "no spread" in got.sentence()


def test_few_runs_come_with_a_warning_in_the_note():
    assert "covers less than it says" in bootstrap_interval([0.1, 0.2, 0.4]).sentence()
    assert "covers less" not in bootstrap_interval(RUNS).sentence()


def test_the_sentence_says_method_draws_and_n():
    got = bootstrap_interval({"RTE": RUNS, "CoLA": THIRD}, "IQM").sentence()
    assert got.startswith("IQM averaged over 2 tasks ")
    assert "95% interval [" in got
    assert "expanded BCa bootstrap, 10000 draws, n = 30, 9 runs" in got


def test_diverged_runs_need_the_floor_of_their_task():
    tasks = {"RTE": [0.7, 0.6, float("nan"), 0.65], "CoLA": [0.5, 0.4, 0.45, 0.3]}
    with pytest.raises(SteadytuneError, match="scores on RTE are not finite"):
        bootstrap_interval(tasks, floor={"CoLA": 0.0})
    got = bootstrap_interval(tasks, floor={"RTE": 0.53, "CoLA": 0.0})
    assert got.estimate == pytest.approx((np.mean([0.7, 0.6, 0.53, 0.65]) + np.mean(tasks["CoLA"])) / 2)
    assert "RTE: 1 diverged run counted at the floor 0.53" in got.note


def test_a_function_may_be_the_statistic():
    def span(values):
        return np.ptp(values, axis=-1)

    assert bootstrap_interval(RUNS, span, method="percentile").estimate == np.ptp(RUNS)
    assert bootstrap_interval(RUNS, span, method="percentile").statistic == "span"


@pytest.mark.parametrize(
    "wrong", [{"method": "basic"}, {"confidence": 95}, {"draws": 10}, {"statistic": "mode"}, {"floor": {"RTE": 0.5}}]
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(SteadytuneError):
        bootstrap_interval(RUNS, **wrong)


def test_one_mapping_and_one_list_are_refused():
    with pytest.raises(SteadytuneError, match="both as a mapping"):
        bootstrap_difference({"RTE": RUNS}, RUNS, paired=False)
    with pytest.raises(SteadytuneError, match="same seeds"):
        bootstrap_difference(RUNS, OTHER, paired=True)
