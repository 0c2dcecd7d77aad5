r"""Confidence intervals and tests for differences seen with a few seeds on a finite test set.

Two losses are trained with the same seeds and evaluated on the same test samples. The difference of seed s is

.. math:: d_s = \Delta + a_s + b + e_s

where :math:`a_s` is the effect of training with this seed, :math:`b` that of the test samples on every seed, and
:math:`e_s` that of the test samples on this seed alone. The mean over S seeds has the variance

.. math:: \operatorname{Var}(\bar d) = \underbrace{\frac{\operatorname{Var}(a) + \operatorname{Var}(e)}{S}}_A +
    \underbrace{\operatorname{Var}(b)}_B

B is the covariance of :math:`d_s` and :math:`d_t` of different seeds under a paired bootstrap of the test samples;
adding the variance within a seed would count :math:`e_s` twice. These are the components of Obuchowski and Rockette
(1995), who compare diagnostic tests by a few readers.

**The seed variance** :math:`V = \operatorname{Var}(a) + \operatorname{Var}(e)` is estimated by the sample variance
:math:`s^2` of the :math:`d_s` on :math:`\nu = S - 1` degrees of freedom. If few seeds happen to agree it is far too
small: the coverage is right on average, but with two seeds the narrowest tenth of the intervals covers only half of the
differences. So the interval is the widest of those from three estimates of V:

1. :math:`s^2`, with the quantile of Student's t on :math:`\nu` degrees of freedom. With two seeds it is at least the
   sum of the variances of both losses: one agreement is no evidence that pairing by seed removes their noise.
2. :math:`\operatorname{Var}(e)`, the bootstrap variance within a seed minus B, with the normal quantile; it is a
   lower bound of V.
3. The moderated variance (Smyth 2004)
   :math:`\tilde s^2 = (\nu_0 s_0^2 + \nu s^2) / (\nu_0 + \nu)` on :math:`\nu_0 + \nu` degrees of freedom, with
   :math:`\nu_0 = 4`. The prior variance :math:`s_0^2` comes from the other losses in the same metric: their median
   :math:`s^2`, divided by the expected median of that many equal variances. The median prevents one unstable loss from
   widening the intervals of all others. Without other losses it is the sum of the variances of both losses,
   which pairing by seed can only reduce. :math:`\nu_0` is fixed, because a comparison has too few losses to fit it, and
   corresponds to the scatter of the variances in the recorded comparisons.

None of them narrows an interval, so an unstable loss keeps its wide interval.

A quantile for A + B lies between that of t and that of the normal distribution. Satterthwaite's degrees of
freedom are far too many if A happens to be small. The interval uses the quantiles weighted by A and B (Cochran 1964).
The p-value inverts the sum of the squared margins (Howe 1974), which is more conservative and accurate in the far tail
that the adjustment for several losses (Holm 1979) needs. Therefore significance implies an interval without 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import gammaincinv, ndtri, stdtrit

__all__ = ["ALPHA", "MOST_SEEDS", "RULE", "Difference", "Need", "holm", "moderated", "paired_difference"]

RULE = "moderated t, 2026-11"
"""Name of the rule above, recorded with every verdict; verdicts without a name used estimate 1 only."""
ALPHA = 0.05
"""Significance level, over all losses of a comparison."""
LEAST_P = 1e-12
"""Smallest p-value that is reported."""
POWER = 0.8
"""Power of the test for the number of seeds needed."""
MOST_SEEDS = 1000
"""Largest number of seeds that is considered."""
PRIOR_DF = 4.0
"""Degrees of freedom of the prior variance."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Need:
    """Seeds needed to detect a difference.

    Args:
        seeds: number of seeds, None if even ``MOST_SEEDS`` seeds are not enough.
        limit: the bottleneck: the number of ``"seeds"``, or the ``"samples"`` of the test set, in which case more seeds
            do not help.
    """

    seeds: int | None
    limit: Literal["seeds", "samples"]


