"""What an evaluation tells to those who know where such numbers mislead."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from equipoise._formatting import announced_as_present
from equipoise.doctor.finding import Finding, listed

if TYPE_CHECKING:
    from equipoise.doctor.corrections import Correction

__all__ = ["GAP", "calibration_noise", "look_at_predictions", "mean_gap", "rarely_predicted"]

THIN_BIN = 30
FEW_SAMPLES = 30
RARELY = 0.25
"""Share of its samples below which a class is hardly predicted, or hardly found."""
ENOUGH = 10
"""Samples from which on that is said of a class that is predicted at all."""
GAP = 0.02
GAIN = 0.02
"""Share of an NLL that a correction has to save to be worth it."""
NOISE = 0.01
"""ECE by chance below which an ECE that cannot be told from it is good news."""
BY_TRUTH = (
    "Samples of a group are chosen by their true class, given which even a perfectly calibrated model is more or less "
    "sure than right: a high ECE alone is no miscalibration."
)


def calibration_noise(curve: Mapping[str, Sequence[float | None]]) -> float:
    r"""The ECE that a perfectly calibrated model would show on as many samples, by chance.

    .. math:: \sum_b \frac{n_b}{n} \sqrt{\frac{2\, c_b (1 - c_b)}{\pi\, n_b}}

    with :math:`c_b` the mean confidence of a bin: the mean of the absolute value of a normal error.
    """
    total = sum(count or 0.0 for count in curve["count"])
    noise = 0.0
    for count, confidence in zip(curve["count"], curve["confidence"], strict=True):
        if count and confidence is not None:
            noise += count / total * math.sqrt(2.0 * confidence * (1.0 - confidence) / (math.pi * count))
    return noise


def mean_gap(curve: Mapping[str, Sequence[float | None]]) -> float:
    """Mean confidence minus accuracy; 0 where nothing was seen."""
    pairs = zip(curve["confidence"], curve["accuracy"], curve["count"], strict=True)
    total = sum(count or 0.0 for count in curve["count"])
    return sum(((c or 0.0) - (a or 0.0)) * (n or 0.0) for c, a, n in pairs) / max(total, 1.0)


def gap_noise(curve: Mapping[str, Sequence[float | None]]) -> float:
    """Standard error of ``mean_gap`` for a perfectly calibrated model on as many samples."""
    pairs = [(n or 0.0, c or 0.0) for n, c in zip(curve["count"], curve["confidence"], strict=True)]
    total = sum(count for count, _ in pairs)
    return math.sqrt(sum(count * c * (1.0 - c) for count, c in pairs)) / max(total, 1.0)


def rarely_predicted(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Rows of the classes that are predicted never, or hardly ever for as often as they occur."""
    return [
        row
        for row in found["per_class"]
        if row["support"]
        and row["predicted"] < RARELY * row["support"]
        and (not row["predicted"] or row["support"] >= ENOUGH)
    ]


def look_at_predictions(
    found: Mapping[str, Any], *, cross_fitted_f1: float | None = None, corrections: Sequence[Correction] = ()
) -> list[Finding]:
    """Findings about an evaluation.

    Args:
        found: what ``equipoise.evaluation.evaluate`` gives.
        cross_fitted_f1: several labels: the mean F1 to expect from a threshold for each label.
        corrections: what ``try_corrections`` gives, the plain temperature first.
    """
    return [
        *(
            Finding("problem", "suspicious input", sentence, "Look into it before anything else.")
            for sentence in found["suspicions"]
        ),
        *_classes(found),
        *_bins(found),
        *_confidence(found, _better(found, corrections)),
        *_announced(found, corrections),
        *_corrections(found, corrections),
        *_thresholds(found, cross_fitted_f1),
        *_rounded(found),
    ]


