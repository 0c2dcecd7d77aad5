"""Intervals: the same for the same seed, about the value, and over the truth about as often as they say."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from equipoise.evaluation import evaluate
from equipoise.evaluation.intervals import Resampling
from equipoise.evaluation.split import Split
from equipoise.metrics import Interval
from equipoise.predictions import Chunk, Predictions, open_predictions
from equipoise.tasks import Task
from tests.predictions.saved import arrays_of, save


@pytest.mark.parametrize("task", ["multiclass", "multilabel", "segmentation"])
def test_intervals_are_about_their_values_and_follow_the_seed(tmp_path, task):
    found = open_predictions(save(tmp_path, "npz", arrays_of(task, samples=150)))
    runs = [evaluate(found, bootstrap=60, seed=seed) for seed in (1, 1, 2)]
    assert runs[0].intervals == runs[1].intervals != runs[2].intervals
    assert tuple(runs[0].intervals) == Task(task).resampled
    for name, (low, high) in runs[0].intervals.items():
        value = runs[0].overall[name]
        slack = 0.1 * value if name == "ece" else 0.0  # a binned error is biased upwards when samples repeat
        assert low < value + slack, name
        assert value < high, name


def without_drawing(function, *arrays, weighted, **options):
    once = {"weight": torch.ones(1, len(arrays[0]), dtype=torch.float64)} if weighted else {}
    value = function(*arrays, **once).flatten()
    return Interval(value, value, value)


@pytest.mark.parametrize("task", ["multiclass", "multilabel", "segmentation"])
def test_every_sample_once_is_the_value_itself(tmp_path, monkeypatch, task):
    """What is resampled is the number that is printed."""
    found = open_predictions(save(tmp_path, "npz", arrays_of(task, samples=80)))
    monkeypatch.setattr("equipoise.evaluation.intervals.bootstrap", without_drawing)
    resampling = Resampling(found, 15)
    for part in Split(found, 0).parts():
        resampling.add(part.logits, part.targets)
    values = resampling.intervals(10, 0)
    overall = evaluate(found).overall
    for name, (low, high) in values.items():
        assert low == high == pytest.approx(overall[name], rel=1e-9), name


def test_the_interval_of_map_is_that_of_resampled_rows(tmp_path):
    arrays = arrays_of("multilabel", samples=200)
    arrays["targets"] = np.abs(arrays["targets"])
    logits, targets = arrays["logits"], arrays["targets"]
    draw = np.random.default_rng(9)
    picks = [draw.integers(0, 200, 200) for _ in range(300)]
    values = [average_precision_score(targets[pick], logits[pick], average="macro") for pick in picks]
    low, high = np.quantile(values, [0.025, 0.975])
    found = evaluate(open_predictions(save(tmp_path, "npz", arrays)), bootstrap=300).intervals
    width = high - low
    assert found["mean_average_precision"] == pytest.approx([low, high], abs=0.15 * width)


def test_images_are_drawn_and_not_pixels(tmp_path):
    """Two kinds of images, all pixels of an image alike: the interval is as wide as that of the images."""
    right = np.arange(40) % 2 == 0
    logits = np.zeros((40, 2, 6, 6))
    logits[:, 0] = 2.0
    targets = np.broadcast_to(np.where(right, 0, 1)[:, None, None], (40, 6, 6)).copy()
    found = evaluate(open_predictions(save(tmp_path, "npz", {"logits": logits, "targets": targets})), bootstrap=400)
    low, high = found.intervals["pixel_accuracy"]
    assert high - low == pytest.approx(2 * 1.96 * 0.5 / np.sqrt(40), rel=0.15)  # of 1440 pixels: a sixth of it


def simulated(chunk):
    samples, classes = chunk.scores.shape
    names = tuple(map(str, range(classes)))
    return Predictions(Path("simulated"), "multiclass", True, classes, samples, lambda size: iter([chunk]), names)


def test_coverage_of_the_accuracy():
    """95 % intervals of files of 200 samples with a known accuracy."""
    draw = np.random.default_rng(11)
    truth, hits, files = 0.7, 0, 150
    for number in range(files):
        labels = draw.integers(0, 3, 200)
        chosen = np.where(draw.random(200) < truth, labels, (labels + 1) % 3)
        logits = np.eye(3)[chosen] * 2.0 + draw.normal(size=(200, 3)) * 0.1
        found = simulated(Chunk(logits, labels))
        resampling = Resampling(found, 15)
        for part in Split(found, 0).parts():
            resampling.add(part.logits, part.targets)
        low, high = resampling.intervals(200, number)["accuracy"]
        hits += low <= truth <= high
    assert 0.89 <= hits / files <= 0.99
