"""Shared functions of the commands: options, opening predictions, progress, and errors of bad input."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from equipoise._extras import MissingPackageError
from equipoise._reading import map_array
from equipoise._text_files import encoding_of
from equipoise.cli.console import Console, fail
from equipoise.predictions import InputError, Predictions, open_predictions
from equipoise.tasks import Task
from equipoise.train.errors import TrainingError

__all__ = [
    "Counts",
    "IgnoreIndex",
    "Seed",
    "TaskOption",
    "bad_input",
    "json_text",
    "opened",
    "read_counts",
    "task_option",
    "walking",
]

TaskOption = Annotated[
    str | None,
    typer.Option("--task", metavar="TASK", help="multiclass, multilabel or segmentation; default: from the shapes."),
]
Counts = Annotated[
    str | None,
    typer.Option(
        "--train-counts",
        "--counts",
        metavar="COUNTS",
        help="Training samples of each class: numbers with commas, or a .npy, .txt or .csv file of them.",
    ),
]
IgnoreIndex = Annotated[int, typer.Option("--ignore-index", help="Target to ignore.")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Random seed.")]
MOST_CLASSES = 10_000_000
"""Maximum number of counts that are read from a file."""


def json_text(data: object) -> str:
    """JSON; infinite numbers become ``"inf"`` or ``"-inf"``, because JSON does not support them."""

    def finite(value: Any) -> Any:  # noqa: ANN401
        if isinstance(value, float) and math.isinf(value):
            return "inf" if value > 0 else "-inf"
        if isinstance(value, dict):
            return {key: finite(item) for key, item in value.items()}
        return [finite(item) for item in value] if isinstance(value, (list, tuple)) else value

    return json.dumps(finite(data), indent=2, allow_nan=False)


@contextmanager
def bad_input() -> Iterator[None]:
    """Report bad input in one line with exit status 2, a failed training with status 1."""
    try:
        yield
    except TrainingError as error:
        fail(error, 1)
    except (InputError, MissingPackageError, OSError, ValueError) as error:
        fail(" ".join(str(error).split()))  # other libraries break their lines


def task_option(name: str | None) -> Task | None:
    """The task with the name from ``--task``."""
    try:
        return None if name is None else Task(name)
    except ValueError as error:
        raise InputError(f"--{error}") from None


def opened(
    path: Path,
    task: str | None,
    train_counts: str | None,
    ignore_index: int,
    *,
    unlabelled: str | None = None,
    open_label: int | None = None,
    others: bool = False,
) -> Predictions:
    """Open predictions with the options of a command."""
    task_option(task)
    counts = None if train_counts is None else read_counts(train_counts)
    return open_predictions(
        path,
        task=task,
        train_counts=counts,
        ignore_index=ignore_index,
        unlabelled=unlabelled,
        open_label=open_label,
        others=others,
    )


def read_counts(text: str) -> tuple[float, ...]:
    """Counts from numbers with commas, or from a file of numbers."""
    path = Path(text)
    try:
        if path.suffix == ".npy":
            values = [float(value) for value in map_array(path).ravel()[:MOST_CLASSES]]
        elif path.suffix in (".txt", ".csv"):
            values = [float(word) for word in path.read_text(encoding=encoding_of(path)).replace(",", " ").split()]
        else:
            values = [float(word) for word in text.split(",")]
    except Exception as error:  # reading a file can raise any error
        raise InputError(
            f"counts must be numbers with commas such as 5000,500,50, or a .npy, .txt or .csv file of numbers, got "
            f"{text!r} ({error})"
        ) from error
    if not values or not all(0 <= value < float("inf") for value in values):
        raise InputError(f"counts must be finite and not negative, got {text!r}; count the training labels")
    return tuple(float(value) for value in values)


@contextmanager
def walking(source: Predictions | None, walks: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal for ``walks`` passes over the samples."""
    if source is None:
        yield lambda samples: None
        return
    total = None if source.samples is None else source.samples * walks
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed:,} samples"),
        TimeRemainingColumn(),
    )
    console = Console(file=sys.stderr)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"reading {source.path.name}", total=total)
        yield lambda samples: progress.advance(task, samples)
