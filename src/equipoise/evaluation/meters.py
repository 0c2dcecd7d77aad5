"""Metrics of each task: torchmetrics metrics that are updated with each chunk, and their values."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torchmetrics import Metric

from equipoise.evaluation.results import ClassResult, GroupResult, ReliabilityBins
from equipoise.metrics import (
    Accuracy,
    BrierScore,
    CalibrationError,
    ConfidentShare,
    MultilabelAveragePrecision,
    MultilabelScores,
    NegativeLogLikelihood,
    ReliabilityCurve,
    SegmentationScores,
    shot_groups,
)
from equipoise.predictions import Predictions
from equipoise.tasks import GROUPS, Task

__all__ = [
    "CALIBRATION",
    "GROUPS",
    "KEPT",
    "Meter",
    "basic_metrics",
    "decision_scores",
    "group_names",
    "meter_for",
    "plain",
]

CALIBRATION = ("nll", "brier", "ece", "ada_ece", "classwise_ece", "mce")
"""Calibration metrics; lower is better."""
KEPT = 20_000_000
"""Maximum number of scores for which metrics that need a sort are computed exactly."""

ACCURACIES = {
    "top1": "accuracy",
    "top5": "top5_accuracy",
    "mean_class": "mean_class_accuracy",
    "macro_f1": "macro_f1",
}
"""Names of the entries of ``Accuracy`` in an evaluation."""


def plain(value: Tensor | float) -> float | None:
    """A number for JSON; None for NaN."""
    number = float(value)
    return None if math.isnan(number) else number


def group_names(train_counts: Sequence[float]) -> list[str]:
    """The group of each class: ``many``, ``medium`` or ``few``."""
    return [GROUPS[group] for group in shot_groups(train_counts).tolist()]


def basic_metrics(
    task: Task,
    num_classes: int,
    *,
    bins: int = 15,
    from_logits: bool = True,
    exact: bool = True,
    top: bool = False,
    ignore_index: int = -100,
) -> dict[str, Metric]:
    """Metrics of both validation passes and evaluations.

    Args:
        task: task of the scores.
        num_classes: C.
        bins: number of bins of the calibration error.
        from_logits: False if scores are probabilities; the NLL always takes logits.
        exact: whether average precision keeps all scores.
        top: include the top-5 accuracy, or scores of the top 3 labels, if there are more classes.
        ignore_index: target to ignore; not used for multi-label data.
    """
    label_options: dict[str, Any] = {"kind": "multilabel"} if task.multilabel else {"ignore_index": ignore_index}
    common: dict[str, Any] = {"from_logits": from_logits, **({} if task.multilabel else label_options)}
    metrics: dict[str, Metric] = {
        "nll": NegativeLogLikelihood(**label_options),  # finite at probability 0 too
        "ece": CalibrationError(bins, from_logits=from_logits, **label_options),
    }
    if task.multilabel:
        metrics["average_precision"] = MultilabelAveragePrecision(num_classes, average="none", exact=exact, **common)
        metrics["at_threshold"] = MultilabelScores(num_classes, **common)
        if top and num_classes > 3:
            metrics["top3"] = MultilabelScores(num_classes, top_k=3, **common)
    elif task.pixels:
        metrics["overlap"] = SegmentationScores(num_classes, **common)
    else:
        metrics["accuracy"] = Accuracy(num_classes, top_k=(1, 5) if top and num_classes > 5 else (1,), **common)
    return metrics


def decision_scores(task: Task, metrics: Mapping[str, Any]) -> dict[str, Tensor]:
    """Values of the metrics of decisions and rankings in ``basic_metrics``; they include ``task.metrics``."""
    if task.multilabel:
        scores = {"mean_average_precision": metrics["average_precision"].compute().nanmean()}
        for name, ending in (("at_threshold", ""), ("top3", "_top3")):
            if name in metrics:
                values = metrics[name].compute()
                scores |= {f"{key}{ending}": values[key] for key in ("CP", "CR", "CF1", "OP", "OR", "OF1")}
        return scores
    if task.pixels:
        values = metrics["overlap"].compute()
        means = ("mean_iou", "mean_accuracy", "mean_precision", "mean_dice", "mean_tversky")
        return {key: values[key] for key in (*means, "pixel_accuracy", "frequency_weighted_iou")}
    values = metrics["accuracy"].compute()
    return {name: values[key] for key, name in ACCURACIES.items() if key in values}


class Meter(ABC):
    """Metrics that are updated with each chunk; a subclass adds the metrics of its task."""

    def __init__(self, source: Predictions, from_logits: bool, bins: int) -> None:
        self.source, self.task = source, source.task
        events = source.places * (source.num_classes if self.task.multilabel else 1)
        self.exact = (source.samples or 0) * events <= KEPT
        self.common: dict[str, Any] = {"from_logits": from_logits, **source.ignoring}
        self.bins = bins
        kind: dict[str, Any] = {"kind": "multilabel"} if self.task.multilabel else {}
        calibration = {**self.common, **kind, "bins": bins}
        self.groups = None if source.train_counts is None else shot_groups(source.train_counts)
        self.metrics: dict[str, Any] = {
            **basic_metrics(self.task, source.num_classes, exact=self.exact, top=True, bins=bins, **self.common),
            "brier": BrierScore(**self.common, **kind),
            "ada_ece": CalibrationError(**calibration, binning="mass", exact=self.exact),
        }
        if self.groups is not None:
            self.metrics["group_ece"] = CalibrationError(**calibration, groups=self.groups)

    def overall(self) -> dict[str, float | None]:
        """Metrics of all samples."""
        scores = {name: plain(value) for name, value in decision_scores(self.task, self.metrics).items()}
        return {**scores, **self.calibration()}

    def update(self, scores: Tensor, targets: Tensor, logits: Tensor | None = None) -> None:
        """Add a chunk; ``logits`` are those of the scores if these are probabilities."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="scores must be")  # the sanity checks report it
            for name, metric in self.metrics.items():
                metric.update(scores if logits is None or name != "nll" else logits, targets)

    def calibration(self) -> dict[str, float | None]:
        """Metrics that a calibration may change: those of ``CALIBRATION`` that the task has."""
        curve = self.metrics["ece"].curve()
        gaps = (curve.accuracy - curve.confidence).abs()
        values = {name: plain(self.metrics[name].compute()) for name in CALIBRATION if name in self.metrics}
        values["mce"] = plain(gaps.nan_to_num().max()) if bool(curve.count.sum()) else None
        return {name: values[name] for name in CALIBRATION if name in values}

    def curves(self) -> dict[str, ReliabilityBins]:
        """Reliability diagrams of all samples and of each group with samples."""
        curves = {"all": as_bins(self.metrics["ece"].curve())}
        if "group_ece" in self.metrics:
            curve = self.metrics["group_ece"].curve()
            for number in range(len(curve.count)):
                part = ReliabilityCurve(curve.edges, *(values[number] for values in curve[1:]))
                if int(part.count.sum()):
                    curves[GROUPS[number]] = as_bins(part)
        return curves

    def group_rows(self, per_class: Sequence[ClassResult]) -> list[GroupResult]:
        """Mean of the main metric over the classes of each group for which it is defined, and calibration error."""
        if self.groups is None:
            return []
        errors = self.metrics["group_ece"].compute().reshape(-1)  # torchmetrics squeezes a single value to a scalar
        rows = []
        for number, name in enumerate(GROUPS[: len(errors)]):
            members = [row for row, group in zip(per_class, self.groups.tolist(), strict=True) if group == number]
            values = [value for row in members if (value := row.metrics[self.task.main]) is not None]
            mean = sum(values) / len(values) if values else None
            metrics = {self.task.main: mean, "ece": plain(errors[number])}
            rows.append(GroupResult(name, len(members), sum(row.support for row in members), metrics))
        return [row for row in rows if row.classes]

    @abstractmethod
    def per_class(self) -> list[ClassResult]:
        """Results by class or label."""

    def class_rows(self, support: Tensor, predicted: Tensor, **metrics: Tensor) -> list[ClassResult]:
        """Results by class from tensors (C,)."""
        counts = self.source.train_counts
        groups = None if self.groups is None else self.groups.tolist()
        return [
            ClassResult(
                name=name,
                group=None if groups is None else GROUPS[groups[k]],
                train_count=None if counts is None else counts[k],
                support=int(support[k]),
                predicted=int(predicted[k]),
                metrics={key: plain(values[k]) for key, values in metrics.items()},
            )
            for k, name in enumerate(self.source.class_names)
        ]


