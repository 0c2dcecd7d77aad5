"""Intervals and tests against closed forms, and against simulated comparisons of which the truth is known."""

import math
from dataclasses import replace

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


def test_adjusted_p_values_end_at_one():
    assert holm([0.6, 0.2, 1.0]) == pytest.approx([1.0, 0.6, 1.0])
    assert max(holm([0.6, 0.7])) == 1.0


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


# -------------------------------------------------------------------------------------- the formulas, one at a time


def quantile(level, freedom):
    return norm.isf(level / 2) if freedom == math.inf else student.isf(level / 2, freedom)


def estimates_of(one):
    """The three estimates of the seed variance and their degrees of freedom, from the text of the module."""
    freedom = one.seeds - 1
    first = max(one.seed_variance, one.unpaired_variance) if one.seeds == 2 else one.seed_variance
    estimates = [(first, freedom), (one.least_seed_variance, math.inf)]
    if one.prior_variance is not None:
        mixed = (4 * one.prior_variance + freedom * one.seed_variance) / (4 + freedom)
        estimates.append((mixed, 4 + freedom))
    return estimates


def margin_of(one, level):
    return max(
        math.sqrt(quantile(level, df) ** 2 * v / one.seeds + quantile(level, math.inf) ** 2 * one.sample_variance)
        for v, df in estimates_of(one)
    )


DIFFERENCES = [
    Difference(0.02, 2, 1e-4, 2e-5),
    Difference(-0.02, 2, 1e-4, 2e-5, unpaired_variance=9e-4),
    Difference(0.02, 2, 1e-3, 2e-5, unpaired_variance=9e-4),
    Difference(0.02, 3, 1e-4, 2e-5, unpaired_variance=9e-4),
    Difference(0.02, 3, 1e-6, 2e-5, least_seed_variance=8e-4),
    Difference(0.02, 3, 1e-5, 2e-5, prior_variance=4e-3),
    Difference(-0.03, 5, 4e-4, 0.0, prior_variance=1e-5),
    Difference(0.05, 5, 4e-4, 1e-5, 3e-5, 1e-5, 2e-4, 5e-4),
    Difference(0.05, 4, 0.0, 1e-4, prior_variance=0.0),
]


@pytest.mark.parametrize("one", DIFFERENCES)
def test_intervals_and_p_values_by_their_formulas(one):
    b, z = one.sample_variance, quantile(0.05, math.inf)
    margin = max(
        (v / one.seeds * quantile(0.05, df) + b * z) / math.sqrt(v / one.seeds + b)
        for v, df in estimates_of(one)
        if v or b
    )
    assert one.seed_variances == [pytest.approx(each) for each in estimates_of(one)]
    assert one.interval == pytest.approx((one.mean - margin, one.mean + margin), rel=1e-12)
    assert margin_of(one, one.p) == pytest.approx(abs(one.mean), rel=1e-6)


def test_p_values_have_a_least():
    assert Difference(1.0, 3, 0.0, 1e-6).p == 1e-12
    assert Difference(0.0, 3, 0.0, 0.0).p == Difference(0.0, 3, 1.0, 1.0).p == 1.0
    near = Difference(7.1 * 1e-3, 3, 0.0, 1e-6).p
    assert 1e-12 < near == pytest.approx(2 * norm.sf(7.1), rel=1e-6)


@pytest.mark.parametrize("tests", [1, 4])
@pytest.mark.parametrize("one", [*DIFFERENCES, Difference(0.004, 3, 1e-3, 1e-7), Difference(0.001, 3, 1e-3, 1e-9)])
def test_seeds_needed_by_trying(one, tests):
    """The first number of seeds at which a true difference of this size is beyond the margin in 80 % of comparisons."""
    shared, need, level = one.sample_variance + one.sample_error, one.need(tests), 0.05 / tests
    reserve = norm.ppf(0.8)
    if abs(one.mean) <= (quantile(level, math.inf) + reserve) * math.sqrt(shared):
        assert (need.seeds, need.limit) == (None, "samples")
        return
    variance = max(one.least_seed_variance, estimates_of(one)[-1][0] if one.prior_variance else one.seed_variance)

    def enough(seeds):
        t, z = quantile(level, seeds - 1), quantile(level, math.inf)
        margin = math.sqrt(t * t * variance / seeds + z * z * shared)
        return abs(one.mean) > margin + reserve * math.sqrt(variance / seeds + shared)

    expected = next((seeds for seeds in range(one.seeds + 1, 1001) if enough(seeds)), None)
    assert (need.seeds, need.limit) == (expected, "seeds")


