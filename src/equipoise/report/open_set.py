"""The open set in a report: accuracies with and without rejection, thresholds, confidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from equipoise.comparison.kinds import kind_of
from equipoise.evaluation.results import ConfidenceHistogram, OpenSetEvaluation
from equipoise.evaluation.sentences import OPEN_SET_METRICS, open_set_rows, rule_name, threshold_text
from equipoise.metric_registry import metric_info
from equipoise.plotting.rejection import (
    confidence_histogram,
    mean_rejection_curve,
    mean_threshold_curve,
    rejection_curve,
    threshold_curve,
)
from equipoise.plotting.theme import INK, css
from equipoise.report.page import Cell, Head, Key, Picture, Section, Table
from equipoise.report.runs import ComparedLoss
from equipoise.tasks import GROUPS

__all__ = ["compared_open_sets_section", "open_set_section"]

SCORES: Mapping[str, str] = {
    "max_probability": "largest probability",
    "max_logit": "largest logit",
    "energy": "logsumexp of logits",
}
"""Scores that may separate known and unknown samples."""
ACCURACIES = ("accuracy", "mean_class_accuracy", *GROUPS)


def open_set_section(evaluation: OpenSetEvaluation) -> Section:
    """The section of an evaluation: metrics by rule, AUROC by score, and figures."""
    rules = evaluation.thresholds
    head = ["", "no rejection", *(rule_name(row, evaluation) for row in rules)]
    rows: list[list[str | Cell]] = [
        ["threshold", "", *(threshold_text(row) for row in rules)],
        ["chosen on", "", *(row.chosen_on.removesuffix(" of the samples") for row in rules)],
    ]
    for name, cells in open_set_rows(evaluation).items():
        rows.append([Cell(metric_info(name).label, note=OPEN_SET_METRICS[name]), *cells])
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
            Picture(threshold_curve(evaluation), "Over the threshold below which a sample is rejected."),
            Picture(rejection_curve(evaluation), "The area below the line is the AUROC."),
            Picture(confidence_histogram(evaluation.histogram), "Largest probability; each kind adds up to 100 %."),
        ],
        notes=[*notes, *evaluation.notes],
    )


def compared_open_sets_section(losses: Sequence[ComparedLoss]) -> Section | None:
    """Accuracies with and without rejection, and rejected samples; None without an open set."""
    losses = [loss for loss in losses if loss.opens]
    if not losses:
        return None
    first, kind = losses[0].opens[0], kind_of(loss.name for loss in losses)
    lines = [(loss.stroke, loss.opens) for loss in losses]
    return Section(
        "Open set",
        f"{first.unknown:,} samples of unknown classes and {first.known:,} test samples. A sample is rejected if its "
        "largest probability is below a threshold, chosen for each run such that "
        f"{100 * first.accept:g} % of the validation data are accepted. A rejected known sample counts as an error. "
        "Means over the seeds, in percent; dots are at the thresholds.",
        tables=[_compared_table(losses)],
        keys=[
            *(loss.key for loss in losses),
            Key("chance", css(INK), "3 3"),
        ],
        figures=[
            Picture(mean_rejection_curve(lines, "unknown_rejected"), "The area below a line is the AUROC."),
            Picture(mean_rejection_curve(lines, "f_measure"), "As of Liu et al. 2019."),
            Picture(mean_threshold_curve(lines), f"Thresholds are not comparable between {kind.many}."),
        ],
        parts=[
            Section(
                "Confidence of known and unknown samples",
                "Largest probability, all seeds together; each kind adds up to 100 %.",
                figures=[Picture(confidence_histogram(_pooled(loss.opens), loss.name)) for loss in losses],
                folded=True,
            )
        ],
    )


def _compared_table(losses: Sequence[ComparedLoss]) -> Table:
    """Accuracies without and with rejection, and AUROC by score."""
    first = losses[0].opens[0]
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
            _mean_cell([one.top.threshold[0] for one in opens], "{:.3f}".format),
            *(
                _mean_cell([values[kind] for values in metrics])
                for kind in kinds
                for metrics in ([one.closed for one in opens], [one.top.metrics for one in opens])
            ),
            *(_mean_cell([one.auroc[score] for one in opens]) for score in scores),
        ]
        for loss, opens in ((loss, loss.opens) for loss in losses)
    ]
    groups = [("", 2), *((metric_info(kind).label, 2) for kind in kinds), ("AUROC", len(scores))]
    baseline = [place for place, loss in enumerate(losses) if loss.baseline]
    return Table(head, rows, groups=groups, sortable=True, marked=baseline)


def _mean_cell(values: Sequence[float | None], words: Callable[[float], str] | None = None) -> Cell:
    """Mean over the seeds with their standard deviation."""
    words, known = words or metric_info("auroc").text, [value for value in values if value is not None]
    if not known:
        return Cell("–")
    mean = float(np.mean(known))
    below = f"± {words(float(np.std(known, ddof=1)))}" if len(known) > 1 else ""
    return Cell(words(mean), below, mean)


def _pooled(opens: Sequence[OpenSetEvaluation]) -> ConfidenceHistogram:
    """The histograms of all seeds, added up."""
    histograms = [one.histogram for one in opens]
    counts = {
        name: np.sum([getattr(one, name) for one in histograms], 0).tolist()
        for name in ("known_right", "known_wrong", "unknown")
    }
    return ConfidenceHistogram(histograms[0].edges, **counts)
