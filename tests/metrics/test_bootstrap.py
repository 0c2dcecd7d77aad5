"""The bootstrap against a closed form, and its two ways of calling against each other."""

import math

import torch
from torch.testing import assert_close

from equipoise.metrics import CalibrationError, bin_sums, binned_error, bootstrap


def test_the_interval_of_a_mean_is_the_textbook_one():
    values = torch.randn(400, generator=torch.Generator().manual_seed(0)).double()
    mean, low, high = bootstrap(torch.mean, values, draws=4000)
    width = 1.96 * float(values.std(correction=0)) / math.sqrt(400)
    assert_close(mean, values.mean())
    # limits of 4000 draws scatter by about 3 % of the half width
    assert_close(torch.stack([mean - low, high - mean]), torch.full((2,), width).double(), rtol=0.1, atol=0)


def test_weights_and_repetitions_give_the_same_interval():
    draw = torch.Generator().manual_seed(1)
    confidence, correct = torch.rand(300, generator=draw).double(), torch.rand(300, generator=draw) < 0.5

    def weighted(confidence, correct, weight):
        return binned_error(bin_sums(confidence, correct, 10, weight=weight))

    def repeated(confidence, correct):
        return binned_error(bin_sums(confidence, correct, 10))

    one = bootstrap(weighted, confidence, correct, draws=3000, weighted=True)
    other = bootstrap(repeated, confidence, correct, draws=3000, seed=7)
    assert_close(one.value, other.value)
    assert_close(one.low, other.low, rtol=0.05, atol=0)
    assert_close(one.high, other.high, rtol=0.05, atol=0)
    assert one.low < one.value < one.high


def test_a_seed_is_an_interval_and_a_level_its_width():
    values = torch.arange(50.0)
    assert bootstrap(torch.mean, values, seed=3) == bootstrap(torch.mean, values, seed=3)
    assert bootstrap(torch.mean, values, seed=3).low != bootstrap(torch.mean, values, seed=4).low
    narrow, wide = (bootstrap(torch.mean, values, level=level) for level in (0.5, 0.99))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_blocks_of_draws_do_not_show(monkeypatch):
    from equipoise.metrics import bootstrap as function
    from equipoise.metrics.bootstrap import Interval

    module = __import__("sys").modules[Interval.__module__]
    values = torch.arange(40.0).double()

    def mean(values, weight):
        return (weight * values).sum(-1) / weight.sum(-1)

    whole = function(mean, values, draws=10, weighted=True)
    monkeypatch.setattr(module, "TOGETHER", 120)  # three draws at a time
    assert function(mean, values, draws=10, weighted=True) == whole


def test_any_metric_with_values_of_any_shape_even_where_some_draws_have_none():
    draw = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(30, 3, generator=draw), torch.randint(2, (30,), generator=draw)
    targets[0] = 2  # drawn in some of the draws only

    def by_class(logits, targets):
        return CalibrationError(groups=torch.arange(3))(logits, targets)

    interval = bootstrap(by_class, logits, targets, draws=60)
    assert interval.low.shape == interval.high.shape == interval.value.shape == (3,)
    assert (interval.low <= interval.high).all()
    assert_close(interval.low[2], interval.value[2])  # one sample only: whenever it is there, the same value
