"""How numbers and names of an evaluation are said to people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from equipoise.expressions import is_method

__all__ = [
    "DISTANCES",
    "LABELS",
    "LESS_IS_BETTER",
    "MADE_AFTERWARDS",
    "NATURAL",
    "TITLES",
    "Kind",
    "announced_as_present",
    "class_label",
    "described",
    "duration",
    "group_notes",
    "joined",
    "kind_of",
    "shown",
    "things",
    "verdicts",
    "worst_classes",
]

LABELS: Mapping[str, str] = {
    "accuracy": "accuracy",
    "top5_accuracy": "top-5 accuracy",
    "mean_class_accuracy": "mean class accuracy",
    "macro_f1": "macro F1",
    "mean_average_precision": "mAP",
    "average_precision": "average precision",
    "mean_iou": "mean IoU",
    "mean_accuracy": "mean class accuracy",
    "pixel_accuracy": "pixel accuracy",
    "frequency_weighted_iou": "frequency-weighted IoU",
    "iou": "IoU",
    "precision": "precision",
    "f1": "F1",
    "nll": "NLL",
    "brier": "Brier score",
    "ece": "ECE",
    "ada_ece": "AdaECE",
    "classwise_ece": "classwise ECE",
    "mce": "MCE",
    "s99_share": "share above 0.99",
    "s99_accuracy": "accuracy above 0.99",
    **{
        f"{word}{ending}": f"{word}{title}"
        for word in ("CP", "CR", "CF1", "OP", "OR", "OF1")
        for ending, title in (("", ""), ("_top3", ", top 3"))
    },
    **{word: word for word in ("many", "medium", "few")},
    "f_measure": "F-measure",
    "auroc": "AUROC",
    "recall": "recall",
    "unknown_rejected": "unknown rejected",
    "known_rejected": "known rejected",
    "open_accuracy": "accuracy with rejection",
    **{f"open_{word}": f"{word} with rejection" for word in ("many", "medium", "few")},
    "ece_after": "ECE after",
    "ada_ece_after": "AdaECE after",
    "nll_after": "NLL after",
    "seconds_per_step": "ms a step",
}
NATURAL = ("nll", "brier", "nll_after")
"""Numbers that are no shares and are not shown in percent."""
LESS_IS_BETTER = (
    *("nll", "brier", "ece", "ada_ece", "classwise_ece", "mce", "nll_after", "ece_after", "ada_ece_after"),
    "seconds_per_step",
    "known_rejected",
)
HINTS: Mapping[str, str] = {
    "accuracy": "share of the test samples whose most probable class is the right one",
    "mean_class_accuracy": "mean over the classes of the share of their samples that is found",
    "mean_accuracy": "mean over the classes of the share of their pixels that is found",
    "mean_iou": "mean over the classes of intersection over union",
    "pixel_accuracy": "share of the pixels whose most probable class is the right one",
    "mean_average_precision": "mean over the labels of the average precision",
    "macro_f1": "mean F1 over the classes",
    "CF1": "F1 of the mean precision and recall over the labels, at probability one half",
    "OF1": "F1 of the precision and recall over all decisions, at probability one half",
    "many": "classes with more than 100 training samples",
    "medium": "classes with 20 to 100 training samples",
    "few": "classes with fewer than 20 training samples",
    "ece": "expected calibration error: how far confidence lies from accuracy, bins of equal width",
    "ada_ece": "the same with bins of equally many samples",
    "nll": "negative log-likelihood of the right classes",
    "f_measure": "F-measure with rejection of samples of no known class (Liu et al. 2019)",
    "auroc": "share of the pairs of a known and an unknown sample in which the known one has more confidence",
    "unknown_rejected": "share of the samples of no known class that is rejected",
    "known_rejected": "share of the samples of known classes that is rejected",
    "open_accuracy": "accuracy of the known samples, of which a rejected one is wrong",
    "seconds_per_step": "time of a training step in milliseconds",
}
FAR = 1.5
"""How many times as often labels are announced as present, or present as announced, from which on it is told."""
RISE = 1.05
"""Times its value to which a classwise ECE has to rise to be told."""
TITLES: Mapping[str, str] = {
    "single": "one label a sample",
    "multi": "several labels a sample",
    "segmentation": "segmentation",
}
MADE_AFTERWARDS = ("crt", "lws", "tau-norm", "ncm")
"""Methods that give a trained model another classifier: they have no epochs of their own."""
DISTANCES = ("ncm",)
"""Methods whose scores are distances and no probabilities."""


class Kind(NamedTuple):
    """What the rows of a comparison are called: one of them, and many."""

    one: str
    many: str


def kind_of(names: Iterable[str]) -> Kind:
    """Losses, or methods where any row is one.

    >>> kind_of(["ce", "recall"]).many, kind_of(["ce", "sdn(feature=ce)"]).many
    ('losses', 'methods')
    """
    return Kind("method", "methods") if any(map(is_method, names)) else Kind("loss", "losses")


def joined(names: Sequence[str]) -> str:
    """Names as a sentence lists them.

    >>> joined(["crt"]), joined(["crt", "lws", "ncm"])
    ('crt', 'crt, lws and ncm')
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def things(task: str) -> str:
    """What there are several of: a sample with several labels has labels, any other one class.

    >>> things("multi"), things("segmentation")
    ('labels', 'classes')
    """
    return "labels" if task == "multi" else "classes"


