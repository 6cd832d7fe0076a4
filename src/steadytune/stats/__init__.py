"""Statistics over runs: pure functions, numbers in, frozen dataclasses out. No I/O, no global state.

Scores are one number per run, higher is better. Nothing is called significant from fewer than 3 runs; diverged runs
are counted as failed, never dropped; randomness comes only from the `noise` argument. scipy is imported when a
function needs it.
"""

from steadytune.stats.best_of_n import BestOfN, expected_best, expected_selected, simulate_selected
from steadytune.stats.bootstrap import Interval, bootstrap_difference, bootstrap_improvement, bootstrap_interval
from steadytune.stats.crossed import crossed_t_test
from steadytune.stats.degenerate import DegenerateShare, compare_degenerate, degenerate_share, is_degenerate
from steadytune.stats.describe import Summary, describe, interquartile_mean
from steadytune.stats.effect_size import EffectSize, effect_size, probability_of_improvement
from steadytune.stats.hypothesis_tests import (
    Tail,
    TestResult,
    brown_forsythe_test,
    holm,
    holm_corrected,
    mann_whitney_test,
    permutation_test,
    student_t_test,
    welch_t_test,
)
from steadytune.stats.instability import (
    PredictionInstability,
    fleiss_kappa,
    pairwise_disagreement,
    pairwise_jensen_shannon,
    prediction_instability,
)
from steadytune.stats.marking import Mark, Marking, better_than_baseline, equivalent_to_best
from steadytune.stats.power import SeedPlan, detectable_difference, power_of_t_test, seeds_needed
from steadytune.stats.scores import pair_by_seed, settle_diverged
from steadytune.stats.stochastic_order import StochasticOrder, almost_stochastic_order, violation_ratio
from steadytune.stats.variance import Margin, VarianceSplit, split_variance

__all__ = [
    "BestOfN",
    "DegenerateShare",
    "EffectSize",
    "Interval",
    "Margin",
    "Mark",
    "Marking",
    "PredictionInstability",
    "SeedPlan",
    "StochasticOrder",
    "Summary",
    "Tail",
    "TestResult",
    "VarianceSplit",
    "almost_stochastic_order",
    "better_than_baseline",
    "bootstrap_difference",
    "bootstrap_improvement",
    "bootstrap_interval",
    "brown_forsythe_test",
    "compare_degenerate",
    "crossed_t_test",
    "degenerate_share",
    "describe",
    "detectable_difference",
    "effect_size",
    "equivalent_to_best",
    "expected_best",
    "expected_selected",
    "fleiss_kappa",
    "holm",
    "holm_corrected",
    "interquartile_mean",
    "is_degenerate",
    "mann_whitney_test",
    "pair_by_seed",
    "pairwise_disagreement",
    "pairwise_jensen_shannon",
    "permutation_test",
    "power_of_t_test",
    "prediction_instability",
    "probability_of_improvement",
    "seeds_needed",
    "settle_diverged",
    "simulate_selected",
    "split_variance",
    "student_t_test",
    "violation_ratio",
    "welch_t_test",
]
