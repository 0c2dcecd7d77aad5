"""Figures of many classes side by side, from common to rare."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from equipoise.report.figures import short
from equipoise.report.theme import INK, PAPER, SOFT, Stroke, as_svg, page_style, panel, percent, titled

__all__ = ["class_axis", "class_margin", "class_profile", "gathered"]

Array = NDArray[np.float64]
NAMED = 24
"""Classes up to which their names stand below."""
SEEN = 200
"""Bars that can be told apart; of more classes neighbours share one."""


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
    """A bar for each class, with a line where the baseline ends.

    Args:
        title: of the figure.
        values: (C,) between 0 and 1, in the order of the classes; NaN for none.
        baseline: (C,) the same of the baseline.
        names: C names.
        stroke: colour and hatching of the bars.
        compared: name of the baseline.
        things: what has a bar: ``"classes"`` or ``"labels"``.
    """
    bars, lines = gathered(values), gathered(baseline)
    with page_style():
        below = class_margin(names)
        figure, axes = panel(3.5, 1.7 + below, bottom=below)
        places = np.arange(len(bars))
        other = not np.array_equal(values, baseline, equal_nan=True)
        if len(bars) <= NAMED:
            axes.bar(
                places,
                np.nan_to_num(bars),
                0.72,
                facecolor=stroke.colour,
                edgecolor=PAPER,
                hatch=stroke.hatch,
                linewidth=0,
            )
            if other:
                axes.hlines(lines, places - 0.42, places + 0.42, color=INK, linewidth=1.3)
        else:
            edges = np.arange(len(bars) + 1) - 0.5
            axes.stairs(
                np.nan_to_num(bars),
                edges,
                fill=True,
                facecolor=stroke.colour,
                edgecolor=PAPER,
                hatch=stroke.hatch,
                linewidth=0,
                alpha=0.8,
            )
            if other:
                axes.stairs(lines, edges, baseline=None, color=INK, linewidth=0.7)
        axes.set_ylim(0, 1)
        axes.set_yticks((0, 0.25, 0.5, 0.75, 1))
        percent(axes.yaxis)
        titled(figure, title)
        class_axis(axes, names, things)
    return as_svg(figure, f"{title}: a bar for each of {len(values)} {things} from common to rare, {compared} as lines")


def class_axis(axes: Axes, names: Sequence[str], things: str = "classes") -> None:
    """Names below where there are few, otherwise where the common and where the rare ones are."""
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
    """Inches that ``class_axis`` needs."""
    shown, long = _below(names) if len(names) <= NAMED else ([], False)
    return 0.12 + 0.048 * max(map(len, shown)) if long else 0.28


def _below(names: Sequence[str]) -> tuple[list[str], bool]:
    """Names as they stand below, and whether they have to be turned."""
    shown = [short(name, 14) for name in names]
    return shown, max(map(len, shown)) * len(shown) > 36


def gathered(values: Array) -> Array:
    """As many values as can be seen: means of neighbours."""
    if len(values) <= SEEN:
        return values
    parts = np.array_split(values, SEEN)
    return np.array([np.nan if np.isnan(part).all() else np.nanmean(part) for part in parts])
