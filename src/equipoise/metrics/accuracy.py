"""Accuracy over all samples, by class, and by the number of training samples of a class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from equipoise._checks import check_choice, check_counts, check_number, check_whole
from equipoise.metrics._inputs import ClassBlock, check_classes, class_blocks, predictions, tally, true_scores
from equipoise.metrics._metric import MetricOptions, StreamingMetric

__all__ = [
    "CONVENTIONS",
    "Accuracy",
    "ShotAccuracy",
    "class_counts",
    "f1_scores",
    "group_means",
    "ranks",
    "shot_groups",
]

CONVENTIONS = ("kang", "oltr")


class ClassCounts(NamedTuple):
    """How often each class is true, predicted, and both; each (C,) int64."""

    support: Tensor
    predicted: Tensor
    true_positives: Tensor


def class_counts(predicted: Tensor, labels: Tensor, valid: Tensor, num_classes: int) -> ClassCounts:
    """Counts of one block, ignoring invalid rows."""
    right = valid & (predicted == labels)
    kinds = ((labels, valid), (predicted, valid), (labels, right))
    counts = (tally(values.where(mask, num_classes), num_classes + 1)[:num_classes] for values, mask in kinds)
    return ClassCounts(*counts)


def f1_scores(counts: ClassCounts) -> Tensor:
    """F1 of each class, (C,) float64; NaN for a class that is neither true nor predicted anywhere."""
    return 2 * counts.true_positives / (counts.support + counts.predicted).double()


def ranks(block: ClassBlock) -> Tensor:
    """Number of classes ranked before the true one, (n[, p]); ties are ranked by index."""
    scores, labels, _ = block
    true_score = true_scores(scores, labels).unsqueeze(1)
    numbers = torch.arange(scores.shape[1], device=scores.device).view(-1, *(1 for _ in scores.shape[2:]))
    return ((scores > true_score) | ((scores == true_score) & (numbers < labels.unsqueeze(1)))).sum(1)


class Accuracy(StreamingMetric):
    """Top-k accuracy, mean and per class, and macro F1.

    Args:
        num_classes: C.
        top_k: the k of ``top1``, ``top5`` and so on; the value is 1 if k exceeds C. Ties are resolved in favour of the
            lower class.
        from_logits: False if scores are probabilities.
        ignore_index: target to ignore.
        validate: check values even if this waits for a device; on the CPU they are always checked.
        options: of ``torchmetrics.Metric``.

    Shape: scores (N, C, d1, ..., dk); targets (N, d1, ..., dk). Result: a dict of ``top1``, ``top5``, ... (by
        ``top_k``), ``mean_class`` (accuracy averaged over the classes that occur), ``macro_f1`` (averaged over the
        classes that occur or are predicted), and ``per_class`` (accuracy), ``f1`` of shape (C,), NaN without data.

    >>> metric = Accuracy(3, top_k=(1, 2))
    >>> values = metric(torch.tensor([[3.0, 2, 1], [1, 3, 2], [2, 3, 1]]), torch.tensor([0, 1, 0]))
    >>> values["top1"], values["top2"], values["mean_class"]
    (tensor(0.6667, dtype=torch.float64), tensor(1., dtype=torch.float64), tensor(0.7500, dtype=torch.float64))
    """

    higher_is_better = True
    by_order = True
    counts: Tensor
    among: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        top_k: Sequence[int] = (1, 5),
        from_logits: bool = True,
        ignore_index: int = -100,
        validate: bool = False,
        **options: Unpack[MetricOptions],
    ) -> None:
        super().__init__(from_logits=from_logits, validate=validate, **options)
        num_classes = check_whole("num_classes", num_classes, low=1)
        if not isinstance(top_k, Sequence):
            raise TypeError(f"top_k must be a list of numbers of classes, got {top_k!r}; pass for example (1, 5)")
        self.num_classes, self.ignore_index = num_classes, ignore_index
        self.top_k = tuple(check_whole("top_k", k, low=1) for k in top_k)
        self.add_sum("counts", 3, num_classes)
        self.add_sum("among", len(self.top_k))

    def add_batch(self, scores: Tensor, targets: Tensor) -> None:
        """Update the state with a batch."""
        check_classes(scores, self.num_classes, "num_classes")
        for block in class_blocks(
            scores, targets, from_logits=self.from_logits, ignore_index=self.ignore_index, validate=self.validate
        ):
            rank = ranks(block).where(block.valid, self.num_classes + max(self.top_k, default=0))
            among = [(rank < k).sum() for k in self.top_k]
            counts = class_counts(predictions(block.scores), block.labels, block.valid, self.num_classes)
            self.add_to(counts=torch.stack(counts), among=torch.stack(among) if among else self.among)

    def compute(self) -> dict[str, Tensor]:
        """All values in float64; NaN without data."""
        counts = ClassCounts(*self.counts)
        per_class, f1 = counts.true_positives / counts.support.double(), f1_scores(counts)
        among = self.among / counts.support.sum().double()
        return {
            **{f"top{k}": value for k, value in zip(self.top_k, among, strict=True)},
            "mean_class": per_class.nanmean(),
            "macro_f1": f1.nanmean(),
            "per_class": per_class,
            "f1": f1,
        }


def shot_groups(
    train_counts: Sequence[float] | Tensor, *, convention: str = "kang", cuts: tuple[float, float] = (20, 100)
) -> Tensor:
    """Group of each class by its number of training samples: 0 many, 1 medium, 2 few; (C,) int64.

    Args:
        train_counts: (C,) training samples of each class.
        convention: ``"kang"``: many > 100, few < 20 (Kang et al. 2020; also Tian et al. 2021). ``"oltr"``: many >= 100,
            few <= 20 (Liu et al. 2019).
        cuts: two numbers, (few, many), used instead of 20 and 100.

    >>> shot_groups([500, 100, 20, 3]), shot_groups([500, 100, 20, 3], convention="oltr")
    (tensor([0, 1, 1, 2]), tensor([0, 0, 2, 2]))
    """
    check_choice("convention", convention, CONVENTIONS)
    counts = torch.tensor(check_counts("train_counts", train_counts), dtype=torch.float64)
    if not isinstance(cuts, Sequence) or len(cuts) != 2:
        raise TypeError(f"cuts must be two numbers, (few, many), got {cuts!r}; pass for example (20, 100)")
    low, high = (check_number("cuts", cut) for cut in cuts)
    if low > high:
        raise ValueError(f"cuts must be (few, many) with few <= many, got {tuple(cuts)}; exchange them")
    if convention == "oltr":
        many, few = counts >= high, counts <= low
    else:
        many, few = counts > high, counts < low
    return torch.ones(len(counts), dtype=torch.int64).masked_fill(few, 2).masked_fill(many, 0)


def group_means(per_class: Tensor, groups: Tensor, count: int | None = None) -> Tensor:
    """Mean of ``per_class`` (C,) over the classes of each group, ignoring NaN; (count,)."""
    size = int(groups.max()) + 1 if count is None else count
    seen = ~per_class.isnan()
    return tally(groups, size, per_class.where(seen, 0.0)) / tally(groups, size, seen)


class ShotAccuracy(StreamingMetric):
    """Accuracy of classes with many, a medium number of and few training samples.

    The value of a group is the mean over its classes of the accuracy of each, excluding classes without test samples
    (Liu et al. 2019). ``all`` is the accuracy over all samples.

    Args:
        train_counts: (C,) training samples of each class.
        convention: ``"kang"`` (many > 100, few < 20) or ``"oltr"`` (many >= 100, few <= 20).
        cuts: two numbers, (few, many), used instead of 20 and 100.
        from_logits: False if scores are probabilities.
        ignore_index: target to ignore.
        validate: check values even if this waits for a device; on the CPU they are always checked.
        options: of ``torchmetrics.Metric``.

    Shape: scores (N, C, d1, ..., dk); targets (N, d1, ..., dk). Result: a dict of ``many``, ``medium``, ``few``
    and ``all``.

    >>> metric = ShotAccuracy([500, 50, 5])
    >>> values = metric(torch.eye(3)[[0, 0, 2]], torch.tensor([0, 1, 2]))
    >>> [round(float(value), 3) for value in values.values()]
    [1.0, 0.0, 1.0, 0.667]
    """

    higher_is_better = True
    by_order = True
    NAMES = ("many", "medium", "few")
    counts: Tensor
    groups: Tensor

    def __init__(
        self,
        train_counts: Sequence[float] | Tensor,
        *,
        convention: str = "kang",
        cuts: tuple[float, float] = (20, 100),
        from_logits: bool = True,
        ignore_index: int = -100,
        validate: bool = False,
        **options: Unpack[MetricOptions],
    ) -> None:
        super().__init__(from_logits=from_logits, validate=validate, **options)
        self.register_buffer("groups", shot_groups(train_counts, convention=convention, cuts=cuts), persistent=False)
        self.num_classes, self.ignore_index = len(self.groups), ignore_index
        self.add_sum("counts", 3, self.num_classes)

    def add_batch(self, scores: Tensor, targets: Tensor) -> None:
        """Update the state with a batch."""
        check_classes(scores, self.num_classes, "train_counts")
        for block in class_blocks(
            scores, targets, from_logits=self.from_logits, ignore_index=self.ignore_index, validate=self.validate
        ):
            counts = class_counts(predictions(block.scores), block.labels, block.valid, self.num_classes)
            self.add_to(counts=torch.stack(counts))

    def compute(self) -> dict[str, Tensor]:
        """Accuracies in float64; NaN for a group without classes or samples."""
        support, _, true_positives = self.counts
        means = group_means(true_positives / support.double(), self.groups, 3)
        return {**dict(zip(self.NAMES, means, strict=True)), "all": true_positives.sum() / support.sum().double()}
