"""Intervals and tests against closed forms, and against simulated comparisons of which the truth is known."""

import math

import numpy as np
import pytest
from scipy.stats import chi2, norm, ttest_1samp
from scipy.stats import t as student

from equipoise.comparison.statistics import ALPHA, Difference, holm, moderated, paired_difference

COMPARISONS = 1000
DRAWS = 200


# ------------------------------------------------------------------------------------------------------ closed forms


def test_variances_are_those_of_the_components():
    random = np.random.default_rng(0)
    shared, own = random.normal(0, 3, (1, 4000)), random.normal(0, 2, (4, 4000))
    difference = paired_difference([1.0, 2.0, 3.0, 6.0], shared + own, samples=10**6)
    assert difference.mean == 3.0
    assert difference.seeds == 4
    assert difference.seed_variance == pytest.approx(np.var([1, 2, 3, 6], ddof=1))
    assert difference.sample_variance == pytest.approx(9.0, rel=0.1)  # not 9 + 4 / 4: noise of a seed counts once


def test_few_samples_are_drawn_from_themselves_only():
    values = np.random.default_rng(0).normal(size=(2, 50))
    few, many = (paired_difference([0.0, 1.0], values + values[:1], samples=n).sample_variance for n in (5, 10**9))
    assert few == pytest.approx(many * 5 / 4)


def test_where_samples_do_not_matter_it_is_the_t_test():
    values = [0.3, 0.5, 0.1, 0.45]
    difference = paired_difference(values, None, samples=100)
    theirs = ttest_1samp(values, 0.0)
    assert difference.p == pytest.approx(theirs.pvalue, rel=1e-6)
    assert difference.interval == pytest.approx(theirs.confidence_interval(0.95))


def test_where_seeds_do_not_matter_it_is_the_normal_test():
    difference = Difference(2.5, 3, 0.0, 1.0)
    assert difference.p == pytest.approx(2 * norm.sf(2.5), rel=1e-6)
    assert difference.interval == pytest.approx((2.5 - 1.96, 2.5 + 1.96), abs=1e-3)


def test_significance_implies_an_interval_without_zero_and_grows_with_the_difference():
    random = np.random.default_rng(0)
    significant = 0
    for mean, seeds, a, b in zip(
        random.uniform(0, 8, 300), random.integers(2, 7, 300), *random.exponential(1.0, (2, 300)), strict=True
    ):
        one = Difference(mean, int(seeds), a * seeds, b)
        assert Difference(1.1 * mean, int(seeds), a * seeds, b).p < one.p == Difference(-mean, seeds, a * seeds, b).p
        if one.p < ALPHA:
            significant += 1
            assert one.interval[0] > 0
    assert 50 < significant < 250


def test_one_seed_has_no_interval():
    difference = paired_difference([0.2], np.zeros((1, 10)), samples=100)
    assert difference.mean == 0.2
    assert difference.interval is difference.p is difference.need() is None


def test_zero_differences_are_not_significant_and_have_the_minimum_width():
    same = paired_difference([0.0, 0.0, 0.0], np.zeros((3, 50)), samples=100)
    assert (same.p, same.interval) == (1.0, (0.0, 0.0))
    few = paired_difference([0.01, 0.01, 0.01], np.full((3, 50), 0.01), samples=100, least=2 / 100**2)
    assert few.p > 0.4
    assert few.interval[0] < 0 < few.interval[1]
    noisy = paired_difference([0.1, -0.1, 0.3], np.zeros((3, 50)), samples=100, least=2 / 100**2)
    assert noisy.sample_variance == 0.0  # the seeds show more spread than that


def test_draws_without_a_value_are_excluded():
    draws = np.random.default_rng(0).normal(size=(2, 100))
    draws[1] = draws[0]
    whole = paired_difference([0.0, 1.0], draws[:, 10:], samples=50)
    draws[1, :10] = np.nan
    assert paired_difference([0.0, 1.0], draws, samples=50) == whole
    assert paired_difference([0.0, 1.0], np.full((2, 9), np.nan), samples=50).sample_variance == 0.0


