"""Infinite logits: -inf is a probability of 0, inf of a label one of 1; what is ignored may hold anything."""

import math

import pytest
import torch
from torch.testing import assert_close

from equipoise.metrics import (
    ConfidenceProfile,
    MultilabelScores,
    NegativeLogLikelihood,
    OpenSetScores,
    average_precision,
    bootstrap,
)
from equipoise.metrics.average_precision import label_average_precision
from tests.metrics.batches import EVERY, IGNORED, MULTI, UNKNOWN, link, values

INF, FAR = math.inf, 1e4  # a logit of -1e4 is a probability of exactly 0
DTYPES = [torch.float16, torch.float32]
each_metric = pytest.mark.parametrize("name", EVERY)


def masked(name, size=()):
    """A batch with a third of the logits infinite, never against a target, and the same with large numbers."""
    scores, targets = EVERY[name][1](size=size)
    chosen = torch.rand(scores.shape, generator=torch.Generator().manual_seed(3)) < 0.33
    if name in MULTI:
        far = torch.where(targets == 1, FAR, -FAR)
    else:
        chosen &= torch.arange(scores.shape[1]).view(-1, *(1 for _ in size)) != targets.clamp(min=0).unsqueeze(1)
        far = torch.full_like(scores, -FAR)
    return scores.where(~chosen, far.sign() * INF), scores.where(~chosen, far.to(scores.dtype)), targets


def same(actual, expected, **options):
    actual, expected = values(actual), values(expected)
    assert actual.keys() == expected.keys()
    for key in expected:
        assert_close(actual[key], expected[key], rtol=1e-9, atol=1e-12, equal_nan=True, msg=key, **options)


@each_metric
@pytest.mark.parametrize("size", [(), (2, 3)], ids=str)
def test_an_infinite_logit_is_a_probability_of_0_or_1(name, size):
    build = EVERY[name][0]
    infinite, large, targets = masked(name, size)
    expected = build()(large, targets)
    same(build()(infinite, targets), expected)
    if "nll" not in name:  # logarithms of rounded probabilities
        same(
            build(from_logits=False)(link(name)(infinite), targets),
            build(from_logits=False)(link(name)(large), targets),
        )
    assert all(not value.isnan().all() for value in values(expected).values())


@each_metric
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_takes_them(name, dtype):
    infinite, large, targets = masked(name)
    build = EVERY[name][0]
    same(build()(infinite.to(dtype), targets), build()(large.to(dtype), targets))


@each_metric
@pytest.mark.parametrize("value", [math.nan, INF, -INF, 1.5, -0.5])
def test_what_is_ignored_may_hold_anything(name, value):
    build, batch = EVERY[name]
    scores, targets = batch()
    ignored = UNKNOWN if name in MULTI else IGNORED
    targets[3:5] = ignored
    expected = build()(scores, targets)
    probs = link(name)(scores)
    expected_of_probs = build(from_logits=False)(probs, targets)
    damaged, damaged_probs = scores.clone(), probs.clone()
    damaged[3:5] = damaged_probs[3:5] = value
    same(build()(damaged, targets), expected)
    same(build(from_logits=False)(damaged_probs, targets), expected_of_probs)


@pytest.mark.parametrize("name", [name for name in EVERY if name not in MULTI])
def test_a_row_of_masked_classes_is_refused(name):
    build, batch = EVERY[name]
    scores, targets = batch()
    scores[5], targets[5] = -INF, 1
    with pytest.raises(ValueError, match=r"(?s)\Ascores must have a class that is not masked.*4 that are all -inf; \w"):
        build().update(scores, targets)


def test_unknown_samples_of_an_open_set_are_checked():
    scores, targets = torch.randn(4, 3), torch.tensor([0, 1, -1, 2])
    for value in (math.nan, INF):
        scores[2, 1] = value
        with pytest.raises(ValueError, match="scores must be finite"):
            OpenSetScores().update(scores, targets)
    scores[2] = -INF
    with pytest.raises(ValueError, match="a class that is not masked"):
        OpenSetScores().update(scores, targets)


