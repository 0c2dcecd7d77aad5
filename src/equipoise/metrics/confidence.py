"""Distribution of confidence: very confident predictions, and confidence of correct and wrong predictions."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from equipoise._checks import check_number
from equipoise.metrics._inputs import ClassBlock, class_blocks, top_match
from equipoise.metrics._metric import MetricOptions, StreamingMetric
from equipoise.metrics.scoring import nll

__all__ = ["ConfidenceProfile", "ConfidentShare", "entropy"]


def entropy(block: ClassBlock, *, from_logits: bool) -> Tensor:
    r"""Entropy :math:`-\sum_c p_c \log p_c` of each row in natural logarithms, (n[, p])."""
    if not from_logits:
        return -torch.xlogy(block.scores, block.scores).sum(1)
    log_probs = block.scores.log_softmax(1).clamp(min=torch.finfo(block.scores.dtype).min)  # 0 log 0 is 0
    return -(log_probs.exp() * log_probs).sum(1)


class ConfidentShare(StreamingMetric):
    r"""Fraction of samples with a confidence above the threshold, and their accuracy.

    With 0.99 these are :math:`|S_{99}|` and its accuracy (Mukhoti et al. 2020, appendix F).

    Args:
        threshold: confidence to exceed.
        from_logits: False if scores are probabilities.
        ignore_index: target to ignore.
        validate: check values even if this waits for a device; on the CPU they are always checked.
        options: of ``torchmetrics.Metric``.

    Shape: scores (N, C, d1, ..., dk); targets (N, d1, ..., dk). Result: a dict of ``share`` and ``accuracy``, scalars.

    >>> metric = ConfidentShare(0.8, from_logits=False)
    >>> metric(torch.tensor([[0.9, 0.1], [0.5, 0.5]]), torch.tensor([1, 0]))
    {'share': tensor(0.5000, dtype=torch.float64), 'accuracy': tensor(0., dtype=torch.float64)}
    """

    counts: Tensor

    def __init__(
        self,
        threshold: float = 0.99,
        *,
        from_logits: bool = True,
        ignore_index: int = -100,
        validate: bool = False,
        **options: Unpack[MetricOptions],
    ) -> None:
        super().__init__(from_logits=from_logits, validate=validate, **options)
        self.threshold = check_number("threshold", threshold, low=0.0, high=1.0)
        self.ignore_index = ignore_index
        self.add_sum("counts", 3)  # all, confident, confident and correct

    def add_batch(self, scores: Tensor, targets: Tensor) -> None:
        """Update the state with a batch."""
        for block in class_blocks(
            scores, targets, from_logits=self.from_logits, ignore_index=self.ignore_index, validate=self.validate
        ):
            confidence, correct = top_match(block.scores, block.labels, self.from_logits)
            sure = block.valid & (confidence > self.threshold)
            right = sure & correct
            self.add_to(counts=torch.stack([block.valid.sum(), sure.sum(), right.sum()]))

    def compute(self) -> dict[str, Tensor]:
        """``share`` of confident samples and their ``accuracy``; NaN without any."""
        seen, sure, right = self.counts.double()
        return {"share": sure / seen, "accuracy": right / sure}


class ConfidenceProfile(StreamingMetric):
    r"""Mean confidence, entropy and negative log-likelihood of correct and of wrong predictions.

    Shows the effect of a loss on wrong predictions (Mukhoti et al. 2020, fig. 2 and 3): cross-entropy lowers
    the entropy of both, focal loss preserves that of the wrong predictions.

    Args:
        from_logits: False if scores are probabilities.
        ignore_index: target to ignore.
        validate: check values even if this waits for a device; on the CPU they are always checked.
        options: of ``torchmetrics.Metric``.

    Shape: scores (N, C, d1, ..., dk); targets (N, d1, ..., dk). Result: a dict of ``confidence_right``,
    ``entropy_right``, ``nll_right``, the same with ``wrong``, and ``accuracy``, all scalars.

    >>> metric = ConfidenceProfile()
    >>> values = metric(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
    >>> values["nll_wrong"], values["entropy_right"]
    (tensor(1.3133, dtype=torch.float64), tensor(0.3653, dtype=torch.float64))
    """

    seen: Tensor
    sums: Tensor
    MEANS = ("confidence", "entropy", "nll")

    def __init__(
        self,
        *,
        from_logits: bool = True,
        ignore_index: int = -100,
        validate: bool = False,
        **options: Unpack[MetricOptions],
    ) -> None:
        super().__init__(from_logits=from_logits, validate=validate, **options)
        self.ignore_index = ignore_index
        self.add_sum("seen", 2)  # wrong, right
        self.add_sum("sums", 2, len(self.MEANS), dtype=torch.float64)

    def add_batch(self, scores: Tensor, targets: Tensor) -> None:
        """Update the state with a batch."""
        for block in class_blocks(
            scores, targets, from_logits=self.from_logits, ignore_index=self.ignore_index, validate=self.validate
        ):
            confidence, right = top_match(block.scores, block.labels, self.from_logits)
            sides = torch.stack([block.valid & ~right, block.valid & right])
            values = (
                confidence,
                entropy(block, from_logits=self.from_logits),
                nll(block, from_logits=self.from_logits),
            )
            sums = torch.stack([masked_sums(value, sides) for value in values], 1)
            self.add_to(seen=sides.flatten(1).sum(1), sums=sums)

    def compute(self) -> dict[str, Tensor]:
        """Means for correct and wrong predictions; NaN without such predictions."""
        means = self.sums / self.seen.unsqueeze(1)
        values = {
            f"{name}_{side}": means[s, k]
            for s, side in ((1, "right"), (0, "wrong"))
            for k, name in enumerate(self.MEANS)
        }
        return values | {"accuracy": self.seen[1] / self.seen.sum().double()}


def masked_sums(values: Tensor, sides: Tensor) -> Tensor:
    """Sum of values (n[, p]) in float64 for each of the masks (sides, n[, p])."""
    return values.where(sides, 0.0).flatten(1).sum(1, dtype=torch.float64)
