"""What is measured in each task: the metrics that run along with the chunks, and the numbers they end in."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

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

__all__ = ["CALIBRATION", "GROUPS", "Meter", "group_names", "meter_for", "plain"]

GROUPS = ("many", "medium", "few")
CALIBRATION = ("nll", "brier", "ece", "ada_ece", "classwise_ece", "mce")
"""Numbers that a calibration may change; lower is better."""
KEPT = 20_000_000
"""Scores up to which values that need a sort are computed exactly."""


def plain(value: Tensor | float) -> float | None:
    """A number for JSON, None where there is none."""
    number = float(value)
    return None if math.isnan(number) else number


def group_names(train_counts: Sequence[float]) -> list[str]:
    """``many``, ``medium`` or ``few`` for each class."""
    return [GROUPS[group] for group in shot_groups(train_counts).tolist()]


class Meter:
    """Metrics that run along; a subclass says which and how they are called."""

    kind = "top"
    key: ClassVar[str]

    def __init__(self, source: Predictions, from_logits: bool, bins: int) -> None:
        self.source = source
        events = source.places * (source.num_classes if self.kind == "multilabel" else 1)
        self.exact = (source.samples or 0) * events <= KEPT
        common: dict[str, Any] = {"from_logits": from_logits}
        if self.kind != "multilabel":
            common["ignore_index"] = source.ignore_index
        calibration = {**common, "bins": bins, "kind": self.kind}
        scoring = {**common, "kind": "multilabel"} if self.kind == "multilabel" else common
        self.groups = None if source.train_counts is None else shot_groups(source.train_counts)
        self.metrics: dict[str, Any] = {
            "nll": NegativeLogLikelihood(**{**scoring, "from_logits": True}),  # finite at probability 0 too
            "brier": BrierScore(**scoring),
            "ece": CalibrationError(**calibration),
            "ada_ece": CalibrationError(**calibration, binning="mass", exact=self.exact),
        }
        if self.groups is not None:
            self.metrics["group_ece"] = CalibrationError(**calibration, groups=self.groups)
        self.common = common
        self.bins = bins

    def update(self, scores: Tensor, targets: Tensor, logits: Tensor | None = None) -> None:
        """Add a chunk; ``logits`` of the scores, where these are probabilities."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="scores must be")  # the sanity checks report it
            for name, metric in self.metrics.items():
                metric.update(scores if logits is None or name != "nll" else logits, targets)

    def calibration(self) -> dict[str, float | None]:
        """The numbers of ``CALIBRATION`` that the task has."""
        curve = self.metrics["ece"].curve()
        gaps = (curve.accuracy - curve.confidence).abs()
        found = {name: plain(self.metrics[name].compute()) for name in CALIBRATION if name in self.metrics}
        found["mce"] = plain(gaps.nan_to_num().max()) if bool(curve.count.sum()) else None
        return {name: found[name] for name in CALIBRATION if name in found}

    def curves(self) -> dict[str, ReliabilityBins]:
        """Reliability diagrams: of everything, and of each group that has samples."""
        curves = {"all": as_bins(self.metrics["ece"].curve())}
        if "group_ece" in self.metrics:
            curve = self.metrics["group_ece"].curve()
            for number in range(len(curve.count)):
                part = ReliabilityCurve(curve.edges, *(values[number] for values in curve[1:]))
                if int(part.count.sum()):
                    curves[GROUPS[number]] = as_bins(part)
        return curves

    def group_rows(self, per_class: Sequence[ClassResult]) -> list[GroupResult]:
        """The mean of the main metric over the classes of each group that have it, and its calibration error."""
        if self.groups is None:
            return []
        errors = self.metrics["group_ece"].compute().reshape(-1)  # torchmetrics makes a scalar of a single value
        rows = []
        for number, name in enumerate(GROUPS[: len(errors)]):
            members = [row for row, group in zip(per_class, self.groups.tolist(), strict=True) if group == number]
            values = [value for row in members if (value := row.metrics[self.key]) is not None]
            mean = sum(values) / len(values) if values else None
            metrics = {self.key: mean, "ece": plain(errors[number])}
            rows.append(GroupResult(name, len(members), sum(row.support for row in members), metrics))
        return [row for row in rows if row.classes]

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
    """One label a sample."""

    key = "accuracy"

    def __init__(self, source: Predictions, from_logits: bool, bins: int) -> None:
        super().__init__(source, from_logits, bins)
        top = (1, 5) if source.num_classes > 5 else (1,)
        self.metrics["accuracy"] = Accuracy(source.num_classes, top_k=top, **self.common)
        self.metrics["classwise_ece"] = CalibrationError(bins, kind="classwise", **self.common)
        self.metrics["confident"] = ConfidentShare(**self.common)

    def overall(self) -> dict[str, float | None]:
        """Numbers of all samples."""
        found, sure = self.metrics["accuracy"].compute(), self.metrics["confident"].compute()
        names = {
            "top1": "accuracy",
            "top5": "top5_accuracy",
            "mean_class": "mean_class_accuracy",
            "macro_f1": "macro_f1",
        }
        scores = {name: plain(found[key]) for key, name in names.items() if key in found}
        return {
            **scores,
            **self.calibration(),
            "s99_share": plain(sure["share"]),
            "s99_accuracy": plain(sure["accuracy"]),
        }

    def per_class(self) -> list[ClassResult]:
        """Results by class."""
        computed, errors = self.metrics["accuracy"].compute(), self.metrics["classwise_ece"].per_class()
        support, predicted, _ = self.metrics["accuracy"].counts
        return self.class_rows(support, predicted, accuracy=computed["per_class"], f1=computed["f1"], ece=errors)


