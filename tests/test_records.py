"""What docs/reproducing.md says of the recorded trainings is so in the records."""

from __future__ import annotations

import json
from statistics import mean

import pytest

from tests.pages import ROOT

RESULTS = ROOT / "experiments" / "results"


def recorded(name, loss, metric, *, of="test"):
    """The mean over the seeds."""
    runs = json.loads((RESULTS / f"training-{name}.json").read_text(encoding="utf-8"))["runs"]
    return mean(run[of][metric] for run in runs if run["loss"] == loss)


def test_recall_loss_on_camvid():
    gains = {
        metric: recorded("camvid", "recall", metric) - recorded("camvid", "ce", metric)
        for metric in ("mean_accuracy", "mean_iou", "pixel_accuracy")
    }
    assert gains["mean_accuracy"] > gains["mean_iou"] > 0 > gains["pixel_accuracy"]


def test_asymmetric_loss_on_coco():
    assert recorded("coco18", "asl", "mean_average_precision") == pytest.approx(
        recorded("coco18", "bce", "mean_average_precision"), abs=0.02
    )
    assert recorded("coco18", "asl", "CF1") > recorded("coco18", "bce", "CF1") + 0.02
    assert recorded("coco18", "asl", "ece") > 0.1 > recorded("coco18", "bce", "ece")
    assert recorded("coco18", "asl", "ece", of="test_calibrated") < recorded("coco18", "asl", "ece") / 2


def test_balanced_softmax_on_a_long_tail():
    assert recorded("cifar10_lt100", "balanced-softmax", "accuracy") > recorded("cifar10_lt100", "ce", "accuracy")
    assert recorded("cifar10_lt100", "balanced-softmax", "ece") < recorded("cifar10_lt100", "ce", "ece")


def test_temperature_helps_all_ten_networks():
    networks = json.loads((RESULTS / "calibration.json").read_text(encoding="utf-8"))["networks"]
    assert len(networks) == 10
    for name, found in networks.items():
        for before, after in zip(found["before"], found["after"]["temperature"], strict=True):
            assert after["nll"] < before["nll"], name
