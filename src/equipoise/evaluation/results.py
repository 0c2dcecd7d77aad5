"""The results of an evaluation as typed values, stored as JSON. Does not import torch.

None stands for an undefined value, such as the accuracy of a class without samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from equipoise._records import INLINED, Record
from equipoise.tasks import Task

__all__ = [
    "FORMAT",
    "OPEN_FORMAT",
    "Calibration",
    "ClassResult",
    "ConfidenceHistogram",
    "Evaluation",
    "GroupResult",
    "OpenSetEvaluation",
    "Rejection",
    "RejectionRates",
    "Reliability",
    "ReliabilityBins",
]

FORMAT = "equipoise evaluation 1"
OPEN_FORMAT = "equipoise open set 1"


@dataclass(frozen=True)
class ReliabilityBins(Record):
    """A reliability diagram.

    Args:
        edges: bin edges, one more than the number of bins.
        count: samples in each bin; for multi-label data, pairs of a sample and a label.
        confidence: mean predicted probability in each bin.
        accuracy: observed frequency in each bin.
    """

    edges: list[float]
    count: list[float]
    confidence: list[float | None]
    accuracy: list[float | None]

    @property
    def total(self) -> float:
        """Samples in all bins."""
        return sum(self.count)

    @property
    def mean_confidence(self) -> float:
        """Mean predicted probability; 0 without samples."""
        return self._mean(self.confidence)

    @property
    def mean_accuracy(self) -> float:
        """Observed frequency over all bins; 0 without samples."""
        return self._mean(self.accuracy)

    def _mean(self, values: Sequence[float | None]) -> float:
        pairs = zip(values, self.count, strict=True)
        return sum((value or 0.0) * count for value, count in pairs) / max(self.total, 1)


@dataclass(frozen=True)
class Reliability(Record):
    """Reliability diagrams before and after calibration; ``after`` is None if no calibrator could be fitted."""

    before: ReliabilityBins
    after: ReliabilityBins | None = None


@dataclass(frozen=True)
class Calibration(Record):
    """Metrics before and after calibration.

    Args:
        before: metrics of the uncalibrated probabilities.
        after: the same after calibration; None if no calibrator could be fitted.
        fits: descriptions of the fits.
        fitted_on: samples that they were fitted on.
        note: reason for a missing fit, or a note on the fit.
        by: what the fit minimises, ``"nll"`` or ``"ece"``.
    """

    before: dict[str, float | None]
    after: dict[str, float | None] | None
    fits: list[str]
    fitted_on: str
    note: str
    by: str = "nll"

    def metric(self, key: str) -> tuple[float | None, float | None]:
        """A metric before and after calibration; None if undefined."""
        return self.before.get(key), (self.after or {}).get(key)


@dataclass(frozen=True)
class GroupResult(Record):
    """Metrics of the classes with many, medium or few training samples.

    Args:
        name: ``"many"``, ``"medium"`` or ``"few"``.
        classes: number of classes.
        support: number of their test samples.
        metrics: mean of the main metric, and ``ece``.
    """

    name: str
    classes: int
    support: float
    metrics: dict[str, float | None] = field(metadata={INLINED: True})


@dataclass(frozen=True)
class ClassResult(Record):
    """Metrics of a class or label.

    Args:
        name: name of the class.
        group: ``"many"``, ``"medium"`` or ``"few"``; None without training counts.
        train_count: number of training samples; None if unknown.
        support: number of samples of the class.
        predicted: number of samples predicted as the class.
        metrics: metrics by key.
    """

    name: str
    group: str | None
    train_count: float | None
    support: int
    predicted: int
    metrics: dict[str, float | None] = field(metadata={INLINED: True})


@dataclass(frozen=True)
class RejectionRates(Record):
    """Metrics over thresholds of the confidence below which a sample is rejected; lists of one length."""

    threshold: list[float]
    f_measure: list[float | None]
    accuracy: list[float | None]
    known_rejected: list[float]
    unknown_rejected: list[float]


@dataclass(frozen=True)
class ConfidenceHistogram(Record):
    """Number of samples per bin of confidence: known samples predicted right and wrong, and unknown samples."""

    edges: list[float]
    known_right: list[float]
    known_wrong: list[float]
    unknown: list[float]


@dataclass(frozen=True)
class Rejection(Record):
    """Metrics at a threshold.

    Args:
        rule: how the threshold was chosen: ``"fixed"``, ``"accept"`` a fraction of the known samples, or ``"best"``
            F-measure.
        threshold: one, or those of the first and the second half of the samples.
        chosen_on: samples that it was chosen on.
        metrics: F-measure, precision and recall, rejected fractions, and accuracies of the known samples, where a
            rejected sample counts as an error.
    """

    rule: str
    threshold: list[float]
    chosen_on: str
    metrics: dict[str, float | None] = field(metadata={INLINED: True})


@dataclass(frozen=True, kw_only=True)
class OpenSetEvaluation(Record):
    """The result of ``evaluate_open_set``.

    Args:
        format: format of the JSON.
        file: file of the predictions for known classes.
        open_file: file of the predictions for unknown samples.
        known: number of known samples.
        unknown: number of unknown samples.
        classes: number of known classes.
        convention: convention of the F-measure.
        accept: fraction of known samples that the rule ``"accept"`` accepts.
        main: rule that chooses the threshold of ``overall``.
        told: rule that the summary in sentences reports.
        overall: the main metrics.
        auroc: AUROC by score.
        closed: accuracies without rejection.
        thresholds: metrics at the threshold of each rule.
        curve: metrics at thresholds from 0 to 1.
        trade: metrics at thresholds that reject 0 to 100 % of the known samples.
        histogram: histogram of the confidence.
        notes: notes on the metrics.
    """

    format: str
    file: str
    open_file: str
    known: int
    unknown: int
    classes: int
    convention: str
    accept: float
    main: str
    told: str = ""
    overall: dict[str, float | None]
    auroc: dict[str, float | None]
    closed: dict[str, float | None]
    thresholds: list[Rejection]
    curve: RejectionRates
    trade: RejectionRates
    histogram: ConfidenceHistogram
    notes: list[str] = field(default_factory=list)

    @property
    def top(self) -> Rejection:
        """The threshold of ``overall``."""
        return self.at(self.main)

    def at(self, rule: str) -> Rejection:
        """The threshold of a rule."""
        return next(one for one in self.thresholds if one.rule == rule)


@dataclass(frozen=True, kw_only=True)
class Evaluation(Record):
    """The result of ``evaluate``.

    Args:
        format: format of the JSON.
        file: file of the predictions.
        task: task of the predictions.
        samples: number of samples.
        classes: number of classes or labels.
        unknown: number of unknown targets of multi-label data.
        scores: ``"logits"`` or ``"probabilities"``.
        bins: number of bins of the calibration errors.
        main: main metric of groups and classes.
        suspicions: results of the sanity checks.
        notes: notes on rounded probabilities and infinite logits.
        overall: metrics of all samples.
        intervals: 95 % confidence limits, low and high, by metric.
        calibration: metrics before and after calibration.
        groups: results by group of training counts; empty if these are unknown.
        per_class: results by class.
        reliability: reliability diagrams of ``"all"`` samples and of each group.
        open_set: result of ``evaluate_open_set``, if there is an open set.
    """

    format: str
    file: str
    task: Task
    samples: int
    classes: int
    unknown: int = 0
    scores: str
    bins: int
    main: str
    suspicions: list[str]
    notes: list[str] = field(default_factory=list)
    overall: dict[str, float | None]
    intervals: dict[str, list[float]]
    calibration: Calibration
    groups: list[GroupResult]
    per_class: list[ClassResult]
    reliability: dict[str, Reliability]
    open_set: OpenSetEvaluation | None = None

    @property
    def curve(self) -> ReliabilityBins:
        """The reliability diagram of all samples before calibration."""
        return self.reliability["all"].before
