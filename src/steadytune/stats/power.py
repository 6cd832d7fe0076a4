"""How many seeds does it take to see a difference?

    unpaired  df = 2n - 2,  nc = (delta / sigma) sqrt(n / 2)         sigma: std of the scores of either method
    paired    df = n - 1,   nc = (delta / sigma) sqrt(n)             sigma: std of the per-seed differences
    power     P( T'_{df, nc} > t_{1-alpha, df} )  one-tailed;  both tails at alpha/2 two-tailed,  T' noncentral t

n is the number of seeds of EACH method (Student's t-test, equal n). At least 3, since below that nothing is claimed.
Relations: the same numbers as statsmodels' TTestIndPower and TTestPower.
Caveat: sigma is itself a guess: from 5 pilot seeds its 95% interval runs from 0.6 to 2.9 times the estimate. Degenerate
runs make scores far from normal, and then more seeds are needed than this says.
"""

import math
from dataclasses import dataclass

from steadytune.errors import SteadytuneError
from steadytune.stats.hypothesis_tests import Tail
from steadytune.stats.scores import FEWEST_RUNS

MOST_SEEDS = 100_000  # a difference that needs more is, for this purpose, none


@dataclass(frozen=True)
class SeedPlan:
    """Seeds per method, and the power they really give (whole seeds overshoot the target a little)."""

    seeds: int
    power: float
    difference: float
    std: float
    alpha: float
    tail: str
    paired: bool

    def sentence(self) -> str:
        pairing = "paired" if self.paired else "unpaired"
        tails = "two-tailed" if self.tail == "two-sided" else "one-tailed"
        return (
            f"{self.seeds} seeds per method see a difference of {self.difference:.4g} (std {self.std:.4g}) with power "
            f"{self.power:.0%}: Student's t-test, {pairing}, {tails}, alpha {self.alpha:g}."
        )


def power_of_t_test(
    difference: float, std: float, seeds: int, *, tail: Tail, paired: bool, alpha: float = 0.05
) -> float:
    """Probability that Student's t-test on `seeds` runs per method finds a true `difference` (first minus second)."""
    from scipy import special

    _check(std, alpha, tail)
    if not math.isfinite(difference):
        raise SteadytuneError(f"The difference to look for must be a finite number, not {difference}.")
    if seeds < FEWEST_RUNS:
        raise SteadytuneError(f"{seeds} seeds support no claim, so they have no power; {FEWEST_RUNS} are the fewest.")
    df = seeds - 1 if paired else 2 * seeds - 2
    shift = difference / std * math.sqrt(seeds if paired else seeds / 2)
    if tail == "less":
        shift = -shift
    critical = float(special.stdtrit(df, 1.0 - (alpha / 2 if tail == "two-sided" else alpha)))
    power = _upper(critical, df, shift)
    if tail == "two-sided":
        power += _upper(critical, df, -shift)
    return min(1.0, power)


def seeds_needed(
    difference: float, std: float, *, tail: Tail, paired: bool, power: float = 0.8, alpha: float = 0.05
) -> SeedPlan:
    """The fewest seeds per method whose t-test finds `difference` with at least `power`."""
    _check(std, alpha, tail)
    if not alpha < power < 1.0:
        raise SteadytuneError(f"The power must lie between alpha = {alpha} and 1, not {power}.")
    wrong_way = (tail == "greater" and difference <= 0) or (tail == "less" and difference >= 0)
    if difference == 0 or wrong_way or not math.isfinite(difference):
        raise SteadytuneError(f"No number of seeds shows a difference of {difference} with tail '{tail}'.")

    def reached(seeds: int) -> float:
        return power_of_t_test(difference, std, seeds, tail=tail, paired=paired, alpha=alpha)

    low, high = FEWEST_RUNS - 1, FEWEST_RUNS  # power grows with n: double until enough, then halve the gap
    while reached(high) < power:
        low, high = high, 2 * high
        if high > MOST_SEEDS:
            raise SteadytuneError(
                f"A difference of {difference:.3g} with std {std:.3g} needs more than {MOST_SEEDS} seeds per method."
            )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) >= power else (middle, high)
    return SeedPlan(high, reached(high), difference, std, alpha, tail, paired)


def detectable_difference(
    std: float, seeds: int, *, tail: Tail, paired: bool, power: float = 0.8, alpha: float = 0.05
) -> float:
    """The smallest true difference (a size, positive) that `seeds` runs per method find with `power`."""
    from scipy import optimize

    _check(std, alpha, tail)
    if not alpha < power < 1.0:
        raise SteadytuneError(f"The power must lie between alpha = {alpha} and 1, not {power}.")
    one_sided: Tail = "two-sided" if tail == "two-sided" else "greater"

    def shortfall(effect: float) -> float:
        return power_of_t_test(effect, 1.0, seeds, tail=one_sided, paired=paired, alpha=alpha) - power

    upper = 1.0
    while shortfall(upper) < 0:
        upper *= 2.0
    return std * float(optimize.brentq(shortfall, 0.0, upper, xtol=1e-12))


def _upper(critical: float, df: int, shift: float) -> float:
    """P(T'_{df, shift} > critical)."""
    from scipy import special

    tail = float(1.0 - special.nctdtr(df, shift, critical))
    # Far out in either tail the series may underflow to NaN or leave [0, 1] in the last digit; the limit is 0 or 1.
    if math.isnan(tail):
        return float(shift > critical)
    return min(1.0, max(0.0, tail))


def _check(std: float, alpha: float, tail: str) -> None:
    if not std > 0 or not math.isfinite(std):
        raise SteadytuneError(f"The std must be a positive number, not {std}.")
    if not 0.0 < alpha < 1.0:
        raise SteadytuneError(f"alpha must lie between 0 and 1, not {alpha}.")
    if tail not in ("two-sided", "greater", "less"):
        raise SteadytuneError(f"The tail must be 'two-sided', 'greater' or 'less', not '{tail}'.")
