r"""Open-set metrics of a finished run for any weights of the samples.

Known, unknown and validation samples are resampled separately, each with their own number of samples. Every draw
chooses its threshold on its own validation samples. Does not import torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.predictions import Predictions, open_predictions
from equipoise.train.folder import RunFolder

__all__ = ["OPEN_METRICS", "OpenSetStatistics"]

OPEN_METRICS = ("f_measure", "auroc", "unknown_rejected", "known_rejected", "open_accuracy")
"""Metrics of test samples and samples of unknown classes at the main threshold."""

Array = NDArray[Any]


class OpenSetStatistics:
    """Test data and open set of one run, with the threshold that accepts a fraction of the validation data.

    Args:
        known: test predictions.
        unknown: predictions of the open set.
        val: validation predictions.
        accept: fraction of the validation samples that is accepted.

    Attributes:
        sizes: number of samples of unknown classes, and of validation samples.
        samples_of: number of samples that each metric is resampled from; the smallest if there are several kinds.
        least: minimum variance that samples add to a difference, as in ``SampleStatistics``.
    """

    def __init__(self, known: Predictions, unknown: Predictions, val: Predictions, accept: float) -> None:
        self.counted, self.confidence, self.correct = _confidences(known)
        self.counted_val, val_confidence, _ = _confidences(val)
        _, unknown_confidence, _ = _confidences(unknown)
        self.accept = accept
        self.order, self.unknown_order, self.val_order = (
            values.argsort(kind="stable") for values in (self.confidence, unknown_confidence, -val_confidence)
        )
        self.sorted, self.unknown_sorted, self.val_sorted = (
            self.confidence[self.order],
            unknown_confidence[self.unknown_order],
            val_confidence[self.val_order],
        )
        self.places = [np.searchsorted(self.unknown_sorted, self.confidence, side) for side in ("left", "right")]
        samples, unknowns, validated = len(self.counted), len(unknown_confidence), len(val_confidence)
        self.sizes = unknowns, sum(len(chunk.targets) for chunk in val.chunks())
        self.samples_of = {
            "f_measure": min(samples, unknowns, validated),
            "auroc": min(samples, unknowns),
            "unknown_rejected": min(unknowns, validated),
            "known_rejected": min(samples, validated),
            "open_accuracy": min(samples, validated),
        }
        (self.threshold,) = self._thresholds(np.ones((self.sizes[1], 1)))
        true_positives = int((self.correct & (self.confidence >= self.threshold)).sum())
        accepted = int((unknown_confidence >= self.threshold).sum())
        step = (
            2.0 * (samples + accepted) / (samples + true_positives + accepted) ** 2
        )  # change of the F-measure by one sample
        self.least = {
            "f_measure": 2.0 * step**2,
            "unknown_rejected": 2.0 / unknowns**2,
            "known_rejected": 2.0 / samples**2,
            "open_accuracy": 2.0 / samples**2,
        }

    @classmethod
    def of(cls, folder: RunFolder, known: Predictions) -> OpenSetStatistics | None:
        """The statistics of a finished run; None without an open set."""
        evaluation = folder.results.open
        if evaluation is None:
            return None
        unknown = open_predictions(folder.predictions("open"), targets=False)
        return cls(known, unknown, open_predictions(folder.predictions("val"), task="multiclass"), evaluation.accept)

    def weigh(self, weights: Array, unknown: Array, val: Array) -> dict[str, Array]:
        r"""The metrics for weights (samples, draws) of known, unknown and validation samples; (draws,) each.

        The F-measure is :math:`2 TP / (2 TP + FP + FN)`: known samples accepted and correct; known samples that are
        wrong or rejected; unknown samples that are accepted. AUROC is the fraction of pairs in which the known sample
        has the higher confidence; a tie is half a pair.
        """
        weights, draws = weights[self.counted], np.arange(weights.shape[1])
        level = self._thresholds(val)
        below, unknown_below = (np.searchsorted(values, level) for values in (self.sorted, self.unknown_sorted))
        ranked, ranked_correct = (_summed(part[self.order]) for part in (weights, weights * self.correct[:, None]))
        unknown_ranked = _summed(unknown[self.unknown_order])
        known, unknowns, rejected = ranked[-1], unknown_ranked[-1], ranked[below, draws]
        true_positives = ranked_correct[-1] - ranked_correct[below, draws]
        accepted = unknowns - unknown_ranked[unknown_below, draws]
        less, up_to = (unknown_ranked[place] for place in self.places)
        with np.errstate(divide="ignore", invalid="ignore"):
            return {
                "f_measure": 2.0 * true_positives / (known + true_positives + accepted),
                "auroc": (weights * (less + up_to)).sum(0) / (2.0 * known * unknowns),
                "unknown_rejected": 1.0 - accepted / unknowns,
                "known_rejected": rejected / known,
                "open_accuracy": true_positives / known,
            }

    def _thresholds(self, val: Array) -> Array:
        """For each draw the highest threshold that accepts the fraction of its validation samples, (draws,)."""
        above = np.cumsum(val[self.counted_val][self.val_order], 0, dtype=np.float64)
        needed = np.maximum(np.ceil(self.accept * above[-1] - 1e-9), 1.0)
        thresholds: Array = self.val_sorted[(above >= needed).argmax(0)]
        return thresholds


def _summed(weights: Array) -> Array:
    """Cumulative sums over the first 0, 1, ... rows."""
    return np.vstack([np.zeros((1, weights.shape[1])), np.cumsum(weights, 0, dtype=np.float64)])


def _confidences(source: Predictions) -> tuple[Array, Array, Array]:
    """Indices of samples that are not ignored, their confidence in float64, and whether they are correct."""
    parts = []
    for chunk in source.chunks():
        scores = chunk.scores.astype(np.float64)
        if source.from_logits:
            scores = np.exp(scores - scores.max(1, keepdims=True))
            scores /= scores.sum(1, keepdims=True)
        parts.append((chunk.targets, scores.max(1), scores.argmax(1)))
    targets, confidence, predicted = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    counted = np.flatnonzero(targets != source.ignore_index) if source.labelled else np.arange(len(targets))
    return counted, confidence[counted], (predicted == targets)[counted]
