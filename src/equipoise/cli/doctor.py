"""``equipoise doctor``: problems and warnings about counts or predictions, and suitable losses."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise.cli.inputs import IgnoreIndex, TaskOption, bad_input, opened, read_counts, task_option, walking
from equipoise.predictions import InputError, Predictions
from equipoise.tasks import Task, check_binary

if TYPE_CHECKING:
    from equipoise.doctor import Finding
    from equipoise.evaluation import Evaluation

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
        if file is None and counts is None:
            raise InputError(
                "doctor looks at predictions or at counts, got neither; try: equipoise doctor --counts 5000,500,50"
            )
        from equipoise.doctor import look_at_counts, look_at_setup, suggest

        source = None if file is None else opened(file, task, counts, ignore_index)
        numbers = read_counts(counts) if counts is not None else source.train_counts if source is not None else None
        if source is None and numbers is not None and len(numbers) == 1:
            raise InputError(
                f"--counts must have a number for each class, got only {counts!r}; "
                "try: equipoise doctor --counts 5000,500,50"
            )
        kind = source.task if source is not None else task_option(task) or Task.MULTICLASS
        if numbers is not None:
            check_binary(task, len(numbers), InputError, "--")
        findings = look_at_setup(loss=loss, sampler=sampler, weights=weights, counts=numbers)
        if numbers is not None:
            names = source.class_names if source is not None else tuple(f"{kind.one} {k}" for k in range(len(numbers)))
            findings += look_at_counts(numbers, names, kind)
        evaluation = None
        if source is not None:
            evaluation, seen = _evaluated(source)
            findings += seen
        suggestions = suggest(kind, numbers, evaluation)
    order = list(COLOURS)
    findings.sort(key=lambda finding: order.index(finding.level))
    if as_json:
        report = {
            "findings": [asdict(finding) for finding in findings],
            "losses": [
                {"name": item.entry.name, "text": item.text, "why": item.why, "use": item.entry.use}
                for item in suggestions
            ],
        }
        typer.echo(json.dumps(report, indent=2))
        return
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from equipoise.cli.console import Console

    console = Console()
    for finding in findings:
        console.print(Text.assemble((f"{finding.level}: ", f"bold {COLOURS[finding.level]}"), (finding.about, "bold")))
        console.print(Padding(Text(f"{finding.text} {finding.advice}"), (0, 0, 0, 2)))
    console.print(Text("losses to compare", "bold"))
    table = Table.grid(padding=(0, 2))
    for item in suggestions:
        table.add_row(Text(item.text, "bold"), item.why)
    console.print(Padding(table, (0, 0, 0, 2)))
    losses = " ".join(item.text for item in (suggestions[-1], *suggestions[:-1]))
    console.print(f"equipoise compare --data DATA --losses '{losses}' trains and judges them", soft_wrap=True)
    console.print("equipoise losses NAME shows formula, paper, and when not to use it")


def _evaluated(source: Predictions) -> tuple[Evaluation, list[Finding]]:
    """An evaluation with its diagnostics."""
    from equipoise.doctor import look_at_predictions
    from equipoise.doctor.corrections import try_corrections
    from equipoise.evaluation import evaluate

    several = source.task.multilabel
    with walking(source, walks=4 if several else 3) as progress:
        evaluation = evaluate(source, progress=progress)
        corrections = try_corrections(source, progress=progress)
        f1 = _cross_fitted_f1(source, progress) if several else None
    return evaluation, look_at_predictions(evaluation, cross_fitted_f1=f1, corrections=corrections)


def _cross_fitted_f1(source: Predictions, progress: Callable[[int], None]) -> float | None:
    """For several labels the mean F1 to expect from thresholds."""
    from equipoise.calibration import fit_thresholds
    from equipoise.evaluation.split import FitSplit, try_fit

    (rows,) = FitSplit(source, 0, 1.0, progress).rows(True)
    fitted, _ = try_fit(fit_thresholds, rows)
    f1 = [] if fitted is None else [value for value in fitted.f1 if value is not None]
    return sum(f1) / len(f1) if f1 else None