def _classes(found: Mapping[str, Any]) -> list[Finding]:
    rows = found["per_class"]
    kind = "label" if found["task"] == "multi" else "class"
    results = []
    absent = [row["name"] for row in rows if row["support"] == 0]
    if absent:
        results.append(
            Finding(
                "problem",
                "nothing to judge by",
                f"{len(absent)} of {len(rows)} have no {'positive ' if kind == 'label' else ''}sample here: "
                f"{listed(absent)}. They are in no mean, so that a mean over the rest says nothing about them.",
                "Evaluate on data that hold every class, or say which were left out.",
            )
        )
    scarce = [row["name"] for row in rows if 0 < row["support"] < FEW_SAMPLES]
    if scarce and found["task"] != "segmentation":
        smallest = min(row["support"] for row in rows if row["support"])
        error = 50.0 / math.sqrt(smallest)
        results.append(
            Finding(
                "worry",
                f"{kind} results from few samples",
                f"{len(scarce)} of {len(rows)} have fewer than {FEW_SAMPLES} samples: {listed(scarce)}. The "
                f"accuracy of one with {smallest} has a standard error of up to {error:.0f} points.",
                "Compare groups rather than single classes, and use --bootstrap for intervals.",
            )
        )
    rare = rarely_predicted(found)
    cure = (
        "lower thresholds (equipoise calibrate --method thresholds) would"
        if kind == "label"
        else ("a correction that moves decisions (equipoise calibrate --method vector, or prior) may")
    )
    cure = f"A loss that rebalances, or afterwards {cure} bring them back."
    silent = [row["name"] for row in rare if not row["predicted"]]
    if silent:
        text = f"{len(silent)} of {len(rows)} occur and are never predicted: {listed(silent)}."
        results.append(Finding("worry", "never predicted", text, cure))
    hardly = [f"{row['name']} ({row['predicted']:,} for {row['support']:,})" for row in rare if row["predicted"]]
    if hardly:
        text = (
            f"{len(hardly)} of {len(rows)} are predicted less than a quarter as often as they occur: {listed(hardly)}."
        )
        results.append(Finding("worry", "hardly ever predicted", text, cure))
    missed = [
        f"{row['name']} ({100 * row['accuracy']:.0f} %)"
        for row in rows
        if row["support"] >= ENOUGH and row not in rare and row.get("accuracy", 1.0) < RARELY
    ]
    if missed:
        results.append(
            Finding(
                "worry",
                "hardly ever found",
                f"{len(missed)} of {len(rows)} are predicted, but for other samples: less than a quarter of their own "
                f"are found: {listed(missed)}.",
                "They are mistaken for other classes, which no rebalancing mends: look at their labels and at what "
                "they are taken for, merge what cannot be told apart, or collect samples.",
            )
        )
    return results


def _bins(found: Mapping[str, Any]) -> list[Finding]:
    curve = found["reliability"]["all"]["before"]
    noise, ece = calibration_noise(curve), found["overall"]["ece"]
    if ece is None:
        return []
    results = []
    thin = sum(1 for count in curve["count"] if 0 < count < THIN_BIN)
    if ece < 2 * noise:
        few = f" ({thin} {'bin holds' if thin == 1 else 'bins hold'} fewer than {THIN_BIN})" if thin else ""
        chance = (
            f"A perfectly calibrated model would show an ECE of about {100 * noise:.2f} % on as many samples; "
            f"{100 * ece:.2f} % can hardly be told from that"
        )
        results.append(
            Finding(
                "worry",
                "bins too thin for this ECE",
                f"{chance}{few}.",
                "Use more samples or fewer bins (--bins), compare by NLL, and give an interval (--bootstrap).",
            )
            if noise >= NOISE
            else Finding(
                "note",
                "no miscalibration measurable",
                f"{chance}.",
                "Compare by NLL, and give an interval (--bootstrap).",
            )
        )
    thin_groups = {
        name: curves["before"]
        for name, curves in found["reliability"].items()
        if name != "all" and 0 < sum(curves["before"]["count"]) < 15 * THIN_BIN
    }
    if thin_groups:
        each = "; ".join(
            f"{name} has {sum(curve['count']):,.0f} samples for {found['bins']} bins, and by chance alone its ECE "
            f"would be {100 * calibration_noise(curve):.1f} %"
            for name, curve in thin_groups.items()
        )
        results.append(
            Finding(
                "note",
                f"calibration of the {'group' if len(thin_groups) == 1 else 'groups'} {', '.join(thin_groups)}",
                f"{each[0].upper()}{each[1:]}." + ("" if found["task"] == "multi" else f" {BY_TRUTH}"),
                "Read reliability diagrams of groups with care"
                + ("; the classwise ECE of their classes tells more." if found["task"] == "single" else "."),
            )
        )
    return results


def _confidence(found: Mapping[str, Any], better: Correction | None) -> list[Finding]:
    curve, before, after = (
        found["reliability"]["all"]["before"],
        *(found["calibration"][k] for k in ("before", "after")),
    )
    gap = mean_gap(curve)
    if found["task"] == "multi" or abs(gap) < max(GAP, 2 * gap_noise(curve)):
        return []
    over = gap > 0
    if better is not None:
        cure = f"After training, {better.options} repairs more of it than a temperature (below); in training "
    elif after is not None and after["nll"] < before["nll"] and after["ece"] < before["ece"]:
        cure = "A temperature repairs it after training (equipoise calibrate --method temperature); in training "
    else:
        cure = "A temperature does not repair it on samples that it was not fitted on; in training "
    return [
        Finding(
            "worry",
            "overconfident" if over else "underconfident",
            f"Confidence is {100 * abs(gap):.1f} points {'above' if over else 'below'} accuracy on average.",
            cure + ("focal losses do." if over else "less smoothing and a smaller gamma do."),
        )
    ]


