"""The results of an evaluation as typed values, which are JSON in files. Without torch.

None stands for a value that does not exist, such as the accuracy of a class without samples.
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
        edges: of the bins, one more than there are bins.
        count: samples in each bin; of several labels, pairs of a sample and a label.
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
    """Reliability diagrams before and after calibration; ``after`` is None where nothing could be fitted."""

    before: ReliabilityBins
    after: ReliabilityBins | None = None


@dataclass(frozen=True)
class Calibration(Record):
    """What a calibration changes.

    Args:
        before: metrics of the uncalibrated probabilities.
        after: the same after calibration; None where nothing could be fitted.
        fits: the fits in words.
        fitted_on: which samples they were fitted on.
        note: why there is no fit, or what to know about it.
    """

    before: dict[str, float | None]
    after: dict[str, float | None] | None
    fits: list[str]
    fitted_on: str
    note: str

    def metric(self, key: str) -> tuple[float | None, float | None]:
        """A metric before and after calibration; None where it does not exist."""
        return self.before.get(key), (self.after or {}).get(key)


@dataclass(frozen=True)
class GroupResult(Record):
    """Metrics of the classes with many, medium or few training samples.

    Args:
        name: ``"many"``, ``"medium"`` or ``"few"``.
        classes: how many there are.
        support: test samples of them.
        metrics: the mean of the main metric, and ``ece``.
    """

    name: str
    classes: int
    support: float
    metrics: dict[str, float | None] = field(metadata={INLINED: True})


@dataclass(frozen=True)
class ClassResult(Record):
    """Metrics of a class or label.

    Args:
        name: of the class.
        group: ``"many"``, ``"medium"`` or ``"few"``; None without training counts.
        train_count: training samples; None where it is unknown.
        support: samples of the class.
        predicted: samples predicted as the class.
        metrics: by key.
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
    """Samples in bins of confidence: correct and wrong known ones, and unknown ones."""

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
        chosen_on: which samples it was chosen on.
        metrics: F-measure, precision and recall, rejected fractions, and accuracies of the known samples, of which a
            rejected one counts as an error.
    """

    rule: str
    threshold: list[float]
    chosen_on: str
    metrics: dict[str, float | None] = field(metadata={INLINED: True})


@dataclass(frozen=True, kw_only=True)
class OpenSetEvaluation(Record):
    """The result of ``evaluate_open_set``.

    Args:
        format: of the JSON.
        file: predictions of the known classes.
        open_file: predictions of the unknown samples.
        known: known samples.
        unknown: unknown samples.
        classes: known classes.
        convention: of the F-measure.
        accept: fraction of known samples that the rule ``"accept"`` accepts.
        main: the rule whose threshold ``overall`` is computed at.
        told: the rule that sentences report.
        overall: the main metrics.
        auroc: AUROC by score.
        closed: accuracies without rejection.
        thresholds: metrics at the threshold of each rule.
        curve: metrics at thresholds from 0 to 1.
        trade: metrics at thresholds that reject 0 to 100 % of the known samples.
        histogram: of the confidence.
        notes: what to know about the numbers.
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
        format: of the JSON.
        file: the predictions.
        task: of the predictions.
        samples: how many there are.
        classes: how many there are.
        unknown: targets of several labels that are unknown.
        scores: ``"logits"`` or ``"probabilities"``.
        bins: of the calibration errors.
        main: the metric that groups and classes are judged by.
        suspicions: what looks like a mistake in the file.
        notes: what to know about rounded probabilities and infinite logits.
        overall: metrics of all samples.
        intervals: 95 % confidence limits, low and high, by metric.
        calibration: metrics before and after calibration.
        groups: by training counts; empty where they are unknown.
        per_class: by class.
        reliability: diagrams of ``"all"`` and of each group.
        open_set: the result of ``evaluate_open_set``, where there is one.
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
