"""``equipoise doctor``: problems and warnings about counts or predictions, and suitable losses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.cli.console import Console
from equipoise.cli.inputs import (
    IgnoreIndex,
    TaskOption,
    bad_input,
    json_text,
    opened,
    read_counts,
    task_option,
    walking,
)
from equipoise.predictions import InputError
from equipoise.tasks import Task, check_binary

if TYPE_CHECKING:
    from equipoise.doctor.diagnosis import Diagnosis

__all__ = ["doctor"]

COLOURS = {"problem": "red", "warning": "yellow", "note": "cyan"}


def doctor(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Predictions, as for evaluate.")] = None,
    counts: Annotated[
        str | None,
        typer.Option(
            "--counts",
            "--train-counts",
            metavar="COUNTS",
            help="Training samples of each class: numbers with commas, or a .npy, .txt or .csv file.",
        ),
    ] = None,
    task: TaskOption = None,
    loss: Annotated[
        str | None, typer.Option(help="The loss you train with, to check whether it goes with the rest.")
    ] = None,
    sampler: Annotated[
        str, typer.Option(help="none, balanced, square-root, progressive, reversed or repeat-factor.")
    ] = "none",
    weights: Annotated[bool, typer.Option("--weights", help="Class weights are given to the loss.")] = False,
    ignore_index: IgnoreIndex = -100,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Report problems and suggest losses: from predictions (FILE), from --counts, or from both."""
    with bad_input():
        from equipoise.doctor.diagnosis import diagnose

        source = None if file is None else opened(file, task, counts, ignore_index)
        if source is not None:
            numbers = source.train_counts
        elif counts is not None:
            numbers = read_counts(counts)
        else:
            raise InputError(
                "doctor needs predictions or counts, got neither; try: equipoise doctor --counts 5000,500,50"
            )
        if source is None and numbers is not None and len(numbers) == 1:
            raise InputError(
                f"--counts must have a number for each class, got only {counts!r}; "
                "try: equipoise doctor --counts 5000,500,50"
            )
        kind = source.task if source is not None else task_option(task) or Task.MULTICLASS
        if numbers is not None:
            check_binary(task, len(numbers), InputError, "--")
        with walking(source, walks=4 if kind.multilabel else 3) as progress:
            diagnosis = diagnose(
                source, numbers, task=kind, loss=loss, sampler=sampler, weights=weights, progress=progress
            )
    if as_json:
        typer.echo(json_text(diagnosis.to_json()))
    else:
        _print(diagnosis)


def _print(diagnosis: Diagnosis) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    console = Console()
    for finding in diagnosis.findings:
        console.print(Text.assemble((f"{finding.level}: ", f"bold {COLOURS[finding.level]}"), (finding.about, "bold")))
        console.print(Padding(Text(f"{finding.text} {finding.advice}"), (0, 0, 0, 2)))
    console.print(Text("losses to compare", "bold"))
    table = Table.grid(padding=(0, 2))
    for one in diagnosis.suggestions:
        table.add_row(Text(one.text, "bold"), one.why)
    console.print(Padding(table, (0, 0, 0, 2)))
    losses = " ".join(one.text for one in (diagnosis.suggestions[-1], *diagnosis.suggestions[:-1]))
    console.print(f"equipoise compare --data DATA --losses '{losses}' trains and judges them", soft_wrap=True)
    console.print("equipoise losses NAME shows formula, paper, and when not to use it")