def test_holm_against_its_definition():
    assert holm([]) == []
    assert holm([0.2]) == [0.2]
    random = np.random.default_rng(0)
    for _ in range(50):
        p = random.uniform(0, 0.1, 5)
        adjusted = holm(p)
        for level in random.uniform(0, 0.5, 20):
            rejected, left = set(), sorted(range(5), key=lambda k: p[k])
            while left and p[left[0]] <= level / len(left):
                rejected.add(left.pop(0))
            assert rejected == {k for k in range(5) if adjusted[k] <= level}


# ------------------------------------------------------------------------------------------------------ seeds needed


@pytest.mark.parametrize(("mean", "seed_variance", "sample_variance"), [(0.02, 4e-4, 1e-6), (0.01, 1e-4, 5e-6)])
def test_that_many_seeds_tell_four_of_five(mean, seed_variance, sample_variance):
    tests = 3
    need = Difference(mean, 2, seed_variance, sample_variance).need(tests)
    assert need.limit == "seeds"

    def rejected(seeds):
        random = np.random.default_rng(1)
        count = 400
        between = seed_variance * random.chisquare(seeds - 1, count) / (seeds - 1)
        means = mean + random.normal(0, math.sqrt(seed_variance / seeds + sample_variance), count)
        p_values = (Difference(m, seeds, v, sample_variance).p for m, v in zip(means, between, strict=True))
        return np.mean([p < ALPHA / tests for p in p_values])

    assert 0.72 < rejected(need.seeds) < 0.92
    assert rejected(need.seeds // 2) < 0.6


def test_no_number_of_seeds_helps_where_samples_are_too_few():
    assert Difference(0.01, 3, 1e-4, 1e-4).need().limit == "samples"
    assert Difference(0.01, 3, 1e-4, 1e-4).need().seeds is None
    assert Difference(0.0, 3, 1e-4, 0.0).need().seeds is None
    far = Difference(0.001, 3, 1.0, 0.0).need()
    assert (far.seeds, far.limit) == (None, "seeds")
    assert Difference(1.0, 3, 1e-9, 0.0).need().seeds == 4  # never fewer than there were


def test_a_difference_of_less_than_a_sample_is_not_promised_to_more_seeds():
    """The seeds disagree on many samples, each on others: what they share comes out as 0, but not for certain."""
    random = np.random.default_rng(0)
    right = random.random((3, 400)) < 0.1
    wrong = random.random((3, 400)) < 0.1
    signs = right.astype(float) - wrong
    weights = random.multinomial(400, np.full(400, 1 / 400), 1000)
    difference = paired_difference([0.001, 0.002, 0.003], signs @ weights.T / 400, samples=400)
    assert math.sqrt(difference.sample_variance) < 0.005
    assert 0.001 < math.sqrt(difference.sample_variance + difference.sample_error) < 0.01
    assert difference.need().limit == "samples"


def test_the_error_of_the_sample_variance_is_its_spread():
    random = np.random.default_rng(0)
    actual = []
    for _ in range(300):
        values = random.normal(0, 1, 80) + random.normal(0, 1.5, (3, 80))
        weights = random.multinomial(80, np.full(80, 1 / 80), 400)
        actual.append(paired_difference(values.mean(1), values @ weights.T / 80, samples=80))
    spread = np.std([one.sample_variance for one in actual])
    assert np.mean([one.sample_error for one in actual]) == pytest.approx(spread, rel=0.15)


def test_more_losses_need_more_seeds():
    needs = [Difference(0.02, 3, 4e-4, 1e-6).need(tests).seeds for tests in (1, 3, 10)]
    assert needs == sorted(needs)
    assert needs[0] < needs[2]


# -------------------------------------------------------------------------------------------------- simulated truth


def simulated(random, losses, seeds, labels, means, *, training, taste, left):
    """Whether each sample is predicted rightly, (comparisons, losses, seeds, samples), and its true probability.

    A sample is right where a normal number is above 0: the mean of its class and loss, its difficulty, which all runs
    share (1), what it means to a loss (``taste``), what the seed did (``training``), and what is left.
    """
    shape = (COMPARISONS, losses, seeds, len(labels))
    score = means[:, None, labels] + random.standard_normal((COMPARISONS, 1, 1, len(labels)), np.float32)
    score = score + taste * random.standard_normal((COMPARISONS, losses, 1, len(labels)), np.float32)
    score = score + training * random.standard_normal((*shape[:3], 1), np.float32)
    score += left * random.standard_normal(shape, np.float32)
    return score > 0, norm.cdf(means / math.sqrt(1 + taste**2 + training**2 + left**2))


def accuracy(right, labels, weights):
    return right @ weights / len(labels)


def mean_class_accuracy(right, labels, weights):
    total, classes = 0.0, 0
    for k in np.unique(labels):
        own = weights[labels == k]
        drawn = own.sum(0)
        total = total + np.where(drawn > 0, (right[..., labels == k] @ own) / np.maximum(drawn, 1), 0.0)
        classes = classes + (drawn > 0)
    return total / classes


def differences(metric, labels, losses, seeds, means, **noise):
    """For each comparison the difference of each loss to the first; and the true differences by class."""
    random = np.random.default_rng(0)
    right, truth = simulated(random, losses, seeds, labels, means.astype(np.float32), **noise)
    right, samples = right.astype(np.float32), len(labels)
    weights = random.multinomial(samples, np.full(samples, 1 / samples), DRAWS).T.astype(np.float32)
    whole = metric(right, labels, np.ones((samples, 1), np.float32))[..., 0]
    drawn = metric(right, labels, weights)
    sizes = np.bincount(labels)
    least = 2.0 * (1.0 / sizes).sum() / (samples * len(sizes) ** 2)
    variance = whole.var(-1, ddof=1)
    difference = [
        moderated(
            [
                paired_difference(
                    whole[i, k] - whole[i, 0],
                    drawn[i, k] - drawn[i, 0],
                    samples=samples,
                    least=least,
                    unpaired=variance[i, k] + variance[i, 0],
                )
                for k in range(1, losses)
            ]
        )
        for i in range(COMPARISONS)
    ]
    return difference, truth[1:] - truth[0]


def coverage(actual, true):
    """Share of intervals that hold the true difference: of all, and of the narrowest tenth."""
    low, high = np.array([one.interval for one in actual]).T
    held = (low <= true) & (true <= high)
    return held.mean(), held[high - low <= np.quantile(high - low, 0.1)].mean()


FEW = np.zeros(60, int)
MANY = np.zeros(400, int)
TAIL = np.repeat(np.arange(5), [100, 50, 25, 12, 8])
TAIL_MEANS = np.array([[2, 1.5, 1, 0.5, 0], [1.9, 1.5, 1.2, 0.9, 0.6]])
NOISES = {
    "samples alone": {"training": 0.0, "taste": 0.5, "left": 0.3},
    "seeds and samples": {"training": 0.15, "taste": 0.4, "left": 0.3},
    "mostly seeds": {"training": 0.5, "taste": 0.3, "left": 0.2},
}


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize(
    ("metric", "labels", "means"),
    [
        (accuracy, FEW, np.array([[1.0], [1.3]])),
        (accuracy, MANY, np.array([[1.2], [1.5]])),
        (mean_class_accuracy, TAIL, TAIL_MEANS),
    ],
    ids=["accuracy of 60 samples", "accuracy of 400 samples", "mean of 5 classes"],
)
def test_intervals_hold_what_they_promise(metric, labels, means, seeds, noise):
    actual, truth = differences(metric, labels, 2, seeds, means, **NOISES[noise])
    true = truth[0].mean()
    held, narrow = coverage([one for (one,) in actual], true)
    assert 0.93 <= held <= (0.985 if seeds > 2 else 1.0)
    assert narrow >= (0.84 if seeds == 2 else 0.75)  # by Student's t alone from 0.47 on


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_intervals_of_seeds_that_agree_cover_too(seeds):
    """Nothing but noise between seeds, no help from the test samples: the other losses tell the variance."""
    random = np.random.default_rng(0)
    values = random.normal(size=(2000, 7, seeds))
    families = []
    for runs in values:
        variance = runs.var(1, ddof=1)
        family = [
            paired_difference(runs[k] - runs[0], None, samples=1, unpaired=variance[k] + variance[0])
            for k in range(1, 7)
        ]
        families.append(family)
    held, narrow = coverage([one for family in families for one in moderated(family)], 0.0)
    assert held >= 0.95
    assert narrow >= (0.9 if seeds == 2 else 0.83)
    _, before = coverage([Difference(one.mean, seeds, one.seed_variance, 0.0) for f in families for one in f], 0.0)
    assert before < 0.77  # by Student's t alone


def test_one_unstable_loss_does_not_widen_the_others():
    random = np.random.default_rng(0)
    calm = [Difference(0.0, 5, v, 0.0) for v in random.chisquare(4, 3) / 4]
    wild = Difference(0.0, 5, 1000.0, 0.0)
    for difference, alone in zip(moderated([*calm, wild]), moderated(calm), strict=False):
        assert difference.interval[1] < 2 * alone.interval[1]
    assert moderated([*calm, wild])[-1].interval == wild.interval  # it keeps what its own seeds show


def test_moderation_is_that_of_smyth():
    own, other = Difference(1.0, 4, 0.5, 0.0), Difference(1.0, 4, 3.0, 0.0)
    (difference, _) = moderated([own, other])
    prior = 3.0 / (chi2.median(3) / 3)
    assert difference.prior_variance == pytest.approx(prior, rel=0.01)
    variance = (4 * difference.prior_variance + 3 * 0.5) / 7
    assert difference.interval[1] == pytest.approx(1 + student.isf(0.025, 7) * math.sqrt(variance / 4))
    alone = Difference(1.0, 1, math.nan, math.nan)
    assert moderated([own, alone])[1].prior_variance is None


def test_prior_variance_of_a_single_difference_is_the_unpaired_one():
    own = Difference(1.0, 4, 0.5, 0.0, unpaired_variance=2.0)
    (moderate,) = moderated([own])
    assert moderate.prior_variance == 2.0
    variance = (4 * 2.0 + 3 * 0.5) / 7
    assert moderate.interval[1] == pytest.approx(1 + student.isf(0.025, 7) * math.sqrt(variance / 4))


def test_the_seed_variance_is_at_least_that_of_the_test_samples():
    draws = np.random.default_rng(0).normal(size=(3, 2000))  # samples that move each seed alone
    difference = paired_difference([0.0, 0.0, 0.0], draws, samples=10**6)
    assert difference.least_seed_variance == pytest.approx(1.0, rel=0.1)
    assert difference.interval[1] == pytest.approx(1.96 / math.sqrt(3), rel=0.1)


def test_two_seeds_that_agree_are_not_trusted():
    difference = paired_difference([1.0, 1.0], None, samples=1, unpaired=0.5)
    assert difference.interval == pytest.approx((1 - 12.706 * 0.5, 1 + 12.706 * 0.5), abs=1e-3)
    assert paired_difference([1.0, 1.0, 1.0], None, samples=1, unpaired=0.5).interval == (1.0, 1.0)


def test_near_perfect_losses_on_few_samples_are_not_called_certain():
    """Most comparisons see no sample on which the two differ; an interval of no width would miss."""
    actual, truth = differences(accuracy, FEW, 2, 3, np.array([[2.5], [2.8]]), **NOISES["samples alone"])
    held = [one.interval[0] <= truth[0].mean() <= one.interval[1] for (one,) in actual]
    assert np.mean(held) > 0.92
    assert max(one.interval[1] - one.interval[0] for (one,) in actual) < 0.25


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_false_positive_rate_of_equal_losses(seeds, noise):
    means = np.repeat(TAIL_MEANS[:1], 5, axis=0)
    actual, _ = differences(mean_class_accuracy, TAIL, 5, seeds, means, **NOISES[noise])
    wrong = np.mean([min(holm([one.p for one in family])) < ALPHA for family in actual])
    assert wrong <= 0.05
