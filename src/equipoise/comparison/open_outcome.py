r"""How a finished run rejects samples of no known class, as numbers that can be computed again for other draws.

Known and unknown samples are drawn apart, each as often as there are of them, and so are the validation samples, by
which every draw chooses its threshold anew. Nothing here needs torch.
"""

from __future__ import annotations

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
    """The test of one run beside its open set, with the threshold that accepts a share of the validation data.

    Args:
        known: predictions of the test.
        unknown: those of the open set.
        val: those of the validation data.
        accept: share of the validation samples that is accepted.

    Attributes:
        sizes: samples of no known class, and of the validation data.
        samples_of: how many samples are drawn for a metric, of several kinds the fewest.
        least: variance of a difference that samples add at least, as of ``equipoise.comparison.outcomes.Outcome``.
    """

    def __init__(self, known: Predictions, unknown: Predictions, val: Predictions, accept: float) -> None:
        self.own, self.confidence, self.right = _surest(known)
        self.own_val, checks, _ = _surest(val)
        _, strange, _ = _surest(unknown)
        self.accept = accept
        self.order, self.strange_order, self.val_order = (
            values.argsort(kind="stable") for values in (self.confidence, strange, -checks)
        )
        self.sorted, self.strange, self.checks = (
            self.confidence[self.order],
            strange[self.strange_order],
            checks[self.val_order],
        )
        self.places = [np.searchsorted(self.strange, self.confidence, side) for side in ("left", "right")]
        samples, strangers, checked = len(self.own), len(strange), len(checks)
        self.sizes = strangers, sum(len(chunk.targets) for chunk in val.chunks())
        self.samples_of = {
            "f_measure": min(samples, strangers, checked),
            "auroc": min(samples, strangers),
            "unknown_rejected": min(strangers, checked),
            "known_rejected": min(samples, checked),
            "open_accuracy": min(samples, checked),
        }
        (self.threshold,) = self._thresholds(np.ones((self.sizes[1], 1)))
        hits = int((self.right & (self.confidence >= self.threshold)).sum())
        let_in = int((strange >= self.threshold).sum())
        one = 2.0 * (samples + let_in) / (samples + hits + let_in) ** 2  # by which a hit more moves the F-measure
        self.least = {
            "f_measure": 2.0 * one**2,
            "unknown_rejected": 2.0 / strangers**2,
            "known_rejected": 2.0 / samples**2,
            "open_accuracy": 2.0 / samples**2,
        }

    @classmethod
    def of(cls, folder: RunFolder, known: Predictions) -> OpenOutcome | None:
        """That of a finished run; None where it has no open set."""
        evaluation = folder.results.open
        if evaluation is None:
            return None
        unknown = open_predictions(folder.predictions("open"), targets=False)
        return cls(known, unknown, open_predictions(folder.predictions("val"), task="multiclass"), evaluation.accept)

    def weigh(self, weights: Array, unknown: Array, val: Array) -> dict[str, Array]:
        r"""The metrics where samples of the three kinds count as often as weights (samples, draws) say; (draws,) each.

        The F-measure is :math:`2 TP / (2 TP + FP + FN)`: known samples found, known samples that are wrong or rejected,
        unknown samples that are accepted. AUROC is the share of pairs in which the known sample is the surer one; a tie
        is half a pair.
        """
        weights, draws = weights[self.own], np.arange(weights.shape[1])
        level = self._thresholds(val)
        below, strange_below = (np.searchsorted(values, level) for values in (self.sorted, self.strange))
        ranked, ranked_hits = (_summed(part[self.order]) for part in (weights, weights * self.right[:, None]))
        strange_ranked = _summed(unknown[self.strange_order])
        known, strangers, lost = ranked[-1], strange_ranked[-1], ranked[below, draws]
        hits = ranked_hits[-1] - ranked_hits[below, draws]
        let_in = strangers - strange_ranked[strange_below, draws]
        less, up_to = (strange_ranked[place] for place in self.places)
        with np.errstate(divide="ignore", invalid="ignore"):
            return {
                "f_measure": 2.0 * hits / (known + hits + let_in),
                "auroc": (weights * (less + up_to)).sum(0) / (2.0 * known * strangers),
                "unknown_rejected": 1.0 - let_in / strangers,
                "known_rejected": lost / known,
                "open_accuracy": hits / known,
            }

    def _thresholds(self, val: Array) -> Array:
        """The highest threshold of each draw that accepts the share of its validation samples, (draws,)."""
        above = np.cumsum(val[self.own_val][self.val_order], 0, dtype=np.float64)
        needed = np.maximum(np.ceil(self.accept * above[-1] - 1e-9), 1.0)
        found: Array = self.checks[(above >= needed).argmax(0)]
        return found


def _summed(weights: Array) -> Array:
    """Sums of the first 0, 1, ... rows."""
    return np.vstack([np.zeros((1, weights.shape[1])), np.cumsum(weights, 0, dtype=np.float64)])


def _surest(source: Predictions) -> tuple[Array, Array, Array]:
    """Which samples count, their largest probability in float64, and whether its class is the target; (samples,)."""
    targets, confidence, predicted = [], [], []
    for chunk in source.chunks():
        scores = chunk.scores.astype(np.float64)
        if source.from_logits:
            scores = np.exp(scores - scores.max(1, keepdims=True))
            scores /= scores.sum(1, keepdims=True)
        targets.append(chunk.targets)
        confidence.append(scores.max(1))
        predicted.append(scores.argmax(1))
    target, sure, found = (np.concatenate(parts) for parts in (targets, confidence, predicted))
    own = np.flatnonzero(target != source.ignore_index) if source.labelled else np.arange(len(target))
    return own, sure[own], (found == target)[own]
