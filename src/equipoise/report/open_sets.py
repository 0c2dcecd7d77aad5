"""The open set of a comparison: how each loss tells samples of no known class from the others, and what that costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise._formatting import LABELS, shown
from equipoise.comparison.kinds import kind_of
from equipoise.report.open_set import SCORES, SHOWN, confidence_figure
from equipoise.report.page import Cell, Head, Key, Picture, Section, Table
from equipoise.report.runs import ComparedLoss
from equipoise.report.theme import INK, as_svg, css, page_style, panel, percent, titled
from equipoise.report.time_figures import PANEL

__all__ = ["open_sets_section"]

ACCURACIES = ("accuracy", "mean_class_accuracy", "many", "medium", "few")
SHARES = np.linspace(0.0, 1.0, 101)
MOST = 0.4
"""Share of the known samples up to which the F-measure is drawn: beyond, nothing but their loss is seen."""

Array = NDArray[np.float64]
Found = Mapping[str, Any]


def open_sets_section(losses: Sequence[ComparedLoss]) -> Section | None:
    """Accuracies with and without rejection, and what is rejected at which price; None where there is no open set."""
    losses = [loss for loss in losses if loss.opens]
    if not losses:
        return None
    first, kind = losses[0].opens[0], kind_of(loss.name for loss in losses)
    return Section(
        "Open set",
        f"{first['unknown']:,} samples of no known class beside {first['known']:,} test samples. A sample is rejected "
        f"where its largest probability is below a threshold, which is chosen for each run: it accepts "
        f"{100 * first['accept']:g} % of the validation data. A known sample that is rejected is wrong. Means over the "
        "seeds, in percent; dots are where the thresholds lead.",
        tables=[_table(losses)],
        keys=[
            *(Key(loss.name, css(loss.stroke.colour), " ".join(map(str, loss.stroke.dash))) for loss in losses),
            Key("chance", css(INK), "3 3"),
        ],
        figures=[
            Picture(_costs(losses, "unknown_rejected", 1.0, chance=True), "The area below a line is the AUROC."),
            Picture(_costs(losses, "f_measure", MOST), "As of Liu et al. 2019."),
            Picture(_over_thresholds(losses), f"Thresholds do not compare between {kind.many}."),
        ],
        parts=[
            Section(
                "Confidence of known and unknown samples",
                "Largest probability, all seeds together; each kind adds up to 100 %.",
                figures=[Picture(confidence_figure(_pooled(loss.opens), loss.name)) for loss in losses],
                folded=True,
            )
        ],
    )


def _table(losses: Sequence[ComparedLoss]) -> Table:
    """Accuracies without and with rejection, and AUROC by what known and unknown samples are told apart."""
    first = losses[0].opens[0]
    kinds = [name for name in ACCURACIES if first["closed"].get(name) is not None]
    scores = [name for name in SCORES if name in first["auroc"]]
    ways = [Head("closed", "nothing is rejected"), Head("open", "a sample that is rejected is wrong")]
    titles = [Head(SCORES[score].removeprefix("largest ").partition(" ")[0], SCORES[score]) for score in scores]
    threshold = Head("threshold", "below which a sample is rejected")
    kind = kind_of(loss.name for loss in losses)
    head: list[str | Head] = [kind.one, threshold, *(way for _ in kinds for way in ways), *titles]
    rows: list[list[str | Cell]] = [
        [
            loss.name,
            _number([_main(found)["threshold"][0] for found in loss.opens], "{:.3f}".format),
            *(
                _number([read(found)[kind] for found in loss.opens])
                for kind in kinds
                for read in (lambda found: found["closed"], _main)
            ),
            *(_number([found["auroc"][score] for found in loss.opens]) for score in scores),
        ]
        for loss in losses
    ]
    groups = [("", 2), *((LABELS[kind], 2) for kind in kinds), ("AUROC", len(scores))]
    baseline = [place for place, loss in enumerate(losses) if loss.baseline]
    return Table(head, rows, groups=groups, sortable=True, marked=baseline)


def _main(found: Found) -> Mapping[str, Any]:
    """The numbers at the main threshold."""
    row: Mapping[str, Any] = next(row for row in found["thresholds"] if row["rule"] == found["main"])
    return row


def _number(values: Sequence[float | None], words: Callable[[float], str] = lambda value: shown("", value)) -> Cell:
    """Mean over the seeds with their standard deviation."""
    known = [value for value in values if value is not None]
    if not known:
        return Cell("–")
    mean = float(np.mean(known))
    below = f"± {words(float(np.std(known, ddof=1)))}" if len(known) > 1 else ""
    return Cell(words(mean), below, mean)


def _costs(losses: Sequence[ComparedLoss], name: str, most: float, *, chance: bool = False) -> str:
    """What rejecting more of the known samples brings, up to ``most`` of them."""
    seen = most >= SHARES
    with page_style():
        figure, axes = panel(*PANEL, right=0.24, bottom=0.5)
        if chance:
            axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=(0, (3, 3)))
        for loss in losses:
            lines = [_read(found["trade"], "known_rejected", name) for found in loss.opens]
            drawn = np.mean(lines, 0)[seen]
            axes.plot(SHARES[seen], drawn, color=loss.stroke.colour, linestyle=loss.stroke.style, linewidth=1.6)
            dot = [np.mean([_main(found)[key] for found in loss.opens]) for key in ("known_rejected", name)]
            if dot[0] <= most:
                axes.plot(
                    *([value] for value in dot),
                    marker=loss.stroke.marker,
                    markersize=4.5,
                    color=loss.stroke.colour,
                    linestyle="none",
                    clip_on=False,
                )
        axes.set(xlim=(0, most), xlabel=LABELS["known_rejected"])
        if chance:
            axes.set_ylim(0, 1)
        percent(axes.xaxis)
        percent(axes.yaxis)
        titled(figure, LABELS[name] if chance else f"{LABELS[name]} over {LABELS['known_rejected']}")
    return as_svg(figure, f"{SHOWN[name]}, over the {SHOWN['known_rejected']}")


def _over_thresholds(losses: Sequence[ComparedLoss]) -> str:
    """F-measure over the threshold."""
    with page_style():
        figure, axes = panel(*PANEL, right=0.24, bottom=0.5)
        for loss in losses:
            lines = [_read(found["curve"], "threshold", "f_measure") for found in loss.opens]
            axes.plot(SHARES, np.mean(lines, 0), color=loss.stroke.colour, linestyle=loss.stroke.style, linewidth=1.6)
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="threshold")
        percent(axes.yaxis)
        titled(figure, f"{LABELS['f_measure']} over threshold")
    return as_svg(figure, "F-measure over the threshold below which a sample is rejected")


def _read(curve: Mapping[str, Sequence[float | None]], across: str, name: str) -> Array:
    """A curve at even steps from 0 to 1."""
    x, y = (np.array([np.nan if value is None else value for value in curve[key]]) for key in (across, name))
    there = np.isfinite(x) & np.isfinite(y)
    found: Array = np.interp(SHARES, x[there], y[there])
    return found


def _pooled(opens: Sequence[Found]) -> dict[str, Any]:
    """One histogram of those of all seeds."""
    histograms = [found["histogram"] for found in opens]
    counts = {name: np.sum([one[name] for one in histograms], 0).tolist() for name in histograms[0] if name != "edges"}
    return {"edges": histograms[0]["edges"], **counts}
