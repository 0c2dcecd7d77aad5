"""Print a comparison in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.text import Text

from equipoise._formatting import shown
from equipoise.cli.console import Console
from equipoise.cli.summary import plain_table
from equipoise.comparison.sentences import JUDGED, interval_text, signed
from equipoise.comparison.verdict import MetricDifference, Verdict
from equipoise.report.tables import Result, label, results_of, spread

__all__ = ["print_comparison"]

MARKS = {"better": " ▲", "worse": " ▼", "": ""}

Columns = Mapping[str, Sequence[Text]]


def print_comparison(verdict: Verdict, console: Console | None = None) -> None:
    """Print the table, the differences from the baseline, and the sentences; wide tables are split.

    Args:
        verdict: verdict of the comparison.
        console: console to print to; None for stdout.
    """
    console = console or Console()
    losses = [Text(row.loss) for row in verdict.rows]
    results = results_of(verdict)
    columns = {label(metric): [_cell(metric, row[metric]) for row in results] for metric in verdict.metrics}
    _print_columns(console, "", losses, columns)
    compared = _differences(verdict)
    if compared:
        names = list(dict.fromkeys(one.loss for one in verdict.differences))
        interval = ", 95 % CI" if any(one.interval is not None for one in verdict.differences) else ""
        _print_columns(
            console, f"difference from {verdict.baseline}{interval}", [Text(name) for name in names], compared
        )
    bold = "Bold: the best mean. " if console.is_terminal and not console.is_dumb_terminal else ""
    if len(verdict.seeds) > 1:
        console.print(
            f"Means ± standard deviation over {len(verdict.seeds)} seeds, fractions in percent. {bold}"
            f"▲ significantly better than {verdict.baseline}, ▼ significantly worse.",
        )
    for sentence in verdict.sentences:
        console.print(Text(sentence))


def _cell(metric: str, result: Result) -> Text:
    deviation = "" if result.std is None else f" ± {spread(metric, result)}"
    text = Text(f"{shown(metric, result.mean)}{deviation}", style="bold" if result.best else "")
    return text.append(MARKS[result.mark])


def _differences(verdict: Verdict) -> dict[str, list[Text]]:
    """Differences with their intervals, by metric."""
    known = {(one.loss, one.metric): one for one in verdict.differences}
    names = list(dict.fromkeys(one.loss for one in verdict.differences))
    judged = {one.metric for one in verdict.differences}
    metrics = [metric for metric in dict.fromkeys((verdict.main_metric, *JUDGED)) if metric in judged]
    return {label(metric): [_difference(known.get((name, metric))) for name in names] for metric in metrics if names}


def _difference(one: MetricDifference | None) -> Text:
    if one is None:
        return Text("–")
    metric = one.metric
    text = Text(signed(metric, one.mean))
    if one.interval is not None:
        text.append(f" ({interval_text(metric, one.interval)})" if one.usable else " (no usable interval)")
    if one.significant:
        text.append(MARKS["better" if one.is_gain else "worse"])
    return text


def _print_columns(console: Console, title: str, losses: Sequence[Text], columns: Columns) -> None:
    """Print the columns in several tables, one below the other, if the terminal is too narrow for all."""
    first = max(map(len, [title, *(loss.plain for loss in losses)]))
    columns = {name: _aligned(cells) for name, cells in columns.items()}
    for names in _fitting(columns, console.width - first):
        table = plain_table(title, *names)
        for place, loss in enumerate(losses):
            table.add_row(loss, *(columns[name][place] for name in names))
        console.print(table)
        console.print()


def _aligned(cells: Sequence[Text]) -> list[Text]:
    """Pad cells without a mark, so that numbers are aligned."""
    marked = [cell.plain.endswith((MARKS["better"], MARKS["worse"])) for cell in cells]
    return [cell if mark or not any(marked) else cell + Text("  ") for cell, mark in zip(cells, marked, strict=True)]


def _fitting(columns: Columns, width: int) -> Iterator[list[str]]:
    """Groups of columns that fit group by group, at least one column each."""
    group: list[str] = []
    left = width
    for name, cells in columns.items():
        column_width = 2 + max(len(name), *(len(cell) for cell in cells))
        if group and column_width > left:
            yield group
            group, left = [], width
        group.append(name)
        left -= column_width
    if group:
        yield group