def _announced(found: Mapping[str, Any], tried: Sequence[Correction]) -> list[Finding]:
    """Several labels that the model announces far more, or less, often than they are present."""
    if found["task"] != "multi" or announced_as_present(found):
        return []
    gap = mean_gap(found["reliability"]["all"]["before"])
    present = sum(row["support"] for row in found["per_class"]) / sum(found["reliability"]["all"]["before"]["count"])
    helped = len(tried) > 1 and tried[1].nll < (1 - GAIN) * tried[0].nll
    return [
        Finding(
            "worry",
            f"announced {'more' if gap > 0 else 'less'} often than present",
            f"The mean probability of a label is {100 * (present + gap):.1f} %, and {100 * present:.1f} % are present: "
            f"{(present + gap) / present:.2g} times as often. Asymmetric losses and weights of positives do that.",
            f"Do not read its scores as probabilities; biases bring them back, equipoise calibrate FILE "
            f"{tried[1].options} --out fit.json: an NLL of {tried[1].nll:.4f} where temperatures alone leave "
            f"{tried[0].nll:.4f}."
            if helped
            else "Do not read its scores as probabilities, and choose thresholds on validation data.",
        )
    ]


def _better(found: Mapping[str, Any], tried: Sequence[Correction]) -> Correction | None:
    """The correction that is worth more than a temperature, if there is one."""
    before, after = found["calibration"]["before"], found["calibration"]["after"]
    best = min(tried, key=lambda one: one.nll, default=None)
    if best is None or after is None or before["nll"] is None:
        return None
    return best if best.nll < (1 - GAIN) * min(before["nll"], tried[0].nll) else None


def _corrections(found: Mapping[str, Any], tried: Sequence[Correction]) -> list[Finding]:
    before, after = found["calibration"]["before"], found["calibration"]["after"]
    if after is None or before["nll"] is None:
        return []
    best = _better(found, tried)
    if best is not None and found["task"] == "multi" and not announced_as_present(found):
        return []  # what announces too often is told that already
    if best is not None:
        return [
            Finding(
                "note",
                "more than a temperature helps",
                f"The NLL {_moves(before['nll'], best.nll)} by {best.options}; by a temperature it "
                f"{_moves(before['nll'], after['nll'])}, each on samples it was not fitted on.",
                f"equipoise calibrate FILE {best.options} --out fit.json"
                + ("" if best.keeps_predictions else "; predictions change with it, so look at its table first."),
            )
        ]
    if after["nll"] < before["nll"] * (1 - GAIN):
        return [
            Finding(
                "note",
                "a temperature helps",
                f"On samples it was not fitted on, it lowers the NLL from {before['nll']:.4f} to {after['nll']:.4f}.",
                "equipoise calibrate FILE --method "
                + ("label-temperatures" if found["task"] == "multi" else "temperature")
                + " --out fit.json",
            )
        ]
    return []


def _moves(before: float, after: float) -> str:
    """How a number changes, as far as the digits that are shown tell."""
    first, last = f"{before:.4f}", f"{after:.4f}"
    if first == last:
        return f"stays at {first}"
    return f"{'falls' if after < before else 'rises'} from {first} to {last}"


def _thresholds(found: Mapping[str, Any], cross_fitted: float | None) -> list[Finding]:
    if found["task"] != "multi":
        return []
    values = [row["f1"] or 0.0 for row in found["per_class"] if row["support"]]
    if cross_fitted is None or not values:
        return []
    now = sum(values) / len(values)
    rare = [row["name"] for row in found["per_class"] if 0 < row["support"] < 10]
    advice = f" {len(rare)} labels have fewer than 10 positives, too few for a threshold of their own." if rare else ""
    if cross_fitted > now + GAP:
        return [
            Finding(
                "worry",
                "threshold 0.5",
                f"The mean F1 of the labels is {100 * now:.1f} at 0.5; a threshold for each label would give about "
                f"{100 * cross_fitted:.1f} on new data.",
                "equipoise calibrate FILE --method thresholds --out thresholds.json." + advice,
            )
        ]
    return [
        Finding(
            "note",
            "threshold 0.5",
            f"The mean F1 of the labels is {100 * now:.1f} at 0.5; thresholds for each label would give about "
            f"{100 * cross_fitted:.1f} on new data.",
            "0.5 is a fair choice here." + advice,
        )
    ]


def _rounded(found: Mapping[str, Any]) -> list[Finding]:
    if not found["notes"]:
        return []
    if found["scores"] == "logits":
        advice = "Look at what masks the classes: no correction after training brings back a probability of 0."
        return [Finding("problem", "truth ruled out", " ".join(found["notes"]), advice)]
    advice = "Save logits, or probabilities in float32 without rounding."
    return [Finding("worry", "rounded probabilities", " ".join(found["notes"]), advice)]
