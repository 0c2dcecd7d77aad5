"""Bad input gets an error that names the argument, what was expected, what came and what to do."""

import math
import re

import numpy as np
import pytest
import torch

from equipoise.metrics import (
    Accuracy,
    CalibrationError,
    ConfidentShare,
    MultilabelAveragePrecision,
    MultilabelScores,
    NegativeLogLikelihood,
    OpenSetScores,
    SegmentationScores,
    ShotAccuracy,
    bootstrap,
    shot_groups,
)
from equipoise.metrics import _inputs as inputs
from tests.metrics.batches import EVERY, MULTI, link


def says(argument, *parts):
    advised = r"(?=.*got .*; \w+)"
    return r"(?s)\A" + advised + ".*".join([re.escape(argument) + r"\b", *(re.escape(part) for part in parts)])


each_metric = pytest.mark.parametrize("name", EVERY)


@pytest.mark.parametrize(
    ("name", "value"), [(name, math.nan) for name in EVERY] + [(name, math.inf) for name in EVERY if name not in MULTI]
)
def test_scores_must_be_finite(name, value):
    build, batch = EVERY[name]
    scores, targets = batch()
    scores[5, 1] = value
    with pytest.raises(ValueError, match=says("scores", "finite", f"got {value:g}")):
        build().update(scores, targets)


@each_metric
@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_probabilities_must_be_in_range(name, value):
    build, batch = EVERY[name]
    scores, targets = batch()
    probs = link(name)(scores)
    probs[5, 1] = value
    with pytest.raises(ValueError, match=says("scores", "probabilities in [0, 1]", "from_logits=True")):
        build(from_logits=False).update(probs, targets)


@pytest.mark.parametrize("name", [name for name in EVERY if name not in MULTI])
def test_probabilities_of_classes_must_sum_to_one(name):
    build, batch = EVERY[name]
    scores, targets = batch()
    with pytest.raises(ValueError, match=says("scores", "sum to 1", "normalise")):
        build(from_logits=False).update(scores.sigmoid(), targets)


@each_metric
def test_shapes_and_types(name):
    build, batch = EVERY[name]
    scores, targets = batch()
    with pytest.raises(TypeError, match=says("scores", "float32", "got torch.int64")):
        build().update(scores.long(), targets)
    with pytest.raises(ValueError, match=says("scores", "(N, C", "got (24,)")):
        build().update(scores[:, 0], targets)
    with pytest.raises(ValueError, match=says("targets", "shape")):
        build().update(scores, targets[:-1])


@each_metric
def test_targets_out_of_range(name):
    build, batch = EVERY[name]
    scores, targets = batch()
    targets[3] = 7
    with pytest.raises(ValueError, match=says("targets", "got 7", "check the labels")):
        build().update(scores, targets)
    if name in MULTI:
        with pytest.raises(ValueError, match=says("targets", "0, 1", "got 0.3", "round")):
            build().update(scores, torch.full_like(scores, 0.3))
        with pytest.raises(ValueError, match=says("targets", "[0, 1] or ignore_value=-1", "got 255")):
            build().update(scores, targets.clamp(max=1).to(torch.uint8))  # where 255 equals -1
    else:
        with pytest.raises(TypeError, match=says("targets", "integer", "got torch.float64", "argmax")):
            build().update(scores, scores)


@each_metric
def test_a_refused_batch_leaves_no_trace(name, monkeypatch):
    """Also where it is only the last block that is wrong."""
    monkeypatch.setattr(inputs, "BLOCK", 16)
    build, batch = EVERY[name]
    scores, targets = batch()
    metric, alone = build(), build()
    wrong = scores.clone()
    wrong[-1] = math.nan
    for each in (metric, alone):
        each.update(scores, targets)
    with pytest.raises(ValueError, match=says("scores", "finite")):
        metric.update(wrong, targets)
    assert str(metric.compute()) == str(alone.compute())
    metric.reset()
    with pytest.raises(ValueError, match=says("scores", "finite")):
        metric.update(wrong, targets)
    metric.update(scores, targets)
    assert str(metric.compute()) == str(alone.compute())