class SegmentationMeter(Meter):
    """One label a pixel."""

    key = "iou"

    def __init__(self, source: Predictions, from_logits: bool, bins: int) -> None:
        super().__init__(source, from_logits, bins)
        self.metrics["overlap"] = SegmentationScores(source.num_classes, **self.common)

    def overall(self) -> dict[str, float | None]:
        """Numbers of all pixels."""
        found = self.metrics["overlap"].compute()
        names = ("mean_iou", "mean_accuracy", "pixel_accuracy", "frequency_weighted_iou")
        return {**{name: plain(found[name]) for name in names}, **self.calibration()}

    def per_class(self) -> list[ClassResult]:
        """Results by class."""
        computed, matrix = self.metrics["overlap"].compute(), self.metrics["overlap"].confusion
        names = ("iou", "accuracy", "precision")
        return self.class_rows(matrix.sum(1), matrix.sum(0), **{name: computed[name] for name in names})


class MultiMeter(Meter):
    """Several labels a sample."""

    kind = "multilabel"
    key = "average_precision"

    def __init__(self, source: Predictions, from_logits: bool, bins: int) -> None:
        super().__init__(source, from_logits, bins)
        labels = source.num_classes
        self.metrics["average_precision"] = MultilabelAveragePrecision(
            labels, average="none", exact=self.exact, **self.common
        )
        self.metrics["at_threshold"] = MultilabelScores(labels, **self.common)
        if labels > 3:
            self.metrics["top3"] = MultilabelScores(labels, top_k=3, **self.common)

    def overall(self) -> dict[str, float | None]:
        """Numbers of all samples and labels."""
        words = ("CP", "CR", "CF1", "OP", "OR", "OF1")
        scores: dict[str, float | None] = {
            "mean_average_precision": plain(self.metrics["average_precision"].compute().nanmean())
        }
        for name, ending in (("at_threshold", ""), ("top3", "_top3")):
            if name in self.metrics:
                found = self.metrics[name].compute()
                scores |= {f"{word}{ending}": plain(found[word]) for word in words}
        return {**scores, **self.calibration()}

    def per_class(self) -> list[ClassResult]:
        """Results by label."""
        precision = self.metrics["average_precision"].compute().reshape(-1)  # a scalar of a single label
        errors = self.metrics["ece"].per_class()
        predicted, positive, hits = self.metrics["at_threshold"].counts.double()
        f1 = 2 * hits / (predicted + positive)
        return self.class_rows(positive, predicted, average_precision=precision, f1=f1, ece=errors)


METERS: Mapping[str, type[SingleMeter] | type[MultiMeter] | type[SegmentationMeter]] = {
    "single": SingleMeter,
    "multi": MultiMeter,
    "segmentation": SegmentationMeter,
}


def meter_for(source: Predictions, *, from_logits: bool, bins: int) -> SingleMeter | MultiMeter | SegmentationMeter:
    """The meter of the task."""
    return METERS[source.task](source, from_logits, bins)


def as_bins(curve: ReliabilityCurve) -> ReliabilityBins:
    """A reliability curve without tensors."""
    confidence, accuracy = ([plain(value) for value in values] for values in (curve.confidence, curve.accuracy))
    return ReliabilityBins(curve.edges.tolist(), curve.count.double().tolist(), confidence, accuracy)
