"""Summary of an evaluation in sentences, and the rows of its tables. Does not import torch."""

from __future__ import annotations

import math
from collections.abc import Mapping

from equipoise.evaluation.results import ClassResult, Evaluation, OpenSetEvaluation, Rejection
from equipoise.metric_registry import MetricInfo, metric_info
from equipoise.tasks import GROUP_SIZES, Task

__all__ = [
    "OPEN_SET_METRICS",
    "class_metric",
    "described",
    "frequency_ratio",
    "group_notes",
    "is_off",
    "open_set_rows",
    "open_set_sentences",
    "rule_name",
    "sentences_of",
    "threshold_text",
    "worst_classes",
]

FAR = 1.5
"""Minimum ratio of predicted to observed frequencies of labels, or its inverse, that is reported."""
RISE = 1.05
"""Minimum ratio of the classwise ECE after and before calibration that is reported."""


def described(evaluation: Evaluation) -> str:
    """One line on the evaluated predictions."""
    task, unknown = evaluation.task, evaluation.unknown
    what = task.one if task.multilabel and evaluation.classes == 1 else task.many
    targets = evaluation.samples * evaluation.classes
    rest = f"; {unknown:,} of {targets:,} targets unknown" if unknown else ""
    return (
        f"{evaluation.samples:,} samples, {evaluation.classes:,} {what}, {task.label}, from {evaluation.scores}{rest}"
    )


def class_metric(key: str, task: Task) -> MetricInfo:
    """A metric of single classes: their ECE is classwise, whereas the overall ECE is that of the top label.

    >>> class_metric("ece", Task.MULTICLASS).label, class_metric("ece", Task.MULTILABEL).label
    ('classwise ECE', 'ECE')
    """
    return metric_info("classwise_ece" if key == "ece" and not task.multilabel else key)


def group_notes(task: Task) -> list[str]:
    """How to read calibration errors of groups of classes; empty for multi-label data."""
    if task.multilabel:
        return []
    return [
        "The ECE of a group is over the samples whose true class is in it. Given the true class, confidence and "
        "accuracy need not agree, not even for a perfectly calibrated model"
        + (": judge classes by their classwise ECE." if task.multiclass else ".")
    ]


def worst_classes(evaluation: Evaluation, count: int) -> list[ClassResult]:
    """The classes with the lowest main metric."""
    rated = [(value, row) for row in evaluation.per_class if (value := row.metrics[evaluation.main]) is not None]
    return [row for _, row in sorted(rated, key=lambda pair: pair[0])[:count]]


def sentences_of(evaluation: Evaluation) -> list[str]:
    """Interpretation of the metrics in sentences."""
    return [
        *evaluation.suspicions,
        *evaluation.notes,
        *_confidence(evaluation),
        *_calibration(evaluation),
        *_groups(evaluation),
        *_missing(evaluation),
    ]


def frequency_ratio(evaluation: Evaluation) -> float:
    """Mean predicted probability over observed frequency; 1 if one of them is 0."""
    curve = evaluation.curve
    return curve.mean_confidence / curve.mean_accuracy if curve.mean_confidence and curve.mean_accuracy else 1.0


def is_off(evaluation: Evaluation) -> bool:
    """Whether predicted probabilities of labels are far above or below observed frequencies."""
    return not 1 / FAR < frequency_ratio(evaluation) < FAR


def _confidence(evaluation: Evaluation) -> list[str]:
    """Whether confidence is above or below accuracy."""
    curve = evaluation.curve
    if not curve.total:
        return []
    confidence, accuracy = curve.mean_confidence, curve.mean_accuracy
    if evaluation.task.multilabel:
        ratio = f": a ratio of {frequency_ratio(evaluation):.2g}" if is_off(evaluation) else ""
        return [
            f"Mean predicted probability of a label {100 * confidence:.2f} %, observed frequency "
            f"{100 * accuracy:.2f} %{ratio}."
        ]
    gap = 100 * abs(confidence - accuracy)
    word = "overconfident" if confidence > accuracy else "underconfident"
    return [
        f"Mean confidence {100 * confidence:.2f} %, accuracy {100 * accuracy:.2f} %: "
        + (f"{word} by {gap:.2f} points." if gap >= 0.5 else "neither over- nor underconfident on average.")
    ]