def shown(name: str, value: float | None) -> str:
    """A number as it is printed: shares in percent, times in milliseconds with three digits, the others with four.

    >>> shown("accuracy", 0.9), shown("nll", 0.25), shown("seconds_per_step", 0.0123), shown("seconds_per_step", 0.002)
    ('90.00', '0.2500', '12.3', '2.00')
    """
    if value is None:
        return "–"
    if math.isinf(value):
        return "inf"
    if name == "seconds_per_step":
        before = len(f"{1000 * value:.0f}")
        return f"{1000 * value:,.{max(0, 3 - before)}f}"
    return f"{value:.4f}" if name in NATURAL else f"{100 * value:.2f}"


def duration(seconds: float) -> str:
    """Seconds in the unit people would choose.

    >>> duration(42.3), duration(600), duration(9000)
    ('42 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def class_label(name: str, task: str) -> str:
    """The heading of a number of single classes: their ECE is classwise, where that of all samples is of the top label.

    >>> class_label("ece", "single"), class_label("ece", "multi"), class_label("f1", "single")
    ('classwise ECE', 'ECE', 'F1')
    """
    return LABELS["classwise_ece" if name == "ece" and task != "multi" else name]


def group_notes(task: str) -> list[str]:
    """What to know of calibration errors of groups; nothing of several labels, where a group is made of labels."""
    if task == "multi":
        return []
    return [
        "The ECE of a group is that of the samples whose true class is in it. Given the truth, confidence and accuracy "
        "need not agree, not even of a perfectly calibrated model"
        + (": judge classes by their classwise ECE." if task == "single" else ".")
    ]


def capital(text: str) -> str:
    """The text as a sentence begins.

    >>> capital("mean IoU"), capital("mAP")
    ('Mean IoU', 'mAP')
    """
    return text[:1].upper() + text[1:] if text.partition(" ")[0].islower() else text


def described(found: Mapping[str, Any]) -> str:
    """What was evaluated, in a line."""
    unknown = found.get("unknown", 0)
    what = "label" if found["task"] == "multi" and found["classes"] == 1 else things(found["task"])
    rest = f"; {unknown:,} of {found['samples'] * found['classes']:,} targets unknown" if unknown else ""
    return (
        f"{found['samples']:,} samples, {found['classes']:,} {what}, {TITLES[found['task']]}, from "
        f"{found['scores']}{rest}"
    )


def worst_classes(found: Mapping[str, Any], count: int) -> list[Mapping[str, Any]]:
    """The classes with the lowest main number."""
    rated = [row for row in found["per_class"] if row[found["main"]] is not None]
    return sorted(rated, key=lambda row: row[found["main"]])[:count]


def verdicts(found: Mapping[str, Any]) -> list[str]:
    """What the numbers say, in sentences."""
    before, after = found["calibration"]["before"], found["calibration"]["after"]
    sentences = [*found["suspicions"], *found.get("notes", []), *_trust(found)]
    if after is not None and before["ece"] is not None:
        change = "lowers" if after["ece"] < before["ece"] else "raises"
        kind = "a temperature for each label" if found["task"] == "multi" else "a temperature"
        likelihood = f" and changes the NLL from {shown('nll', before['nll'])} to {shown('nll', after['nll'])}"
        sentences.append(
            f"Fitted on {found['calibration']['fitted_on']}, {kind} {change} the ECE from "
            f"{shown('ece', before['ece'])} to {shown('ece', after['ece'])} %"
            f"{'' if math.isinf(before['nll']) else likelihood}."
        )
        sentences += _beyond_temperature(found)
    elif after is None:
        sentences.append(f"No temperature could be fitted: {found['calibration']['note']}.")
    groups = {row["name"]: row for row in found["groups"]}
    if {"many", "few"} <= groups.keys():
        key = found["main"]
        many, few = groups["many"][key], groups["few"][key]
        if many is not None and few is not None:
            sentences.append(
                f"{things(found['task']).capitalize()} with few training samples reach {shown(key, few)} %, those with "
                f"many {shown(key, many)} %."
            )
    missing = [row["name"] for row in found["per_class"] if row["support"] == 0]
    if missing:
        names = ", ".join(missing[:5]) + (" ..." if len(missing) > 5 else "")
        what = "positive samples" if found["task"] == "multi" else "samples"
        sentences.append(
            f"{len(missing)} of {found['classes']} {things(found['task'])} have no {what} here and are in no mean over "
            f"them: {names}."
        )
    return sentences


def _beyond_temperature(found: Mapping[str, Any]) -> list[str]:
    """What a temperature leaves undone."""
    before, after = (found["calibration"][when].get("classwise_ece") for when in ("before", "after"))
    if before is not None and after is not None and after > RISE * before:
        return [
            f"The classwise ECE rises with it from {shown('ece', before)} to {shown('ece', after)} %: whole classes "
            "are over- or underrated, which equipoise calibrate FILE --method vector may mend."
        ]
    if found["task"] == "multi" and not announced_as_present(found):
        return [
            "Temperatures do not make labels rarer or more frequent; with biases they do: equipoise calibrate FILE "
            "--bias, and equipoise doctor FILE says whether it pays."
        ]
    return []


def announced_as_present(found: Mapping[str, Any]) -> bool:
    """Whether several labels are announced about as often as they are present; True where nothing is known."""
    confidence, accuracy = _means(found)
    return not confidence or not accuracy or 1 / FAR < confidence / accuracy < FAR


def _trust(found: Mapping[str, Any]) -> list[str]:
    """Whether confidence is above or below accuracy."""
    if not sum(found["reliability"]["all"]["before"]["count"]):
        return []
    confidence, accuracy = _means(found)
    if found["task"] == "multi":
        times = (
            "" if announced_as_present(found) else f": {confidence / accuracy:.2g} times as often as they are present"
        )
        return [
            f"The labels are announced with a mean probability of {100 * confidence:.2f} % and present in "
            f"{100 * accuracy:.2f} % of the cases{times}."
        ]
    word = "more" if confidence > accuracy else "less"
    gap = 100 * abs(confidence - accuracy)
    return [
        f"Confidence is {100 * confidence:.2f} % on average and accuracy {100 * accuracy:.2f} %: "
        + (f"the model is {gap:.2f} points {word} sure than it may be." if gap >= 0.5 else "on average they agree.")
    ]


def _means(found: Mapping[str, Any]) -> tuple[float, float]:
    """Mean confidence and accuracy; of several labels, mean probability and share of what is present."""
    curve = found["reliability"]["all"]["before"]
    total = max(sum(curve["count"]), 1)
    return _mean(curve["confidence"], curve["count"], total), _mean(curve["accuracy"], curve["count"], total)


def _mean(values: Sequence[float | None], counts: Sequence[float], total: float) -> float:
    return sum((value or 0.0) * count for value, count in zip(values, counts, strict=True)) / total
