"""Segmentation metrics from one confusion matrix."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from equipoise._checks import INDICES, check_choice, check_number, check_whole, checks_values
from equipoise.metric_registry import TVERSKY
from equipoise.metrics._inputs import BLOCK, DEVICE_BLOCK, check_classes, class_blocks, predictions, tally
from equipoise.metrics._metric import MetricOptions, StreamingMetric

__all__ = ["SegmentationScores", "confusion", "segmentation_scores"]


def confusion(predicted: Tensor, labels: Tensor, valid: Tensor, num_classes: int) -> Tensor:
    """Confusion matrix: counts of class i predicted as j, (C, C) int64; all arguments of one shape."""
    size = num_classes * num_classes
    slots = (num_classes * labels + predicted).where(valid, size)  # one more slot, for ignored elements
    return tally(slots, size + 1)[:size].view(num_classes, num_classes)


def segmentation_scores(matrix: Tensor, *, tversky: tuple[float, float] = TVERSKY) -> dict[str, Tensor]:
    r"""Values from a confusion matrix (C, C), rows true and columns predicted.

    Of each class: IoU (Jaccard index) :math:`TP / (TP + FP + FN)`, Dice (F1) :math:`2 TP / (2 TP + FP + FN)`, Tversky
    :math:`TP / (TP + \alpha FP + \beta FN)`, accuracy (recall) :math:`TP / (TP + FN)`, precision
    :math:`TP / (TP + FP)`; 0 / 0 is NaN, and means are over the classes with a value.

    Args:
        matrix: the confusion matrix.
        tversky: :math:`\alpha`, the cost of false positives, and :math:`\beta`, that of false negatives.
    """
    matrix = matrix.double()
    tp, support, predicted = matrix.diagonal(), matrix.sum(1), matrix.sum(0)
    alpha, beta = tversky
    per_class = {
        "iou": tp / (support + predicted - tp),
        "accuracy": tp / support,
        "precision": tp / predicted,
        "dice": 2 * tp / (support + predicted),
        "tversky": tp / (tp + alpha * (predicted - tp) + beta * (support - tp)),
    }
    total = support.sum()
    return {
        **{f"mean_{name}": values.nanmean() for name, values in per_class.items()},
        "pixel_accuracy": tp.sum() / total,
        "frequency_weighted_iou": (support * per_class["iou"]).nansum() / total,
        **per_class,
    }


class SegmentationScores(StreamingMetric):
    """IoU, Dice, Tversky, accuracy and precision of each class, and their means.

    A class that neither occurs nor is predicted has no IoU (NaN) and is excluded from means; one that is predicted but
    never occurs has IoU 0. Dice and Tversky likewise.

    Args:
        num_classes: C.
        ignore_index: target to ignore.
        predictions: ``"scores"`` (N, C, d1, ..., dk), or ``"labels"``, maps of class indices shaped as the targets.
        tversky: costs of false positives and of false negatives in the Tversky index.
        from_logits: False if scores are probabilities.
        validate: check values even if this waits for a device; on the CPU they are always checked.
        options: of ``torchmetrics.Metric``.

    Shape: targets (N, d1, ..., dk). Result: a dict of ``iou``, ``accuracy``, ``precision``, ``dice``, ``tversky`` of
    shape (C,), their means ``mean_iou``, ..., and ``pixel_accuracy``, ``frequency_weighted_iou``. The state
    ``confusion`` is the (C, C) matrix, rows true and columns predicted.

    >>> metric = SegmentationScores(3, predictions="labels", ignore_index=255)
    >>> values = metric(torch.tensor([[0, 0], [1, 1]]), torch.tensor([[0, 1], [1, 255]]))
    >>> values["iou"]
    tensor([0.5000, 0.5000,    nan], dtype=torch.float64)
    """

    higher_is_better = True
    by_order = True
    confusion: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        ignore_index: int = -100,
        predictions: str = "scores",
        tversky: tuple[float, float] = TVERSKY,
        from_logits: bool = True,
        validate: bool = False,
        **options: Unpack[MetricOptions],
    ) -> None:
        super().__init__(from_logits=from_logits, validate=validate, **options)
        num_classes = check_whole("num_classes", num_classes, low=1)
        check_choice("predictions", predictions, ("scores", "labels"))
        self.num_classes, self.ignore_index, self.predictions = num_classes, ignore_index, predictions
        self.tversky = _check_costs(tversky)
        self.add_sum("confusion", num_classes, num_classes)

    def add_batch(self, scores: Tensor, targets: Tensor) -> None:
        """Update the state with a batch."""
        if self.predictions == "labels":
            self._update_labels(scores, targets)
            return
        check_classes(scores, self.num_classes, "num_classes")
        for block in class_blocks(
            scores, targets, from_logits=self.from_logits, ignore_index=self.ignore_index, validate=self.validate
        ):
            counts = confusion(predictions(block.scores), block.labels, block.valid, self.num_classes)
            self.add_to(confusion=counts)

    def _update_labels(self, predicted: Tensor, targets: Tensor) -> None:
        for name, labels in (("predictions", predicted), ("targets", targets)):
            if labels.dtype not in INDICES:
                raise TypeError(
                    f"{name} must be integer class indices, got {labels.dtype}; call .long(), or for scores use "
                    "predictions='scores'"
                )
        if predicted.shape != targets.shape:
            raise ValueError(
                f"predictions must have the shape of the targets {tuple(targets.shape)}, got {tuple(predicted.shape)}; "
                "for scores (N, C, d1, ..., dk) use predictions='scores'"
            )
        size = BLOCK if targets.device.type == "cpu" else DEVICE_BLOCK
        parts = zip(*(torch.split(each.flatten(), size) for each in (predicted, targets)), strict=True)
        for chosen, labels in parts:
            chosen, labels = chosen.long(), labels.long()
            valid = labels != self.ignore_index
            for name, values in (("predictions", chosen), ("targets", labels)):
                self._check_range(name, values, valid)
            counts = confusion(chosen.where(valid, 0), labels.where(valid, 0), valid, self.num_classes)
            self.add_to(confusion=counts)

    def _check_range(self, name: str, values: Tensor, valid: Tensor) -> None:
        if not checks_values(values, self.validate):
            return
        wrong = valid & ((values < 0) | (values >= self.num_classes))
        if bool(wrong.any()):
            raise ValueError(
                f"{name} must be class indices in [0, {self.num_classes - 1}] where the target is not "
                f"ignore_index={self.ignore_index}, got {int(values[wrong][0])}; check the labels, num_classes or "
                "ignore_index"
            )

    def compute(self) -> dict[str, Tensor]:
        """All values in float64; NaN without data."""
        return segmentation_scores(self.confusion, tversky=self.tversky)


def _check_costs(tversky: tuple[float, float]) -> tuple[float, float]:
    if not isinstance(tversky, (tuple, list)) or len(tversky) != 2:
        raise TypeError(f"tversky must be a pair of costs, got {tversky!r}; pass e.g. (0.3, 0.7)")
    alpha, beta = (check_number(f"tversky[{place}]", cost, low=0.0) for place, cost in enumerate(tversky))
    if alpha + beta == 0.0:
        raise ValueError("tversky must hold a cost above 0, got (0.0, 0.0); pass e.g. (0.3, 0.7)")
    return alpha, beta
