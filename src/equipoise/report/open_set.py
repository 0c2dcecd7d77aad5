"""The open set on a page: accuracies with and without rejection, thresholds, and how sure the model is of what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from equipoise._formatting import LABELS, shown
from equipoise.report.page import Cell, Picture, Section, Table
from equipoise.report.theme import INK, SERIES, Stroke, as_svg, page_style, panel, percent, titled

__all__ = [
    "SCORES",
    "SHOWN",
    "confidence_figure",
    "open_set_section",
    "open_set_sentences",
    "rule_name",
    "rule_threshold",
    "threshold_rows",
]

SHOWN: Mapping[str, str] = {
    "unknown_rejected": "share of the unknown samples that is rejected",
    "known_rejected": "share of the known samples that is rejected",
    "f_measure": "harmonic mean of precision and recall",
    "precision": "share predicted right, of the known samples (of Kang et al. of the accepted ones)",
    "recall": "known samples predicted right, among these and the unknown ones that are accepted",
    "accuracy": "of the known samples; a rejected one is wrong",
    "mean_class_accuracy": "the same, averaged over the classes",
    "many": "the same of classes with more than 100 training samples",
    "medium": "the same of classes with 20 to 100 training samples",
    "few": "the same of classes with fewer than 20 training samples",
}
"""Rows of the table, and what they mean."""
SCORES: Mapping[str, str] = {
    "max_probability": "largest probability",
    "max_logit": "largest logit",
    "energy": "logsumexp of logits",
}
"""By what known and unknown samples may be told apart."""


def rule_name(row: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """How a threshold was chosen, in few words."""
    names = {"fixed": "fixed", "accept": f"{100 * found['accept']:g} % accepted", "best": "best F-measure"}
    return names[row["rule"]]


def rule_threshold(row: Mapping[str, Any]) -> str:
    """A threshold, or those of the two halves."""
    return " / ".join(f"{level:.3g}" for level in row["threshold"])


def threshold_rows(found: Mapping[str, Any]) -> dict[str, list[str]]:
    """Name of a number to its values: without rejection, and by each rule; in percent."""
    rules, closed = found["thresholds"], found["closed"]
    return {
        name: [shown(name, closed[name]) if name in closed else "", *(shown(name, row[name]) for row in rules)]
        for name in SHOWN
        if any(row.get(name) is not None for row in rules)
    }


def open_set_sentences(found: Mapping[str, Any]) -> list[str]:
    """What the numbers say."""
    told = found.get("told", found["main"])
    top = next(row for row in found["thresholds"] if row["rule"] == told)
    area = found["auroc"]["max_probability"]
    halves = len(top["threshold"]) > 1
    where = f"thresholds {rule_threshold(top)} of two halves" if halves else f"threshold {rule_threshold(top)}"
    return [
        f"At the {where}, {shown('', top['unknown_rejected'])} % of the {found['unknown']:,} "
        f"samples of no known class are rejected, and {shown('', top['known_rejected'])} % of the {found['known']:,} "
        f"known ones: F-measure {shown('f_measure', top['f_measure'])} %.",
        f"A known sample has more confidence than one of no known class in {shown('auroc', area)} % of the pairs "
        "(AUROC).",
        *found["notes"],
    ]


def open_set_section(found: Mapping[str, Any]) -> Section:
    """The section.

    Args:
        found: what ``equipoise.evaluation.evaluate_open_set`` gives, or its JSON read again.
    """
    rules = found["thresholds"]
    head = ["", "no rejection", *(rule_name(row, found) for row in rules)]
    rows: list[list[str | Cell]] = [
        ["threshold", "", *(rule_threshold(row) for row in rules)],
        ["chosen on", "", *(row["chosen_on"].removesuffix(" of the samples") for row in rules)],
    ]
    rows += [[Cell(LABELS[name], note=SHOWN[name]), *cells] for name, cells in threshold_rows(found).items()]
    areas = [[words, shown("auroc", found["auroc"][name])] for name, words in SCORES.items() if name in found["auroc"]]
    crosswise = any(len(row["threshold"]) > 1 for row in rules)
    notes = [
        "F-measure of Liu et al. 2019: a known sample that is rejected is a false positive."
        if found["convention"] == "oltr"
        else "F-measure of Kang et al. 2020: a known sample that is rejected is no false positive.",
        *(
            ["Two thresholds are those of two halves of the samples, each chosen on the other half."]
            if crosswise
            else []
        ),
        *found["notes"],
    ]
    return Section(
        "Open set",
        f"{found['unknown']:,} samples of no known class beside {found['known']:,} of known ones. A sample is rejected "
        "where its largest probability is below the threshold; a known one is then wrong. In percent.",
        tables=[Table(head, rows), Table(["AUROC, known against unknown", ""], areas)],
        figures=[
            Picture(threshold_figure(found), "Shares over the threshold below which a sample is rejected."),
            Picture(trade_figure(found), "The area below the line is the AUROC."),
            Picture(confidence_figure(found["histogram"]), "Largest probability; each kind adds up to 100 %."),
        ],
        notes=notes,
    )


def threshold_figure(found: Mapping[str, Any]) -> str:
    """F-measure, accuracy of the known and rejection of the unknown samples over the threshold."""
    curve = found["curve"]
    lines = {
        "f_measure": ("F-measure", Stroke(SERIES[0])),
        "accuracy": ("accuracy of the known", Stroke(SERIES[1], (4.0, 1.6))),
        "unknown_rejected": ("unknown rejected", Stroke(SERIES[2], (1.2, 1.4))),
    }
    with page_style():
        figure, axes = panel(4.6, 3.0, right=0.24, top=0.55, bottom=0.45)
        for name, (label, stroke) in lines.items():
            seen = [pair for pair in zip(curve["threshold"], curve[name], strict=True) if pair[1] is not None]
            axes.plot(*zip(*seen, strict=True), color=stroke.colour, linestyle=stroke.style, linewidth=1.7, label=label)
        top = next(row for row in found["thresholds"] if row["rule"] == found["main"])
        for level in top["threshold"]:
            axes.axvline(level, color=INK, linewidth=0.8)
            axes.plot([level], [_value_at(curve, level)], "o", color=SERIES[0], markersize=5, clip_on=False)
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="threshold")
        percent(axes.yaxis)
        titled(figure, "Over thresholds")
        figure.legend(loc="upper left", bbox_to_anchor=(0.0, 1 - 0.2 / 3.0), ncols=3, columnspacing=1, borderpad=0)
    return as_svg(figure, "F-measure, accuracy of the known samples and rejection of the unknown ones over thresholds")


def trade_figure(found: Mapping[str, Any]) -> str:
    """What rejecting more of the known samples brings: the curve above an area that is the AUROC."""
    curve = found["trade"]
    known, unknown = curve["known_rejected"], curve["unknown_rejected"]
    area = found["auroc"]["max_probability"]
    with page_style():
        figure, axes = panel(4.6, 3.0, right=0.24, top=0.55, bottom=0.45)
        axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=(0, (3, 3)), label="chance")
        label = f"unknown rejected, AUROC {shown('auroc', area)} %"
        axes.plot(known, unknown, color=SERIES[2], linewidth=1.7, label=label)
        top = next(row for row in found["thresholds"] if row["rule"] == found["main"])
        axes.plot([top["known_rejected"]], [top["unknown_rejected"]], "o", color=SERIES[2], markersize=5, clip_on=False)
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="known rejected")
        percent(axes.xaxis)
        percent(axes.yaxis)
        titled(figure, "What rejection costs")
        figure.legend(loc="upper left", bbox_to_anchor=(0.0, 1 - 0.2 / 3.0), ncols=2, columnspacing=1, borderpad=0)
    return as_svg(figure, "Share of the unknown samples that is rejected against that of the known ones")


def _value_at(curve: Mapping[str, Sequence[float]], level: float) -> float:
    """The F-measure of the curve next to a threshold."""
    place = min(range(len(curve["threshold"])), key=lambda k: abs(curve["threshold"][k] - level))
    return curve["f_measure"][place] or 0.0


def confidence_figure(
    histogram: Mapping[str, Sequence[float]], title: str = "Confidence of known and unknown samples"
) -> str:
    """Histograms of the confidence of known and of unknown samples."""
    known = [right + wrong for right, wrong in zip(histogram["known_right"], histogram["known_wrong"], strict=True)]
    with page_style():
        figure, axes = panel(4.6, 3.0, right=0.24, top=0.55, bottom=0.45)
        for number, (name, counts) in enumerate((("known", known), ("unknown", histogram["unknown"]))):
            shares = [count / max(sum(counts), 1) for count in counts]
            colour = SERIES[2 * number]
            axes.stairs(shares, histogram["edges"], fill=True, color=colour, alpha=0.35, linewidth=0)
            axes.stairs(shares, histogram["edges"], color=colour, linewidth=1.5, label=name)
        axes.set(xlim=(0, 1), xlabel="confidence")
        axes.set_ylim(bottom=0)
        percent(axes.yaxis)
        titled(figure, title)
        figure.legend(loc="upper left", bbox_to_anchor=(0.0, 1 - 0.2 / 3.0), ncols=2, columnspacing=1, borderpad=0)
    return as_svg(figure, "Histograms of the confidence of known and of unknown samples")