def test_the_likelihood_of_what_is_impossible_is_infinite():
    logits, targets = torch.tensor([[0.0, -INF], [2.0, 0.0]]), torch.tensor([1, 0])
    assert NegativeLogLikelihood()(logits, targets) == INF
    assert NegativeLogLikelihood(from_logits=False)(logits.softmax(1), targets) == INF
    scores = ConfidenceProfile()(logits, targets)
    assert scores["nll_wrong"] == INF
    assert scores["nll_right"].isfinite()
    assert scores["entropy_wrong"] == 0.0
    labels = NegativeLogLikelihood(kind="multilabel")
    assert labels(torch.tensor([[INF, -INF]]), torch.tensor([[1, 0]])) == 0.0
    assert labels(torch.tensor([[INF, 0.0]]), torch.tensor([[0, 1]])) == INF


def test_thresholds_at_the_ends():
    """A probability has to be above the threshold: 1 is above no threshold of 1, 0 above none of 0."""
    logits, targets = torch.tensor([[INF, -INF, 0.0]]), torch.tensor([[1, 1, 1]])
    for threshold, chosen in ((1.0, 0), (0.0, 2), (0.5, 1)):
        scores = MultilabelScores(3, threshold=threshold)(logits, targets)
        assert scores["OR"] * 3 == chosen
        again = MultilabelScores(3, threshold=threshold, from_logits=False)(logits.sigmoid(), targets)
        assert scores["OR"] == again["OR"]


# ---------------------------------------------------------------------------------------------------- average precision


def slow_average_precision(scores, positive, known):
    seen = [(score, good) for score, good, there in zip(scores, positive, known, strict=True) if there]
    own = [score for score, good in seen if good]
    at = [sum(good and s >= mine for s, good in seen) / sum(s >= mine for s, _ in seen) for mine in own]
    return sum(at) / len(at) if at else math.nan


@pytest.mark.parametrize("seed", range(8))
def test_average_precision_of_infinite_scores(seed):
    draw = torch.Generator().manual_seed(seed)
    pool = torch.tensor([-INF, -1.0, 0.0, 2.0, INF])
    scores = pool[torch.randint(5, (6, 9), generator=draw)]
    positive, known = torch.rand(6, 9, generator=draw) < 0.4, torch.rand(6, 9, generator=draw) < 0.7
    positive[0], known[1], scores[2] = False, False, -INF
    table = (scores.tolist(), positive.tolist(), known.tolist())
    expected = [slow_average_precision(*row) for row in zip(*table, strict=True)]
    assert_close(average_precision(scores, positive, known), torch.tensor(expected).double(), equal_nan=True)
    everything = [slow_average_precision(*row, [True] * 9) for row in zip(*table[:2], strict=True)]
    assert_close(average_precision(scores, positive), torch.tensor(everything).double(), equal_nan=True)
    outcomes = torch.where(known, positive.to(torch.int8), -1)
    assert_close(label_average_precision([scores.t()], [outcomes.t()]), torch.tensor(expected).double(), equal_nan=True)


def test_average_precision_refuses_nan_where_it_is_known():
    scores, positive = torch.tensor([[1.0, math.nan, 0.0]]), torch.tensor([[False, True, True]])
    with pytest.raises(ValueError, match="scores must not be NaN, got NaN; "):
        average_precision(scores, positive)
    assert average_precision(scores, positive, torch.tensor([[True, False, True]])).item() == 0.5


# ------------------------------------------------------------------------------------------------------------ bootstrap


def test_the_interval_of_a_mean_with_an_infinite_value():
    """Of 50 values one is infinite: it is in 64 % of the draws, and so are the upper limit and the value."""
    values = torch.arange(50.0).double()
    plain = bootstrap(torch.mean, values, draws=200)
    values[7] = INF
    interval = bootstrap(torch.mean, values, draws=200)
    assert interval.value == INF
    assert interval.high == INF
    assert 0 < interval.low < plain.high
    values[:] = INF
    interval = bootstrap(torch.mean, values, draws=20)
    assert (interval.low, interval.high) == (INF, INF)
