"""Description of each metric: label, unit, whether higher is better, and a hint. Does not import torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from equipoise.tasks import GROUP_SIZES, GROUPS

__all__ = ["METRICS", "TVERSKY", "MetricInfo", "metric_info"]

Unit = Literal["percent", "natural", "milliseconds"]
SCALES: Mapping[Unit, float] = {"percent": 100.0, "natural": 1.0, "milliseconds": 1000.0}


@dataclass(frozen=True)
class MetricInfo:
    """How a metric is presented.

    Args:
        key: its name in files and options.
        label: its name in tables.
        unit: ``"percent"`` for fractions, ``"natural"`` for unscaled values, ``"milliseconds"`` for seconds.
        higher_is_better: False for errors, losses and times.
        hint: a definition in one line; empty where the label says it.
    """

    key: str
    label: str
    unit: Unit = "percent"
    higher_is_better: bool = True
    hint: str = ""

    @property
    def scale(self) -> float:
        """What a value is multiplied by to be shown in the unit."""
        return SCALES[self.unit]

    def text(self, value: float | None) -> str:
        """A value as text: percentages with two digits, times with three in all, others with four.

        >>> metric_info("accuracy").text(0.9), metric_info("nll").text(0.25), metric_info("nll").text(None)
        ('90.00', '0.2500', '–')
        >>> metric_info("seconds_per_step").text(0.0123), metric_info("seconds_per_step").text(0.002)
        ('12.3', '2.00')
        """
        if value is None:
            return "–"
        if math.isinf(value):
            return "inf"
        scaled = self.scale * value
        if self.unit == "milliseconds":
            return f"{scaled:,.{max(0, 3 - len(f'{scaled:.0f}'))}f}"
        return f"{scaled:.4f}" if self.unit == "natural" else f"{scaled:.2f}"


def metric_info(key: str) -> MetricInfo:
    """The entry of a metric; a fraction of which higher is better where it is not registered.

    >>> metric_info("ece").higher_is_better, metric_info("my_score").label
    (False, 'my score')
    >>> metric_info("mce_after").label, metric_info("mce_after").higher_is_better  # after temperature scaling
    ('MCE after', False)
    """
    known = METRICS.get(key)
    if known is None and (before := METRICS.get(key.removesuffix("_after"))) is not None:
        return replace(before, key=key, label=f"{before.label} after", hint="")
    return known or MetricInfo(key, key.replace("_", " "))


def _error(key: str, label: str, unit: Unit = "percent", hint: str = "") -> MetricInfo:
    """A metric of which lower is better."""
    return MetricInfo(key, label, unit, higher_is_better=False, hint=hint)


ECE_HINT = "expected calibration error: gap between confidence and accuracy, in bins of equal width"
ADA_ECE_HINT = "expected calibration error, in bins with equally many samples"
NLL_HINT = "negative log-likelihood of the true classes"
TVERSKY = (0.3, 0.7)
"""Costs of false positives and false negatives in the Tversky index of Salehi et al. (2017)."""
TVERSKY_HINT = "Tversky index: IoU with false positives counted {:g} times, false negatives {:g} times".format(*TVERSKY)
MULTILABEL = {
    "CP": "",
    "CR": "",
    "CF1": "F1 of the mean precision and recall over the labels, at probability 0.5",
    "OP": "",
    "OR": "",
    "OF1": "F1 of the precision and recall over all decisions, at probability 0.5",
}

METRICS: Mapping[str, MetricInfo] = {
    info.key: info
    for info in (
        MetricInfo("accuracy", "accuracy", hint="percentage of test samples whose predicted class is the true one"),
        MetricInfo("top5_accuracy", "top-5 accuracy"),
        MetricInfo("mean_class_accuracy", "mean class accuracy", hint="mean recall over the classes"),
        MetricInfo("macro_f1", "macro F1", hint="mean F1 over the classes"),
        MetricInfo("mean_average_precision", "mAP", hint="mean average precision over the labels"),
        MetricInfo("average_precision", "average precision"),
        MetricInfo("mean_iou", "mean IoU", hint="mean intersection over union (Jaccard index) of the classes"),
        MetricInfo("mean_accuracy", "mean class accuracy", hint="mean recall over the classes, in pixels"),
        MetricInfo("mean_precision", "mean precision", hint="mean precision of the classes, in pixels"),
        MetricInfo("mean_dice", "mean Dice", hint="mean Dice index (F1) of the classes, in pixels"),
        MetricInfo("mean_tversky", "mean Tversky", hint=f"mean of {TVERSKY_HINT}"),
        MetricInfo(
            "pixel_accuracy", "pixel accuracy", hint="percentage of pixels whose predicted class is the true one"
        ),
        MetricInfo("frequency_weighted_iou", "frequency-weighted IoU"),
        MetricInfo("iou", "IoU"),
        MetricInfo("dice", "Dice"),
        MetricInfo("tversky", "Tversky", hint=TVERSKY_HINT),
        MetricInfo("precision", "precision"),
        MetricInfo("recall", "recall"),
        MetricInfo("f1", "F1"),
        *(MetricInfo(key, key, hint=hint) for key, hint in MULTILABEL.items()),
        *(MetricInfo(f"{key}_top3", f"{key}, top 3") for key in MULTILABEL),
        _error("nll", "NLL", "natural", NLL_HINT),
        _error("brier", "Brier score", "natural"),
        _error("ece", "ECE", hint=ECE_HINT),
        _error("ada_ece", "AdaECE", hint=ADA_ECE_HINT),
        _error("classwise_ece", "classwise ECE"),
        _error("mce", "MCE"),
        MetricInfo("s99_share", "confidence above 0.99"),
        MetricInfo("s99_accuracy", "accuracy above 0.99"),
        *(MetricInfo(key, key, hint=f"classes with {size} training samples") for key, size in GROUP_SIZES.items()),
        MetricInfo("f_measure", "F-measure", hint="F-measure with rejection of unknown classes (Liu et al. 2019)"),
        MetricInfo("auroc", "AUROC", hint="probability that a known sample has higher confidence than an unknown one"),
        MetricInfo("unknown_rejected", "unknown rejected", hint="percentage of unknown samples that are rejected"),
        _error("known_rejected", "known rejected", hint="percentage of known samples that are rejected"),
        MetricInfo(
            "open_accuracy",
            "accuracy with rejection",
            hint="accuracy of the known samples; a rejected one counts as an error",
        ),
        *(MetricInfo(f"open_{key}", f"{key} with rejection") for key in GROUPS),
        _error("seconds_per_step", "ms a step", "milliseconds", "time of a training step in milliseconds"),
    )
}
"""Every metric by its key."""
