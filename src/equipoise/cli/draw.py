"""The house style: figures as PNG, SVG or PDF. Nothing is computed here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from equipoise._writing import appearing
from equipoise.cli.panels import Figure, Panel

__all__ = ["SUFFIXES", "draw"]

SUFFIXES = (".png", ".svg", ".pdf")

# Okabe and Ito's colours, which differ in every common form of colour blindness; line styles differ as well.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (4, 1.5, 1, 1.5)), (0, (1.5, 1.5)))
GREYS = ((0, (3, 2)), (0, (1, 1.5)))
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#444444",
    "axes.grid": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.fontsize": 8.0,
    "legend.frameon": True,
    "legend.framealpha": 0.85,
    "legend.edgecolor": "none",
    "lines.linewidth": 1.8,
    "savefig.dpi": 160,
    "svg.hashsalt": "equipoise",
}


def draw(figure: Figure, path: Path) -> None:
    """Write a figure to ``path``; the suffix says the format."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(
            f"the file must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, got {path.name!r}; "
            "choose one of these suffixes"
        )
    if not path.parent.is_dir():
        raise ValueError(f"the folder of the file must exist, got {str(path.parent)!r}; create it first")
    with matplotlib.rc_context(STYLE):
        shared = len({tuple(curve.label for curve in panel.curves) for panel in figure.panels}) == 1
        size = (4.0 * len(figure.panels) + (2.1 if shared else 0.2), 4.0 if shared else 4.7)
        canvas = Canvas(figsize=size, layout="constrained")
        canvas.suptitle(figure.title, fontsize=13, fontweight="bold", x=0.015, ha="left")
        grid = canvas.subplots(1, len(figure.panels), squeeze=False)
        for panel, axes in zip(figure.panels, grid[0], strict=True):
            _draw_panel(axes, panel, figure.ordered)
            if not shared:
                axes.legend(loc="upper left", bbox_to_anchor=(0.0, -0.17), borderaxespad=0.0)
        if shared:
            canvas.legend(*grid[0][0].get_legend_handles_labels(), loc="outside right center")
        canvas.supxlabel(figure.subtitle, fontsize=9, color="#444444", x=0.015, ha="left")
        metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower(), {})
        with appearing(path) as draft:
            canvas.savefig(draft, metadata=metadata)


def _draw_panel(axes: Axes, panel: Panel, ordered: bool) -> None:
    colours = _colours(sum(not curve.reference for curve in panel.curves), ordered)
    references = iter(GREYS)
    used: dict[str, Any] = {}
    for curve in panel.curves:
        if curve.reference:
            look: dict[str, Any] = {"color": "#777777", "linestyle": next(references), "linewidth": 1.4, "zorder": 2.5}
        else:
            look = {"color": colours[len(used)], "linestyle": "-" if ordered else DASHES[len(used) % len(DASHES)]}
            look |= {"linewidth": 5.0, "alpha": 0.45} if curve.broad else {}
            used[curve.label] = look["color"]
        axes.plot(curve.x.numpy(), curve.y.numpy(), label=curve.label, **look)
    for mark in panel.marks:
        axes.plot([mark.x, mark.x], [0, mark.y], color=used[mark.curve], linewidth=0.8, linestyle=":")
        axes.plot(
            [mark.x], [mark.y], marker="o", markersize=6, color=used[mark.curve], markeredgecolor="white", zorder=3
        )
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    x = panel.curves[0].x
    axes.set_xlim(round(float(x.min()), 1), round(float(x.max()), 1))
    if panel.log:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        low = min(0.0, *(float(curve.y.nan_to_num().min()) for curve in panel.curves))
        top = panel.top or max(float(curve.y.nan_to_num().max()) for curve in panel.curves)
        axes.set_ylim(low - 0.02 * (top - low), top if panel.top else top + 0.05 * (top - low))
        axes.axhline(0.0, color="#444444", linewidth=0.8, zorder=1)


def _colours(count: int, ordered: bool) -> list[Any]:
    """Distinct colours, or the steps of a scale from dark to light that prints well in grey."""
    if not ordered:
        return [COLOURS[index % len(COLOURS)] for index in range(count)]
    scale = matplotlib.colormaps["viridis"]
    return [scale(0.05 + 0.75 * index / max(count - 1, 1)) for index in range(count)]
