"""Sanity checks: probable mistakes in a file of predictions. They are reported and have no other effect."""

from __future__ import annotations

from torch import Tensor

from equipoise.predictions import Predictions

__all__ = ["SanityChecks"]

ENOUGH = 100
"""Minimum number of samples for a warning on an accuracy far below chance."""


class SanityChecks:
    """Checks that are updated with each chunk."""

    def __init__(self, source: Predictions) -> None:
        self.source = source
        self.like_probabilities = source.from_logits
        self.one_positive = source.task.multilabel and source.num_classes > 1
        self.samples = 0

    def look(self, scores: Tensor, targets: Tensor) -> None:
        """Add a chunk."""
        self.samples += len(scores)
        if self.like_probabilities:
            inside = bool(((scores >= 0) & (scores <= 1)).all())
            sums = self.source.task.multilabel or bool(((scores.sum(1) - 1).abs() < 1e-3).all())
            self.like_probabilities = inside and sums
        if self.one_positive:
            self.one_positive = bool(((targets == 1).sum(1) == 1).all() and (targets >= 0).all())

    def sentences(self, accuracy: float | None) -> list[str]:
        """The warnings; possibly empty."""
        sentences = []
        if self.like_probabilities:
            sentences.append(
                "All logits lie between 0 and 1"
                + (", " if self.source.task.multilabel else " and sum to 1 over the classes, ")
                + "as probabilities do; if that is what they are, save them as probs."
            )
        chance = 1.0 / self.source.num_classes
        if accuracy is not None and self.samples >= ENOUGH and accuracy < 0.5 * chance:
            sentences.append(
                f"Accuracy is {100 * accuracy:.2f} %, far below chance ({100 * chance:.1f} %): are the labels shifted, "
                "or the columns in another order than the classes?"
            )
        if self.one_positive:
            sentences.append(
                "Every sample has exactly one label; if it can have no more, save targets.argmax(1) and evaluate a "
                "single label."
            )
        return sentences
