"""Figures of an open set: rejection of unknown and known samples, and their confidence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from equipoise.evaluation.results import ConfidenceHistogram, OpenSetEvaluation, RejectionRates
from equipoise.metric_registry import metric_info
from equipoise.plotting.epochs import PANEL
from equipoise.plotting.rendering import inline_svg
from equipoise.plotting.theme import DASHED, INK, SERIES, Stroke, panel, percent, theme, titled

__all__ = ["confidence_histogram", "mean_rejection_curve", "mean_threshold_curve", "rejection_curve", "threshold_curve"]

Array = NDArray[np.float64]
Lines = Sequence[tuple[Stroke, Sequence[OpenSetEvaluation]]]
"""The stroke of each loss, and its evaluations, one per seed."""
STEPS = np.linspace(0.0, 1.0, 101)
MOST_REJECTED = 0.4
"""Fraction of rejected known samples up to which the F-measure is drawn; beyond, it only decreases."""


def threshold_curve(evaluation: OpenSetEvaluation) -> str:
    """F-measure, accuracy of the known and rejection of the unknown samples over the threshold."""
    curve = evaluation.curve
    lines = {
        "f_measure": ("F-measure", Stroke(SERIES[0])),
        "accuracy": ("accuracy of the known", Stroke(SERIES[1], (4.0, 1.6))),
        "unknown_rejected": ("unknown rejected", Stroke(SERIES[2], (1.2, 1.4))),
    }
    with theme():
        figure, axes = _wide_panel()
        for name, (label, stroke) in lines.items():
            known = [pair for pair in zip(curve.threshold, getattr(curve, name), strict=True) if pair[1] is not None]
            x, y = zip(*known, strict=True)
            axes.plot(x, y, color=stroke.colour, linestyle=stroke.style, linewidth=1.7, label=label)
        for level in evaluation.top.threshold:
            axes.axvline(level, color=INK, linewidth=0.8)
            nearest = min(range(len(curve.threshold)), key=lambda k: abs(curve.threshold[k] - level))
            axes.plot([level], [curve.f_measure[nearest] or 0.0], "o", color=SERIES[0], markersize=5, clip_on=False)
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="threshold")
        percent(axes.yaxis)
        _finish(figure, "Over thresholds", columns=3)
    return inline_svg(
        figure, "F-measure, accuracy of the known samples and rejection of the unknown ones over thresholds"
    )


def rejection_curve(evaluation: OpenSetEvaluation) -> str:
    """Rejected unknown samples over rejected known ones; the area below the curve is the AUROC."""
    area = metric_info("auroc").text(evaluation.auroc["max_probability"])
    with theme():
        figure, axes = _wide_panel()
        axes.plot([0, 1], [0, 1], **DASHED, label="chance")
        label = f"unknown rejected, AUROC {area} %"
        curve, top = evaluation.trade, evaluation.top.metrics
        axes.plot(curve.known_rejected, curve.unknown_rejected, color=SERIES[2], linewidth=1.7, label=label)
        point = [top[name] or 0.0 for name in ("known_rejected", "unknown_rejected")]
        axes.plot(point[:1], point[1:], "o", color=SERIES[2], markersize=5, clip_on=False)
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="known rejected")
        percent(axes.xaxis)
        percent(axes.yaxis)
        _finish(figure, "What rejection costs")
    return inline_svg(figure, "Percentage of unknown samples that are rejected over that of known ones")


def confidence_histogram(histogram: ConfidenceHistogram, title: str = "Confidence of known and unknown samples") -> str:
    """Histograms of the confidence of known and of unknown samples."""
    known = [right + wrong for right, wrong in zip(histogram.known_right, histogram.known_wrong, strict=True)]
    with theme():
        figure, axes = _wide_panel()
        for colour, name, counts in ((SERIES[0], "known", known), (SERIES[2], "unknown", histogram.unknown)):
            fractions = [count / max(sum(counts), 1) for count in counts]
            axes.stairs(fractions, histogram.edges, fill=True, color=colour, alpha=0.35, linewidth=0)
            axes.stairs(fractions, histogram.edges, color=colour, linewidth=1.5, label=name)
        axes.set(xlim=(0, 1), xlabel="confidence")
        axes.set_ylim(bottom=0)
        percent(axes.yaxis)
        _finish(figure, title)
    return inline_svg(figure, "Histograms of the confidence of known and of unknown samples")


def mean_rejection_curve(lines: Lines, metric: str) -> str:
    """A metric over the fraction of rejected known samples, mean over the seeds, with a dot at the threshold.

    Args:
        lines: one per loss.
        metric: ``"unknown_rejected"``, drawn with chance level, or ``"f_measure"``.
    """
    chance = metric == "unknown_rejected"
    most = 1.0 if chance else MOST_REJECTED
    label, across = metric_info(metric).label, metric_info("known_rejected").label
    with theme():
        figure, axes = panel(*PANEL, right=0.24, bottom=0.5)
        if chance:
            axes.plot([0, 1], [0, 1], **DASHED)
        for stroke, evaluations in lines:
            mean = np.mean([_at_steps(one.trade, "known_rejected", metric) for one in evaluations], 0)
            axes.plot(*_up_to(most, mean), color=stroke.colour, linestyle=stroke.style, linewidth=1.6)
            x, y = (
                float(np.mean([_value(one.top.metrics[key]) for one in evaluations]))
                for key in ("known_rejected", metric)
            )
            if x <= most:
                axes.plot([x], [y], stroke.marker, color=stroke.colour, markersize=4.5, clip_on=False)
        axes.set(xlim=(0, most), xlabel=across)
        if chance:
            axes.set_ylim(0, 1)
        percent(axes.xaxis)
        percent(axes.yaxis)
        titled(figure, label if chance else f"{label} over {across}")
    return inline_svg(figure, f"{label} over {across}, in percent of the samples")


def mean_threshold_curve(lines: Lines) -> str:
    """F-measure over the threshold, mean over the seeds."""
    with theme():
        figure, axes = panel(*PANEL, right=0.24, bottom=0.5)
        for stroke, evaluations in lines:
            mean = np.mean([_at_steps(one.curve, "threshold", "f_measure") for one in evaluations], 0)
            axes.plot(STEPS, mean, color=stroke.colour, linestyle=stroke.style, linewidth=1.6)
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="threshold")
        percent(axes.yaxis)
        titled(figure, "F-measure over threshold")
    return inline_svg(figure, "F-measure over the threshold below which a sample is rejected")


def _wide_panel() -> tuple[Figure, Axes]:
    return panel(4.6, 3.0, right=0.24, top=0.55, bottom=0.45)


def _finish(figure: Figure, title: str, columns: int = 2) -> None:
    """Add title and legend to a wide panel."""
    titled(figure, title)
    figure.legend(loc="upper left", bbox_to_anchor=(0.0, 1 - 0.2 / 3.0), ncols=columns, columnspacing=1, borderpad=0)


def _value(value: float | None) -> float:
    return np.nan if value is None else value


def _at_steps(curve: RejectionRates, across: str, metric: str) -> Array:
    """Interpolate a curve at ``STEPS``, evenly spaced from 0 to 1."""
    x, y = (np.array([_value(value) for value in getattr(curve, key)]) for key in (across, metric))
    finite = np.isfinite(x) & np.isfinite(y)
    return np.asarray(np.interp(STEPS, x[finite], y[finite]))


def _up_to(most: float, values: Array) -> tuple[Array, Array]:
    shown = most >= STEPS
    return STEPS[shown], values[shown]
