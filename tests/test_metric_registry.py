"""The registry of metrics knows what is computed, and pages read it without torch."""

import subprocess
import sys

import pytest

from equipoise.evaluation import evaluate, evaluate_open_set
from equipoise.metric_registry import METRICS, MetricInfo, metric_info
from equipoise.predictions import open_predictions
from tests.predictions.saved import arrays_of


@pytest.mark.parametrize("task", ["multiclass", "multilabel", "segmentation"])
def test_every_number_of_an_evaluation_is_registered(task):
    evaluation = evaluate(open_predictions(arrays_of(task)))
    assert evaluation.overall.keys() | {evaluation.main} <= METRICS.keys()


def test_every_number_of_an_open_set_is_registered():
    arrays = arrays_of("multiclass")
    evaluation = evaluate_open_set(arrays, {"logits": -arrays["logits"]})
    assert evaluation.overall.keys() <= METRICS.keys()


@pytest.mark.parametrize("key", ["nll", "brier", "ece", "ada_ece", "classwise_ece", "mce", "seconds_per_step"])
def test_lower_is_better(key):
    assert not metric_info(key).higher_is_better
    assert metric_info("accuracy").higher_is_better


def test_an_unknown_metric_is_shown_as_a_fraction():
    assert metric_info("pairs_found") == MetricInfo("pairs_found", "pairs found")
    assert metric_info("pairs_found").text(0.125) == "12.50"


@pytest.mark.parametrize("key", ["ece", "mce", "nll", "s99_share"])
def test_a_metric_after_calibration_has_the_unit_and_direction_of_the_metric(key):
    before, after = metric_info(key), metric_info(f"{key}_after")
    assert (after.unit, after.higher_is_better) == (before.unit, before.higher_is_better)
    assert (after.key, after.label) == (f"{key}_after", f"{before.label} after")


def test_it_is_read_without_torch():
    code = "import sys, equipoise.metric_registry; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout == "False\n"
