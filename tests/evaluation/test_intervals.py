"""Confidence intervals: reproducible, containing their values, equal to those of comparisons; and their coverage."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from equipoise.comparison.resampling import statistics_of
from equipoise.evaluation import evaluate
from equipoise.evaluation.closed_set import _intervals
from equipoise.evaluation.sample_statistics import (
    AFTER,
    COLLECTORS,
    GROUPS,
    METRICS,
    WITH_INTERVALS,
    ResampledMetric,
    SampleStatistics,
)
from equipoise.metrics.bootstrap import _counts
from equipoise.predictions import Chunk, Predictions, open_predictions
from tests.comparison.made import make_run
from tests.predictions.saved import TASKS, arrays_of, save


@pytest.mark.parametrize("task", TASKS)
def test_intervals_contain_their_values_and_depend_on_the_seed(tmp_path, task):
    source = open_predictions(save(tmp_path, "npz", arrays_of(task, samples=150)))
    runs = [evaluate(source, bootstrap=60, seed=seed) for seed in (1, 1, 2)]
    assert runs[0].intervals == runs[1].intervals != runs[2].intervals
    assert tuple(runs[0].intervals) == WITH_INTERVALS[task]
    for name, (low, high) in runs[0].intervals.items():
        assert low < runs[0].overall[name] < high, name


@pytest.mark.parametrize("bins", [4, 15])
@pytest.mark.parametrize("task", TASKS)
def test_unit_weights_give_the_metrics_of_the_evaluation(tmp_path, task, bins):
    source = open_predictions(save(tmp_path, "npz", arrays_of(task, samples=80)))
    collector = COLLECTORS[task](source, bins=bins)
    for chunk in source.chunks():
        collector.add(chunk.scores, chunk.targets)
    metrics = collector.finish().weigh(np.ones((80, 1)))
    overall = evaluate(source, bins=bins).overall
    assert {*WITH_INTERVALS[task], "ada_ece"} <= set(metrics) <= set(METRICS[task])
    for name, (value,) in metrics.items():
        # pixels are ranked in fine cells of confidence
        tolerance = 1e-3 if (task, name) == ("segmentation", "ada_ece") else 1e-6
        assert value == pytest.approx(overall[name], abs=tolerance), name


@pytest.mark.parametrize("task", TASKS)
def test_intervals_are_those_of_the_statistics_of_a_run_for_equal_weights(tmp_path, task):
    """``evaluate --bootstrap`` and ``equipoise compare`` resample alike."""
    run = make_run(tmp_path / "run", task, arrays_of(task, seed=5), arrays_of(task, samples=90))
    intervals = evaluate(open_predictions(run.predictions("test"), task=task), bootstrap=50, seed=3).intervals
    weights = _counts(50, 90, torch.Generator().manual_seed(3)).numpy().T
    metrics = statistics_of(run).weigh(weights)
    assert tuple(intervals) == WITH_INTERVALS[task]
    for name, interval in intervals.items():
        limits = np.quantile(metrics[name], [0.025, 0.975]).clip(min=0)
        assert interval == pytest.approx(limits.tolist(), rel=1e-12), name


@pytest.mark.parametrize("task", TASKS)
def test_statistics_that_no_metric_needs_are_not_kept(tmp_path, task):
    """Fine bins of confidence and rankings take memory."""
    source = open_predictions(save(tmp_path, "npz", arrays_of(task, samples=30)))
    collector = COLLECTORS[task](source, metrics=("OF1", "nll") if task == "multilabel" else ("nll",))
    for chunk in source.chunks():
        collector.add(chunk.scores, chunk.targets)
    counts = {"hits", "support", "predicted"} if task == "multilabel" else set()
    assert set(collector.finish().statistics) == {"nll", "events"} | counts
    assert not collector.ranked


def test_interval_of_map_agrees_with_repeated_rows(tmp_path):
    arrays = arrays_of("multilabel", samples=200)
    arrays["targets"] = np.abs(arrays["targets"])
    logits, targets = arrays["logits"], arrays["targets"]
    draw = np.random.default_rng(9)
    picks = [draw.integers(0, 200, 200) for _ in range(300)]
    values = [average_precision_score(targets[pick], logits[pick], average="macro") for pick in picks]
    low, high = np.quantile(values, [0.025, 0.975])
    intervals = evaluate(open_predictions(save(tmp_path, "npz", arrays)), bootstrap=300).intervals
    assert intervals["mean_average_precision"] == pytest.approx([low, high], abs=0.15 * (high - low))


def test_resampling_draws_images_not_pixels(tmp_path):
    """Two kinds of images, all pixels of an image alike: the interval is as wide as that of the images."""
    correct = np.arange(40) % 2 == 0
    logits = np.zeros((40, 2, 6, 6))
    logits[:, 0] = 2.0
    targets = np.broadcast_to(np.where(correct, 0, 1)[:, None, None], (40, 6, 6)).copy()
    source = open_predictions(save(tmp_path, "npz", {"logits": logits, "targets": targets}))
    low, high = evaluate(source, bootstrap=400).intervals["pixel_accuracy"]
    assert high - low == pytest.approx(2 * 1.96 * 0.5 / np.sqrt(40), rel=0.15)  # of 1440 pixels: a sixth of it


def test_ignored_samples_add_nothing():
    arrays = arrays_of("multiclass", samples=120, names=False, counts=False)
    arrays["targets"] = np.abs(arrays["targets"]) % 6
    ignored = {
        "logits": np.concatenate([arrays["logits"], np.full((2, 6), -np.inf)]),
        "targets": np.concatenate([arrays["targets"], [-100, -100]]),
    }
    intervals, others = (evaluate(one, bootstrap=400).intervals for one in (arrays, ignored))
    for name, (low, high) in intervals.items():
        assert others[name] == pytest.approx([low, high], abs=0.2 * (high - low)), name


def simulated(logits, labels):
    samples, classes = logits.shape
    names = tuple(map(str, range(classes)))
    chunk = Chunk(logits, labels)
    return Predictions(Path("simulated"), "multiclass", True, classes, samples, lambda size: iter([chunk]), names)


def test_coverage_of_the_accuracy():
    """95 % intervals of files of 200 samples with a known accuracy."""
    draw = np.random.default_rng(11)
    truth, covered, files = 0.7, 0, 150
    for number in range(files):
        labels = draw.integers(0, 3, 200)
        chosen = np.where(draw.random(200) < truth, labels, (labels + 1) % 3)
        logits = np.eye(3)[chosen] * 2.0 + draw.normal(size=(200, 3)) * 0.1
        low, high = evaluate(simulated(logits, labels), bootstrap=200, seed=number).intervals["accuracy"]
        covered += low <= truth <= high
    assert 0.89 <= covered / files <= 0.99


def test_coverage_of_the_calibration_error():
    """Overconfident by 4 points at each of seven levels; absolute gaps of the draws would give a coverage of 73 %."""
    draw = np.random.default_rng(12)
    levels, gap, covered, files = np.array([0.55, 0.62, 0.69, 0.75, 0.82, 0.88, 0.95]), 0.04, 0, 150
    for number in range(files):
        confidence = levels[draw.integers(0, len(levels), 600)]
        labels = (draw.random(600) > confidence - gap).astype(np.int64)
        logits = np.stack([np.log(confidence), np.log1p(-confidence)], 1)
        low, high = evaluate(simulated(logits, labels), bootstrap=200, seed=number).intervals["ece"]
        covered += low <= gap <= high
    assert covered / files >= 0.89


def test_limits_are_not_negative():
    """Draws of the ECE of a nearly calibrated model are, as bins keep their signs."""
    labels = np.arange(60) % 4 == 0
    logits = np.tile(np.log([[0.749, 0.251]]), (60, 1))
    low, high = evaluate(simulated(logits, labels.astype(np.int64)), bootstrap=200).intervals["ece"]
    assert low == 0 < high


def test_limits_are_clipped_at_the_lowest_value_of_the_metric():
    """A correlation may be negative."""
    signs = np.resize([-1.0, 1.0], 20)
    mean = ResampledMetric(("signs",), lambda total: total[0] / 20)
    metrics = {"error": mean, "correlation": mean._replace(lowest=-1.0), "above": mean._replace(lowest=-0.1)}
    statistics = SampleStatistics(20, {"signs": lambda weights: signs[None] @ weights}, metrics, {}, {})
    intervals = _intervals(statistics, draws=200, seed=0)
    low, high = intervals["correlation"]
    assert -1 < low < -0.1 < 0 < high
    assert intervals["error"] == [0, high]
    assert intervals["above"] == [-0.1, high]


@pytest.mark.parametrize("task", TASKS)
def test_metrics_of_all_classes_have_intervals(task):
    """Whatever comparisons resample, without groups of classes, values after calibration and the AdaECE."""
    without = {*GROUPS, "ada_ece", *(name for name in METRICS[task] if name.endswith(AFTER))}
    assert set(WITH_INTERVALS[task]) == set(METRICS[task]) - without
