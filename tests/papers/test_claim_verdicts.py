"""What is said of a claim, from samples that are made up: one case of each kind, and several together."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from steadytune.papers.case_tests import Outcome, judge_case
from steadytune.papers.catalogue import Cell, Claim
from steadytune.papers.claim_tests import _combined, judge
from steadytune.papers.samples import Place, Sample

RNG = np.random.default_rng(0)
NOISE = RNG.normal(0, 0.01, 20)


def sample(mean, *, n=20, spread=1.0, seeds=None, exact=False, noise=NOISE, **more):
    values = np.array([mean]) if exact else mean + spread * noise[:n]
    return Sample(
        Place(f"{mean} {spread} {n}", "task"), values, tuple(seeds or range(len(values))), exact=exact, **more
    )


def claim(kind, cells=2, scope="every", cases=1, **changes):
    made = tuple(tuple(Cell(f"row {i}", f"case {j}") for i in range(cells)) for j in range(cases))
    return Claim("a claim", kind, made, "nowhere", scope=scope, **changes)


def judged(made, samples, *, full=False, printed=lambda cell, statistic: None):
    """`samples`: those of one case, or a list of cases."""
    cases = samples if isinstance(samples[0], list) else [samples]

    def find(cell):
        return cases[int(cell.column.split()[1])][int(cell.row.split()[1])]

    return judge(made, find, printed, full=full)


# --- One case -----------------------------------------------------------------------------------------------------

OTHER, THIRD = RNG.normal(0, 0.01, (2, 20))
YES_AND_NO = {
    "greater": ([sample(0.8), sample(0.7, noise=OTHER)], [sample(0.7), sample(0.7, noise=OTHER)], {}),
    "less": ([sample(0.7), sample(0.8, noise=OTHER)], [sample(0.7), sample(0.7, noise=OTHER)], {}),
    "steadier": ([sample(0.7), sample(0.7, spread=5)], [sample(0.7, spread=5), sample(0.7)], {}),
    "fewer_degenerate": (
        [sample(0.7, level=0.5), sample(0.5, level=0.5, spread=-1.0)],
        [sample(0.5, level=0.5), sample(0.5, level=0.5)],
        {},
    ),
    "rising": ([sample(x, noise=OTHER * x) for x in (0.5, 0.6, 0.8)], [sample(x, spread=x) for x in (0.8, 0.5)], {}),
    "falling": ([sample(x, spread=x) for x in (0.8, 0.6, 0.5)], [sample(x, spread=x) for x in (0.5, 0.8)], {}),
    "best": (
        [sample(0.8), sample(0.7, noise=OTHER), sample(0.6, noise=THIRD)],
        [sample(0.6), sample(0.8, noise=OTHER), sample(0.7, noise=THIRD)],
        {},
    ),
    "peak": (
        [sample(0.6), sample(0.8, noise=OTHER), sample(0.7)],
        [sample(0.6), sample(0.7, noise=OTHER), sample(0.8)],
        {},
    ),
    "flatter": (
        [sample(x, spread=x) for x in (0.70, 0.71, 0.5, 0.9)],
        [sample(x, spread=x) for x in (0.5, 0.9, 0.70, 0.71)],
        {},
    ),
    "narrower": (
        [sample(x, spread=x) for x in (0.71, 0.70, 0.80, 0.70)],
        [sample(x, spread=x) for x in (0.80, 0.70, 0.71, 0.70)],
        {},
    ),
    "no_difference": (
        [sample(0.70), sample(0.70, noise=OTHER)],
        [sample(0.70), sample(0.80, noise=OTHER)],
        {"margin": 0.02},
    ),
    "no_better": (
        [sample(0.70), sample(0.70, noise=OTHER)],
        [sample(0.80), sample(0.70, noise=OTHER)],
        {"margin": 0.02},
    ),
    "ratio_at_most": ([sample(1.2), sample(1.0)], [sample(1.5), sample(1.0)], {"value": 1.3}),
    "value": ([sample(0.4)], [sample(0.6)], {"value": 0.4, "margin": 0.1}),
}


@pytest.mark.parametrize("kind", YES_AND_NO)
def test_each_kind_holds_and_does_not(kind):
    yes, no, more = YES_AND_NO[kind]
    assert judged(claim(kind, len(yes), **more), yes).holds is True
    found = judged(claim(kind, len(no), **more), no)
    assert found.holds is False or (kind == "fewer_degenerate" and found.holds is None)
    assert found.n == 20


@pytest.mark.parametrize("kind", YES_AND_NO)
def test_nothing_is_said_from_two_runs(kind):
    yes, _, more = YES_AND_NO[kind]
    few = [Sample(each.place, each.values[:2], each.seeds[:2], each.level) for each in yes]
    found = judged(claim(kind, len(few), **more), few)
    assert (found.holds, found.p_value) == (None, None)
    assert "fewer than 3" in found.how


@settings(max_examples=30)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=4, max_size=12, unique=True))
def test_greater_is_a_paired_t_test_where_seeds_are_shared(pairs):
    a, b = (np.array(each) for each in zip(*pairs))
    if np.ptp(a - b) < 1e-6:
        return
    ours = [Sample(Place("a", "t"), a, tuple(range(len(a)))), Sample(Place("b", "t"), b, tuple(range(len(b))))]
    found = judged(claim("greater"), ours)
    assert found.p_value == pytest.approx(scipy_stats.ttest_rel(a, b, alternative="greater").pvalue, abs=1e-12)
    apart = [ours[0], Sample(Place("b", "t"), b, tuple(range(100, 100 + len(b))))]
    assert "unpaired" in judged(claim("greater"), apart).how


def test_seeds_are_matched_whatever_their_order():
    a, b = sample(0.8), sample(0.7, noise=OTHER)
    shuffled = Sample(b.place, b.values[::-1], b.seeds[::-1])
    assert judged(claim("greater"), [a, b]).p_value == judged(claim("greater"), [a, shuffled]).p_value


def test_not_shown_to_be_alike_is_not_yet_different():
    wide = [sample(0.70, n=4, spread=8), sample(0.70, n=4, spread=8, noise=OTHER)]
    found = judged(claim("no_difference", margin=0.001), wide)
    assert found.holds is None
    assert "two-tailed" in found.how
    same = sample(0.7)
    assert judged(claim("no_difference", margin=0.001), [same, same]).holds is True


def test_much_worse_is_no_better_and_not_shown_is_not_yet_better():
    made = claim("no_better", margin=0.02)
    assert judged(made, [sample(0.5), sample(0.7, noise=OTHER)]).holds is True
    wide = [sample(0.70, n=4, spread=8), sample(0.70, n=4, spread=8, noise=OTHER)]
    assert judged(made, wide).holds is None
    better = judged(made, [sample(0.8), sample(0.7, noise=OTHER)])
    assert "the opposite is shown" in better.measured
    same = sample(0.7)
    assert judged(made, [same, same]).holds is True


def test_the_best_run_is_compared_by_relabelling():
    best = claim("greater", statistic="max")
    far = [sample(0.9), sample(0.5, noise=OTHER)]
    assert judged(best, far).p_value < 0.01
    near = [sample(0.7), sample(0.7, noise=OTHER)]
    assert judged(best, near).holds is False
    assert "relabellings" in judged(best, near).how


def test_a_single_number_is_compared_not_tested():
    joined = [sample(x, exact=True) for x in (34.0, 35.0, 36.0)]
    found = judged(claim("rising", 3, statistic="value"), joined)
    assert (found.holds, found.p_value, found.how) == (True, None, "compared, not tested")
    runs = judged(claim("greater", statistic="value"), [sample(37.0, spread=20), sample(36.0, exact=True)])
    assert runs.holds is True
    assert "one sample against one number" in runs.how
    assert runs.p_value == pytest.approx(
        scipy_stats.ttest_1samp(37.0 + 20 * NOISE, 36.0, alternative="greater").pvalue, rel=1e-9
    )


def test_reproducing_is_asked_of_the_full_scale_only():
    made = claim("reproduces", 1)
    printed = {"mean": 0.71, "std": 0.02}
    near = judged(made, [sample(0.70)], full=True, printed=lambda cell, name: printed.get(name))
    far = judged(made, [sample(0.60)], full=True, printed=lambda cell, name: printed.get(name))
    assert (near.holds, far.holds, judged(made, [sample(0.7)]).holds) == (True, False, None)
    share = claim("value", 1, statistic="share below 0.55", value=0.5, margin=0.1)
    half = Sample(Place("a", "t"), np.array([0.5, 0.6] * 10), tuple(range(20)))
    assert (judged(share, [half]).holds, judged(share, [half], full=True).holds) == (None, True)


# --- Several cases ------------------------------------------------------------------------------------------------

UP, FLAT, DOWN = (
    [sample(0.8), sample(0.7, noise=OTHER)],
    [sample(0.7), sample(0.7, noise=OTHER)],
    [sample(0.7), sample(0.8, noise=OTHER)],
)


def scoped(scope, *cases):
    unique = [
        [Sample(Place(f"{i} {j}", "t"), each.values, each.seeds) for j, each in enumerate(case)]
        for i, case in enumerate(cases)
    ]
    return judged(claim("greater", scope=scope, cases=len(cases)), unique)


def test_how_many_cases_must_hold():
    assert scoped("every", UP, UP).holds is True
    assert scoped("every", UP, FLAT).holds is False
    assert scoped("most", UP, UP, FLAT).holds is True
    assert scoped("most", UP, FLAT, FLAT).holds is False
    assert scoped("not every", UP, DOWN).holds is True
    assert scoped("not every", UP, UP).holds is False
    assert scoped("not every", UP, FLAT).holds is None, "not shown to hold is not shown to be otherwise"
    found = scoped("every", UP, DOWN)
    assert "1 of 2 cases lie as claimed, 1 are shown to; in 1 the opposite is shown" in found.measured


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=9))
def test_most_is_a_partial_conjunction(ps):
    made = claim("greater", scope="most")
    found = [Outcome(p < 0.05, p, None, 20, "", "") for p in ps]
    needed = len(ps) // 2 + 1
    expected = min(1.0, (len(ps) - needed + 1) * sorted(ps)[needed - 1])
    holds, p = _combined(made, found)
    assert (holds, p) == (expected < 0.05, pytest.approx(expected))
    assert _combined(claim("greater"), found) == (max(ps) < 0.05, max(ps))


def test_a_partial_conjunction_is_rarely_wrong():
    """If half of the cases are true nulls and the others as clear as can be, `most` is claimed in 5 % at most."""
    random = np.random.default_rng(1)
    ps = np.sort(random.random((4000, 4)), axis=1)
    wrong = 0
    for row in ps:
        found = [Outcome(p < 0.05, p, None, 20, "", "") for p in (*[1e-9] * 4, *row)]
        wrong += _combined(claim("greater", scope="most"), found)[0] is True
    assert wrong / len(ps) < 0.06


def test_what_is_not_run_is_left_out_and_said():
    found = judged(claim("greater", cases=2), [UP, [None, None]])
    assert found.holds is True
    assert "1 of 2 cases are not run here" in found.measured
    assert found.word == "holds as far as run"
    assert judged(claim("greater"), UP).word == "holds"
    nothing = judged(claim("greater"), [None, None])
    assert (nothing.holds, nothing.n) == (None, 0)


def test_nothing_is_said_while_runs_are_missing():
    part = Sample(UP[0].place, UP[0].values, UP[0].seeds, missing=2)
    found = judged(claim("greater"), [part, UP[1]])
    assert (found.holds, found.how) == (None, "some runs have not ended yet")


def test_cases_that_fall_together_count_once():
    found = judged(claim("greater", cases=3), [UP, UP, UP])
    assert "cases" not in found.how


def test_a_trend_is_read_from_the_points_that_were_run():
    """A small scale tries fewer values; a comparison of two cells, or fewer than three points, is left out."""
    rising = [sample(0.5), None, sample(0.6), None, sample(0.8, noise=OTHER)]
    found = judged(claim("rising", 5), rising)
    assert found.holds is True
    assert found.p_value == judged(claim("rising", 3), [rising[0], rising[2], rising[4]]).p_value
    assert "3 of 5 points are run here" in found.measured
    assert judged(claim("rising", 5), [rising[0], None, None, None, rising[4]]).holds is None
    best = [sample(0.8), None, sample(0.6, noise=OTHER), sample(0.5, noise=THIRD)]
    assert judged(claim("best", 4), best).holds is True
    assert judged(claim("best", 4), [None, *best[:1], *best[2:]]).holds is None  # the one that is meant is not there
    assert judged(claim("narrower", 4), [sample(0.7), None, sample(0.8), sample(0.7)]).holds is None


def gaps(before, after, random=None):
    """Samples of a case of `narrower` whose gaps are these."""
    noise = [each * 0.01 for each in (random or np.random.default_rng(3)).normal(size=(4, 20))]
    return [sample(mean, noise=each) for mean, each in zip((0.7 + after, 0.7, 0.7 + before, 0.7), noise)]


@pytest.mark.parametrize("sign", [1, -1])
def test_a_gap_that_changes_its_sign_is_not_narrower_for_it(sign):
    made = claim("narrower", 4)
    wider = judged(made, gaps(sign * 0.01, sign * -0.05))
    assert wider.holds is False
    assert "the opposite is shown" in wider.measured
    assert judged(made, gaps(sign * 0.05, sign * -0.01)).holds is True, "of another sign, but nearer to 0"
    assert judged(made, gaps(sign * 0.05, sign * 0.05)).holds is False
    assert judged(made, gaps(sign * 0.05, sign * -0.05)).holds is False


@pytest.mark.parametrize("gap", [0.0, 0.005, 0.02])
def test_equal_gaps_are_rarely_called_narrower(gap):
    random = np.random.default_rng(0)
    found = [judge_case(claim("narrower", 4), gaps(gap, gap, random)) for _ in range(1000)]
    assert sum(each.holds is True for each in found) / len(found) < 0.06
    assert sum(each.reversed for each in found) / len(found) < 0.06


@pytest.mark.parametrize("kind", ["best", "peak"])
def test_of_equal_cells_none_is_shown_to_be_the_best(kind):
    """Nothing that is chosen by looking, and no missing evidence, may count as evidence."""
    random = np.random.default_rng(0)
    shown = 0
    for _ in range(400):
        cells = [sample(0.5, noise=random.normal(size=len(NOISE)) * 0.01) for _ in range(5)]
        shown += judged(claim(kind, 5), cells).holds is True
    assert shown / 400 < 0.06


def test_another_that_is_better_is_shown():
    cells = [sample(0.6), sample(0.8, noise=OTHER), sample(0.5, noise=THIRD)]
    assert "the opposite is shown" in judged(claim("best", 3), cells).measured
    first = judge_case(claim("best", 3), cells)
    assert (first.holds, first.toward, first.reversed) == (False, False, True)


# --- The opposite -------------------------------------------------------------------------------------------------


def failing(count, name):
    values = np.where(np.arange(20) < count, 0.5, 0.7)
    return Sample(Place(name, "task"), values, tuple(range(20)), level=0.5)


@pytest.mark.parametrize("counts", [(11, 5), (2, 1), (9, 6), (9, 1), (5, 11)])
def test_counts_show_the_opposite_by_their_own_test(counts):
    """Fisher's test is discrete: 11 of 20 against 5 has p = 0.989 for fewer, and yet p = 0.053 for more."""
    found = judge_case(claim("fewer_degenerate"), [failing(count, str(count)) for count in counts])
    table = [[count, 20 - count] for count in counts]
    assert found.reversed == (scipy_stats.fisher_exact(table, alternative="greater")[1] < 0.05)


