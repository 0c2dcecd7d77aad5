"""Resampled metrics where a class has one test sample or none, by hand."""

import numpy as np
import pytest

from equipoise.comparison.outcomes import METRICS, outcome_of, resample, values_of
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
    found = outcome.weigh(weights)
    close({name: value[0] for name, value in found.items()}, values_of(folder), task)
    assert not np.array_equal(found["ece"][0], found["ece"][1])
    assert {name for name in found if np.isnan(found[name][1])} <= {"few"}


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
    (found,) = resample([outcome], draws=8, seed=4)
    assert set(found) == set(METRICS[task])
    draws = np.random.default_rng(4)
    for start, count in ((0, 3), (3, 3), (6, 2)):
        picks = draws.integers(0, 40, (40, count))
        weights = np.stack([np.bincount(picks[:, k], minlength=40) for k in range(count)], 1).astype(np.float32)
        for name, values in outcome.weigh(weights).items():
            np.testing.assert_array_equal(values, found[name][start : start + count])
