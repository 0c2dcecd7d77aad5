"""Proper scoring rules: negative log-likelihood and Brier score."""

from __future__ import annotations

from abc import abstractmethod
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise._checks import check_choice
from equipoise.metrics._inputs import ClassBlock, LabelBlock, class_blocks, label_blocks, true_scores
from equipoise.metrics._metric import MetricOptions, StreamingMetric

__all__ = ["BrierScore", "NegativeLogLikelihood", "binary_brier", "binary_nll", "brier", "nll"]

KINDS = ("multiclass", "multilabel")


def nll(block: ClassBlock, *, from_logits: bool) -> Tensor:
    r""":math:`-\log p_y` of each row, (n[, p]); infinite if the given probability is 0."""
    if not from_logits:
        return -true_scores(block.scores, block.labels).log()
    return -true_scores(block.scores.log_softmax(1), block.labels)  # logsumexp minus a large logit would cancel


def binary_nll(block: LabelBlock, *, from_logits: bool) -> Tensor:
    """Negative log-likelihood of each label, (n, L[, p])."""
    if from_logits:
        return F.softplus(torch.where(block.positive, -block.scores, block.scores))
    return -torch.where(block.positive, block.scores.log(), torch.log1p(-block.scores))


def brier(block: ClassBlock, *, from_logits: bool) -> Tensor:
    r""":math:`\sum_c (p_c - [c = y])^2` of each row, (n[, p]); from 0 to 2."""
    probs = block.scores.softmax(1) if from_logits else block.scores
    true_prob = true_scores(probs, block.labels)
    # replace p_y by its complement in the sum: 1 - 2 p_y + p_y^2 would cancel for p_y near 1
    others = probs.scatter(1, block.labels.unsqueeze(1), 0.0)
    return others.square_().sum(1) + (1.0 - true_prob).square()


def binary_brier(block: LabelBlock, *, from_logits: bool) -> Tensor:
    """Squared error of the probability of each label, (n, L[, p])."""
    probs = block.scores.sigmoid() if from_logits else block.scores
    return (probs - block.positive.to(probs.dtype)).square()


class _MeanScore(StreamingMetric):
    """A score of each row, averaged."""

    higher_is_better = False
    total: Tensor
    seen: Tensor

    def __init__(
        self,
        *,
        kind: str = "multiclass",
        from_logits: bool = True,
        ignore_index: int = -100,
        ignore_value: int = -1,
        validate: bool = False,
        **options: Unpack[MetricOptions],
    ) -> None:
        super().__init__(from_logits=from_logits, validate=validate, **options)
        kind = "multiclass" if kind == "single" else kind  # the name of version 0.1
        check_choice("kind", kind, KINDS)
        self.kind, self.ignore_index, self.ignore_value = kind, ignore_index, ignore_value
        self.add_sum("total", dtype=torch.float64)
        self.add_sum("seen")

    def add_batch(self, scores: Tensor, targets: Tensor) -> None:
        """Update the state with a batch."""
        common = {"from_logits": self.from_logits, "validate": self.validate}
        if self.kind == "multilabel":
            for labelled in label_blocks(scores, targets, ignore_value=self.ignore_value, **common):
                self._add(self._of_labels(labelled), labelled.known)
        else:
            for block in class_blocks(scores, targets, ignore_index=self.ignore_index, **common):
                self._add(self._of_classes(block), block.valid)

    def _add(self, values: Tensor, valid: Tensor) -> None:
        self.add_to(total=values.where(valid, 0.0).sum(dtype=torch.float64), seen=valid.sum())

    def compute(self) -> Tensor:
        """The mean, float64; NaN without data."""
        return self.total / self.seen

    @abstractmethod
    def _of_classes(self, block: ClassBlock) -> Tensor:
        """The score of each row."""

    @abstractmethod
    def _of_labels(self, block: LabelBlock) -> Tensor:
        """The score of each label."""


class NegativeLogLikelihood(_MeanScore):
    r"""Mean of :math:`-\log p_y`, in natural logarithms.

    Args:
        kind: ``"multiclass"`` (softmax, class indices) or ``"multilabel"`` (sigmoid, the mean over all known labels).
        from_logits: False if scores are probabilities; a true class of probability 0 makes the result infinite.
        ignore_index: target to ignore (``"multiclass"``).
        ignore_value: target to ignore (``"multilabel"``).
        validate: check values even if this waits for a device; on the CPU they are always checked.
        options: of ``torchmetrics.Metric``.

    Shape: scores (N, C, d1, ..., dk); targets (N, d1, ..., dk), for ``"multilabel"`` 0 or 1 and shaped as the scores.

    >>> metric = NegativeLogLikelihood()
    >>> metric(torch.zeros(3, 4), torch.tensor([0, 2, -100]))  # log 4
    tensor(1.3863, dtype=torch.float64)
    """

    def _of_classes(self, block: ClassBlock) -> Tensor:
        return nll(block, from_logits=self.from_logits)

    def _of_labels(self, block: LabelBlock) -> Tensor:
        return binary_nll(block, from_logits=self.from_logits)


class BrierScore(_MeanScore):
    r"""Mean of :math:`\sum_c (p_c - [c = y])^2` (Brier 1950), from 0 to 2.

    Args:
        kind: ``"multiclass"`` (softmax, class indices), or ``"multilabel"`` (sigmoid, the mean of
            :math:`(p - y)^2` over all known labels, from 0 to 1).
        from_logits: False if scores are probabilities.
        ignore_index: target to ignore (``"multiclass"``).
        ignore_value: target to ignore (``"multilabel"``).
        validate: check values even if this waits for a device; on the CPU they are always checked.
        options: of ``torchmetrics.Metric``.

    Shape: scores (N, C, d1, ..., dk); targets (N, d1, ..., dk), for ``"multilabel"`` 0 or 1 and shaped as the scores.

    >>> metric = BrierScore(from_logits=False)
    >>> metric(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([0, 1]))
    tensor(1.2500, dtype=torch.float64)
    """

    def _of_classes(self, block: ClassBlock) -> Tensor:
        return brier(block, from_logits=self.from_logits)

    def _of_labels(self, block: LabelBlock) -> Tensor:
        return binary_brier(block, from_logits=self.from_logits)
