"""An evaluation in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from equipoise._formatting import LABELS, class_label, described, group_notes, shown, things, verdicts, worst_classes
from equipoise._visible import visible
from equipoise.cli.console import Console
from equipoise.train.folder import RunFolder

__all__ = ["plain_table", "print_evaluation", "print_open_set", "print_run"]


def print_evaluation(found: Mapping[str, Any], worst: int) -> None:
    """Print tables and sentences; shares are in percent."""
    console = Console()
    console.print(f"{found['file']}: {described(found)}")
    after = found["calibration"]["after"]
    intervals = found["intervals"]
    table = plain_table(
        "", "value", *(["95 % interval"] if intervals else []), *(["after temperature"] if after else [])
    )
    for name, value in found["overall"].items():
        cells = [LABELS[name], shown(name, value)]
        if intervals:
            limits = intervals.get(name)
            cells.append("" if limits is None else f"{shown(name, limits[0])} – {shown(name, limits[1])}")
        if after:
            cells.append(shown(name, after[name]) if name in after else "")
        table.add_row(*cells)
    console.print(table)
    key = found["main"]
    if found["groups"]:
        table = plain_table("training samples", things(found["task"]), "support", f"mean {LABELS[key]}", "ECE")
        for row in found["groups"]:
            cells = [f"{row['classes']:,}", f"{row['support']:,}", shown(key, row[key]), shown("ece", row["ece"])]
            table.add_row(row["name"], *cells)
        console.print(table)
        for sentence in group_notes(found["task"]):
            console.print(sentence)
    rows = worst_classes(found, worst)
    if rows:
        names = [name for name in rows[0] if name in LABELS]
        heads = [class_label(name, found["task"]) for name in names]
        table = plain_table(f"worst {things(found['task'])}", "support", *heads)
        for row in rows:
            table.add_row(
                visible(row["name"], lines=False), f"{row['support']:,}", *(shown(name, row[name]) for name in names)
            )
        console.print(table)
    for sentence in verdicts(found):
        console.print(sentence)
    if "open_set" in found:
        print_open_set(found["open_set"])


def print_open_set(found: Mapping[str, Any]) -> None:
    """Print what ``equipoise.evaluation.evaluate_open_set`` found; shares are in percent."""
    from equipoise.report.open_set import open_set_sentences, rule_name, rule_threshold, threshold_rows

    console = Console()
    rules = found["thresholds"]
    table = plain_table("open set", "no rejection", *(rule_name(row, found) for row in rules))
    table.add_row("threshold", "", *(rule_threshold(row) for row in rules))
    for name, cells in threshold_rows(found).items():
        table.add_row(LABELS[name], *cells)
    console.print(table)
    for sentence in open_set_sentences(found):
        console.print(sentence)


def print_run(folder: RunFolder) -> None:
    """Print what a finished run reached on its test data, and where it lies."""
    record, results = folder.record, folder.results
    print_evaluation({**results["test"], "file": f"test data of {record.data.name}"}, worst=3)
    if "open" in results:
        print_open_set(results["open"])
    value = f"{LABELS[record.monitor]} {shown(record.monitor, record.monitor_value)} on validation data"
    Console().print(f"{folder.path}: epoch {record.best_epoch + 1} of {record.epochs}, {value}")


def plain_table(first: str, *others: str) -> Table:
    """A table without lines; the first column is text, the others are numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table
