"""Metrics of resampled predictions: those of the evaluation where nothing is resampled, and where samples repeat."""

import json
import subprocess
import sys

import numpy as np
import pytest

from equipoise.comparison import resampling
from equipoise.comparison.resampling import resample, statistics_of, values_of
from equipoise.evaluation.sample_statistics import METRICS
from tests.comparison.made import make_run
from tests.predictions.saved import TASKS, arrays_of

BY_CELLS = {"segmentation": ("ada_ece", "ada_ece_after")}
"""Pixels are counted in cells of confidence, which are exact but where a cut between bins falls into one."""


def run_of(folder, task, *, ties=False, change=lambda arrays: arrays, **options):
    arrays = change(arrays_of(task, **options))
    arrays["targets"] = arrays["targets"].astype(np.int16)
    if ties:
        arrays["logits"] = arrays["logits"].round(0)
    val = arrays_of(task, seed=5, classes=arrays["logits"].shape[1])
    return make_run(folder / "run", task, val, arrays), arrays


def close(actual, expected, task):
    for name in METRICS[task]:
        if expected[name] is None:
            assert name not in actual or np.isnan(actual[name])
        else:
            tolerance = 1e-3 if name in BY_CELLS.get(task, ()) else 1e-6
            assert float(actual[name]) == pytest.approx(expected[name], abs=tolerance), name


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("ties", [False, True], ids=["all different", "ties"])
def test_numbers_on_all_samples_are_those_of_the_evaluation(tmp_path, task, ties):
    folder, _ = run_of(tmp_path, task, ties=ties)
    run = statistics_of(folder)
    metrics = run.weigh(np.ones((run.test.samples, 1)))
    assert set(metrics) == set(METRICS[task])
    assert None not in [values_of(folder)[name] for name in METRICS[task]]
    close({name: values[0] for name, values in metrics.items()}, values_of(folder), task)


@pytest.mark.parametrize("task", TASKS)
def test_weights_are_repetitions(tmp_path, task):
    folder, arrays = run_of(tmp_path, task, samples=150)
    run = statistics_of(folder)
    weights = np.random.default_rng(0).multinomial(150, np.full(150, 1 / 150), 3).T
    metrics = run.weigh(weights.astype(np.float32))
    for draw in range(3):
        repeated = {
            name: np.repeat(arrays[name], weights[:, draw], 0) if name in ("logits", "targets") else arrays[name]
            for name in arrays
        }
        again = make_run(tmp_path / f"again {draw}", task, arrays_of(task, seed=5), repeated)
        for name in METRICS[task]:
            # a cell of several events may be shared out between bins at another place
            tolerance = 5e-3 if name.startswith("ada") and task != "multiclass" else 2e-6
            expected = values_of(again)[name]
            if name.startswith("ece"):  # bins keep their signs
                assert float(metrics[name][draw]) <= expected + tolerance, name
            else:
                assert float(metrics[name][draw]) == pytest.approx(expected, abs=tolerance), name


@pytest.mark.parametrize("task", TASKS)
def test_draws_of_the_calibration_error_lie_around_its_value(tmp_path, task):
    """Absolute values would be larger in nearly every draw."""
    folder, _ = run_of(tmp_path, task, samples=150)
    (drawn,) = resample([statistics_of(folder)], draws=400)
    for name in ("ece", "ece_after"):
        error = 4 * drawn[name].std() / 20
        assert drawn[name].mean() == pytest.approx(values_of(folder)[name], abs=error + 1e-6), name


@pytest.mark.parametrize("task", TASKS)
def test_classes_without_test_samples_are_in_no_mean(tmp_path, task):
    def without_two(arrays):
        if task == "multilabel":
            arrays["targets"][:, [1, 5]] = 0
        else:
            arrays["targets"][np.isin(arrays["targets"], [1, 5])] = 0
        return arrays

    folder, _ = run_of(tmp_path, task, change=without_two)
    run = statistics_of(folder)
    close({k: v[0] for k, v in run.weigh(np.ones((run.test.samples, 1))).items()}, values_of(folder), task)


def test_a_draw_without_a_group_has_no_value_for_it(tmp_path):
    run = statistics_of(run_of(tmp_path, "multiclass")[0])
    weights = np.ones((run.test.samples, 2), np.float32)
    targets = arrays_of("multiclass")["targets"]
    weights[np.isin(targets, np.flatnonzero(run.test.groups["few"])), 1] = 0
    metrics = run.weigh(weights)
    assert np.isfinite(metrics["few"][0])
    assert np.isnan(metrics["few"][1])
    assert np.isfinite(metrics["mean_class_accuracy"]).all()