def _calibration(evaluation: Evaluation) -> list[str]:
    """Effect of temperature scaling, and remaining miscalibration."""
    calibration, nll, ece = evaluation.calibration, metric_info("nll"), metric_info("ece")
    if calibration.after is None:
        return [f"No temperature could be fitted: {calibration.note}."]
    before, after = calibration.metric("ece")
    if before is None or after is None:
        return []
    nll_before, nll_after = calibration.metric("nll")
    kind = "Label-wise temperature scaling" if evaluation.task.multilabel else "Temperature scaling"
    kind += " by ECE" if calibration.by == "ece" else ""
    change = "lowers" if after < before else "raises"
    likelihood = f" and changes the NLL from {nll.text(nll_before)} to {nll.text(nll_after)}"
    return [
        f"{kind}, fitted on {calibration.fitted_on}, {change} the ECE from {ece.text(before)} to {ece.text(after)} %"
        f"{'' if math.isinf(nll_before or 0.0) else likelihood}.",
        *_beyond_temperature(evaluation),
    ]


def _beyond_temperature(evaluation: Evaluation) -> list[str]:
    """Miscalibration that a temperature cannot correct."""
    ece = metric_info("ece")
    before, after = evaluation.calibration.metric("classwise_ece")
    if before is not None and after is not None and after > RISE * before:
        return [
            f"It raises the classwise ECE from {ece.text(before)} to {ece.text(after)} %: the probabilities of whole "
            "classes are too high or too low; try equipoise calibrate FILE --method vector."
        ]
    if evaluation.task.multilabel and is_off(evaluation):
        return [
            "Temperatures do not shift the frequency of labels; biases do: equipoise calibrate FILE --bias. "
            "equipoise doctor FILE estimates the gain."
        ]
    return []


def _groups(evaluation: Evaluation) -> list[str]:
    """The main metric of frequent and rare classes."""
    task, metric = evaluation.task, metric_info(evaluation.main)
    values = {row.name: row.metrics[metric.key] for row in evaluation.groups}
    many, few = values.get("many"), values.get("few")
    if many is None or few is None:
        return []
    return [
        f"Mean {metric.label} of {task.many} with few training samples {metric.text(few)} %, of those with many "
        f"{metric.text(many)} %."
    ]


def _missing(evaluation: Evaluation) -> list[str]:
    """Classes without samples."""
    missing = [row.name for row in evaluation.per_class if row.support == 0]
    if not missing:
        return []
    task, names = evaluation.task, ", ".join(missing[:5]) + (" ..." if len(missing) > 5 else "")
    return [
        f"{len(missing)} of {evaluation.classes} {task.many} have no {task.support}s and are excluded from means over "
        f"{task.many}: {names}."
    ]


OPEN_SET_METRICS: Mapping[str, str] = {
    "unknown_rejected": "percentage of unknown samples that are rejected",
    "known_rejected": "percentage of known samples that are rejected",
    "f_measure": "harmonic mean of precision and recall",
    "precision": "correct predictions of known samples over all known samples (Kang et al.: over the accepted ones)",
    "recall": "correct predictions of known samples over these and the accepted unknown samples",
    "accuracy": "of the known samples; a rejected one counts as an error",
    "mean_class_accuracy": "the same, averaged over the classes",
    **{group: f"the same of classes with {size} training samples" for group, size in GROUP_SIZES.items()},
}
"""Metrics of an open set in the order of tables, with their meaning."""


def rule_name(row: Rejection, evaluation: OpenSetEvaluation) -> str:
    """Short description of how a threshold was chosen."""
    names = {"fixed": "fixed", "accept": f"{100 * evaluation.accept:g} % accepted", "best": "best F-measure"}
    return names[row.rule]


def threshold_text(row: Rejection) -> str:
    """A threshold, or those of the two halves."""
    return " / ".join(f"{level:.3g}" for level in row.threshold)


def open_set_rows(evaluation: OpenSetEvaluation) -> dict[str, list[str]]:
    """Each metric in percent: without rejection, and by each rule."""
    rules, closed = evaluation.thresholds, evaluation.closed
    return {
        name: [
            metric_info(name).text(closed[name]) if name in closed else "",
            *(metric_info(name).text(row.metrics[name]) for row in rules),
        ]
        for name in OPEN_SET_METRICS
        if any(row.metrics.get(name) is not None for row in rules)
    }


def open_set_sentences(evaluation: OpenSetEvaluation) -> list[str]:
    """Interpretation of the metrics of an open set in sentences."""
    row = evaluation.at(evaluation.told or evaluation.main)
    unknown, known, f_measure = (
        metric_info(name).text(row.metrics[name]) for name in ("unknown_rejected", "known_rejected", "f_measure")
    )
    where = f"threshold {threshold_text(row)}"
    if len(row.threshold) > 1:
        where = f"thresholds {threshold_text(row)} of two halves"
    return [
        f"At the {where}, {unknown} % of the {evaluation.unknown:,} unknown samples are rejected, "
        f"and {known} % of the {evaluation.known:,} known ones: F-measure {f_measure} %.",
        f"A known sample has higher confidence than an unknown one in "
        f"{metric_info('auroc').text(evaluation.auroc['max_probability'])} % of the pairs (AUROC).",
        *evaluation.notes,
    ]