def best_of(n, validation, reported):
    place = Place(f"best of {n}", "task", best_of=n)
    return Sample(place, np.asarray(reported), tuple(range(len(reported))), validation=np.asarray(validation))


def test_a_p_that_counts_several_times_does_not_show_the_opposite():
    """The best of four cells is not shown to be above the last: that is not yet a last one above all others."""
    scores = 0.7 + NOISE
    level = [best_of(n, OTHER, scores) for n in (1, 5, 10, 20, 50)]
    found = judge_case(claim("peak", 5), level)
    assert found.p > 0.95  # four times that of one cell
    assert (found.holds, found.reversed) == (False, False)
    rising = [best_of(n, scores, scores) for n in (1, 5, 10, 20, 50)]
    assert judge_case(claim("peak", 5), rising).reversed


def test_where_nothing_differs_neither_side_is_shown():
    same = [best_of(n, np.full(20, 0.8), np.full(20, 0.8)) for n in (1, 5)]
    for kind in ("greater", "less", "rising", "peak"):
        found = judge_case(claim(kind), same)
        assert (found.holds, found.reversed) == (False, False), kind


@pytest.mark.parametrize("statistic", ["min", "max"])
def test_the_worst_of_five_is_compared_with_the_worst_of_the_same_five(statistic):
    """The worst of 20 is below the worst of 5 for no other reason than that there are more."""
    few, many = sample(0.7, n=5), sample(0.7)
    sign = 1 if statistic == "min" else -1
    many.values[10] = 0.7 - sign * 0.5  # a seed that the others have not run
    found = judge_case(claim("greater" if sign > 0 else "less", statistic=statistic), [few, many])
    assert (found.toward, found.n) == (False, 5)
    assert "within seeds" in found.how
