"""Precision, recall and F1 for multi-label data, over all pairs and as means over labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from equipoise._checks import check_whole
from equipoise.metrics._inputs import LabelBlock, check_classes, label_blocks
from equipoise.metrics._metric import MetricOptions, StreamingMetric

__all__ = ["MultilabelScores", "label_counts", "label_scores", "top_labels"]


def top_labels(scores: Tensor, k: int) -> Tensor:
    """Bool, True for the k highest scores of each row in dimension 1; ties in favour of the lower label."""
    order = scores.argsort(stable=True, dim=1, descending=True).narrow(1, 0, min(k, scores.shape[1]))
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(1, order, True)


def label_counts(chosen: Tensor, block: LabelBlock) -> Tensor:
    """Counts per label of predicted, positive, and both, (3, L) int64, over known labels."""
    chosen = chosen & block.known
    kinds = torch.stack([chosen, block.positive, chosen & block.positive])
    return kinds.movedim(2, 1).flatten(2).sum(2)


def label_scores(counts: Tensor) -> dict[str, Tensor]:
    """Values from counts (3, L): CP, CR, CF1, OP, OR, OF1 and the number of labels excluded."""
    predicted, positive, tp = counts.double()
    counted = positive > 0
    precision, recall = _ratio(tp, predicted)[counted].mean(), (tp / positive)[counted].mean()
    overall_precision, overall_recall = _ratio(tp.sum(), predicted.sum()), tp.sum() / positive.sum()
    return {
        "CP": precision,
        "CR": recall,
        "CF1": _harmonic(precision, recall),
        "OP": overall_precision.where(positive.sum() > 0, torch.nan),
        "OR": overall_recall,
        "OF1": 2 * tp.sum() / (predicted.sum() + positive.sum()).where(positive.sum() > 0, torch.nan),
        "left_out": (~counted).sum(),
    }


def _ratio(part: Tensor, total: Tensor) -> Tensor:
    """Ratio, 0 for an empty denominator."""
    return part / total.clamp(min=1)


def _harmonic(a: Tensor, b: Tensor) -> Tensor:
    return (2 * a * b / (a + b)).where(a + b != 0, 0.0)  # NaN stays NaN


class MultilabelScores(StreamingMetric):
    """Per-class and overall precision, recall and F1: CP, CR, CF1, OP, OR, OF1.

    CP and CR are means over the labels, CF1 is the harmonic mean of CP and CR (as in the tables of Ridnik et al. 2021,
    not the mean of the F1 of each label). Labels without a positive are excluded from CP and CR and counted in
    ``left_out``; their predictions are still included in OP. The precision of a label that is never predicted is 0.

    Args:
        num_labels: L.
        threshold: probability above which a label is predicted; one number, or (L,) one per label.
        top_k: predict the k labels with the highest scores in each sample instead of those above the threshold.
        from_logits: False if scores are probabilities.
        ignore_value: target to ignore.
        validate: check values even if this waits for a device; on the CPU they are always checked.
        options: of ``torchmetrics.Metric``.

    Shape: scores (N, L, d1, ..., dk) and targets of the same shape, 0, 1 or ``ignore_value``. Result: a dict of
    scalars.

    >>> metric = MultilabelScores(2, from_logits=False)
    >>> values = metric(torch.tensor([[0.9, 0.8], [0.2, 0.6]]), torch.tensor([[1, 0], [1, 1]]))
    >>> {name: round(float(value), 3) for name, value in values.items()}
    {'CP': 0.75, 'CR': 0.75, 'CF1': 0.75, 'OP': 0.667, 'OR': 0.667, 'OF1': 0.667, 'left_out': 0.0}
    """

    higher_is_better = True
    counts: Tensor
    threshold: Tensor

    def __init__(
        self,
        num_labels: int,
        *,
        threshold: float | Sequence[float] | Tensor = 0.5,
        top_k: int | None = None,
        from_logits: bool = True,
        ignore_value: int = -1,
        validate: bool = False,
        **options: Unpack[MetricOptions],
    ) -> None:
        super().__init__(from_logits=from_logits, validate=validate, **options)
        num_labels = check_whole("num_labels", num_labels, low=1)
        self.num_labels, self.ignore_value = num_labels, ignore_value
        self.top_k = None if top_k is None else check_whole("top_k", top_k, low=1)
        self.register_buffer("threshold", _check_threshold(threshold, num_labels), persistent=False)
        self.add_sum("counts", 3, num_labels)

    def add_batch(self, scores: Tensor, targets: Tensor) -> None:
        """Update the state with a batch."""
        check_classes(scores, self.num_labels, "num_labels")
        for block in label_blocks(
            scores, targets, from_logits=self.from_logits, ignore_value=self.ignore_value, validate=self.validate
        ):
            self.add_to(counts=label_counts(self._chosen(block.scores), block))

    def _chosen(self, scores: Tensor) -> Tensor:
        if self.top_k is not None:
            return top_labels(scores, self.top_k)
        # a threshold is converted to the scale of the scores, to avoid rounding by the sigmoid
        limit = self.threshold.logit() if self.from_logits else self.threshold
        return scores > limit.to(scores.dtype).view(-1, *(1 for _ in scores.shape[2:]))

    def compute(self) -> dict[str, Tensor]:
        """All values in float64; NaN where no label has a positive."""
        return label_scores(self.counts)


def _check_threshold(threshold: float | Sequence[float] | Tensor, num_labels: int) -> Tensor:
    values = torch.as_tensor(threshold, dtype=torch.float64).detach().clone()
    if values.ndim > 1 or values.numel() not in (1, num_labels) or not bool(((values >= 0) & (values <= 1)).all()):
        raise ValueError(
            f"threshold must be a probability in [0, 1] or one for each of {num_labels} labels, got "
            f"{values.flatten().tolist()[:8]} of shape {tuple(values.shape)}; pass e.g. 0.5"
        )
    return values.flatten()
