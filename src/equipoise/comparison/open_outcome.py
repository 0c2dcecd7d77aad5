r"""How a finished run rejects samples of no known class, as numbers that can be computed again for other draws.

Known and unknown samples are drawn apart, each as often as there are of them. The threshold was chosen on validation
data and stays. Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.predictions import Predictions, open_predictions
from equipoise.train.folder import RunFolder

__all__ = ["OPEN_METRICS", "OpenOutcome"]

OPEN_METRICS = ("f_measure", "auroc", "unknown_rejected", "known_rejected", "open_accuracy")
"""Numbers that depend on the test samples and on those of no known class, at the main threshold."""

Array = NDArray[Any]


class OpenOutcome:
    """The test of one run, and its open set.

    Args:
        found: what ``equipoise.evaluation.evaluate_open_set`` found, with one main threshold.
        known: predictions of the test.
        unknown: those of the open set.

    Attributes:
        unknown: how many samples of no known class there are.
        samples_of: how many samples are drawn for a metric, of two kinds the fewer; where it is not that of the test.
        least: variance of a difference that samples add at least, as of ``equipoise.comparison.outcomes.Outcome``.
    """

    def __init__(self, found: Mapping[str, Any], known: Predictions, unknown: Predictions) -> None:
        (row,) = (one for one in found["thresholds"] if one["rule"] == found["main"])
        (threshold,) = row["threshold"]
        targets = np.concatenate([chunk.targets for chunk in known.chunks()])
        self.own = np.flatnonzero(targets != known.ignore_index)
        confidence, predicted = (values[self.own] for values in _surest(known))
        strange, _ = _surest(unknown)
        self.unknown = len(strange)
        accepted = confidence >= threshold
        self.found = (accepted & (predicted == targets[self.own])).astype(np.float32)
        self.lost = (~accepted).astype(np.float32)
        self.let_in = (strange >= threshold).astype(np.float32)
        self.order = strange.argsort(kind="stable")
        self.places = [np.searchsorted(strange[self.order], confidence, side) for side in ("left", "right")]
        few = min(len(self.own), self.unknown)
        self.samples_of = {"f_measure": few, "auroc": few, "unknown_rejected": self.unknown}
        samples, hits, strangers = len(self.own), float(self.found.sum()), float(self.let_in.sum())
        one = 2.0 * (samples + strangers) / (samples + hits + strangers) ** 2  # by which a hit more moves the F-measure
        self.least = {
            "f_measure": 2.0 * one**2,
            "unknown_rejected": 2.0 / self.unknown**2,
            "known_rejected": 2.0 / samples**2,
            "open_accuracy": 2.0 / samples**2,
        }

    @classmethod
    def of(cls, folder: RunFolder, known: Predictions) -> OpenOutcome | None:
        """That of a finished run; None where it has no open set."""
        found = folder.results.get("open")
        if found is None:
            return None
        return cls(found, known, open_predictions(folder.predictions("open"), targets=False))

    def weigh(self, weights: Array, unknown: Array) -> dict[str, Array]:
        r"""The metrics where known samples count as often as ``weights`` (samples, draws) say, unknown ones likewise.

        The F-measure is :math:`2 TP / (2 TP + FP + FN)`: known samples found, known samples that are wrong or rejected,
        unknown samples that are accepted. AUROC is the share of pairs in which the known sample is the surer one; a tie
        is half a pair.
        """
        weights = weights[self.own]
        known, strangers = (part.sum(0, dtype=np.float64) for part in (weights, unknown))
        hits, lost, let_in = (
            (row @ part).astype(np.float64)
            for row, part in ((self.found, weights), (self.lost, weights), (self.let_in, unknown))
        )
        ranked = np.cumsum(unknown[self.order], 0, dtype=np.float64)
        ranked = np.vstack([np.zeros((1, ranked.shape[1])), ranked])
        below, up_to = (ranked[place] for place in self.places)
        with np.errstate(divide="ignore", invalid="ignore"):
            return {
                "f_measure": 2.0 * hits / (known + hits + let_in),
                "auroc": (weights * (below + up_to)).sum(0) / (2.0 * known * strangers),
                "unknown_rejected": 1.0 - let_in / strangers,
                "known_rejected": lost / known,
                "open_accuracy": hits / known,
            }


def _surest(source: Predictions) -> tuple[Array, Array]:
    """Of each sample the largest probability in float64, and its class; (samples,)."""
    confidence, predicted = [], []
    for chunk in source.chunks():
        scores = chunk.scores.astype(np.float64)
        if source.from_logits:
            scores = np.exp(scores - scores.max(1, keepdims=True))
            scores /= scores.sum(1, keepdims=True)
        confidence.append(scores.max(1))
        predicted.append(scores.argmax(1))
    return np.concatenate(confidence), np.concatenate(predicted)
