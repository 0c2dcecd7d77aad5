"""Figures of losses as data, curves in panels, and the function that draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from torch import Tensor

from equipoise.plotting.theme import LINE, PAPER, SERIES, SOFT, shades, theme

__all__ = ["Curve", "LossFigure", "Mark", "Panel", "draw"]


@dataclass(frozen=True)
class Curve:
    """One line; NaN in ``y`` interrupts it.

    Other curves are compared with a ``reference``; a ``broad`` curve is drawn wide, so that others do not hide it.
    """

    label: str
    x: Tensor
    y: Tensor
    reference: bool = False
    broad: bool = False


@dataclass(frozen=True)
class Mark:
    """A point on the curve with this label."""

    curve: str
    x: float
    y: float


@dataclass(frozen=True)
class Panel:
    """One plot.

    Args:
        title: title of the plot.
        x_label: label of the x axis.
        y_label: label of the y axis.
        curves: curves in the order of the legend.
        marks: points on the curves.
        top: upper limit of y, for unbounded curves.
        log: whether y is logarithmic.
        counts: whether x is a number of samples; both axes are then logarithmic.
    """

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    marks: tuple[Mark, ...] = ()
    top: float | None = None
    log: bool = False
    counts: bool = False


@dataclass(frozen=True)
class LossFigure:
    """All panels of a loss; ``ordered``: the curves are ordered by one parameter."""

    title: str
    formula: str
    panels: tuple[Panel, ...]
    ordered: bool = False

    @property
    def description(self) -> str:
        """Description of the figure."""
        return f"Curves of {self.title}: " + ", ".join(panel.title.lower() for panel in self.panels)


# Inches: width of the figure, height of a row, a plot, and a legend line, margin left of a plot, height of the heading.
WIDTH, ROW, PLOT, LEGEND_LINE, LEFT, HEADING = 7.6, 3.15, 1.95, 0.19, 0.58, 0.62
DASHES: tuple[Any, ...] = ("solid", (0, (5, 1.8)), (0, (3, 1.3, 1, 1.3)), (0, (1.4, 1.4)))
REFERENCE_DASHES: tuple[Any, ...] = ((0, (3, 2)), (0, (1, 1.5)))
Row = Sequence[Panel]


def draw(figure: LossFigure, *, heading: bool = False) -> Figure:
    """Draw the panels in rows of two, each with its legend below.

    Args:
        figure: the figure to draw.
        heading: whether to add title and formula above.
    """
    rows = [figure.panels[index : index + 2] for index in range(0, len(figure.panels), 2)]
    heights = [ROW + LEGEND_LINE * _legend_lines(row) for row in rows]
    above = HEADING if heading else 0.0
    with theme():
        canvas = Figure(figsize=(WIDTH, above + sum(heights)))
        if heading:
            _text(canvas, 0.08, 0.12, figure.title, fontsize=13, fontweight="bold")
            _text(canvas, 0.08, 0.39, figure.formula, color=SOFT)
        for row, height in zip(rows, heights, strict=True):
            for column, panel in enumerate(row):
                left = column * WIDTH / len(row)
                axes = _axes(canvas, panel, left, above, WIDTH / len(row))
                _draw_panel(axes, panel, figure.ordered)
                if column == 0 or not _shares_legend(row):
                    _legend(canvas, axes, left, above, _legend_columns(row))
            above += height
    return canvas


def _shares_legend(row: Row) -> bool:
    """Whether all panels have the same curves."""
    return len({tuple(curve.label for curve in panel.curves) for panel in row}) == 1


def _legend_columns(row: Row) -> int:
    """The number of columns that fit, with evenly filled rows."""
    if not _shares_legend(row):
        return 1
    labels = [curve.label for curve in row[0].curves]
    fitting = int((WIDTH - LEFT) / (0.75 + 0.066 * max(map(len, labels))))
    lines = -(-len(labels) // max(fitting, 1))
    return -(-len(labels) // lines)


def _legend_lines(row: Row) -> int:
    return -(-max(len(panel.curves) for panel in row) // _legend_columns(row))


def _text(canvas: Figure, left: float, above: float, text: str, **options: Any) -> None:  # noqa: ANN401
    """Write text at a position in inches from the upper left corner."""
    canvas.text(left / WIDTH, 1 - above / float(canvas.get_size_inches()[1]), text, va="top", **options)


def _axes(canvas: Figure, panel: Panel, left: float, above: float, width: float) -> Axes:
    """Axes with the title and the label of y above."""
    total, right, top = float(canvas.get_size_inches()[1]), 0.28, 0.62
    box = ((left + LEFT) / WIDTH, 1 - (above + top + PLOT) / total, (width - LEFT - right) / WIDTH, PLOT / total)
    axes = canvas.add_axes(box)
    _text(canvas, left + 0.08, above + 0.12, panel.title, fontsize=10, fontweight="bold")
    _text(canvas, left + 0.08, above + 0.34, panel.y_label, fontsize=8.5, color=SOFT)
    axes.set_xlabel(panel.x_label, fontsize=8.5, color=SOFT)
    return axes


def _legend(canvas: Figure, axes: Axes, left: float, above: float, columns: int) -> None:
    total = float(canvas.get_size_inches()[1])
    canvas.legend(
        *axes.get_legend_handles_labels(),
        loc="upper left",
        bbox_to_anchor=((left + LEFT) / WIDTH, 1 - (above + 0.62 + PLOT + 0.49) / total),
        ncols=columns,
        borderaxespad=0.0,
        borderpad=0.0,
        handlelength=2.4,
        columnspacing=3.0,
    )


def _draw_panel(axes: Axes, panel: Panel, ordered: bool) -> None:
    curves = [curve for curve in panel.curves if not curve.reference]
    styles = iter(_styles(len(curves), ordered))
    references = iter(REFERENCE_DASHES)
    colours: dict[str, str] = {}
    for curve in panel.curves:
        if curve.reference:
            style: dict[str, Any] = {"color": SOFT, "linestyle": next(references), "linewidth": 1.4, "zorder": 2.5}
        else:
            style = next(styles) | ({"linewidth": 5.0, "alpha": 0.45} if curve.broad else {"linewidth": 1.8})
        colours[curve.label] = style["color"]
        step = 2 if len(curve.x) > 300 and not bool(torch.isnan(curve.y).any()) else 1  # keeps files small
        axes.plot(curve.x[::step].numpy(), curve.y[::step].numpy(), label=curve.label, **style)
    for mark in panel.marks:
        colour = colours[mark.curve]
        axes.plot([mark.x, mark.x], [0, mark.y], color=colour, linewidth=0.8, linestyle=":")
        axes.plot([mark.x], [mark.y], "o", markersize=5.5, color=colour, markeredgecolor=PAPER, zorder=3)
    axes.set(xlim=_ends(panel))
    _scale(axes, panel)


def _styles(count: int, ordered: bool) -> list[dict[str, Any]]:
    """Colours and dashes of curves; shades for ordered curves."""
    if ordered and count > 2:
        return [{"color": colour} for colour in shades(count)]
    return [{"color": SERIES[k % 4], "linestyle": DASHES[k % 4]} for k in range(count)]


def _ends(panel: Panel) -> tuple[float, float]:
    x = panel.curves[0].x
    ends = float(x.min()), float(x.max())
    return ends if panel.counts else (round(ends[0], 1), round(ends[1], 1))


def _scale(axes: Axes, panel: Panel) -> None:
    """Set scales, limits and ticks."""
    if panel.counts:
        axes.set(xscale="log", yscale="log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.minorticks_off()
        return
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    if panel.log:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.tick_params(which="minor", length=0)
        return
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    values = [curve.y.nan_to_num() for curve in panel.curves]
    top = panel.top or max(float(y.max()) for y in values)
    low = max(min(0.0, *(float(y.min()) for y in values)), -0.5 * top)
    axes.set_ylim(low - 0.02 * (top - low), top if panel.top else top + 0.05 * (top - low))
    axes.axhline(0.0, color=LINE, linewidth=0.8, zorder=1)