def test_seeds_are_looked_for_up_to_a_thousand():
    variance = 1.0

    def mean_for(seeds):  # what is just detected with so many
        t = quantile(0.05, seeds - 1)
        return (t + norm.ppf(0.8)) * math.sqrt(variance / seeds) * (1 + 1e-9)

    assert Difference(mean_for(1000), 3, variance, 0.0).need().seeds == 1000
    assert Difference(mean_for(1001), 3, variance, 0.0).need().seeds is None
    assert Difference(mean_for(4), 3, variance, 0.0).need().seeds == 4
    assert Difference(mean_for(3), 3, variance, 0.0).need().seeds == 4


@pytest.mark.parametrize("samples", [1, 2, 3, 50])
@pytest.mark.parametrize("seeds", [2, 4])
def test_variances_by_their_formulas(seeds, samples):
    random = np.random.default_rng(seeds)
    values, drawn = random.normal(size=seeds), random.normal(size=(seeds, 30)) + random.normal(size=(1, 30))
    drawn[0, 3] = np.nan
    drawn[1, 4] = np.inf
    found = paired_difference(values, drawn, samples=samples, least=0.0, unpaired=7.0)
    usable = np.delete(drawn, [3, 4], axis=1)
    scale = samples / max(samples - 1, 1)
    variance = scale * np.mean([usable[s].var(ddof=1) for s in range(seeds)])
    pairs = [(s, t) for s in range(seeds) for t in range(seeds) if s != t]
    shared = scale * np.mean([np.cov(usable[s], usable[t])[0, 1] for s, t in pairs])
    b, e = max(shared, 0.0), max(variance - shared, 0.0)
    assert found.mean == pytest.approx(values.mean())
    assert (found.seeds, found.unpaired_variance, found.prior_variance) == (seeds, 7.0, None)
    assert found.seed_variance == pytest.approx(values.var(ddof=1))
    assert found.sample_variance == pytest.approx(b)
    assert found.least_seed_variance == pytest.approx(variance - b)
    error = (2 * b * b + 4 * b * e / seeds + 2 * e * e / len(pairs)) / samples
    assert found.sample_error == pytest.approx(math.sqrt(error))


def test_the_least_variance_counts_what_the_seeds_do_not_show():
    values, flat = [0.1, 0.3, 0.2], np.zeros((3, 5))
    between = np.var(values, ddof=1) / 3
    for least, expected in ((2 * between, between), (between, 0.0), (0.5 * between, 0.0), (0.0, 0.0)):
        assert paired_difference(values, flat, samples=9, least=least).sample_variance == pytest.approx(expected)
    assert paired_difference(values, None, samples=9, least=0.5).sample_variance == pytest.approx(0.5 - between)


def test_few_draws_say_nothing_of_samples():
    for draws in (0, 1):
        found = paired_difference([0.1, 0.3], np.ones((2, draws)), samples=9)
        assert (found.sample_variance, found.sample_error, found.least_seed_variance) == (0.0, 0.0, 0.0)
    random = np.random.default_rng(0).normal(size=(1, 2)).repeat(2, 0)
    assert paired_difference([0.1, 0.3], random, samples=9).sample_variance > 0


def test_prior_variances_by_their_formula():
    """The lower median of the others, over the median that so many equal variances would have."""
    variances, seeds = [4e-4, 1e-4, 9e-4, 2e-4], [3, 3, 3, 1]
    each = [Difference(0.1, s, v, 0.0, unpaired_variance=7.0) for v, s in zip(variances, seeds, strict=True)]
    found = moderated(each)
    assert found[3].prior_variance is None

    def expected(others, freedom=2):
        others = sorted(others)
        rank = (len(others) + 1) // 2
        return others[rank - 1] / (chi2.ppf((rank - 0.3) / (len(others) + 0.4), freedom) / freedom)

    assert found[0].prior_variance == pytest.approx(expected([1e-4, 9e-4]))
    assert found[1].prior_variance == pytest.approx(expected([4e-4, 9e-4]))
    assert found[2].prior_variance == pytest.approx(expected([4e-4, 1e-4]))
    several = moderated([Difference(0.1, 4, v, 0.0) for v in (1e-4, 2e-4, 3e-4, 5e-4)])
    assert several[0].prior_variance == pytest.approx(expected([2e-4, 3e-4, 5e-4], 3))
    assert [one.prior_variance for one in moderated(each[:1])] == [7.0]
    assert [one.prior_variance for one in moderated([each[0], each[3]])] == [7.0, None]
    assert [replace(one, prior_variance=None) for one in found] == each