@dataclass(frozen=True)
class Difference:
    """A mean difference over seeds, and its uncertainty.

    Args:
        mean: over all seeds.
        seeds: S.
        seed_variance: sample variance of the differences over the seeds; NaN with one seed.
        sample_variance: variance of the mean due to the test samples, for any number of seeds.
        sample_error: standard error of the sample variance.
        least_seed_variance: lower bound of the seed variance, due to the test samples.
        unpaired_variance: sum of the variances of both losses over the seeds.
        prior_variance: seed variance of the other losses, or the unpaired variance; None with one seed.
    """

    mean: float
    seeds: int
    seed_variance: float
    sample_variance: float
    sample_error: float = 0.0
    least_seed_variance: float = 0.0
    unpaired_variance: float = 0.0
    prior_variance: float | None = None

    @property
    def seed_variances(self) -> list[tuple[float, float]]:
        """The estimates of the seed variance at the top of the module, each with its degrees of freedom."""
        freedom = self.seeds - 1.0
        sample_estimate = max(self.seed_variance, self.unpaired_variance if self.seeds == 2 else 0.0)
        estimates = [(sample_estimate, freedom), (self.least_seed_variance, math.inf)]
        if self.prior_variance is not None:
            total = PRIOR_DF + freedom
            estimates.append(((PRIOR_DF * self.prior_variance + freedom * self.seed_variance) / total, total))
        return estimates

    @property
    def interval(self) -> tuple[float, float] | None:
        """Lower and upper limit of the 95 % confidence interval; None with one seed."""
        if self.seeds < 2:
            return None
        b, z = self.sample_variance, float(_quantile(ALPHA, math.inf))
        margins = [0.0]
        for variance, freedom in self.seed_variances:
            a = variance / self.seeds
            if a + b:
                margins.append((a * float(_quantile(ALPHA, freedom)) + b * z) / math.sqrt(a + b))
        return self.mean - max(margins), self.mean + max(margins)

    @property
    def p(self) -> float | None:
        """p-value: probability of a mean this far from 0 under the null hypothesis; None with one seed."""
        if self.seeds < 2:
            return None
        if self.mean == 0.0:
            return 1.0
        estimates = self.seed_variances

        def beyond(log_p: float) -> float:
            level = math.exp(log_p)
            margins = [_margin(v, self.sample_variance, self.seeds, level, freedom) for v, freedom in estimates]
            return float(max(margins)) - abs(self.mean)

        least = math.log(LEAST_P)
        return LEAST_P if beyond(least) <= 0.0 else math.exp(brentq(beyond, least, 0.0, xtol=1e-9))

    def need(self, tests: int = 1) -> Need | None:
        """Number of seeds to detect a true difference of this size with 80 % power; None with one seed.

        One standard error is added to the sample variance: if its estimate is near 0 by chance, more seeds would seem
        to detect differences smaller than one test sample.

        Args:
            tests: number of comparisons that the significance level is divided by.
        """
        if self.seeds < 2:
            return None
        level, reserve = ALPHA / tests, float(ndtri(POWER))
        shared = self.sample_variance + self.sample_error
        if abs(self.mean) <= (float(_quantile(level, math.inf)) + reserve) * math.sqrt(shared):
            return Need(None, "samples")
        variance = max(
            self.least_seed_variance, self.seed_variances[-1][0] if self.prior_variance else self.seed_variance
        )
        seeds = np.arange(self.seeds + 1, MOST_SEEDS + 1)
        error = np.sqrt(variance / seeds + shared)
        enough = (
            abs(self.mean) > _margin(variance, shared, seeds, level, (seeds - 1).astype(np.float64)) + reserve * error
        )
        return Need(int(seeds[enough.argmax()]) if enough.any() else None, "seeds")