@pytest.mark.parametrize("task", TASKS)
def test_without_a_fit_there_is_nothing_after_it(tmp_path, task):
    folder, _ = run_of(tmp_path, task)
    (folder.path / "calibration.json").unlink()
    results = json.loads((folder.path / "results.json").read_text())
    results["test"]["calibration"]["after"] = None
    (folder.path / "results.json").write_text(json.dumps(results))
    run = statistics_of(folder)
    after = [name for name in METRICS[task] if name.endswith("_after")]
    assert {values_of(folder)[name] for name in after} == {None}
    assert not set(after) & set(run.weigh(np.ones((run.test.samples, 1))))


@pytest.mark.parametrize(("together", "sizes"), [(1, [1] * 7), (500, [2, 2, 2, 1]), (10**6, [7])])
def test_as_many_draws_are_made_together_as_allowed(tmp_path, monkeypatch, together, sizes):
    run = statistics_of(run_of(tmp_path, "multiclass", samples=240)[0])
    seen, original = [], resampling._weights
    monkeypatch.setattr(resampling, "TOGETHER", together)
    monkeypatch.setattr(resampling, "_weights", lambda *given: seen.append(given[2]) or original(*given))
    (metrics,) = resample([run], draws=7, seed=3)
    assert seen == sizes
    assert all(values.shape == (7,) for values in metrics.values())
    assert np.isfinite(metrics["accuracy"]).all()


def test_counts_of_unknown_samples_are_ignored_without_an_open_set(tmp_path):
    run = statistics_of(run_of(tmp_path, "multiclass")[0])
    weights = np.ones((run.test.samples, 2), np.float32)
    expected, metrics = run.weigh(weights), run.weigh(weights, np.ones((3, 2), np.float32))
    assert metrics.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(metrics[name], values)


def test_draws_are_the_same_for_all_runs_and_for_the_same_seed(tmp_path):
    run = statistics_of(run_of(tmp_path, "multiclass")[0])
    one, other = resample([run, run], draws=30, seed=1)
    for name in one:
        assert np.array_equal(one[name], other[name])
        assert one[name].shape == (30,)
    (again,) = resample([run], draws=30, seed=1)
    (another,) = resample([run], draws=30, seed=2)
    assert np.array_equal(again["nll"], one["nll"])
    assert not np.array_equal(another["nll"], one["nll"])


def test_resampled_accuracy_spreads_as_a_share_does(tmp_path, monkeypatch):
    folder, _ = run_of(tmp_path, "multiclass", samples=400, change=all_count)
    monkeypatch.setattr("equipoise.comparison.resampling.TOGETHER", 400 * 300)  # several blocks of draws
    (metrics,) = resample([statistics_of(folder)], draws=2000)
    share = values_of(folder)["accuracy"]
    assert metrics["accuracy"].mean() == pytest.approx(share, abs=3e-3)
    assert metrics["accuracy"].std() == pytest.approx(np.sqrt(share * (1 - share) / 400), rel=0.06)


def all_count(arrays):
    return arrays | {"targets": np.where(arrays["targets"] < 0, 0, arrays["targets"])}


def test_the_least_variance_is_that_of_two_samples(tmp_path):
    run = statistics_of(run_of(tmp_path, "multiclass", samples=90, change=all_count)[0])
    support = np.bincount(all_count(arrays_of("multiclass", samples=90))["targets"])
    assert run.least["accuracy"] == pytest.approx(2 / 90**2)
    one_each = 2 * np.mean([(1 / (len(support) * n)) ** 2 for n in support for _ in range(n)])
    assert run.least["mean_class_accuracy"] == pytest.approx(one_each)


def test_runs_with_other_targets_are_detected(tmp_path):
    one, _ = run_of(tmp_path, "multiclass")
    other, _ = run_of(tmp_path / "other", "multiclass", change=all_count)
    again, _ = run_of(tmp_path / "again", "multiclass")
    assert statistics_of(one).targets == statistics_of(again).targets != statistics_of(other).targets


def test_nothing_here_needs_torch():
    code = "import sys, equipoise.comparison.resampling, equipoise.comparison.statistics; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
