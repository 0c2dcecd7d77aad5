"""Figures with many classes: bars per class, and an axis from common to rare classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from equipoise.evaluation.results import ClassResult
from equipoise.metric_registry import MetricInfo
from equipoise.plotting.rendering import inline_svg
from equipoise.plotting.theme import INK, LINE, PAPER, SERIES, SOFT, Stroke, panel, percent, short, theme, titled

__all__ = ["class_axis", "class_bars", "class_margin", "class_profile", "gathered"]

Array = NDArray[np.float64]
MOST_BARS = 40
NAMED = 24
"""Up to this number of classes the axis shows their names."""
SEEN = 200
"""Maximum number of bars of a figure; with more classes, a bar is the mean of adjacent classes."""


def class_profile(
    title: str,
    values: Array,
    baseline: Array,
    names: Sequence[str],
    stroke: Stroke,
    *,
    compared: str,
    things: str = "classes",
) -> str:
    """A bar per class, with a line at the value of the baseline.

    Args:
        title: title of the figure.
        values: (C,) between 0 and 1, in the order of the classes; NaN for undefined values.
        baseline: (C,) values of the baseline.
        names: C names.
        stroke: colour and hatching of the bars.
        compared: name of the baseline.
        things: noun for the bars: ``"classes"`` or ``"labels"``.
    """
    below = class_margin(names)
    with theme():
        figure, axes = panel(3.5, 1.7 + below, bottom=below)
        style = {"facecolor": stroke.colour, "edgecolor": PAPER, "hatch": stroke.hatch, "linewidth": 0}
        lines = None if np.array_equal(values, baseline, equal_nan=True) else gathered(baseline)
        _draw_bars(axes, gathered(values), lines, style)
        axes.set_ylim(0, 1)
        axes.set_yticks((0, 0.25, 0.5, 0.75, 1))
        percent(axes.yaxis)
        titled(figure, title)
        class_axis(axes, names, things)
    return inline_svg(
        figure, f"{title}: a bar for each of {len(values)} {things} from common to rare, {compared} as lines"
    )


def _draw_bars(axes: Axes, bars: Array, lines: Array | None, style: dict[str, Any]) -> None:
    """Draw bars with a line each, or one area for many classes."""
    if len(bars) <= NAMED:
        positions = np.arange(len(bars))
        axes.bar(positions, np.nan_to_num(bars), 0.72, **style)
        if lines is not None:
            axes.hlines(lines, positions - 0.42, positions + 0.42, color=INK, linewidth=1.3)
        return
    edges = np.arange(len(bars) + 1) - 0.5
    axes.stairs(np.nan_to_num(bars), edges, fill=True, alpha=0.8, **style)
    if lines is not None:
        axes.stairs(lines, edges, baseline=None, color=INK, linewidth=0.7)


def class_bars(classes: Sequence[ClassResult], metric: MetricInfo, things: str = "classes") -> str:
    """One bar per class, in the given order; with too many classes only the lowest and the highest.

    Args:
        classes: results of the classes.
        metric: metric that the bars show, between 0 and 1.
        things: noun for the bars: ``"classes"`` or ``"labels"``.
    """
    values = [(value, row) for row in classes if (value := row.metrics[metric.key]) is not None]
    title = metric.label
    if len(values) > MOST_BARS:
        ranked = sorted(values, key=lambda pair: pair[0])
        chosen = {id(row) for _, row in (*ranked[: MOST_BARS // 2], *ranked[-MOST_BARS // 2 :])}
        title = f"{title}: the {MOST_BARS // 2} lowest and the {MOST_BARS // 2} highest of {len(values)}"
        values = [(value, row) for value, row in values if id(row) in chosen]
    groups = list(dict.fromkeys(row.group for _, row in values))
    with theme():
        figure = Figure(figsize=(4.8, 0.75 + 0.2 * max(len(values), 3)), layout="constrained")
        axes = figure.add_subplot()
        for group in groups:
            positions = [position for position, (_, row) in enumerate(values) if row.group == group]
            colour = SERIES[groups.index(group) % len(SERIES)]
            axes.barh(
                positions, [values[position][0] for position in positions], 0.7, color=colour, label=group, linewidth=0
            )
        axes.set_yticks(range(len(values)), [short(row.name) for _, row in values])
        axes.set(xlim=(0, 1), ylim=(len(values) - 0.4, -0.6), title=title)
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_color(LINE)
        if len(groups) > 1:
            figure.legend(loc="outside upper right", ncols=len(groups))
    return inline_svg(figure, f"{title}, one bar for each of {len(values)} {things}")


def class_axis(axes: Axes, names: Sequence[str], things: str = "classes") -> None:
    """Label the axis with the names of few classes, or with the direction from common to rare classes."""
    count = min(len(names), SEEN)
    axes.set_xlim(-0.7, count - 0.3)
    axes.grid(visible=False, axis="x")
    if len(names) <= NAMED:
        shown, long = _below(names)
        axes.set_xticks(range(len(names)), shown, rotation=45 if long else 0, ha="right" if long else "center")
        if long:
            axes.tick_params(axis="x", labelsize=8, pad=1)
            for label in axes.get_xticklabels():
                label.set_rotation_mode("anchor")
        axes.tick_params(axis="x", length=0)
    else:
        axes.set_xticks([])
        axes.set_xlabel(f"{len(names):,} {things}, from common to rare", color=SOFT)


def class_margin(names: Sequence[str]) -> float:
    """Inches that ``class_axis`` needs below the plot."""
    shown, long = _below(names) if len(names) <= NAMED else ([], False)
    return 0.12 + 0.048 * max(map(len, shown)) if long else 0.28


def _below(names: Sequence[str]) -> tuple[list[str], bool]:
    """Names for the axis, and whether they must be rotated."""
    shown = [short(name, 14) for name in names]
    return shown, max(map(len, shown)) * len(shown) > 36


def gathered(values: Array) -> Array:
    """Reduce values to at most ``SEEN``: means of adjacent values."""
    if len(values) <= SEEN:
        return values
    parts = np.array_split(values, SEEN)
    return np.array([np.nan if np.isnan(part).all() else np.nanmean(part) for part in parts])
