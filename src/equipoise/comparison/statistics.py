r"""What can be said of a difference that was seen with a few seeds on a finite test set.

Two losses are trained with the same seeds and judged on the same test samples. The difference of seed s is

.. math:: d_s = \Delta + a_s + b + e_s

where :math:`a_s` is what the training of this seed adds, :math:`b` what these test samples add to every seed, and
:math:`e_s` what these samples add to this seed alone. The mean over S seeds has the variance

.. math:: \operatorname{Var}(\bar d) = \underbrace{\frac{\operatorname{Var}(a) + \operatorname{Var}(e)}{S}}_A +
    \underbrace{\operatorname{Var}(b)}_B

A is the variance of the :math:`d_s` divided by S; with few seeds it is itself uncertain, on S - 1 degrees of freedom.
B is the covariance of :math:`d_s` and :math:`d_t` of different seeds when samples are drawn again, the same for all
seeds and losses: the paired bootstrap tells it, and adding its variance within a seed would count :math:`e_s` twice.
These are the components of Obuchowski and Rockette (1995), who compare diagnostic tests by a few readers.

A quantile for A + B has to lie between that of t with S - 1 degrees of freedom and that of the normal distribution.
Degrees of freedom by Satterthwaite are far too many where A happens to come out small, so that with two seeds up to
13 % of 95 % intervals would miss. The interval takes the quantiles weighted by A and B (Cochran 1964), the p-value
inverts the sum of the squared margins (Howe 1974), which is wider and stays right in the far tail that the correction
for several losses (Holm 1979) looks at. What is significant therefore has an interval without 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtri, stdtrit

__all__ = ["ALPHA", "MOST_SEEDS", "Difference", "Need", "holm", "paired_difference"]

ALPHA = 0.05
"""Share of false findings that is accepted, over all losses of a comparison."""
LEAST_P = 1e-12
"""Smaller p-values are not told apart."""
POWER = 0.8
"""Share of repetitions in which the number of seeds that is asked for would tell the difference."""
MOST_SEEDS = 1000
"""Seeds up to which it is asked how many would do."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Need:
    """What it would take to tell a difference.

    Args:
        seeds: how many would do, None where no number up to a thousand would.
        limit: what keeps it from being told: the number of ``"seeds"``, or the ``"samples"`` of the test, in which
            case more seeds do not help.
    """

    seeds: int | None
    limit: Literal["seeds", "samples"]


@dataclass(frozen=True)
class Difference:
    """A mean difference over seeds, and how uncertain it is.

    Args:
        mean: of the differences of all seeds.
        seeds: S.
        seed_variance: of the difference of one seed when training is repeated on the same test samples; NaN where
            there is one seed only.
        sample_variance: that test samples add to the mean, however many seeds there are.
        sample_error: standard error of the sample variance.
    """

    mean: float
    seeds: int
    seed_variance: float
    sample_variance: float
    sample_error: float = 0.0

    @property
    def interval(self) -> tuple[float, float] | None:
        """Lower and upper limit of the 95 % interval; None with one seed."""
        if self.seeds < 2:
            return None
        a, b = self.seed_variance / self.seeds, self.sample_variance
        t, z = _quantiles(ALPHA, self.seeds)
        margin = (a * float(t) + b * z) / math.sqrt(a + b) if a + b else 0.0
        return self.mean - margin, self.mean + margin

    @property
    def p(self) -> float | None:
        """Probability of a mean this far from 0 where there is no difference; None with one seed."""
        if self.seeds < 2:
            return None
        if self.mean == 0.0:
            return 1.0

        def beyond(log_p: float) -> float:
            margin = _margin(self.seed_variance, self.sample_variance, self.seeds, math.exp(log_p))
            return float(margin) - abs(self.mean)

        least = math.log(LEAST_P)
        return LEAST_P if beyond(least) <= 0.0 else math.exp(brentq(beyond, least, 0.0, xtol=1e-9))

    def need(self, tests: int = 1) -> Need | None:
        """Seeds with which a true difference of this size would be told in 4 of 5 cases; None with one seed.

        The variance that samples add is taken one standard error above what was seen: where it came out near 0 by
        chance, more seeds would seem to tell differences of less than a test sample.

        Args:
            tests: by which number of comparisons the accepted share of false findings is divided.
        """
        if self.seeds < 2:
            return None
        level, reserve = ALPHA / tests, float(ndtri(POWER))
        shared = self.sample_variance + self.sample_error
        if abs(self.mean) <= (-float(ndtri(level / 2)) + reserve) * math.sqrt(shared):
            return Need(None, "samples")
        seeds = np.arange(self.seeds + 1, MOST_SEEDS + 1)
        error = np.sqrt(self.seed_variance / seeds + shared)
        enough = abs(self.mean) > _margin(self.seed_variance, shared, seeds, level) + reserve * error
        return Need(int(seeds[enough.argmax()]) if enough.any() else None, "seeds")


def paired_difference(
    values: Sequence[float] | Floats, resampled: Floats | None, *, samples: int, least: float = 0.0
) -> Difference:
    """The mean difference and its variances.

    Args:
        values: (S,) difference of each seed on all test samples.
        resampled: (S, B) the same differences when the test samples are drawn again, B times and the same for every
            seed; a draw in which one does not exist is NaN and left out. None for a number that no sample matters to,
            such as a time.
        samples: how many test samples are drawn.
        least: variance of the mean at least. Where two losses disagree on fewer than two samples, neither seeds nor
            resampling see as much spread as there is.
    """
    values = np.asarray(values, np.float64)
    seeds = len(values)
    mean = float(values.mean())
    if seeds < 2:
        return Difference(mean, seeds, math.nan, math.nan)
    shared = error = 0.0
    if resampled is not None:
        drawn = resampled[:, np.isfinite(resampled).all(0)]
        if drawn.shape[1] > 1:
            covariance = (
                np.cov(drawn) * samples / max(samples - 1, 1)
            )  # from the samples, not from where they came from
            variance, pairs = float(covariance.trace()) / seeds, seeds * (seeds - 1)
            shared = (float(covariance.sum()) - seeds * variance) / pairs
            b, e = max(shared, 0.0), max(variance - shared, 0.0)  # of normal numbers, in the letters of the top
            error = math.sqrt((2 * b * b + 4 * b * e / seeds + 2 * e * e / pairs) / samples)
    between = float(values.var(ddof=1))
    return Difference(mean, seeds, between, max(shared, least - between / seeds, 0.0), error)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for their number: the share of families in which any is wrong stays below what is accepted.

    The smallest of m is multiplied by m, the next by m - 1, and so on; none becomes smaller than one before it
    (Holm 1979). It holds however the differences depend on each other.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03, 0.5])]
    [0.04, 0.09, 0.09, 0.5]
    """
    p = np.asarray(p_values, np.float64)
    order = p.argsort(kind="stable")
    corrected = np.empty_like(p)
    corrected[order] = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)).clip(max=1.0)
    return [float(value) for value in corrected]


def _quantiles(level: float, seeds: NDArray[np.int64] | int) -> tuple[Floats, float]:
    """How many standard errors are exceeded with probability ``level`` on either side: few seeds, many samples."""
    return -stdtrit(np.asarray(seeds) - 1.0, level / 2), -float(ndtri(level / 2))


def _margin(seed_variance: float, sample_variance: float, seeds: NDArray[np.int64] | int, level: float) -> Floats:
    """How far from 0 a mean has to be at this level (Howe 1974)."""
    t, z = _quantiles(level, seeds)
    margin: Floats = np.sqrt(t * t * seed_variance / seeds + z * z * sample_variance)
    return margin
