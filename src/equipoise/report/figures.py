"""Figures of an evaluation: reliability, confidence, classes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from equipoise.evaluation.results import ClassResult, Reliability, ReliabilityBins
from equipoise.metric_registry import MetricInfo
from equipoise.report.theme import INK, MUTED, SERIES, as_svg, page_style, panel, titled

__all__ = ["EVERY_LABEL", "TOP_LABEL", "Words", "class_bars", "confidence_histogram", "reliability_diagram", "short"]

MOST_BARS = 40


@dataclass(frozen=True)
class Words:
    """Names of the axes, and of the two outcomes."""

    predicted: str
    observed: str
    sides: tuple[str, str]


TOP_LABEL = Words("confidence", "accuracy", ("right", "wrong"))
EVERY_LABEL = Words("predicted probability", "observed frequency", ("present", "absent"))


def reliability_diagram(title: str, curves: Reliability, words: Words = TOP_LABEL, *, legend: bool = True) -> str:
    """Accuracy over confidence, or observed frequency over predicted probability, and the number of samples.

    Args:
        title: of the figure.
        curves: before and after calibration.
        words: for the axes.
        legend: name the curves.
    """
    with page_style():
        above = 0.5 if legend else 0.3
        figure, top = panel(2.65, 3.1 + above, left=0.62, top=above, bottom=1.2)
        bottom = figure.add_axes(_below(top, 0.42 / (3.1 + above), 0.62 / (3.1 + above)), sharex=top)
        lines = {name: curve for name in ("before", "after") if (curve := getattr(curves, name)) is not None}
        _reliability(top, lines)
        top.set_ylabel(words.observed)
        top.tick_params(axis="x", labelbottom=False)
        titled(figure, title)
        if legend:
            place = (0.0, 1 - 0.2 / (3.1 + above))
            figure.legend(
                loc="upper left", bbox_to_anchor=place, ncols=3, columnspacing=1, handlelength=1.2, borderpad=0
            )
        _counts(bottom, lines)
        bottom.set(xlabel=words.predicted, ylabel="fraction")
    return as_svg(figure, f"Reliability diagram: {title}")


def _below(axes: Axes, start: float, height: float) -> tuple[float, float, float, float]:
    box = axes.get_position()
    return box.x0, start, box.width, height


def _reliability(axes: Axes, curves: Mapping[str, ReliabilityBins]) -> None:
    axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=(0, (3, 3)), label="perfect")
    for number, (name, curve) in enumerate(curves.items()):
        seen = [
            (confidence, accuracy, count)
            for confidence, accuracy, count in zip(curve.confidence, curve.accuracy, curve.count, strict=True)
            if count > 0
        ]
        if seen:
            x, y, counts = zip(*seen, strict=True)
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
    """How many predictions of each confidence are correct and how many wrong."""
    edges, count = curve.edges, curve.count
    total = max(curve.total, 1)
    right = [n * ((a or 0.0) if n else 0.0) / total for n, a in zip(count, curve.accuracy, strict=True)]
    wrong = [n / total - r for n, r in zip(count, right, strict=True)]
    width = [high - low for low, high in itertools.pairwise(edges)]
    with page_style():
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
    return as_svg(figure, f"Histogram of the {words.predicted}: {' and '.join(words.sides)}")


def class_bars(classes: Sequence[ClassResult], metric: MetricInfo, things: str = "classes") -> str:
    """One bar per class, in the order given; where there are too many, the lowest and the highest.

    Args:
        classes: with the metric.
        metric: what the bars show, between 0 and 1.
        things: what has a bar: ``"classes"`` or ``"labels"``.
    """
    values = [(value, row) for row in classes if (value := row.metrics[metric.key]) is not None]
    title = metric.label
    if len(values) > MOST_BARS:
        ranked = sorted(values, key=lambda pair: pair[0])
        chosen = {id(row) for _, row in (*ranked[: MOST_BARS // 2], *ranked[-MOST_BARS // 2 :])}
        title = f"{title}: the {MOST_BARS // 2} lowest and the {MOST_BARS // 2} highest of {len(values)}"
        values = [(value, row) for value, row in values if id(row) in chosen]
    groups = list(dict.fromkeys(row.group for _, row in values))
    with page_style():
        figure = Figure(figsize=(4.8, 0.75 + 0.2 * max(len(values), 3)), layout="constrained")
        axes = figure.add_subplot()
        for group in groups:
            places = [place for place, (_, row) in enumerate(values) if row.group == group]
            colour = SERIES[groups.index(group) % len(SERIES)]
            axes.barh(places, [values[place][0] for place in places], 0.7, color=colour, label=group, linewidth=0)
        axes.set_yticks(range(len(values)), [short(row.name) for _, row in values])
        axes.set(xlim=(0, 1), ylim=(len(values) - 0.4, -0.6), title=title)
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_color(MUTED)
        if len(groups) > 1:
            figure.legend(loc="outside upper right", ncols=len(groups))
    return as_svg(figure, f"{title}, one bar for each of {len(values)} {things}")


def short(name: str, longest: int = 28) -> str:
    """A name in one line of so many letters."""
    line = " ".join(name.split())
    return line if len(line) <= longest else line[: longest - 1] + "…"