class SingleMeter(Meter):
    """Single-label data."""

    def __init__(self, source: Predictions, from_logits: bool, bins: int) -> None:
        super().__init__(source, from_logits, bins)
        self.metrics["classwise_ece"] = CalibrationError(bins, kind="classwise", **self.common)
        self.metrics["confident"] = ConfidentShare(**self.common)

    def calibration(self) -> dict[str, float | None]:
        """Metrics that a calibration may change, with the confident samples."""
        confident = self.metrics["confident"].compute()
        return {
            **super().calibration(),
            "s99_share": plain(confident["share"]),
            "s99_accuracy": plain(confident["accuracy"]),
        }

    def per_class(self) -> list[ClassResult]:
        computed, errors = self.metrics["accuracy"].compute(), self.metrics["classwise_ece"].per_class()
        support, predicted, _ = self.metrics["accuracy"].counts
        return self.class_rows(support, predicted, accuracy=computed["per_class"], f1=computed["f1"], ece=errors)


class SegmentationMeter(Meter):
    """Segmentation."""

    def per_class(self) -> list[ClassResult]:
        computed, matrix = self.metrics["overlap"].compute(), self.metrics["overlap"].confusion
        names = ("iou", "accuracy", "precision", "dice", "tversky")
        return self.class_rows(matrix.sum(1), matrix.sum(0), **{name: computed[name] for name in names})


class MultiMeter(Meter):
    """Multi-label data."""

    def per_class(self) -> list[ClassResult]:
        precision = self.metrics["average_precision"].compute().reshape(-1)  # a single label is squeezed to a scalar
        errors = self.metrics["ece"].per_class()
        predicted, positive, hits = self.metrics["at_threshold"].counts.double()
        f1 = 2 * hits / (predicted + positive)
        return self.class_rows(positive, predicted, average_precision=precision, f1=f1, ece=errors)


METERS: Mapping[Task, type[Meter]] = {
    Task.MULTICLASS: SingleMeter,
    Task.MULTILABEL: MultiMeter,
    Task.SEGMENTATION: SegmentationMeter,
}


def meter_for(source: Predictions, *, from_logits: bool, bins: int) -> Meter:
    """The meter of the task."""
    return METERS[source.task](source, from_logits, bins)


def as_bins(curve: ReliabilityCurve) -> ReliabilityBins:
    """A reliability curve without tensors."""
    confidence, accuracy = ([plain(value) for value in values] for values in (curve.confidence, curve.accuracy))
    return ReliabilityBins(curve.edges.tolist(), curve.count.double().tolist(), confidence, accuracy)
