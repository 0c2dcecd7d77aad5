"""Figures of the training: one line per loss over the epochs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from equipoise.plotting.rendering import inline_svg
from equipoise.plotting.theme import DASHED, Stroke, panel, theme, titled
from equipoise.plotting.theme import percent as show_percent

__all__ = ["PANEL", "Series", "epochs_axis", "over_time"]

PANEL = (3.5, 2.3)
"""Size of a small figure in inches: three fit side by side, one fills a phone."""
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """A metric over the epochs: mean and range over the seeds.

    Args:
        epochs: (E,) counted from 1.
        mean: (E,) mean over the seeds; NaN if no seed has a value.
        low: (E,) minimum over the seeds.
        high: (E,) maximum over the seeds.
    """

    epochs: Array
    mean: Array
    low: Array
    high: Array


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
        title: title of the figure.
        series: metric and stroke of each loss.
        percent: whether the values are fractions.
        zero: whether to mark zero.
        relative: whether to divide by the value of the first epoch.
    """
    with theme():
        figure, axes = panel(*PANEL)
        if zero:
            axes.axhline(0, **DASHED)
        for one, stroke in series.values():
            unit = one.mean[0] if relative and one.mean[0] else 1.0
            single_epoch = len(one.epochs) == 1
            axes.plot(
                one.epochs,
                one.mean / unit,
                color=stroke.colour,
                linestyle=stroke.style,
                linewidth=1.5,
                marker=stroke.marker if single_epoch else None,
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
            show_percent(axes.yaxis)
    return inline_svg(figure, f"{title}, over the epochs, a line for each of {', '.join(series)}")


def epochs_axis(axes: Axes, epochs: int) -> None:
    """An axis of integer epochs, from the first to the last."""
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    room = 0.02 * epochs
    axes.set_xlim(1 - room, epochs + room)
