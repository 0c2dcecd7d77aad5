"""Metrics of accuracy on rare classes and of calibration, accumulated over batches and processes.

``metric.update(scores, targets)`` adds a batch and ``metric.compute()`` returns the value in float64. Scores are logits
unless ``from_logits=False`` declares probabilities; values are never used to guess. The state has a fixed size, except
for metrics that need a sort with ``exact=True``. Sums are float64 and counts int64, so the value does not depend on the
batch size.
"""

from __future__ import annotations

from equipoise.metrics.accuracy import Accuracy, ShotAccuracy, shot_groups
from equipoise.metrics.average_precision import MultilabelAveragePrecision, average_precision
from equipoise.metrics.binning import BinSums, ReliabilityCurve, bin_edges, bin_index, bin_sums, binned_error
from equipoise.metrics.bootstrap import Interval, bootstrap
from equipoise.metrics.calibration import CalibrationError
from equipoise.metrics.confidence import ConfidenceProfile, ConfidentShare
from equipoise.metrics.multilabel import MultilabelScores
from equipoise.metrics.open_set import OpenSetScores
from equipoise.metrics.rejection import RejectionCurve, accepting_threshold, best_threshold, rejection_curve
from equipoise.metrics.scoring import BrierScore, NegativeLogLikelihood
from equipoise.metrics.segmentation import SegmentationScores

__all__ = [
    "Accuracy",
    "BinSums",
    "BrierScore",
    "CalibrationError",
    "ConfidenceProfile",
    "ConfidentShare",
    "Interval",
    "MultilabelAveragePrecision",
    "MultilabelScores",
    "NegativeLogLikelihood",
    "OpenSetScores",
    "RejectionCurve",
    "ReliabilityCurve",
    "SegmentationScores",
    "ShotAccuracy",
    "accepting_threshold",
    "average_precision",
    "best_threshold",
    "bin_edges",
    "bin_index",
    "bin_sums",
    "binned_error",
    "bootstrap",
    "rejection_curve",
    "shot_groups",
]
