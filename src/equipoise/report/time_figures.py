"""Figures of what happened during the training: a line for each loss, epoch by epoch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from equipoise.report.runs import Series
from equipoise.report.theme import INK, Stroke, as_svg, page_style, panel, titled
from equipoise.report.theme import percent as shares_on

__all__ = ["PANEL", "epochs_axis", "over_time"]

PANEL = (3.5, 2.3)
"""Inches of a small figure: three stand side by side, one fills a telephone."""


def over_time(
    title: str,
    series: Mapping[str, tuple[Series, Stroke]],
    *,
    percent: bool = False,
    zero: bool = False,
    relative: bool = False,
) -> str:
    """Means over the seeds as lines, the range of the seeds as bands.

    Args:
        title: of the figure.
        series: of each loss, and how its lines look.
        percent: whether the numbers are shares.
        zero: mark the zero.
        relative: divide by the first epoch.
    """
    with page_style():
        figure, axes = panel(*PANEL)
        if zero:
            axes.axhline(0, color=INK, linewidth=0.8, linestyle=(0, (3, 3)))
        for one, stroke in series.values():
            unit = one.mean[0] if relative and one.mean[0] else 1.0
            alone = len(one.epochs) == 1
            axes.plot(
                one.epochs,
                one.mean / unit,
                color=stroke.colour,
                linestyle=stroke.style,
                linewidth=1.5,
                marker=stroke.marker if alone else None,
                markersize=4,
            )
            if np.nanmax(one.high - one.low, initial=0.0) > 0:
                axes.fill_between(
                    one.epochs, one.low / unit, one.high / unit, color=stroke.colour, alpha=0.1, linewidth=0
                )
        titled(figure, title)
        epochs_axis(axes, max((len(one.epochs) for one, _ in series.values()), default=1))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        if percent:
            shares_on(axes.yaxis)
    return as_svg(figure, f"{title}, over the epochs, a line for each of {', '.join(series)}")


def epochs_axis(axes: Axes, epochs: int) -> None:
    """Whole epochs below, all of them, no more numbers than fit."""
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    room = 0.02 * epochs
    axes.set_xlim(1 - room, epochs + room)
