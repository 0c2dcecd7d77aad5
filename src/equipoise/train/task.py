"""What differs between the three tasks: defaults, what is measured on validation data, and what a logit means."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric

from equipoise.data import Arrays, DataSet, FileImages, Texts
from equipoise.metrics import (
    Accuracy,
    CalibrationError,
    ConfidenceProfile,
    MultilabelAveragePrecision,
    MultilabelScores,
    NegativeLogLikelihood,
    SegmentationScores,
)
from equipoise.models.registry import SMALL

__all__ = ["TASKS", "MultiLabel", "Segmentation", "SingleLabel", "TrainingTask", "task_of"]

KEPT = 20_000_000
"""Scores of a validation pass up to which average precision is computed exactly."""


class TrainingTask(ABC):
    """One task on one data set.

    Args:
        data: its splits.
    """

    monitor: ClassVar[str]
    largest_batch: ClassVar[int] = 128
    softmax: ClassVar[bool] = True

    def __init__(self, data: DataSet) -> None:
        self.data, self.num_classes = data, len(data.class_names)

    @abstractmethod
    def metrics(self) -> dict[str, Metric]:
        """Metrics of a validation pass."""

    @abstractmethod
    def scores(self, metrics: Mapping[str, Metric]) -> dict[str, float]:
        """Their numbers by name; ``monitor`` is among them."""

    @abstractmethod
    def observers(self) -> dict[str, Metric]:
        """Metrics of what is learnt, on some batches of the training."""

    def default_model(self) -> str:
        """A model that suits the data."""
        train = self.data.train
        if isinstance(train, Texts):
            return "text-bow"
        if isinstance(train, Arrays) and train.inputs.ndim == 2:
            return "mlp"
        size = train.size or train.load(0)[0].shape[1:] if isinstance(train, FileImages) else train.inputs.shape[2:]
        return "resnet32" if max(size) <= SMALL else "resnet18"

    def default_batch_size(self, samples: int) -> int:
        """A power of two that leaves an epoch of so many samples 16 steps where it can, from 4 to the largest."""
        return min(self.largest_batch, max(4, 1 << int(math.log2(max(samples / 16, 1)))))


class SingleLabel(TrainingTask):
    """One label a sample; the checkpoint has the best mean accuracy of the classes."""

    monitor = "mean_class_accuracy"

    def metrics(self) -> dict[str, Metric]:
        """Accuracy, likelihood, calibration, and what right and wrong predictions are like."""
        ignore = self.data.ignore_index
        return {
            "accuracy": Accuracy(self.num_classes, top_k=(1,), ignore_index=ignore),
            "nll": NegativeLogLikelihood(ignore_index=ignore),
            "ece": CalibrationError(ignore_index=ignore),
            "profile": ConfidenceProfile(ignore_index=ignore),
        }

    def scores(self, metrics: Mapping[str, Metric]) -> dict[str, float]:
        """Accuracies and calibration."""
        found = metrics["accuracy"].compute()
        return {
            "accuracy": float(found["top1"]),
            "mean_class_accuracy": float(found["mean_class"]),
            "macro_f1": float(found["macro_f1"]),
            "nll": float(metrics["nll"].compute()),
            "ece": float(metrics["ece"].compute()),
            **{name: float(value) for name, value in metrics["profile"].compute().items()},
        }

    def observers(self) -> dict[str, Metric]:
        """Recall and probability by class, and what right and wrong predictions are like."""
        ignore = self.data.ignore_index
        return {
            "recall": Accuracy(self.num_classes, top_k=(1,), ignore_index=ignore),
            "truth": TruthProbability(self.num_classes, ignore_index=ignore),
            "profile": ConfidenceProfile(ignore_index=ignore),
        }


class Segmentation(SingleLabel):
    """One label a pixel; the checkpoint has the best mean IoU."""

    monitor = "mean_iou"
    largest_batch = 8

    def metrics(self) -> dict[str, Metric]:
        """Overlap, likelihood, calibration, and what right and wrong predictions are like."""
        ignore = self.data.ignore_index
        return {**super().metrics(), "accuracy": SegmentationScores(self.num_classes, ignore_index=ignore)}

    def scores(self, metrics: Mapping[str, Metric]) -> dict[str, float]:
        """Means over the classes and calibration."""
        found = metrics["accuracy"].compute()
        return {
            **{name: float(found[name]) for name in ("mean_iou", "mean_accuracy", "pixel_accuracy")},
            "nll": float(metrics["nll"].compute()),
            "ece": float(metrics["ece"].compute()),
            **{name: float(value) for name, value in metrics["profile"].compute().items()},
        }

    def default_model(self) -> str:
        """A model of label maps."""
        return "unet"


class MultiLabel(TrainingTask):
    """Several labels a sample; the checkpoint has the best mean average precision."""

    monitor = "mean_average_precision"
    softmax = False

    def metrics(self) -> dict[str, Metric]:
        """Ranking, decisions at one half, likelihood and calibration."""
        exact = len(self.data.val) * self.num_classes <= KEPT
        return {
            "precision": MultilabelAveragePrecision(self.num_classes, exact=exact),
            "decisions": MultilabelScores(self.num_classes),
            "nll": NegativeLogLikelihood(kind="multilabel"),
            "ece": CalibrationError(kind="multilabel"),
            "gap": ProbabilityGap(),
        }

    def scores(self, metrics: Mapping[str, Metric]) -> dict[str, float]:
        """Mean average precision, F1 and calibration."""
        decisions = metrics["decisions"].compute()
        return {
            "mean_average_precision": float(metrics["precision"].compute()),
            "CF1": float(decisions["CF1"]),
            "OF1": float(decisions["OF1"]),
            "nll": float(metrics["nll"].compute()),
            "ece": float(metrics["ece"].compute()),
            "probability_gap": float(metrics["gap"].compute()["gap"]),
        }

    def observers(self) -> dict[str, Metric]:
        """The probabilities of positives and negatives, and the gap between them."""
        return {"gap": ProbabilityGap()}


class ProbabilityGap(Metric):
    r"""Mean probability of what is true: of positives minus that of negatives (Ridnik et al. 2021, eq. 9, fig. 4).

    :math:`\Delta p = \bar p_t^+ - \bar p_t^-` with :math:`p_t = p` for a positive and :math:`1 - p` for a negative.
    Below 0 the loss learns the negatives better. Unknown labels, -1, do not count.

    Shape: logits (N, C) and targets of the same shape.

    >>> gap = ProbabilityGap()
    >>> gap.update(torch.tensor([[0.0, -9e9]]), torch.tensor([[1.0, 0.0]]))
    >>> gap.compute()["gap"]
    tensor(-0.5000, dtype=torch.float64)
    """

    full_state_update = False
    sums: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("sums", torch.zeros(4, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, logits: Tensor, targets: Tensor) -> None:
        """Add a batch."""
        p = logits.detach().double().sigmoid()
        positive, negative = (targets == 1).double(), (targets == 0).double()
        parts = [(p * positive).sum(), positive.sum(), ((1 - p) * negative).sum(), negative.sum()]
        self.sums = self.sums + torch.stack(parts)

    def compute(self) -> dict[str, Tensor]:
        """``gap`` and its sides ``positive`` and ``negative``; NaN where one is missing."""
        of_positives, positives, of_negatives, negatives = self.sums
        positive, negative = of_positives / positives, of_negatives / negatives
        return {"gap": positive - negative, "positive": positive, "negative": negative}


class TruthProbability(Metric):
    r"""Mean probability that the samples of each class get for it, :math:`\frac{1}{n_c} \sum_{i: y_i = c} p_{i, c}`.

    One minus it is the mean weight of focal loss with :math:`\gamma = 1` (Tian et al. 2021, appendix A.1).

    Args:
        num_classes: C.
        ignore_index: target that does not count.

    Shape: logits (N, C) and targets (N,); result (C,), NaN for a class without samples.

    >>> metric = TruthProbability(3)
    >>> metric.update(torch.tensor([[0.0, 0.0, -9e9], [9e9, 0.0, 0.0]]), torch.tensor([1, 0]))
    >>> metric.compute()
    tensor([1.0000, 0.5000,    nan], dtype=torch.float64)
    """

    full_state_update = False
    sums: Tensor

    def __init__(self, num_classes: int, ignore_index: int = -100) -> None:
        super().__init__()
        self.ignore_index = ignore_index
        self.add_state("sums", torch.zeros(2, num_classes, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, logits: Tensor, targets: Tensor) -> None:
        """Add a batch."""
        counted = targets != self.ignore_index
        labels = targets.where(counted, 0).long()
        p = logits.detach().double().softmax(1).gather(1, labels.unsqueeze(1)).squeeze(1)
        self.sums = self.sums.index_add(1, labels, torch.stack([p * counted, counted.double()]))

    def compute(self) -> Tensor:
        """The means."""
        total, count = self.sums
        means: Tensor = total / count
        return means


TASKS: Mapping[str, type[TrainingTask]] = {"single": SingleLabel, "multi": MultiLabel, "segmentation": Segmentation}


def task_of(data: DataSet) -> TrainingTask:
    """The task of these data."""
    return TASKS[data.task](data)
