"""Resampled metrics where a class has one test sample or none, and their parts, by hand."""

import numpy as np
import pytest

from equipoise.comparison.outcomes import (
    BINS,
    CELLS,
    FINE,
    METRICS,
    _cells,
    _equal_mass_error,
    _fine_cell,
    _mean,
    _predicted,
    _top,
    outcome_of,
    resample,
    values_of,
)
from tests.comparison.test_outcomes import close, run_of
from tests.predictions.saved import TASKS


def one_of_five(task):
    """Class 5 has one sample, class 4 none."""

    def change(arrays):
        targets = arrays["targets"]
        if task == "multi":
            targets[:, [4, 5]] = np.minimum(targets[:, [4, 5]], 0)
            targets[7, 5] = 1
        else:
            targets[np.isin(targets, [4, 5])] = 0
            targets[(7,) + (0,) * (targets.ndim - 1)] = 5
        return arrays

    return change


@pytest.mark.parametrize("task", TASKS)
def test_a_class_of_one_sample_counts(tmp_path, task):
    folder, _ = run_of(tmp_path, task, samples=60, change=one_of_five(task))
    outcome = outcome_of(folder)
    weights = np.ones((outcome.samples, 2), np.float32)
    weights[7, 1] = 0
    metrics = outcome.weigh(weights)
    close({name: value[0] for name, value in metrics.items()}, values_of(folder), task)
    assert not np.array_equal(metrics["ece"][0], metrics["ece"][1])
    assert {name for name in metrics if np.isnan(metrics[name][1])} <= {"few"}


def test_least_variances_of_means(tmp_path):
    """A sample of class c moves a mean over K classes by 1 / (K n_c)."""
    folder, arrays = run_of(tmp_path, "single", samples=60, change=one_of_five("single"))
    outcome = outcome_of(folder)
    targets = arrays["targets"][arrays["targets"] >= 0]
    support = np.bincount(targets, minlength=6)
    assert support[4] == 0
    assert support[5] == 1
    groups = {"mean_class_accuracy": np.ones(6, bool), **outcome.groups}
    for name, members in groups.items():
        own = support[members & (support > 0)]
        expected = 2 * sum(n * (1 / (len(own) * n)) ** 2 for n in own) / sum(own)
        assert outcome.least[name] == pytest.approx(expected), name
    assert outcome.least["accuracy"] == pytest.approx(2 / len(targets) ** 2)
    assert outcome.least["macro_f1"] == outcome.least["mean_class_accuracy"]


@pytest.mark.parametrize("task", TASKS)
def test_blocks_of_draws_do_not_matter(tmp_path, task, monkeypatch):
    outcome = outcome_of(run_of(tmp_path, task, samples=40)[0])
    monkeypatch.setattr("equipoise.comparison.outcomes.TOGETHER", 40 * 3)
    (metrics,) = resample([outcome], draws=8, seed=4)
    assert set(metrics) == set(METRICS[task])
    draws = np.random.default_rng(4)
    for start, count in ((0, 3), (3, 3), (6, 2)):
        picks = draws.integers(0, 40, (40, count))
        weights = np.stack([np.bincount(picks[:, k], minlength=40) for k in range(count)], 1).astype(np.float32)
        for name, values in outcome.weigh(weights).items():
            np.testing.assert_array_equal(values, metrics[name][start : start + count])


def test_cells_of_confidence():
    """Equal width on the scale of logits, from -16 to 16."""
    logits = np.array([-20.0, -15.9, -1.0, 0.0, 0.001, 1.0, 12.0])
    confidence = 1 / (1 + np.exp(-logits))
    assert _fine_cell(confidence).tolist() == [0, *((logits[1:] + 16) * FINE // 32).astype(int)]
    assert _fine_cell(np.array([0.0, 1.0])).tolist() == [0, int(31.99 * FINE / 32)]


def test_cells_of_equal_mass():
    """Even numbers are parts of equal mass; what fills more than one has an odd number of its own."""
    ones = np.ones(2 * CELLS, np.int64)
    assert _cells(ones).tolist() == [2 * (k // 2) for k in range(2 * CELLS)]
    assert _cells(np.array([1, 6 * CELLS - 2, 1])).tolist() == [0, 1, 2 * (CELLS - 1)]
    assert _cells(np.array([5])).tolist() == [1]
    assert _cells(np.array([1])).tolist() == [0]
    assert _cells(np.zeros(0, np.int64)).tolist() == []


def test_of_equal_scores_the_first_class_is_predicted():
    logits = np.array([[1.0, 2.0, 0.0], [1.0, 3.0, 0.0], [0.0, 3.0, 0.0]])
    assert _predicted(logits).tolist() == [0, 1, 0]
    confidence, nll = _top(logits, np.array([0, 0, 2]))
    powers = np.exp(logits) / np.exp(logits).sum(0)
    assert confidence.dtype == np.float32
    np.testing.assert_allclose(confidence, powers.max(0), rtol=1e-6)
    np.testing.assert_allclose(nll, -np.log(powers[[0, 0, 2], [0, 1, 2]]))


def test_a_mean_over_what_exists():
    values = np.array([[1.0, np.nan, np.nan], [2.0, 4.0, np.nan], [np.inf, 6.0, np.nan]])
    with np.errstate(invalid="ignore"):
        assert _mean(values).tolist() == [1.5, 5.0, pytest.approx(np.nan, nan_ok=True)]


@pytest.mark.parametrize("count", [1, 7, 40])
def test_equal_mass_error_of_samples(count):
    """The sample of rank i of n is in bin floor(i B / n)."""
    draw = np.random.default_rng(count)
    gap = draw.normal(size=(count, 2))
    bins = np.arange(count) * BINS // count
    expected = [sum(abs(gap[bins == b, k].sum()) for b in range(BINS)) / count for k in range(2)]
    np.testing.assert_allclose(_equal_mass_error(np.ones((count, 2)), gap), expected)
