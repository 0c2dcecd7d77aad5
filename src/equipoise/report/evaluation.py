"""The report of an evaluation, from its results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from equipoise.evaluation.results import Evaluation
from equipoise.evaluation.sentences import class_metric, described, group_notes, open_set_sentences, sentences_of
from equipoise.metric_registry import metric_info
from equipoise.plotting.classes import class_bars
from equipoise.plotting.reliability import EVERY_LABEL, TOP_LABEL, confidence_histogram, reliability_diagram
from equipoise.report.open_set import open_set_section
from equipoise.report.page import Picture, Section, Table, render

__all__ = ["evaluation_page"]


def evaluation_page(evaluation: Evaluation | Mapping[str, Any], *, command: str = "") -> str:
    """The report as HTML.

    Args:
        evaluation: result of ``equipoise.evaluation.evaluate``, or its JSON.
        command: command line to show at the end.
    """
    if not isinstance(evaluation, Evaluation):
        evaluation = Evaluation.from_json(evaluation)
    sections = [_overall(evaluation), _calibration(evaluation)]
    if evaluation.groups:
        sections.append(_groups(evaluation))
    sections.append(_classes(evaluation))
    sentences = sentences_of(evaluation)
    if evaluation.open_set is not None:
        sections.append(open_set_section(evaluation.open_set))
        sentences += open_set_sentences(evaluation.open_set)
    footer = f"Made by: {command}" if command else "Made by equipoise evaluate."
    return render(f"Evaluation of {evaluation.file}", described(evaluation), sentences, sections, footer)


def _overall(evaluation: Evaluation) -> Section:
    intervals = evaluation.intervals
    head = ["", "value", "95 % CI"] if intervals else ["", "value"]
    rows = []
    for key, value in evaluation.overall.items():
        metric = metric_info(key)
        row = [metric.label, metric.text(value)]
        if intervals:
            row.append(" to ".join(map(metric.text, intervals[key])) if key in intervals else "–")
        rows.append(row)
    return Section("Overall", "Fractions in percent, except NLL and Brier score.", tables=[Table(head, rows)])


def _calibration(evaluation: Evaluation) -> Section:
    calibration = evaluation.calibration
    after = calibration.after
    rows = [
        [metric.label, metric.text(value), *([metric.text(after[metric.key])] if after else [])]
        for metric, value in ((metric_info(key), value) for key, value in calibration.before.items())
    ]
    notes = [*calibration.fits, *([calibration.note] if calibration.note else []), *_definitions(evaluation)]
    by = ", by ECE" if calibration.by == "ece" else ""
    words = EVERY_LABEL if evaluation.task.multilabel else TOP_LABEL
    diagrams = [
        Picture(reliability_diagram("all samples" if name == "all" else f"{name} training samples", curves, words))
        for name, curves in evaluation.reliability.items()
    ]
    return Section(
        "Calibration",
        f"Each half of the samples is calibrated by a temperature fitted on the other half{by}. Below the diagonal of "
        f"a diagram, the {words.predicted} exceeds the {words.observed}: the model is overconfident.",
        tables=[Table(["", "uncalibrated", *(["after temperature scaling"] if after else [])], rows)],
        figures=[
            *diagrams,
            Picture(confidence_histogram(evaluation.curve, words), f"By {words.predicted}, uncalibrated."),
        ],
        notes=notes,
    )


def _groups(evaluation: Evaluation) -> Section:
    task, main, ece = evaluation.task, metric_info(evaluation.main), metric_info("ece")
    rows = [
        [
            row.name,
            f"{row.classes:,}",
            f"{row.support:,}",
            *(metric.text(row.metrics[metric.key]) for metric in (main, ece)),
        ]
        for row in evaluation.groups
    ]
    return Section(
        f"Groups of {task.many}",
        "Many: more than 100 training samples; few: fewer than 20.",
        tables=[Table(["training samples", task.many, "support", f"mean {main.label}", "ECE"], rows)],
        notes=group_notes(evaluation.task),
    )


def _definitions(evaluation: Evaluation) -> list[str]:
    """Definitions of the calibration errors."""
    if evaluation.task.multilabel:
        return ["ECE: over the probabilities of all labels, pooled; in the table of labels, of each label."]
    top = "ECE: gap between the largest probability of a sample and the accuracy, in bins of that probability."
    if "classwise_ece" not in evaluation.calibration.before:
        return [top]
    return [
        f"{top} Classwise ECE: gap between the probability of a class and its observed frequency over all samples; "
        "overall the mean over the classes, in the table of classes each of them."
    ]


def _classes(evaluation: Evaluation) -> Section:
    task, main, classes = evaluation.task, metric_info(evaluation.main), evaluation.per_class
    metrics = [class_metric(key, evaluation.task) for key in classes[0].metrics]
    counted = classes[0].train_count is not None
    counts = ["training samples"] if counted else []
    head = [task.one, *counts, "support", *(metric.label for metric in metrics)]
    rows = [
        [
            row.name,
            *([f"{row.train_count:,.0f}"] if counted else []),
            f"{row.support:,}",
            *(metric.text(value) for metric, value in zip(metrics, row.metrics.values(), strict=True)),
        ]
        for row in classes
    ]
    order = sorted(classes, key=lambda row: -(row.train_count or 0)) if counted else classes
    return Section(
        task.many.capitalize(),
        tables=[Table(head, rows, folded=f"all {len(rows)} as a table" if len(rows) > 12 else "")],
        figures=[Picture(class_bars(order, main, task.many))],
    )