def test_the_number_of_classes_is_kept():
    scores, targets = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    for metric, name in (
        (Accuracy(4), "num_classes"),
        (SegmentationScores(4), "num_classes"),
        (ShotAccuracy([5, 4, 3, 2]), "train_counts"),
        (CalibrationError(groups=[0, 0, 1, 1]), "groups"),
    ):
        with pytest.raises(ValueError, match=says("scores", "4 entries", f"as {name} says")):
            metric.update(scores, targets)
    for binning in ("width", "mass"):
        metric = CalibrationError(kind="classwise", binning=binning)
        metric.update(torch.randn(2, 1), torch.tensor([0, 0]))
        with pytest.raises(ValueError, match=says("scores", "1 entries", "the first batch")):
            metric.update(scores, targets)
        metric.reset()
        metric.update(scores, targets)
    for metric in (MultilabelScores(4), MultilabelAveragePrecision(4)):
        with pytest.raises(ValueError, match=says("scores", "4 entries", "as num_labels says")):
            metric.update(scores, torch.zeros(4, 3))


@pytest.mark.parametrize(
    ("build", "parts"),
    [
        (lambda: CalibrationError(0), ("bins", "got 0")),
        (lambda: CalibrationError(norm="l3"), ("norm", "'l1', 'l2', 'max'", "got 'l3'")),
        (lambda: CalibrationError(binning="equal"), ("binning", "'width', 'mass'", "got 'equal'")),
        (lambda: CalibrationError(kind="binary"), ("kind", "got 'binary'")),
        (lambda: CalibrationError(groups=[0.5, 1]), ("groups", "shape (C,)", "got torch.float32")),
        (lambda: CalibrationError(groups=[-1, 1]), ("groups", "from 0", "got torch.int64")),
        (lambda: CalibrationError(bins=20, resolution=10), ("resolution", "at least 20", "got 10")),
        (lambda: CalibrationError().per_class(), ("kind", "'classwise'", "got 'top'", "groups=torch.arange(C)")),
        (lambda: ConfidentShare(1.5), ("threshold", "[0, 1]", "got 1.5")),
        (lambda: Accuracy(3, top_k=(0,)), ("top_k", "got 0")),
        (lambda: Accuracy(3, top_k=5), ("top_k", "a list", "got 5; pass")),
        (lambda: ShotAccuracy([3, 4], cuts=20), ("cuts", "two numbers", "got 20; pass")),
        (lambda: shot_groups([3, 4], cuts=(1, 2, 3)), ("cuts", "two numbers", "got (1, 2, 3); pass")),
        (lambda: shot_groups([3, 4], convention="us"), ("convention", "'kang', 'oltr'", "got 'us'")),
        (lambda: shot_groups([3, 4], cuts=(100, 20)), ("cuts", "few <= many", "got (100, 20)")),
        (lambda: shot_groups([[3, 4]]), ("train_counts", "(C,)", "got shape (1, 2)")),
        (lambda: MultilabelScores(3, threshold=[0.5, 0.5]), ("threshold", "3 labels", "got [0.5, 0.5]")),
        (lambda: MultilabelScores(3, threshold=2.0), ("threshold", "[0, 1]", "got [2.0]")),
        (lambda: MultilabelAveragePrecision(3, average="mean"), ("average", "'macro'", "got 'mean'")),
        (lambda: SegmentationScores(3, predictions="maps"), ("predictions", "'labels'", "got 'maps'")),
        (lambda: SegmentationScores(3, tversky=(0.3, -0.7)), ("tversky", "[0, inf]", "got -0.7")),
        (lambda: SegmentationScores(3, tversky=(0.0, 0.0)), ("tversky", "above 0", "got (0.0, 0.0)")),
        (lambda: OpenSetScores(unknown=-100), ("unknown", "ignore_index", "got -100")),
        (lambda: bootstrap(torch.mean, torch.ones(3), torch.ones(4)), ("arrays", "same number", "got [3, 4]")),
        (lambda: bootstrap(torch.mean, torch.ones(0)), ("arrays", "at least one", "got [0]")),
        (lambda: bootstrap(torch.mean, torch.ones(3), level=1.0), ("level", "(0, 1)", "got 1.0")),
    ],
)
def test_arguments(build, parts):
    with pytest.raises((TypeError, ValueError), match=says(*parts)):
        build()


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("bins", lambda bins: CalibrationError(bins)),
        ("resolution", lambda cells: OpenSetScores(resolution=cells)),
        ("num_classes", lambda classes: Accuracy(classes)),
        ("num_classes", lambda classes: SegmentationScores(classes)),
        ("num_labels", lambda labels: MultilabelScores(labels)),
        ("num_labels", lambda labels: MultilabelAveragePrecision(labels)),
        ("top_k", lambda k: Accuracy(9, top_k=(k,))),
        ("top_k", lambda k: MultilabelScores(9, top_k=k)),
        ("draws", lambda draws: bootstrap(torch.mean, torch.ones(3), draws=draws)),
    ],
)
def test_whole_numbers(name, build):
    build(np.int64(3))
    for value in (3.0, True):
        with pytest.raises(TypeError, match=says(name, "an integer of at least", f"got {value}; pass an int")):
            build(value)


