"""The open set in a report: accuracies with and without rejection, thresholds, confidence."""

from __future__ import annotations

from collections.abc import Mapping

from equipoise.evaluation.results import ConfidenceHistogram, OpenSetEvaluation, Rejection, RejectionRates
from equipoise.metric_registry import metric_info
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
    "unknown_rejected": "percentage of unknown samples that are rejected",
    "known_rejected": "percentage of known samples that are rejected",
    "f_measure": "harmonic mean of precision and recall",
    "precision": "correct predictions of known samples over all known samples (Kang et al.: over the accepted ones)",
    "recall": "correct predictions of known samples over these and the accepted unknown samples",
    "accuracy": "of the known samples; a rejected one counts as an error",
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
"""Scores that may separate known and unknown samples."""


def rule_name(row: Rejection, evaluation: OpenSetEvaluation) -> str:
    """How a threshold was chosen, in few words."""
    names = {"fixed": "fixed", "accept": f"{100 * evaluation.accept:g} % accepted", "best": "best F-measure"}
    return names[row.rule]


def rule_threshold(row: Rejection) -> str:
    """A threshold, or those of the two halves."""
    return " / ".join(f"{level:.3g}" for level in row.threshold)


def threshold_rows(evaluation: OpenSetEvaluation) -> dict[str, list[str]]:
    """Metric to its values in percent: without rejection, and by each rule."""
    rules, closed = evaluation.thresholds, evaluation.closed
    return {
        name: [
            metric_info(name).text(closed[name]) if name in closed else "",
            *(metric_info(name).text(row.metrics[name]) for row in rules),
        ]
        for name in SHOWN
        if any(row.metrics.get(name) is not None for row in rules)
    }


def open_set_sentences(evaluation: OpenSetEvaluation) -> list[str]:
    """What the metrics mean, in sentences."""
    top = evaluation.at(evaluation.told or evaluation.main)
    texts = {
        name: metric_info(name).text(top.metrics[name]) for name in ("unknown_rejected", "known_rejected", "f_measure")
    }
    where = f"threshold {rule_threshold(top)}"
    if len(top.threshold) > 1:
        where = f"thresholds {rule_threshold(top)} of two halves"
    return [
        f"At the {where}, {texts['unknown_rejected']} % of the {evaluation.unknown:,} unknown samples are rejected, "
        f"and {texts['known_rejected']} % of the {evaluation.known:,} known ones: F-measure {texts['f_measure']} %.",
        f"A known sample has higher confidence than an unknown one in "
        f"{metric_info('auroc').text(evaluation.auroc['max_probability'])} % of the pairs (AUROC).",
        *evaluation.notes,
    ]


def open_set_section(evaluation: OpenSetEvaluation) -> Section:
    """The section.

    Args:
        evaluation: what ``equipoise.evaluation.evaluate_open_set`` gives.
    """
    rules = evaluation.thresholds
    head = ["", "no rejection", *(rule_name(row, evaluation) for row in rules)]
    rows: list[list[str | Cell]] = [
        ["threshold", "", *(rule_threshold(row) for row in rules)],
        ["chosen on", "", *(row.chosen_on.removesuffix(" of the samples") for row in rules)],
    ]
    for name, cells in threshold_rows(evaluation).items():
        rows.append([Cell(metric_info(name).label, note=SHOWN[name]), *cells])
    areas = [
        [score, metric_info("auroc").text(evaluation.auroc[name])]
        for name, score in SCORES.items()
        if name in evaluation.auroc
    ]
    notes = [
        "F-measure of Liu et al. 2019: a rejected known sample is a false positive."
        if evaluation.convention == "oltr"
        else "F-measure of Kang et al. 2020: a rejected known sample is no false positive.",
    ]
    if any(len(row.threshold) > 1 for row in rules):
        notes.append("Two thresholds are those of two halves of the samples, each chosen on the other half.")
    return Section(
        "Open set",
        f"{evaluation.unknown:,} samples of unknown classes and {evaluation.known:,} of known ones. A sample is "
        "rejected if its largest probability is below the threshold; a rejected known sample counts as an error. In "
        "percent.",
        tables=[Table(head, rows), Table(["AUROC, known vs unknown", ""], areas)],
        figures=[
            Picture(threshold_figure(evaluation), "Over the threshold below which a sample is rejected."),
            Picture(trade_figure(evaluation), "The area below the line is the AUROC."),
            Picture(confidence_figure(evaluation.histogram), "Largest probability; each kind adds up to 100 %."),
        ],
        notes=[*notes, *evaluation.notes],
    )


