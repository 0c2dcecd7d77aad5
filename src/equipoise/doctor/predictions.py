"""Diagnostics: common pitfalls in an evaluation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from equipoise.doctor.finding import Finding, listed
from equipoise.evaluation.results import ClassResult, Evaluation, ReliabilityBins
from equipoise.evaluation.sentences import is_off

if TYPE_CHECKING:
    from equipoise.doctor.corrections import Correction

__all__ = ["GAP", "calibration_noise", "look_at_predictions", "mean_gap", "rarely_predicted"]

THIN_BIN = 30
FEW_SAMPLES = 30
RARELY = 0.25
"""Fraction of its samples below which a class is rarely predicted, or its recall is low."""
ENOUGH = 10
"""Minimum number of samples to report it for a class that is predicted at all."""
GAP = 0.02
GAIN = 0.02
"""Minimum relative decrease of the NLL for a recommended calibration."""
NOISE = 0.01
"""Maximum ECE of sampling noise with which a low ECE is informative."""
BY_TRUTH = (
    "Samples of a group are selected by their true class; given it, confidence and accuracy differ even for a "
    "perfectly calibrated model: a high ECE alone does not show miscalibration."
)


def calibration_noise(curve: ReliabilityBins) -> float:
    r"""Expected ECE of a perfectly calibrated model with the same number of samples.

    .. math:: \sum_b \frac{n_b}{n} \sqrt{\frac{2\, c_b (1 - c_b)}{\pi\, n_b}}

    with :math:`c_b` the mean confidence of a bin: the mean of the absolute value of a normal error.
    """
    noise = 0.0
    for count, confidence in zip(curve.count, curve.confidence, strict=True):
        if count and confidence is not None:
            noise += count / curve.total * math.sqrt(2.0 * confidence * (1.0 - confidence) / (math.pi * count))
    return noise


def mean_gap(curve: ReliabilityBins) -> float:
    """Mean confidence minus accuracy; 0 without samples."""
    return curve.mean_confidence - curve.mean_accuracy


def gap_noise(curve: ReliabilityBins) -> float:
    """Standard error of ``mean_gap`` for a perfectly calibrated model with the same number of samples."""
    pairs = [(n, c or 0.0) for n, c in zip(curve.count, curve.confidence, strict=True)]
    return math.sqrt(sum(count * c * (1.0 - c) for count, c in pairs)) / max(curve.total, 1.0)


def rarely_predicted(evaluation: Evaluation) -> list[ClassResult]:
    """Rows of the classes that are never predicted, or rarely compared with their frequency."""
    return [
        row
        for row in evaluation.per_class
        if row.support and row.predicted < RARELY * row.support and (not row.predicted or row.support >= ENOUGH)
    ]


def look_at_predictions(
    evaluation: Evaluation, *, cross_fitted_f1: float | None = None, corrections: Sequence[Correction] = ()
) -> list[Finding]:
    """Findings about an evaluation.

    Args:
        evaluation: result of ``equipoise.evaluation.evaluate``.
        cross_fitted_f1: for multi-label data, the cross-validated mean F1 with one threshold per label.
        corrections: result of ``try_corrections``, temperature scaling first.
    """
    return [
        *(Finding("problem", "suspicious input", sentence, "Check this first.") for sentence in evaluation.suspicions),
        *_classes(evaluation),
        *_bins(evaluation),
        *_confidence(evaluation, _better(evaluation, corrections)),
        *_frequency(evaluation, corrections),
        *_corrections(evaluation, corrections),
        *_thresholds(evaluation, cross_fitted_f1),
        *_rounded(evaluation),
    ]


def _accuracy(row: ClassResult) -> float:
    """Recall of a class; 1 if it has no samples."""
    value = row.metrics.get("accuracy")
    return 1.0 if value is None else value


def _classes(evaluation: Evaluation) -> list[Finding]:
    return [*_absent(evaluation), *_scarce(evaluation), *_seldom(evaluation), *_missed(evaluation)]


def _absent(evaluation: Evaluation) -> list[Finding]:
    rows = evaluation.per_class
    task = evaluation.task
    results = []
    absent = [row.name for row in rows if row.support == 0]
    if absent:
        results.append(
            Finding(
                "problem",
                f"{task.many} without samples",
                f"{len(absent)} of {len(rows)} have no {task.support}: {listed(absent)}. Means over {task.many} "
                "exclude them.",
                f"Evaluate on data with every {task.one}, or report which are excluded.",
            )
        )
    return results


def _scarce(evaluation: Evaluation) -> list[Finding]:
    rows = evaluation.per_class
    task = evaluation.task
    results = []
    scarce = [row.name for row in rows if 0 < row.support < FEW_SAMPLES]
    if scarce and not task.pixels:
        smallest = min(row.support for row in rows if row.support)
        error = 50.0 / math.sqrt(smallest)
        results.append(
            Finding(
                "warning",
                f"{task.one} results from few samples",
                f"{len(scarce)} of {len(rows)} have fewer than {FEW_SAMPLES} samples: {listed(scarce)}. The "
                f"accuracy of one with {smallest} has a standard error of up to {error:.0f} points.",
                f"Compare groups rather than single {task.many}, and use --bootstrap for confidence intervals.",
            )
        )
    return results


def _seldom(evaluation: Evaluation) -> list[Finding]:
    rows = evaluation.per_class
    task = evaluation.task
    results = []
    rare = rarely_predicted(evaluation)
    cure = (
        "lower thresholds (equipoise calibrate --method thresholds) would"
        if task.multilabel
        else "a calibration that changes predictions (equipoise calibrate --method vector, or prior) may"
    )
    cure = f"A rebalancing loss, or after training {cure} raise their recall."
    silent = [row.name for row in rare if not row.predicted]
    if silent:
        text = f"{len(silent)} of {len(rows)} are never predicted: {listed(silent)}."
        results.append(Finding("warning", "never predicted", text, cure))
    hardly = [f"{row.name} ({row.predicted:,} for {row.support:,})" for row in rare if row.predicted]
    if hardly:
        text = (
            f"{len(hardly)} of {len(rows)} are predicted less than a quarter as often as they occur: {listed(hardly)}."
        )
        results.append(Finding("warning", "rarely predicted", text, cure))
    return results


def _missed(evaluation: Evaluation) -> list[Finding]:
    rows, rare = evaluation.per_class, rarely_predicted(evaluation)
    results = []
    missed = [
        f"{row.name} ({100 * accuracy:.0f} %)"
        for row in rows
        if row.support >= ENOUGH and row not in rare and (accuracy := _accuracy(row)) < RARELY
    ]
    if missed:
        results.append(
            Finding(
                "warning",
                "low recall",
                f"{len(missed)} of {len(rows)} are predicted, but with a recall below 25 %: {listed(missed)}.",
                "They are confused with other classes, which rebalancing does not correct: check their labels and the "
                "confusions, merge classes that cannot be separated, or collect samples.",
            )
        )
    return results


def _bins(evaluation: Evaluation) -> list[Finding]:
    curve = evaluation.curve
    noise, ece = calibration_noise(curve), evaluation.overall["ece"]
    if ece is None:
        return []
    results = []
    thin = sum(1 for count in curve.count if 0 < count < THIN_BIN)
    if ece < 2 * noise:
        few = f" ({thin} {'bin holds' if thin == 1 else 'bins hold'} fewer than {THIN_BIN})" if thin else ""
        chance = (
            f"A perfectly calibrated model would have an ECE of about {100 * noise:.2f} % on this many samples; "
            f"{100 * ece:.2f} % is within sampling noise"
        )
        results.append(
            Finding(
                "warning",
                "too few samples per bin for this ECE",
                f"{chance}{few}.",
                "Use more samples or fewer bins (--bins), compare by NLL, and report an interval (--bootstrap).",
            )
            if noise >= NOISE
            else Finding(
                "note",
                "no miscalibration measurable",
                f"{chance}.",
                "Compare by NLL, and report an interval (--bootstrap).",
            )
        )
    thin_groups = {
        name: curves.before
        for name, curves in evaluation.reliability.items()
        if name != "all" and 0 < curves.before.total < 15 * THIN_BIN
    }
    if thin_groups:
        each = "; ".join(
            f"{name} has {curve.total:,.0f} samples for {evaluation.bins} bins; by chance alone its ECE would be "
            f"{100 * calibration_noise(curve):.1f} %"
            for name, curve in thin_groups.items()
        )
        results.append(
            Finding(
                "note",
                f"calibration of the {'group' if len(thin_groups) == 1 else 'groups'} {', '.join(thin_groups)}",
                f"{each[0].upper()}{each[1:]}." + ("" if evaluation.task.multilabel else f" {BY_TRUTH}"),
                "Read reliability diagrams of groups with care"
                + ("; prefer the classwise ECE of their classes." if evaluation.task.multiclass else "."),
            )
        )
    return results


def _confidence(evaluation: Evaluation, better: Correction | None) -> list[Finding]:
    gap = mean_gap(evaluation.curve)
    if evaluation.task.multilabel or abs(gap) < max(GAP, 2 * gap_noise(evaluation.curve)):
        return []
    over = gap > 0
    if better is not None:
        cure = f"After training, {better.options} corrects more of it than temperature scaling (below); in training, "
    elif all(_lowered(*evaluation.calibration.metric(key)) for key in ("nll", "ece")):
        cure = (
            "Temperature scaling corrects it after training (equipoise calibrate --method temperature); in training, "
        )
    else:
        cure = "Temperature scaling does not correct it on held-out samples; in training, "
    return [
        Finding(
            "warning",
            "overconfident" if over else "underconfident",
            f"Mean confidence is {100 * abs(gap):.1f} points {'above' if over else 'below'} accuracy.",
            cure + ("focal losses help." if over else "less smoothing and a smaller gamma help."),
        )
    ]


def _lowered(before: float | None, after: float | None) -> bool:
    return before is not None and after is not None and after < before


def _frequency(evaluation: Evaluation, tried: Sequence[Correction]) -> list[Finding]:
    """Predicted probabilities of labels far above or below observed frequencies."""
    if not evaluation.task.multilabel or not is_off(evaluation):
        return []
    gap = mean_gap(evaluation.curve)
    present = sum(row.support for row in evaluation.per_class) / evaluation.curve.total
    helped = len(tried) > 1 and tried[1].nll < (1 - GAIN) * tried[0].nll
    return [
        Finding(
            "warning",
            f"predicted probabilities too {'high' if gap > 0 else 'low'}",
            f"Mean predicted probability of a label {100 * (present + gap):.1f} %, observed frequency "
            f"{100 * present:.1f} %: a ratio of {(present + gap) / present:.2g}. Asymmetric losses and weights of "
            "positives cause that.",
            f"Do not read the scores as probabilities; biases correct them: equipoise calibrate FILE "
            f"{tried[1].options} --out fit.json (NLL {tried[1].nll:.4f}, with temperatures alone {tried[0].nll:.4f})."
            if helped
            else "Do not read the scores as probabilities, and choose thresholds on validation data.",
        )
    ]


def _better(evaluation: Evaluation, tried: Sequence[Correction]) -> Correction | None:
    """The correction that improves on temperature scaling, if any."""
    before, _ = evaluation.calibration.metric("nll")
    best = min(tried, key=lambda one: one.nll, default=None)
    if best is None or evaluation.calibration.after is None or before is None:
        return None
    return best if best.nll < (1 - GAIN) * min(before, tried[0].nll) else None


def _corrections(evaluation: Evaluation, tried: Sequence[Correction]) -> list[Finding]:
    before, after = evaluation.calibration.metric("nll")
    if before is None or after is None:
        return []
    best = _better(evaluation, tried)
    if best is not None and evaluation.task.multilabel and is_off(evaluation):
        return []  # _frequency reports it
    if best is not None:
        return [
            Finding(
                "note",
                "a correction improves on temperature scaling",
                f"The NLL {_moves(before, best.nll)} with {best.options}; with a temperature it "
                f"{_moves(before, after)}, each on held-out samples.",
                f"equipoise calibrate FILE {best.options} --out fit.json"
                + ("" if best.keeps_predictions else "; this changes predictions, so check its table first."),
            )
        ]
    if after < before * (1 - GAIN):
        return [
            Finding(
                "note",
                "a temperature helps",
                f"On held-out samples, it lowers the NLL from {before:.4f} to {after:.4f}.",
                "equipoise calibrate FILE --method " + evaluation.task.calibration + " --out fit.json",
            )
        ]
    return []


def _moves(before: float, after: float) -> str:
    """Change of a number, to the displayed digits."""
    first, last = f"{before:.4f}", f"{after:.4f}"
    if first == last:
        return f"stays at {first}"
    return f"{'falls' if after < before else 'rises'} from {first} to {last}"


def _thresholds(evaluation: Evaluation, cross_fitted: float | None) -> list[Finding]:
    if not evaluation.task.multilabel:
        return []
    values = [row.metrics["f1"] or 0.0 for row in evaluation.per_class if row.support]
    if cross_fitted is None or not values:
        return []
    now = sum(values) / len(values)
    rare = [row.name for row in evaluation.per_class if 0 < row.support < 10]
    advice = f" {len(rare)} labels have fewer than 10 positives, too few to choose a threshold." if rare else ""
    if cross_fitted > now + GAP:
        return [
            Finding(
                "warning",
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
            "Keep the threshold 0.5." + advice,
        )
    ]


def _rounded(evaluation: Evaluation) -> list[Finding]:
    if not evaluation.notes:
        return []
    if evaluation.scores == "logits":
        advice = "Check what masks these classes: no correction after training can change a probability of 0."
        return [Finding("problem", "truth ruled out", " ".join(evaluation.notes), advice)]
    advice = "Save logits, or probabilities in float32 without rounding."
    return [Finding("warning", "rounded probabilities", " ".join(evaluation.notes), advice)]