def test_label_maps():
    metric = SegmentationScores(3, predictions="labels", ignore_index=255)
    labels = torch.tensor([[0, 1], [2, 255]])
    with pytest.raises(ValueError, match=says("predictions", "shape of the targets (2, 2)", "got (2, 3, 2)")):
        metric.update(torch.zeros(2, 3, 2, dtype=torch.long), labels)
    with pytest.raises(TypeError, match=says("predictions", "integer", "got torch.float32", "predictions='scores'")):
        metric.update(labels.float(), labels)
    with pytest.raises(ValueError, match=says("predictions", "[0, 2]", "got 3")):
        metric.update(torch.tensor([[3, 1], [2, 0]]), labels)
    with pytest.raises(ValueError, match=says("targets", "[0, 2]", "got 9")):
        metric.update(labels.clamp(max=2), torch.tensor([[9, 1], [2, 0]]))
    metric.update(torch.tensor([[0, 1], [2, 77]]), labels)  # what is predicted where nothing counts does not matter
    assert metric.confusion.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


@each_metric
def test_inputs_must_be_tensors(name):
    build, batch = EVERY[name]
    scores, targets = batch()
    for value, came, advice in (
        (scores.numpy(), "ndarray", "torch.as_tensor"),
        (scores.tolist(), "list", "torch.tensor"),
    ):
        with pytest.raises(TypeError, match=says("scores", "must be a tensor", f"got {came}", advice)):
            build().update(value, targets)
        with pytest.raises(TypeError, match=says("scores", "must be a tensor", f"got {came}", advice)):
            build()(value, targets)
    with pytest.raises(TypeError, match=says("targets", "must be a tensor", "got list", "torch.tensor")):
        build().update(scores, targets.tolist())


@each_metric
def test_targets_on_another_device(name):
    build, batch = EVERY[name]
    scores, targets = batch()
    with pytest.raises(ValueError, match=says("targets", "device of the scores, cpu", "got meta", "targets.to(scores")):
        build().update(scores, targets.to("meta"))


BY_ORDER = (Accuracy, ShotAccuracy, SegmentationScores, MultilabelAveragePrecision)


@each_metric
def test_probabilities_taken_for_logits_are_worth_a_warning(name, recwarn):
    build, batch = EVERY[name]
    scores, targets = batch()
    probs = link(name)(scores)
    build().update(scores, targets)
    build(from_logits=False).update(probs, targets)
    assert not recwarn.list
    metric = build()
    if isinstance(metric, BY_ORDER):
        metric.update(probs, targets)
        assert not recwarn.list
        return
    with pytest.warns(UserWarning, match=says("scores", "must be raw scores", "in [0, 1]", "from_logits=False")):
        metric.update(probs, targets)
    recwarn.clear()
    metric.update(probs, targets)
    assert not recwarn.list  # looked at once


@pytest.mark.parametrize(
    ("build", "parts"),
    [
        (lambda: CalibrationError(n_bins=15), ("CalibrationError", "'n_bins'; did you mean 'bins'?")),
        (lambda: CalibrationError(num_classes=3), ("CalibrationError", "'num_classes'; it takes bins, norm")),
        (lambda: CalibrationError(task="multiclass"), ("CalibrationError", "'task'; ")),
        (lambda: ShotAccuracy(counts=[3, 2]), ("ShotAccuracy", "'counts'; did you mean 'cuts' or 'train_counts'?")),
        (lambda: MultilabelScores(3, thresholds=0.5), ("MultilabelScores", "'thresholds'; did you mean 'threshold'?")),
        (lambda: NegativeLogLikelihood(from_logit=True), ("NegativeLogLikelihood", "did you mean 'from_logits'?")),
        (lambda: Accuracy(3, sync_compute=True), ("Accuracy", "did you mean 'sync_on_compute'?")),
    ],
)
def test_unknown_arguments(build, parts):
    with pytest.raises(TypeError, match=r"(?s)\A" + ".*".join(re.escape(part) for part in parts)):
        build()
    Accuracy(3, sync_on_compute=False, compute_on_cpu=True)  # of torchmetrics


def test_groups_by_name():
    with pytest.raises(TypeError, match=says("groups", "group index", "got ['many', 'few']", "shot_groups(")):
        CalibrationError(groups=["many", "few"])
