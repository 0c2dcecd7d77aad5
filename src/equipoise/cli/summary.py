"""Print an evaluation in the terminal."""

from __future__ import annotations

from dataclasses import replace

from rich.table import Table

from equipoise._visible import visible
from equipoise.cli.console import Console
from equipoise.evaluation.results import Evaluation, OpenSetEvaluation
from equipoise.evaluation.sentences import (
    class_metric,
    described,
    group_notes,
    open_set_rows,
    open_set_sentences,
    rule_name,
    sentences_of,
    threshold_text,
    worst_classes,
)
from equipoise.metric_registry import metric_info
from equipoise.train.folder import RunFolder

__all__ = ["plain_table", "print_evaluation", "print_open_set", "print_run"]


def print_evaluation(evaluation: Evaluation, worst: int) -> None:
    """Print tables and sentences; fractions are in percent."""
    console = Console()
    console.print(f"{evaluation.file}: {described(evaluation)}")
    after, intervals, task = evaluation.calibration.after, evaluation.intervals, evaluation.task
    table = plain_table("", "value", *(["95 % CI"] if intervals else []), *(["after temperature"] if after else []))
    for key, value in evaluation.overall.items():
        metric = metric_info(key)
        cells = [metric.label, metric.text(value)]
        if intervals:
            cells.append(" – ".join(map(metric.text, intervals.get(key, ()))))
        if after:
            cells.append(metric.text(after[key]) if key in after else "")
        table.add_row(*cells)
    console.print(table)
    if evaluation.groups:
        main, ece = metric_info(evaluation.main), metric_info("ece")
        table = plain_table("training samples", task.many, "support", f"mean {main.label}", "ECE")
        for group in evaluation.groups:
            cells = [metric.text(group.metrics[metric.key]) for metric in (main, ece)]
            table.add_row(group.name, f"{group.classes:,}", f"{group.support:,}", *cells)
        console.print(table)
        for sentence in group_notes(evaluation.task):
            console.print(sentence)
    rows = worst_classes(evaluation, worst)
    if rows:
        metrics = [class_metric(key, evaluation.task) for key in rows[0].metrics]
        table = plain_table(f"worst {task.many}", "support", *(metric.label for metric in metrics))
        for row in rows:
            cells = [metric.text(value) for metric, value in zip(metrics, row.metrics.values(), strict=True)]
            table.add_row(visible(row.name, lines=False), f"{row.support:,}", *cells)
        console.print(table)
    for sentence in sentences_of(evaluation):
        console.print(sentence)
    if evaluation.open_set is not None:
        print_open_set(evaluation.open_set)


def print_open_set(evaluation: OpenSetEvaluation) -> None:
    """Print the evaluation of an open set; fractions are in percent."""
    console = Console()
    rules = evaluation.thresholds
    table = plain_table("open set", "no rejection", *(rule_name(row, evaluation) for row in rules))
    table.add_row("threshold", "", *(threshold_text(row) for row in rules))
    for name, cells in open_set_rows(evaluation).items():
        table.add_row(metric_info(name).label, *cells)
    console.print(table)
    for sentence in open_set_sentences(evaluation):
        console.print(sentence)


def print_run(folder: RunFolder) -> None:
    """Print the test metrics of a finished run, and its folder."""
    record, results = folder.record, folder.results
    monitor = metric_info(record.monitor)
    file = f"test data of {record.data.name}"
    print_evaluation(replace(results.test, file=file, open_set=results.open), worst=3)
    value = f"{monitor.label} {monitor.text(record.monitor_value)} on validation data"
    Console().print(f"{folder.path}: epoch {record.best_epoch + 1} of {record.epochs}, {value}")


def plain_table(first: str, *others: str) -> Table:
    """A table without borders; the first column is text, the others are numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table
