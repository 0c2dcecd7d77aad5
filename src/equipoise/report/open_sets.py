"""The open set of a comparison: how well each loss rejects unknown classes, and at what cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from equipoise.comparison.kinds import kind_of
from equipoise.evaluation.results import ConfidenceHistogram, OpenSetEvaluation, RejectionRates
from equipoise.metric_registry import metric_info
from equipoise.report.open_set import SCORES, SHOWN, confidence_figure
from equipoise.report.page import Cell, Head, Key, Picture, Section, Table
from equipoise.report.runs import ComparedLoss
from equipoise.report.theme import INK, as_svg, css, page_style, panel, percent, titled
from equipoise.report.time_figures import PANEL

__all__ = ["open_sets_section"]

ACCURACIES = ("accuracy", "mean_class_accuracy", "many", "medium", "few")
STEPS = np.linspace(0.0, 1.0, 101)
MOST = 0.4
"""Fraction of rejected known samples up to which the F-measure is drawn: beyond, it shows only their loss."""

Array = NDArray[np.float64]


def open_sets_section(losses: Sequence[ComparedLoss]) -> Section | None:
    """Accuracies with and without rejection, and rejected samples; None where there is no open set."""
    losses = [loss for loss in losses if loss.opens]
    if not losses:
        return None
    first, kind = _opens(losses[0])[0], kind_of(loss.name for loss in losses)
    return Section(
        "Open set",
        f"{first.unknown:,} samples of unknown classes and {first.known:,} test samples. A sample is rejected if its "
        "largest probability is below a threshold, chosen for each run such that "
        f"{100 * first.accept:g} % of the validation data are accepted. A rejected known sample counts as an error. "
        "Means over the seeds, in percent; dots are at the thresholds.",
        tables=[_table(losses)],
        keys=[
            *(Key(loss.name, css(loss.stroke.colour), " ".join(map(str, loss.stroke.dash))) for loss in losses),
            Key("chance", css(INK), "3 3"),
        ],
        figures=[
            Picture(_costs(losses, "unknown_rejected", 1.0, chance=True), "The area below a line is the AUROC."),
            Picture(_costs(losses, "f_measure", MOST), "As of Liu et al. 2019."),
            Picture(_over_thresholds(losses), f"Thresholds are not comparable between {kind.many}."),
        ],
        parts=[
            Section(
                "Confidence of known and unknown samples",
                "Largest probability, all seeds together; each kind adds up to 100 %.",
                figures=[Picture(confidence_figure(_pooled(_opens(loss)), loss.name)) for loss in losses],
                folded=True,
            )
        ],
    )


def _table(losses: Sequence[ComparedLoss]) -> Table:
    """Accuracies without and with rejection, and AUROC by score."""
    first = _opens(losses[0])[0]
    kinds = [name for name in ACCURACIES if first.closed.get(name) is not None]
    scores = [name for name in SCORES if name in first.auroc]
    ways = [Head("closed", "nothing is rejected"), Head("open", "a rejected sample counts as an error")]
    titles = [Head(SCORES[score].removeprefix("largest ").partition(" ")[0], SCORES[score]) for score in scores]
    threshold = Head("threshold", "below which a sample is rejected")
    kind = kind_of(loss.name for loss in losses)
    head: list[str | Head] = [kind.one, threshold, *(way for _ in kinds for way in ways), *titles]
    rows: list[list[str | Cell]] = [
        [
            loss.name,
            _number([one.top.threshold[0] for one in opens], "{:.3f}".format),
            *(
                _number([values[kind] for values in some])
                for kind in kinds
                for some in ([one.closed for one in opens], [one.top.metrics for one in opens])
            ),
            *(_number([one.auroc[score] for one in opens]) for score in scores),
        ]
        for loss, opens in ((loss, _opens(loss)) for loss in losses)
    ]
    groups = [("", 2), *((metric_info(kind).label, 2) for kind in kinds), ("AUROC", len(scores))]
    baseline = [place for place, loss in enumerate(losses) if loss.baseline]
    return Table(head, rows, groups=groups, sortable=True, marked=baseline)


def _opens(loss: ComparedLoss) -> list[OpenSetEvaluation]:
    """The evaluation of each run that has an open set."""
    return loss.opens


def _number(values: Sequence[float | None], words: Callable[[float], str] | None = None) -> Cell:
    """Mean over the seeds with their standard deviation."""
    words, known = words or metric_info("auroc").text, [value for value in values if value is not None]
    if not known:
        return Cell("–")
    mean = float(np.mean(known))
    below = f"± {words(float(np.std(known, ddof=1)))}" if len(known) > 1 else ""
    return Cell(words(mean), below, mean)


def _costs(losses: Sequence[ComparedLoss], name: str, most: float, *, chance: bool = False) -> str:
    """A metric over the fraction of rejected known samples, up to ``most``."""
    seen = most >= STEPS
    with page_style():
        figure, axes = panel(*PANEL, right=0.24, bottom=0.5)
        if chance:
            axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=(0, (3, 3)))
        for loss in losses:
            opens = _opens(loss)
            lines = [_read(one.trade, "known_rejected", name) for one in opens]
            drawn = np.mean(lines, 0)[seen]
            axes.plot(STEPS[seen], drawn, color=loss.stroke.colour, linestyle=loss.stroke.style, linewidth=1.6)
            dot = [np.mean([_value(one.top.metrics[key]) for one in opens]) for key in ("known_rejected", name)]
            if dot[0] <= most:
                axes.plot(
                    *([value] for value in dot),
                    marker=loss.stroke.marker,
                    markersize=4.5,
                    color=loss.stroke.colour,
                    linestyle="none",
                    clip_on=False,
                )
        axes.set(xlim=(0, most), xlabel=metric_info("known_rejected").label)
        if chance:
            axes.set_ylim(0, 1)
        percent(axes.xaxis)
        percent(axes.yaxis)
        metric = metric_info(name).label
        titled(figure, metric if chance else f"{metric} over {metric_info('known_rejected').label}")
    return as_svg(figure, f"{SHOWN[name]}, over the {SHOWN['known_rejected']}")


def _over_thresholds(losses: Sequence[ComparedLoss]) -> str:
    """F-measure over the threshold."""
    with page_style():
        figure, axes = panel(*PANEL, right=0.24, bottom=0.5)
        for loss in losses:
            lines = [_read(one.curve, "threshold", "f_measure") for one in _opens(loss)]
            axes.plot(STEPS, np.mean(lines, 0), color=loss.stroke.colour, linestyle=loss.stroke.style, linewidth=1.6)
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="threshold")
        percent(axes.yaxis)
        titled(figure, "F-measure over threshold")
    return as_svg(figure, "F-measure over the threshold below which a sample is rejected")


def _value(value: float | None) -> float:
    return np.nan if value is None else value


def _read(curve: RejectionRates, across: str, name: str) -> Array:
    """A curve at even steps from 0 to 1."""
    x, y = (np.array([_value(value) for value in getattr(curve, key)]) for key in (across, name))
    there = np.isfinite(x) & np.isfinite(y)
    line: Array = np.interp(STEPS, x[there], y[there])
    return line


def _pooled(opens: Sequence[OpenSetEvaluation]) -> ConfidenceHistogram:
    """One histogram of those of all seeds."""
    histograms = [one.histogram for one in opens]
    counts = {
        name: np.sum([getattr(one, name) for one in histograms], 0).tolist()
        for name in ("known_right", "known_wrong", "unknown")
    }
    return ConfidenceHistogram(histograms[0].edges, **counts)
