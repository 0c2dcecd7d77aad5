"""The page of an evaluation, from its numbers alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from equipoise._formatting import LABELS, class_label, described, group_notes, shown, things, verdicts
from equipoise.report.figures import EVERY_LABEL, TOP_LABEL, class_bars, confidence_histogram, reliability_diagram
from equipoise.report.open_set import open_set_section, open_set_sentences
from equipoise.report.page import Picture, Section, Table, render

__all__ = ["evaluation_page"]


def evaluation_page(found: Mapping[str, Any], *, command: str = "") -> str:
    """The page as HTML.

    Args:
        found: what ``equipoise.evaluation.evaluate`` gives, or its JSON read again; under ``open_set`` what
            ``evaluate_open_set`` gives, where there is an open set.
        command: what made it, shown at the end.
    """
    sections = [_overall(found), _calibration(found)]
    if found["groups"]:
        sections.append(_groups(found))
    sections.append(_classes(found))
    sentences = verdicts(found)
    if "open_set" in found:
        sections.append(open_set_section(found["open_set"]))
        sentences += open_set_sentences(found["open_set"])
    footer = f"Made by: {command}" if command else "Made by equipoise evaluate."
    return render(f"Evaluation of {found['file']}", described(found), sentences, sections, footer)


def _overall(found: Mapping[str, Any]) -> Section:
    intervals = found["intervals"]
    head = ["", "value", "95 % interval"] if intervals else ["", "value"]
    rows = []
    for name, value in found["overall"].items():
        row = [LABELS[name], shown(name, value)]
        if intervals:
            limits = intervals.get(name)
            row.append("–" if limits is None else f"{shown(name, limits[0])} to {shown(name, limits[1])}")
        rows.append(row)
    return Section("Overall", "Shares in percent; NLL and Brier score as they are.", tables=[Table(head, rows)])


def _calibration(found: Mapping[str, Any]) -> Section:
    calibration = found["calibration"]
    after = calibration["after"]
    rows = [
        [LABELS[name], shown(name, value), *([shown(name, after[name])] if after else [])]
        for name, value in calibration["before"].items()
    ]
    notes = [*calibration["fits"], *([calibration["note"]] if calibration["note"] else []), *_kinds(found)]
    words = EVERY_LABEL if found["task"] == "multi" else TOP_LABEL
    diagrams = [
        Picture(reliability_diagram("all samples" if name == "all" else f"{name} training samples", curves, words))
        for name, curves in found["reliability"].items()
    ]
    histogram = confidence_histogram(found["reliability"]["all"]["before"], words)
    return Section(
        "Calibration",
        "Each half of the samples is calibrated by a temperature fitted on the other half. In the diagrams, what lies "
        f"below the diagonal was announced too surely: {words.announced} above what comes true.",
        tables=[Table(["", "before", *(["after"] if after else [])], rows)],
        figures=[*diagrams, Picture(histogram, f"By {words.announced}, before calibration.")],
        notes=notes,
    )


def _groups(found: Mapping[str, Any]) -> Section:
    key = found["main"]
    rows = [
        [row["name"], f"{row['classes']:,}", f"{row['support']:,}", shown(key, row[key]), shown("ece", row["ece"])]
        for row in found["groups"]
    ]
    head = ["training samples", things(found["task"]), "support", f"mean {LABELS[key]}", "ECE"]
    return Section(
        f"Groups of {things(found['task'])}",
        "Many: more than 100 training samples; few: fewer than 20.",
        tables=[Table(head, rows)],
        notes=group_notes(found["task"]),
    )


def _kinds(found: Mapping[str, Any]) -> list[str]:
    """What is meant by the calibration errors of the page."""
    if found["task"] == "multi":
        return ["ECE: the probabilities of all labels, pooled; in the table of labels those of one label."]
    top = "ECE: how far the largest probability of a sample lies from the accuracy, over bins of it."
    if "classwise_ece" not in found["calibration"]["before"]:
        return [top]
    return [
        f"{top} Classwise ECE: how far the probability of a class lies from how often it is the true one, over all "
        "samples; the mean over the classes, and in the table of classes each alone."
    ]


def _classes(found: Mapping[str, Any]) -> Section:
    key = found["main"]
    classes = found["per_class"]
    names = [name for name in classes[0] if name in LABELS]
    counted = classes[0]["train_count"] is not None
    labels = [class_label(name, found["task"]) for name in names]
    head = [
        "label" if found["task"] == "multi" else "class",
        *(["training samples"] if counted else []),
        "support",
        *labels,
    ]
    rows = [
        [
            row["name"],
            *([f"{row['train_count']:,.0f}"] if counted else []),
            f"{row['support']:,}",
            *(shown(name, row[name]) for name in names),
        ]
        for row in classes
    ]
    order = sorted(classes, key=lambda row: -(row["train_count"] or 0)) if counted else classes
    return Section(
        things(found["task"]).capitalize(),
        tables=[Table(head, rows, folded=f"all {len(rows)} in numbers" if len(rows) > 12 else "")],
        figures=[Picture(class_bars(order, key, LABELS[key], things(found["task"])))],
    )
