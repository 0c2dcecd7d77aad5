"""The variances of a difference by hand, and the ends of the ranges of what is made of them."""

import math

import numpy as np
import pytest
from scipy.stats import norm, t

from equipoise.comparison.statistics import LEAST_P, MOST_SEEDS, Difference, Need, paired_difference


def test_variances_by_hand():
    draw = np.random.default_rng(0)
    drawn = draw.normal(size=(3, 40)) + 2 * draw.normal(size=40)
    drawn[1, 7] = np.nan  # a draw that is left out
    values, samples = np.array([1.0, 2.5, 3.0]), 25
    difference = paired_difference(values, drawn, samples=samples)
    kept = np.delete(drawn, 7, axis=1)
    spread = [[np.sum((x - x.mean()) * (y - y.mean())) / 38 * 25 / 24 for y in kept] for x in kept]
    variance = np.mean([spread[i][i] for i in range(3)])
    b = np.mean([spread[i][j] for i in range(3) for j in range(3) if i != j])
    e = variance - b
    assert b > 0
    assert e > 0
    assert difference.mean == pytest.approx(6.5 / 3)
    assert difference.seeds == 3
    assert difference.seed_variance == pytest.approx(np.var(values, ddof=1))
    assert difference.sample_variance == pytest.approx(b)
    assert difference.least_seed_variance == pytest.approx(e)
    assert difference.sample_error == pytest.approx(math.sqrt((2 * b**2 + 4 * b * e / 3 + 2 * e**2 / 6) / samples))


def test_variances_without_samples():
    difference = paired_difference([1.0, 3.0], None, samples=9, least=4.0, unpaired=0.5)
    assert (difference.seed_variance, difference.sample_variance, difference.sample_error) == (2.0, 3.0, 0.0)
    assert difference.unpaired_variance == 0.5
    assert paired_difference([1.0, 3.0], None, samples=9, least=0.5).sample_variance == 0.0
    assert math.isnan(paired_difference([1.0], None, samples=9).seed_variance)


def test_p_values():
    alone = Difference(0.5, 6, 0.3, 0.0)  # a t-test of six numbers
    assert alone.p == pytest.approx(2 * t.sf(0.5 / math.sqrt(0.3 / 6), 5), rel=1e-6)
    by_samples = Difference(0.5, 6, 0.0, 0.04)
    assert by_samples.p == pytest.approx(2 * norm.sf(2.5), rel=1e-6)
    assert Difference(1e6, 6, 0.0, 0.04).p == LEAST_P == 1e-12
    assert Difference(0.0, 6, 0.3, 0.1).p == 1.0
    assert Difference(0.5, 1, math.nan, math.nan).p is None


def test_seeds_that_would_be_needed():
    variance, mean = 0.3, 0.4
    enough = next(n for n in range(7, 999) if mean > (t.isf(0.025, n - 1) + norm.ppf(0.8)) * math.sqrt(variance / n))
    assert Difference(mean, 6, variance, 0.0).need() == Need(enough, "seeds")
    assert Difference(mean, 6, variance, 0.0).need(4).seeds > enough
    assert Difference(mean, 6, variance, 1.0).need() == Need(None, "samples")
    assert Difference(1e-3, 6, variance, 0.0).need() == Need(None, "seeds")
    assert MOST_SEEDS == 1000
