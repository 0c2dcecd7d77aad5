"""Curves of the losses for their pages: SVG files that follow the reader's choice of light or dark.

Every number comes from calling the real loss, mostly by ``equipoise.cli.figures``, which also draws
``equipoise losses NAME --plot``; what is added here shows the parameters that those figures leave out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.resources import files

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

import equipoise
from equipoise.catalogue import Entry, long_tail
from equipoise.cli.curves import (
    cross_entropy,
    probabilities,
    region_response,
    sigmoid_response,
    softmax_response,
)
from equipoise.cli.figures import GRADIENT, LABEL_P, TARGET_P, figure_of
from equipoise.cli.panels import Curve, Panel
from equipoise.report.theme import MUTED, PAPER, SERIES, SHADES, SOFT, as_svg, page_style
from equipoise.schedules import Cyclical, Moment
from equipoise.weights import RecallWeights, effective_number, inverse_frequency

__all__ = ["panels_of", "svg_of"]

# Inches, 100 pixels of the page each.
WIDTH, HEIGHT, PLOT, LINE, LEFT = 7.6, 3.15, 1.95, 0.19, 0.58
DASHES = ("solid", (0, (5, 1.8)), (0, (3, 1.3, 1, 1.3)), (0, (1.4, 1.4)))
REFERENCES = ((0, (3, 2)), (0, (1, 1.5)))


@dataclass(frozen=True)
class CountPanel(Panel):
    """A panel over numbers of samples: both axes are logarithmic."""


# ---------------------------------------------------------------------------------------------------------------------
# What is shown
# ---------------------------------------------------------------------------------------------------------------------


def panels_of(entry: Entry) -> tuple[tuple[Panel, ...], bool]:
    """The panels of a loss, and whether their curves are steps of one quantity."""
    figure = figure_of(entry)
    change = _CHANGES.get(entry.name)
    return (change(figure.panels) if change else figure.panels), figure.ordered


def _loss_panel(weight: Panel, p: torch.Tensor, top: float = 4.0) -> Panel:
    """The loss itself, of a panel that has it in units of cross-entropy."""
    curves = tuple(replace(curve, y=-p.log() * curve.y) for curve in weight.curves)
    return Panel("Loss", TARGET_P, "loss L", curves, top=top)


def _with_loss(panels: tuple[Panel, ...]) -> tuple[Panel, ...]:
    return (_loss_panel(panels[0], panels[0].curves[0].x), *panels)


def _smoothed(_: tuple[Panel, ...]) -> tuple[Panel, ...]:
    """Cross-entropy of ten classes without and with label smoothing."""
    p = probabilities()
    found = {
        f"ε = {epsilon:g}": softmax_response(equipoise.CrossEntropyLoss(label_smoothing=epsilon), p, num_classes=10)
        for epsilon in (0.0, 0.1, 0.3)
    }
    return (
        Panel("Loss", TARGET_P, "loss L", tuple(Curve(name, p, r.loss) for name, r in found.items()), top=4.0),
        Panel("Gradient", TARGET_P, GRADIENT, tuple(Curve(name, p, r.gradient) for name, r in found.items())),
    )


def _binary(_: tuple[Panel, ...]) -> tuple[Panel, ...]:
    """Positives and negatives, and positives that weigh three times."""
    p = probabilities()
    plain, heavy = equipoise.BinaryCrossEntropyLoss(), equipoise.BinaryCrossEntropyLoss(pos_weight=[3.0])
    found = {
        "positives": sigmoid_response(plain, p, positive=True),
        "negatives": sigmoid_response(plain, p, positive=False),
        "positives, pos_weight = 3": sigmoid_response(heavy, p, positive=True),
    }
    return (
        Panel("Loss", LABEL_P, "loss L", tuple(Curve(name, p, r.loss) for name, r in found.items()), top=5.0),
        Panel(
            "Gradient",
            LABEL_P,
            "gradient towards the target, ∓∂L/∂z",
            tuple(Curve(name, p, r.gradient) for name, r in found.items()),
        ),
    )


def _against_cross_entropy(panels: tuple[Panel, ...]) -> tuple[Panel, ...]:
    """The loss and the gradient, with cross-entropy beside them."""
    return _loss_panel(panels[0], panels[0].curves[0].x), panels[1]


def _negatives(panels: tuple[Panel, ...]) -> tuple[Panel, ...]:
    """Binary focal loss: negatives by exponent."""
    p, gammas = probabilities(), (0.0, 1.0, 2.0, 4.0)
    found = {f"γ = {g:g}": sigmoid_response(equipoise.BinaryFocalLoss(g), p, positive=False) for g in gammas}
    curves = tuple(Curve(name, p, r.gradient) for name, r in found.items())
    return (*panels, Panel("Negatives by exponent", LABEL_P, "gradient ∂L/∂z of a negative", curves))


def _asymmetries(panels: tuple[Panel, ...]) -> tuple[Panel, ...]:
    """Asymmetric loss: negatives by exponent, with the margin of 0.05."""
    p, gammas = probabilities(), (0.0, 1.0, 2.0, 4.0)
    found = {
        f"γ₋ = {g:g}, m = 0.05": sigmoid_response(equipoise.AsymmetricLoss(gamma_neg=g), p, positive=False)
        for g in gammas
    }
    curves = tuple(Curve(name, p, r.gradient) for name, r in found.items())
    return (*panels, Panel("Gradient of negatives by exponent", LABEL_P, "∂L₋/∂z", curves))


def _schedule(panels: tuple[Panel, ...]) -> tuple[Panel, ...]:
    """The weight of the high-confidence term over 100 epochs."""
    epochs = torch.arange(100, dtype=torch.float64)
    curves = []
    for factor in (4.0, 2.0):
        schedule = Cyclical(factor)
        shares = [Moment(float(e) / 100, float(e), 100).value(schedule) for e in epochs]
        curves.append(Curve(f"factor f = {factor:g}", epochs, torch.tensor(shares, dtype=torch.float64)))
    return (*panels, Panel("Schedule", "epoch of 100", "weight ξ of the high-confidence term", tuple(curves)))


def _recall_weight(panels: tuple[Panel, ...]) -> tuple[Panel, ...]:
    """The weight of a class by its recall in the batch, asked of the weights themselves."""
    rows, curves = 20, []
    hits = torch.arange(rows + 1)
    labels, valid = torch.zeros(rows, dtype=torch.int64), torch.ones(rows, dtype=torch.bool)
    for errors in (1.0, 0.0):
        weights = []
        for hit in hits.tolist():
            logits = torch.eye(2, dtype=torch.float64)[[0] * hit + [1] * (rows - hit)]
            weights.append(RecallWeights(2, min_errors=errors)(logits, labels, valid, False)[0])
        name = f"{rows} rows of the class, min_errors = {errors:g}"
        curves.append(Curve(name, hits.double() / rows, torch.stack(weights).double(), broad=errors == 1.0))
    shown = Panel(
        "Weight of a class", "recall R of the class in the batch", "weight 1 − R, at least 1/20", tuple(curves)
    )
    return shown, panels[1]


def _weight_by_count(panels: tuple[Panel, ...]) -> tuple[Panel, ...]:
    """Weights relative to a class of 10,000 samples."""
    n = torch.logspace(0, 4, 60, dtype=torch.float64).round().unique()

    def relative(weights: torch.Tensor) -> torch.Tensor:
        return weights.double() / weights.double()[-1]

    curves = [Curve("1/n: InverseFrequencyLoss", n, relative(inverse_frequency(n.tolist())), reference=True)]
    for beta in (0.9999, 0.999, 0.99):
        curves.append(Curve(f"β = {beta:g}", n, relative(effective_number(n.tolist(), beta))))
    shown = CountPanel(
        "Weight by number of samples", "training samples n of the class", "weight / that of n = 10,000", tuple(curves)
    )
    return (*panels, shown)


def _strengths(panels: tuple[Panel, ...]) -> tuple[Panel, ...]:
    """A sample of the rarest of three classes by tau."""
    p, counts = probabilities(), long_tail(3)
    curves = [Curve("cross-entropy", p, cross_entropy(p, num_classes=3).gradient, reference=True)]
    for tau in (0.5, 1.0, 2.0):
        loss = equipoise.LogitAdjustedLoss(counts, tau=tau)
        curves.append(Curve(f"τ = {tau:g}", p, softmax_response(loss, p, label=2, num_classes=3).gradient))
    shown = Panel("Tail class by strength", "probability of the target class in softmax(z)", GRADIENT, tuple(curves))
    return (*panels, shown)


def _prices(panels: tuple[Panel, ...]) -> tuple[Panel, ...]:
    """Tversky loss by the prices of the two errors, for a region of a tenth of the image."""
    p = probabilities(100)
    base = region_response(equipoise.CrossEntropyLoss(), p, share=0.1)
    curves = [Curve("cross-entropy", p, torch.ones_like(p), reference=True)]
    for alpha, beta, name in ((0.5, 0.5, ": Dice"), (1.0, 1.0, ": soft IoU"), (0.3, 0.7, ""), (0.1, 0.9, "")):
        response = region_response(equipoise.TverskyLoss(alpha, beta), p, share=0.1)
        curves.append(Curve(f"α = {alpha:g}, β = {beta:g}{name}", p, response.gradient / base.gradient))
    shown = Panel(
        "Weight of a pixel in a region of 10 %, by weights",
        "median probability p of the right class",
        "gradient / that of cross-entropy",
        tuple(curves),
        log=True,
    )
    return (*panels, shown)


_CHANGES: dict[str, Callable[[tuple[Panel, ...]], tuple[Panel, ...]]] = {
    "AsymmetricLoss": _asymmetries,
    "BinaryCrossEntropyLoss": _binary,
    "BinaryFocalLoss": _negatives,
    "BrierLoss": _against_cross_entropy,
    "ClassBalancedLoss": _weight_by_count,
    "CrossEntropyLoss": _smoothed,
    "CyclicalAsymmetricLoss": _schedule,
    "CyclicalFocalLoss": _schedule,
    "FocalLoss": _with_loss,
    "InverseFrequencyLoss": _weight_by_count,
    "LogitAdjustedLoss": _strengths,
    "RecallLoss": _recall_weight,
    "SampleDependentFocalLoss": _with_loss,
    "TverskyLoss": _prices,
}


# ---------------------------------------------------------------------------------------------------------------------
# How it is drawn
# ---------------------------------------------------------------------------------------------------------------------


def svg_of(entry: Entry) -> str:
    """The curves of a loss as an SVG file."""
    panels, ordered = panels_of(entry)
    rows = [panels[index : index + 2] for index in range(0, len(panels), 2)]
    with page_style():
        heights = [HEIGHT + LINE * _legend_lines(row) for row in rows]
        canvas = Canvas(figsize=(WIDTH, sum(heights)))
        above = 0.0
        for row, height in zip(rows, heights, strict=True):
            for column, panel in enumerate(row):
                axes = _place(canvas, panel, column, len(row), above)
                _draw(axes, panel, ordered)
                if column == 0 or not _shared(row):
                    _legend(canvas, axes, column * WIDTH / len(row), above, _legend_columns(row))
            above += height
        svg = as_svg(canvas, f"Curves of {entry.name}: " + ", ".join(panel.title.lower() for panel in panels))
    svg = re.sub(r"\bf\d+-", "", svg)  # a file of its own needs no names of its own
    size = f'width="{round(100 * WIDTH)}" height="{round(100 * sum(heights))}" '
    svg = re.sub(r' style="--width:\d+px"', "", svg, count=1).replace("<svg ", f"<svg {size}", 1)
    first = svg.index(">") + 1
    return svg[:first] + _style() + svg[first:]


def _shared(row: tuple[Panel, ...]) -> bool:
    """Whether one legend serves the row: all its panels have the same curves, or there is one panel."""
    return len({tuple(curve.label for curve in panel.curves) for panel in row}) == 1


def _legend_columns(row: tuple[Panel, ...]) -> int:
    """As many as there is room for, as even as can be."""
    if not _shared(row):
        return 1
    labels = [curve.label for curve in row[0].curves]
    room = int((WIDTH - LEFT) / (0.75 + 0.066 * max(map(len, labels))))
    lines = -(-len(labels) // max(room, 1))
    return -(-len(labels) // lines)


def _legend_lines(row: tuple[Panel, ...]) -> int:
    return -(-max(len(panel.curves) for panel in row) // _legend_columns(row))


def _style() -> str:
    """Colours of the report for light and dark, and a background, so that the picture is readable on any page."""
    template = files("equipoise.report").joinpath("template.html").read_text(encoding="utf-8")
    light, dark = re.findall(r":root \{(.*?)\}", template, flags=re.DOTALL)[:2]
    light, dark = (" ".join(block.split()) for block in (light, dark))
    return (
        f"\n<style>:root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"
        "svg{background:var(--paper)}text{font-family:system-ui,sans-serif}</style>"
    )


def _place(canvas: Canvas, panel: Panel, column: int, columns: int, above: float) -> Axes:
    """Axes with their title and what they measure above them."""
    width, total = WIDTH / columns, float(canvas.get_size_inches()[1])
    right, top = 0.28, 0.62
    x = column * width
    axes = canvas.add_axes(
        ((x + LEFT) / WIDTH, 1 - (above + top + PLOT) / total, (width - LEFT - right) / WIDTH, PLOT / total)
    )
    start = (x + 0.08) / WIDTH
    canvas.text(start, 1 - (above + 0.12) / total, panel.title, va="top", fontsize=10, fontweight="bold")
    canvas.text(start, 1 - (above + 0.34) / total, panel.y_label, va="top", fontsize=8.5, color=SOFT)
    axes.set_xlabel(panel.x_label, fontsize=8.5, color=SOFT)
    return axes


def _legend(canvas: Canvas, axes: Axes, x: float, above: float, columns: int) -> None:
    total = float(canvas.get_size_inches()[1])
    canvas.legend(
        *axes.get_legend_handles_labels(),
        loc="upper left",
        bbox_to_anchor=((x + LEFT) / WIDTH, 1 - (above + 0.62 + PLOT + 0.46) / total),
        ncols=columns,
        borderaxespad=0.0,
        borderpad=0.0,
        handlelength=2.4,
        columnspacing=3.0,
    )


def _draw(axes: Axes, panel: Panel, ordered: bool) -> None:
    own = [curve for curve in panel.curves if not curve.reference]
    ordered = ordered and len(own) > 2
    references, used = iter(REFERENCES), {}
    for curve in panel.curves:
        if curve.reference:
            look = {"color": SOFT, "linestyle": next(references), "linewidth": 1.4}
        else:
            index = own.index(curve)
            shade = SHADES[round(index * (len(SHADES) - 1) / max(len(own) - 1, 1))]
            colour = shade if ordered else SERIES[index % 4]
            look = {"color": colour, "linestyle": DASHES[0 if ordered else index % 4], "linewidth": 1.8}
            look |= {"linewidth": 5.0, "alpha": 0.45} if curve.broad else {}
            used[curve.label] = colour
        thin = slice(None, None, 2) if len(curve.x) > 300 and not torch.isnan(curve.y).any() else slice(None)
        axes.plot(curve.x[thin].numpy(), curve.y[thin].numpy(), label=curve.label, **look)
    for mark in panel.marks:
        axes.plot([mark.x], [mark.y], "o", markersize=5.5, color=used[mark.curve], markeredgecolor=PAPER, zorder=3)
    x = panel.curves[0].x
    axes.set_xlim(float(x.min()), float(x.max()))
    if isinstance(panel, CountPanel):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.minorticks_off()
        return
    axes.set_xlim(round(float(x.min()), 1), round(float(x.max()), 1))
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    if panel.log:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.tick_params(which="minor", length=0)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        low = min(0.0, *(float(curve.y.nan_to_num().min()) for curve in panel.curves))
        top = panel.top or max(float(curve.y.nan_to_num().max()) for curve in panel.curves)
        low = max(low, -0.5 * top)
        axes.set_ylim(low - 0.02 * (top - low), top if panel.top else top + 0.05 * (top - low))
        axes.axhline(0.0, color=MUTED, linewidth=0.8, zorder=1)
