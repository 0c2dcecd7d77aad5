"""Figures of calibration: reliability diagrams and histograms of the confidence."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from equipoise.evaluation.results import Reliability, ReliabilityBins
from equipoise.plotting.rendering import inline_svg
from equipoise.plotting.theme import DASHED, SERIES, panel, theme, titled

__all__ = ["EVERY_LABEL", "TOP_LABEL", "Words", "confidence_histogram", "reliability_diagram"]


@dataclass(frozen=True)
class Words:
    """Labels of the axes, and names of the two outcomes."""

    predicted: str
    observed: str
    sides: tuple[str, str]


TOP_LABEL = Words("confidence", "accuracy", ("right", "wrong"))
EVERY_LABEL = Words("predicted probability", "observed frequency", ("present", "absent"))


def reliability_diagram(title: str, curves: Reliability, words: Words = TOP_LABEL, *, legend: bool = True) -> str:
    """Accuracy over confidence, or observed frequency over predicted probability, and the number of samples.

    Args:
        title: title of the figure.
        curves: curves before and after calibration.
        words: labels of the axes.
        legend: whether to add a legend.
    """
    with theme():
        above = 0.5 if legend else 0.3
        figure, top = panel(2.65, 3.1 + above, left=0.62, top=above, bottom=1.2)
        bottom = figure.add_axes(_below(top, 0.42 / (3.1 + above), 0.62 / (3.1 + above)), sharex=top)
        lines = {name: curve for name in ("before", "after") if (curve := getattr(curves, name)) is not None}
        _reliability(top, lines)
        top.set_ylabel(words.observed)
        top.tick_params(axis="x", labelbottom=False)
        titled(figure, title)
        if legend:
            position = (0.0, 1 - 0.2 / (3.1 + above))
            figure.legend(
                loc="upper left", bbox_to_anchor=position, ncols=3, columnspacing=1, handlelength=1.2, borderpad=0
            )
        _counts(bottom, lines)
        bottom.set(xlabel=words.predicted, ylabel="fraction")
    return inline_svg(figure, f"Reliability diagram: {title}")


def _below(axes: Axes, start: float, height: float) -> tuple[float, float, float, float]:
    box = axes.get_position()
    return box.x0, start, box.width, height


def _reliability(axes: Axes, curves: Mapping[str, ReliabilityBins]) -> None:
    axes.plot([0, 1], [0, 1], **DASHED, label="perfect")
    for number, (name, curve) in enumerate(curves.items()):
        points = [
            (confidence, accuracy, count)
            for confidence, accuracy, count in zip(curve.confidence, curve.accuracy, curve.count, strict=True)
            if count > 0
        ]
        if points:
            x, y, counts = zip(*points, strict=True)
            total = sum(counts)
            axes.plot(x, y, color=SERIES[number], linewidth=1.6, label=name)
            axes.scatter(
                x,
                y,
                s=[8 + 70 * math.sqrt(count / total) for count in counts],
                color=SERIES[number],
                zorder=3,
                clip_on=False,
            )
    ticks = (0, 0.2, 0.4, 0.6, 0.8, 1)
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=ticks, yticks=ticks)


def _counts(axes: Axes, curves: Mapping[str, ReliabilityBins]) -> None:
    for number, curve in enumerate(curves.values()):
        fractions = [count / max(curve.total, 1) for count in curve.count]
        axes.stairs(fractions, curve.edges, color=SERIES[number], fill=number == 0, alpha=0.45 if number == 0 else 1.0)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def confidence_histogram(curve: ReliabilityBins, words: Words = TOP_LABEL) -> str:
    """Histogram of the confidence of correct and of wrong predictions."""
    edges, count = curve.edges, curve.count
    total = max(curve.total, 1)
    right = [n * ((a or 0.0) if n else 0.0) / total for n, a in zip(count, curve.accuracy, strict=True)]
    wrong = [n / total - r for n, r in zip(count, right, strict=True)]
    width = [high - low for low, high in itertools.pairwise(edges)]
    with theme():
        figure = Figure(figsize=(4.6, 2.6), layout="constrained")
        axes = figure.add_subplot()
        axes.bar(edges[:-1], right, width, align="edge", color=SERIES[0], label=words.sides[0], linewidth=0)
        axes.bar(
            edges[:-1], wrong, width, align="edge", bottom=right, color=SERIES[1], label=words.sides[1], linewidth=0
        )
        axes.set(xlim=(0, 1), xlabel=words.predicted, ylabel="fraction of the predictions")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.grid(visible=False, axis="x")
        figure.legend(loc="outside upper right", ncols=2)
    return inline_svg(figure, f"Histogram of the {words.predicted}: {' and '.join(words.sides)}")
