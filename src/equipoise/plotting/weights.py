"""Figures of the class weights of recall loss and focal loss, over epochs and from common to rare classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.ticker import LogLocator, NullFormatter
from numpy.typing import NDArray

from equipoise.plotting.classes import class_axis, class_margin, gathered
from equipoise.plotting.epochs import PANEL, epochs_axis
from equipoise.plotting.rendering import inline_svg
from equipoise.plotting.theme import DASHED, INK, panel, percent, shades, theme, titled

__all__ = ["LINES", "moments", "normalised", "weights_by_class", "weights_over_time"]

Array = NDArray[np.float64]
LINES = 12
"""Maximum number of classes for one line per class."""


def normalised(weights: Array) -> Array:
    """Weights (E, C) normalised to a sum of 1 per epoch; NaN if all are 0."""
    total = np.nansum(weights, 1, keepdims=True)
    normalised_weights: Array = np.divide(weights, total, out=np.full_like(weights, np.nan), where=total > 0)
    return normalised_weights


def weights_over_time(title: str, lines: Mapping[str, Array], *, ratio: bool = False) -> str:
    """One line per class or group over the epochs, coloured from common to rare (Tian et al. 2021, fig. 2c).

    Args:
        title: title of the figure.
        lines: (E,) values of each class or group, from common to rare.
        ratio: whether they are ratios, on a logarithmic axis with a mark at 1, instead of fractions.
    """
    with theme():
        figure, axes = panel(*PANEL)
        if ratio:
            axes.axhline(1, **DASHED)
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
        else:
            percent(axes.yaxis)
        for values, colour in zip(lines.values(), shades(len(lines)), strict=True):
            axes.plot(np.arange(1, len(values) + 1), values, color=colour, linewidth=1.5)
        titled(figure, title)
        if not ratio:
            axes.set_ylim(bottom=0)
        epochs_axis(axes, max(map(len, lines.values())))
    return inline_svg(figure, f"{title}, over the epochs, a line for each of {', '.join(lines)}")


def moments(weights: Array) -> list[int]:
    """Up to four epochs, counted from 0, spread over those that have weights."""
    recorded = np.flatnonzero(~np.isnan(weights).all(1)).tolist()
    return (
        sorted({recorded[round(fraction * (len(recorded) - 1))] for fraction in (0, 1 / 3, 2 / 3, 1)})
        if recorded
        else []
    )


def weights_by_class(title: str, weights: Array, names: Sequence[str]) -> str:
    """The weights of all classes at a few epochs, later ones darker (Tian et al. 2021, fig. 1a).

    Args:
        title: title of the figure.
        weights: (E, C) from common to rare.
        names: C names.
    """
    chosen = moments(weights)
    with theme():
        figure, axes = panel(*PANEL, top=0.46, bottom=class_margin(names))
        for number, epoch in enumerate(chosen):
            axes.plot(
                gathered(weights[epoch]),
                color=INK,
                alpha=0.22 + 0.78 * (number + 1) / len(chosen) if len(chosen) > 1 else 1.0,
                linewidth=0.9 + 0.25 * number,
                label=f"{'' if number else 'epoch '}{epoch + 1}",
            )
        titled(figure, title)
        axes.set_ylim(bottom=0)
        percent(axes.yaxis)
        class_axis(axes, names)
        figure.legend(
            loc="upper left",
            bbox_to_anchor=(0.0, 1 - 0.2 / PANEL[1]),
            ncols=len(chosen),
            columnspacing=1,
            handlelength=1.2,
            borderpad=0,
        )
    return inline_svg(figure, f"{title}: weights of classes from common to rare after a few epochs")