def threshold_figure(evaluation: OpenSetEvaluation) -> str:
    """F-measure, accuracy of the known and rejection of the unknown samples over the threshold."""
    curve = evaluation.curve
    lines = {
        "f_measure": ("F-measure", Stroke(SERIES[0])),
        "accuracy": ("accuracy of the known", Stroke(SERIES[1], (4.0, 1.6))),
        "unknown_rejected": ("unknown rejected", Stroke(SERIES[2], (1.2, 1.4))),
    }
    with page_style():
        figure, axes = panel(4.6, 3.0, right=0.24, top=0.55, bottom=0.45)
        for name, (label, stroke) in lines.items():
            seen = [pair for pair in zip(curve.threshold, getattr(curve, name), strict=True) if pair[1] is not None]
            axes.plot(*zip(*seen, strict=True), color=stroke.colour, linestyle=stroke.style, linewidth=1.7, label=label)
        for level in evaluation.top.threshold:
            axes.axvline(level, color=INK, linewidth=0.8)
            axes.plot([level], [_value_at(curve, level)], "o", color=SERIES[0], markersize=5, clip_on=False)
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="threshold")
        percent(axes.yaxis)
        titled(figure, "Over thresholds")
        figure.legend(loc="upper left", bbox_to_anchor=(0.0, 1 - 0.2 / 3.0), ncols=3, columnspacing=1, borderpad=0)
    return as_svg(figure, "F-measure, accuracy of the known samples and rejection of the unknown ones over thresholds")


def trade_figure(evaluation: OpenSetEvaluation) -> str:
    """Rejected unknown samples over rejected known ones: the curve above an area that is the AUROC."""
    area = metric_info("auroc").text(evaluation.auroc["max_probability"])
    with page_style():
        figure, axes = panel(4.6, 3.0, right=0.24, top=0.55, bottom=0.45)
        axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=(0, (3, 3)), label="chance")
        label = f"unknown rejected, AUROC {area} %"
        trade, top = evaluation.trade, evaluation.top.metrics
        axes.plot(trade.known_rejected, trade.unknown_rejected, color=SERIES[2], linewidth=1.7, label=label)
        point = [top[name] or 0.0 for name in ("known_rejected", "unknown_rejected")]
        axes.plot(point[:1], point[1:], "o", color=SERIES[2], markersize=5, clip_on=False)
        axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="known rejected")
        percent(axes.xaxis)
        percent(axes.yaxis)
        titled(figure, "What rejection costs")
        figure.legend(loc="upper left", bbox_to_anchor=(0.0, 1 - 0.2 / 3.0), ncols=2, columnspacing=1, borderpad=0)
    return as_svg(figure, "Percentage of unknown samples that are rejected over that of known ones")


def _value_at(curve: RejectionRates, level: float) -> float:
    """The F-measure of the curve next to a threshold."""
    place = min(range(len(curve.threshold)), key=lambda k: abs(curve.threshold[k] - level))
    return curve.f_measure[place] or 0.0


def confidence_figure(histogram: ConfidenceHistogram, title: str = "Confidence of known and unknown samples") -> str:
    """Histograms of the confidence of known and of unknown samples."""
    known = [right + wrong for right, wrong in zip(histogram.known_right, histogram.known_wrong, strict=True)]
    with page_style():
        figure, axes = panel(4.6, 3.0, right=0.24, top=0.55, bottom=0.45)
        for number, (name, counts) in enumerate((("known", known), ("unknown", histogram.unknown))):
            fractions = [count / max(sum(counts), 1) for count in counts]
            colour = SERIES[2 * number]
            axes.stairs(fractions, histogram.edges, fill=True, color=colour, alpha=0.35, linewidth=0)
            axes.stairs(fractions, histogram.edges, color=colour, linewidth=1.5, label=name)
        axes.set(xlim=(0, 1), xlabel="confidence")
        axes.set_ylim(bottom=0)
        percent(axes.yaxis)
        titled(figure, title)
        figure.legend(loc="upper left", bbox_to_anchor=(0.0, 1 - 0.2 / 3.0), ncols=2, columnspacing=1, borderpad=0)
    return as_svg(figure, "Histograms of the confidence of known and of unknown samples")
