"""Figures that compare losses: differences from the baseline with intervals, and accuracy against calibration."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.markers import CARETLEFT, CARETRIGHT
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox

from equipoise.comparison.verdict import MetricDifference
from equipoise.plotting.epochs import PANEL
from equipoise.plotting.rendering import inline_svg
from equipoise.plotting.theme import BETTER, INK, PAPER, SOFT, WORSE, Stroke, panel, short, theme, titled

__all__ = ["Point", "difference_plot", "limits_of", "pareto_plot"]

LETTER = 0.068
"""Approximate width of a letter of the labels in inches."""
SQUEEZED = 3.0
"""Ratio by which the widest intervals, at most half of them, may lengthen an axis before they are cut off."""


def difference_plot(title: str, rows: Sequence[MetricDifference], *, scale: float, less: bool) -> str:
    """Differences from the baseline with their intervals, one row per loss; significant ones are coloured.

    Args:
        title: title of the figure.
        rows: the differences.
        scale: factor of the differences, 100 for fractions.
        less: whether lower is better.
    """
    with theme():
        names = [short(row.loss, 22) for row in rows]
        room = 0.1 + LETTER * 1.06 * max(map(len, names))
        figure, axes = panel(PANEL[0], 0.66 + 0.2 * max(len(rows), 2), left=room, bottom=0.38, top=0.28)
        axes.axvline(0, color=INK, linewidth=0.9)
        intervals = [row.interval for row in rows if row.interval is not None]
        low, high = limits_of([row.mean for row in rows], intervals, scale)
        axes.set_xlim(low, high)
        for position, row in enumerate(rows):
            better = (row.mean < 0) == less
            colour = SOFT if not row.significant else BETTER if better else WORSE
            if row.interval is not None:
                _draw_interval(axes, position, (scale * row.interval[0], scale * row.interval[1]), (low, high), colour)
            axes.plot(
                [scale * row.mean],
                [position],
                marker="o",
                markersize=5.2,
                color=colour,
                markerfacecolor=colour if row.significant else PAPER,
                linestyle="none",
            )
        axes.set_yticks(range(len(rows)), names)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlabel("← better" if less else "better →", loc="left" if less else "right", color=SOFT, labelpad=1)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        titled(figure, title)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.grid(visible=False, axis="y")
    differences = ", ".join(f"{row.loss} {scale * row.mean:+.3g}" for row in rows)
    return inline_svg(figure, f"{title}: differences from the baseline: {differences}")


def _draw_interval(
    axes: Axes, position: int, interval: tuple[float, float], limits: tuple[float, float], colour: str
) -> None:
    """Draw a line, with an arrow at an end that is beyond the limits of the axis."""
    (lower, upper), (low, high) = interval, limits
    ends = [max(lower, low), min(upper, high)]
    axes.plot(ends, [position, position], color=colour, linewidth=1.6, solid_capstyle="round")
    for end, cut, arrow in ((low, lower < low, CARETLEFT), (high, upper > high, CARETRIGHT)):
        if cut:
            axes.plot([end], [position], marker=arrow, markersize=6, color=colour, clip_on=False)


def limits_of(means: Sequence[float], intervals: Sequence[tuple[float, float]], scale: float) -> tuple[float, float]:
    """Limits of the axis: they include zero, all means, and intervals except those that are much wider than others.

    >>> [round(end, 2) for end in limits_of([0.01, 0.0], [(-0.02, 0.04), (-0.9, 0.9)], 100.0)]
    [-2.36, 4.36]
    """
    wide = sorted(intervals, key=lambda interval: interval[0] - interval[1])
    ends = [[0.0, *means, *itertools.chain(*wide[cut:])] for cut in range(len(wide) + 1)]
    spans = [max(some) - min(some) for some in ends]
    cut = max((cut for cut in range(1, len(wide) // 2 + 1) if spans[cut - 1] > SQUEEZED * spans[cut]), default=0)
    margin = 0.06 * spans[cut] or 0.01
    return scale * (min(ends[cut]) - margin), scale * (max(ends[cut]) + margin)


@dataclass(frozen=True)
class Point:
    """Two metrics of a loss, each with its standard deviation over the seeds."""

    name: str
    stroke: Stroke
    x: float
    y: float
    x_std: float = 0.0
    y_std: float = 0.0


def pareto_plot(
    title: str, points: Sequence[Point], names: tuple[str, str], limits: tuple[tuple[float, float], ...]
) -> str:
    """Two metrics: higher is better for x, lower is better for y; a line connects the Pareto-optimal points.

    Args:
        title: title of the figure.
        points: one per loss.
        names: labels of the axes.
        limits: limits of the axes.
    """
    with theme():
        figure, axes = panel(4.7, 3.5, left=0.55)
        front = sorted((p for p in points if not any(_beats(q, p) for q in points)), key=lambda p: p.x)
        axes.plot([p.x for p in front], [p.y for p in front], color=SOFT, linewidth=0.9, linestyle=(0, (4, 2.5)))
        for p in points:
            axes.errorbar(
                p.x, p.y, xerr=p.x_std or None, yerr=p.y_std or None, color=p.stroke.colour, elinewidth=0.8, alpha=0.4
            )
            axes.plot(
                p.x,
                p.y,
                marker=p.stroke.marker,
                markersize=7,
                color=p.stroke.colour,
                linestyle="none",
                zorder=3,
                clip_on=False,
            )
        axes.set(xlabel=names[0], ylabel=names[1], xlim=limits[0], ylim=limits[1])
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.text(0.99, 0.02, "better ↘", transform=axes.transAxes, ha="right", color=SOFT)
        titled(figure, title)
        _label(axes, points)
    values = "; ".join(f"{p.name} {p.x:.4g}, {p.y:.4g}" for p in points)
    return inline_svg(figure, f"{title}: {names[0]} against {names[1]}: {values}")


def _beats(one: Point, other: Point) -> bool:
    return one.x >= other.x and one.y <= other.y and (one.x, one.y) != (other.x, other.y)


def _label(axes: Axes, points: Sequence[Point]) -> None:
    """Write a name beside each point with the least overlap; distant names are connected to their point."""
    inch = axes.figure.dpi
    frame = axes.get_window_extent()
    positions = [axes.transData.transform((p.x, p.y)) for p in points]
    taken = [_box(x, y, 0.13 * inch, 0.13 * inch) for x, y in positions]
    for p, (x, y) in zip(points, positions, strict=True):
        text = short(p.name, 24)
        wide, high = LETTER * inch * len(text), 0.15 * inch
        choices = [
            (side, side * across * inch, up * inch)
            for across, up in (
                (0.09, 0.0),
                (0.06, 0.13),
                (0.06, -0.13),
                (0.25, 0.27),
                (0.25, -0.27),
                (0.4, 0.42),
                (0.4, -0.42),
            )
            for side in (1, -1)
        ]
        boxes = [_box(x + dx + side * wide / 2, y + dy, wide, high) for side, dx, dy in choices]
        best = min(range(len(boxes)), key=lambda k: (round(_overlap(boxes[k], taken, frame)), k))
        taken.append(boxes[best])
        side, dx, dy = choices[best]
        if best >= 6:
            ends = axes.transData.inverted().transform([(x, y), (x + dx, y + dy)])
            axes.plot(*ends.T, color=SOFT, linewidth=0.6)
        left, bottom = axes.transData.inverted().transform((x + dx, y + dy))
        axes.text(left, bottom, text, ha="left" if side > 0 else "right", va="center", fontsize=8.5, color=INK)


def _box(x: float, y: float, wide: float, high: float) -> Bbox:
    return Bbox.from_bounds(x - wide / 2, y - high / 2, wide, high)


def _overlap(box: Bbox, taken: Sequence[Bbox], frame: Bbox) -> float:
    """Area of the box that overlaps others or is outside the frame."""
    shared = [Bbox.intersection(box, other) for other in taken]
    inside = Bbox.intersection(box, frame)
    covered = sum(both.width * both.height for both in shared if both is not None)
    return covered + box.width * box.height - (0.0 if inside is None else inside.width * inside.height)