def paired_difference(
    values: Sequence[float] | Floats,
    resampled: Floats | None,
    *,
    samples: int,
    least: float = 0.0,
    unpaired: float = 0.0,
) -> Difference:
    """Estimate the mean difference and its variances.

    Args:
        values: (S,) difference of each seed on all test samples.
        resampled: (S, B) the differences on B bootstrap draws of the test samples, the same for every seed; draws
            with NaN are excluded. None for metrics that do not depend on samples, such as times.
        samples: number of test samples drawn.
        least: lower bound of the variance of the mean. If two losses disagree on fewer than two samples, seeds and
            resampling underestimate the variance.
        unpaired: sum of the variances of both losses over the seeds.
    """
    values = np.asarray(values, np.float64)
    seeds = len(values)
    mean = float(values.mean())
    if seeds < 2:
        return Difference(mean, seeds, math.nan, math.nan)
    shared = error = within_seed = 0.0
    if resampled is not None:
        drawn = resampled[:, np.isfinite(resampled).all(0)]
        if drawn.shape[1] > 1:
            covariance = (
                np.cov(drawn) * samples / max(samples - 1, 1)
            )  # from the samples, not from where they came from
            variance, pairs = float(covariance.trace()) / seeds, seeds * (seeds - 1)
            shared = (float(covariance.sum()) - seeds * variance) / pairs
            b, e = max(shared, 0.0), max(variance - shared, 0.0)  # for normal variables, in the notation of the module
            within_seed = max(variance - b, 0.0)
            error = math.sqrt((2 * b * b + 4 * b * e / seeds + 2 * e * e / pairs) / samples)
    between = float(values.var(ddof=1))
    return Difference(mean, seeds, between, max(shared, least - between / seeds, 0.0), error, within_seed, unpaired)


def moderated(differences: Sequence[Difference]) -> list[Difference]:
    """The differences of all losses in one metric, each with the prior seed variance from the others."""
    with_prior = []
    for place, one in enumerate(differences):
        others = sorted(
            (other.seed_variance, other.seeds - 1)
            for number, other in enumerate(differences)
            if number != place and other.seeds > 1
        )
        prior = _equal_variance(others) if others else one.unpaired_variance
        with_prior.append(replace(one, prior_variance=prior if one.seeds > 1 else None))
    return with_prior


def _equal_variance(variances: Sequence[tuple[float, int]]) -> float:
    """Estimate of a common variance from the lower median of the observed ones (ascending)."""
    count, rank = len(variances), (len(variances) + 1) // 2
    seen, freedom = variances[rank - 1]
    expected = 2.0 * float(gammaincinv(freedom / 2.0, (rank - 0.3) / (count + 0.4))) / freedom  # expected median
    return seen / expected


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm-adjusted p-values, which control the family-wise error rate (Holm 1979).

    The smallest of m is multiplied by m, the next by m - 1, and so on; adjusted values are monotone. Valid under any
    dependence of the tests.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03, 0.5])]
    [0.04, 0.09, 0.09, 0.5]
    """
    p = np.asarray(p_values, np.float64)
    order = p.argsort(kind="stable")
    corrected = np.empty_like(p)
    corrected[order] = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)).clip(max=1.0)
    return [float(value) for value in corrected]


def _quantile(level: float, freedom: Floats | float) -> Floats:
    """Two-sided quantile: number of standard errors that are exceeded with probability ``level``."""
    quantile: Floats = -ndtri(level / 2) if freedom is math.inf else -stdtrit(freedom, level / 2)
    return quantile


def _margin(
    seed_variance: float,
    sample_variance: float,
    seeds: NDArray[np.int64] | int,
    level: float,
    freedom: Floats | float,
) -> Floats:
    """Minimum absolute mean that is significant at this level (Howe 1974)."""
    t, z = _quantile(level, freedom), _quantile(level, math.inf)
    margin: Floats = np.sqrt(t * t * seed_variance / seeds + z * z * sample_variance)
    return margin
