"""Losses that are the same on given data are noticed by their values, and trained once."""

import pytest

from equipoise.comparison.folder import PlanEntry
from equipoise.comparison.plan import _twins, baseline_of
from equipoise.comparison.spec import CompareSpec
from equipoise.tasks import Task
from equipoise.train.loss_text import build_loss

ABOUT = {"num_classes": 5, "counts": [300, 150, 60, 15, 8], "num_samples": 533, "epochs": 10, "sync": False}


def twins(task, *texts):
    built = {text: ({}, build_loss(text, task=Task(task), ignore_index=-100, **ABOUT)) for text in texts}
    return _twins(built, Task(task), 5, -100)


@pytest.mark.parametrize(
    ("task", "one", "other"),
    [
        ("multiclass", "balanced-softmax", "logit-adjusted"),
        ("multiclass", "logit-adjusted:tau=1", "balanced-softmax"),
        ("multiclass", "ce", "focal:gamma=0"),
        ("multiclass", "ce", "class-balanced:beta=0"),
        ("multiclass", "ce", "logit-adjusted:tau=0"),
        ("multiclass", "inverse-frequency", "ce:weight=inverse"),
        ("multiclass", "focal:gamma=2", "focal:gamma=linear(2,2)"),
        ("multilabel", "bce", "binary-focal:gamma=0"),
        ("segmentation", "dice", "tversky:alpha=0.5:beta=0.5"),
    ],
)
def test_equal_losses_are_noticed(task, one, other):
    assert twins(task, one, other) == {other: one}


@pytest.mark.parametrize(
    "texts",
    [
        ("ce", "2*ce"),
        ("ce", "ce:label_smoothing=0.1"),
        ("balanced-softmax", "logit-adjusted:tau=1.01"),
        ("ldam", "ldam:weight=drw"),  # different in the last epochs only
        ("recall", "recall:momentum=0.1"),  # different from the second step on
        ("ce", "ce:reduction=batch_mean"),  # different where labels are ignored
        ("focal", "flsd-53"),
        ("class-balanced", "class-balanced:beta=0.99"),
    ],
)
def test_other_losses_are_not(texts):
    assert twins("multiclass", *texts) == {}


def test_the_plain_loss_represents_its_equals_and_is_the_baseline():
    assert twins("multiclass", "focal:gamma=0", "ce") == {"focal:gamma=0": "ce"}
    entries = [PlanEntry("focal:gamma=0", ("ce",)), PlanEntry("ce", ("ce",)), PlanEntry("recall", ("recall",))]
    spec = CompareSpec(data="digits-lt", losses="focal:gamma=0 ce recall")
    assert baseline_of(spec, entries) == "ce"
