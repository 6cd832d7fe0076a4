"""Which quantiles of the redrawn values are the limits of a bootstrap interval.

    percentile   level_1 = Phi(z), level_2 = Phi(-z),            z = Phi^-1(alpha / 2)
    BCa          level_k = Phi( z0 + (z0 + z_k) / (1 - a (z0 + z_k)) ),   z_1 = z = -z_2
                 z0 = Phi^-1( share of theta* < theta, ties half )
                 a  = 1/6 sum_j (sum_i U_ji^3 / n_j^3) / ( sum_j sum_i U_ji^2 / n_j^2 )^(3/2)
    expanded     z = t_{alpha/2, df} sqrt(V / V_n)   instead of the normal quantile

U_ji = (n_j - 1) (mean_i theta_(ji) - theta_(ji)), where theta_(ji) leaves out run i of stratum j (the jackknife). V_n
= sum_j v_j (n_j - 1) / n_j is the variance as the bootstrap sees it, V = sum_j v_j the unbiased one, v_j = sum_i
U_ji^2 / (n_j (n_j - 1)), and df = V^2 / sum_j v_j^2 / (n_j - 1) (Welch-Satterthwaite). One stratum: n - 1 and sqrt(n
/ (n - 1)).
(BCa: Efron & Tibshirani 1993, section 14.3 and eq. 15.36. Expanded: Hesterberg 2015, "What Teachers Should Know
About the Bootstrap", for one sample; the stratified form is ours, and reduces to Welch's for means.)
"""

import numpy as np

from steadytune.stats.scores import Array


def normal_quantile(tail: float) -> float:
    from scipy.special import ndtri

    return float(ndtri(tail))


def expanded_quantile(tail: float, influence: list[Array]) -> float:
    """t_{tail, df} sqrt(V / V_n), from the jackknife values U_j of each stratum."""
    from scipy.special import stdtrit

    sizes = np.array([u.size for u in influence], dtype=np.float64)
    v = np.array([float((u**2).sum()) for u in influence]) / (sizes * (sizes - 1.0))
    if len(influence) == 1 or v.sum() == 0:
        v = np.ones_like(sizes)  # a single stratum's v cancels; a flat jackknife has nothing to weigh the strata by
    df = v.sum() ** 2 / (v**2 / (sizes - 1.0)).sum()
    stretch = np.sqrt(v.sum() / (v * (sizes - 1.0) / sizes).sum())
    return float(stdtrit(df, tail) * stretch)


def percentile_levels(z: float) -> tuple[float, float]:
    from scipy.special import ndtr

    return float(ndtr(z)), float(ndtr(-z))


def bca_levels(z: float, redrawn: Array, estimate: float, influence: list[Array]) -> tuple[float, float] | None:
    """None where the estimate lies outside all redrawn values: its bias correction would be infinite."""
    from scipy.special import ndtr, ndtri

    below = float(((redrawn < estimate).mean() + (redrawn <= estimate).mean()) / 2.0)
    if not 0.0 < below < 1.0:
        return None
    z0 = float(ndtri(below))
    third = sum(float((u**3).sum()) / u.size**3 for u in influence)
    second = sum(float((u**2).sum()) / u.size**2 for u in influence)
    a = third / (6.0 * second**1.5) if second > 0 else 0.0  # a flat jackknife (a median among ties) shows no skewness

    def level(step: float) -> float:
        shrink = 1.0 - a * step
        # Past its pole the BCa map turns round; its limit there is the end of the distribution.
        return float(ndtr(z0 + step / shrink)) if shrink > 0 else float(step > 0)

    return level(z0 + z), level(z0 - z)
