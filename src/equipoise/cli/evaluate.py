"""``equipoise evaluate``: how good saved predictions are, on rare classes too, and how far they can be trusted."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from equipoise._writing import check_place, write_text
from equipoise.cli.console import echo
from equipoise.cli.inputs import Counts, IgnoreIndex, Seed, TaskOption, bad_input, json_text, opened, walking
from equipoise.predictions import InputError, Predictions, open_predictions, split_open

if TYPE_CHECKING:
    from equipoise.evaluation import OpenSetEvaluation

__all__ = ["evaluate"]


def evaluate(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Predictions: .npz (logits or probs, targets, optionally train_counts, class_names), a folder with "
            "the same as .npy, .csv or .parquet (columns logit_<class> or prob_<class>, and target or target_<class>).",
        ),
    ],
    task: TaskOption = None,
    train_counts: Counts = None,
    ignore_index: IgnoreIndex = -100,
    bins: Annotated[int, typer.Option(min=1, help="Bins of the calibration errors.")] = 15,
    bootstrap: Annotated[
        int, typer.Option(min=0, metavar="N", help="95 % confidence intervals from N bootstrap resamplings.")
    ] = 0,
    worst: Annotated[int, typer.Option(min=0, help="How many of the worst classes to show.")] = 5,
    seed: Seed = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON.")] = False,
    html: Annotated[
        Path | None,
        typer.Option(metavar="PAGE", help="Write a report with tables and figures, one HTML file."),
    ] = None,
    open_set: Annotated[
        Path | None,
        typer.Option(
            "--open-set",
            metavar="FILE",
            help="Predictions of samples of unknown classes, to measure their rejection; targets are ignored.",
        ),
    ] = None,
    open_label: Annotated[
        int | None,
        typer.Option("--open-label", metavar="K", help="The target of unknown samples in the same FILE."),
    ] = None,
    open_threshold: Annotated[
        float | None,
        typer.Option(
            "--open-threshold",
            min=0.0,
            max=1.0,
            metavar="P",
            help="Reject samples whose largest probability is below P; default: chosen on --val, else 0.1.",
        ),
    ] = None,
    val: Annotated[
        Path | None,
        typer.Option(
            "--val", metavar="FILE", help="Predictions of validation data to choose the rejection threshold on."
        ),
    ] = None,
) -> None:
    """Evaluate saved predictions of any framework by class and group, before and after temperature scaling."""
    with bad_input():
        if html is not None:
            check_place(html)
        check_open_options(open_set, open_label, open_threshold, val)
        source, unknown = opened(file, task, train_counts, ignore_index, open_label=open_label), None
        if open_label is not None:
            source, unknown = split_open(source)
        elif open_set is not None:
            unknown = open_predictions(open_set, ignore_index=ignore_index, targets=False)
        from equipoise.evaluation import evaluate as measure  # torch, torchmetrics and scipy: only once they are needed

        # first, since it tells at once where files do not fit together
        judged = None
        if unknown is not None:
            judged = judged_open(source, unknown, open_threshold, val, open_label, seed)
        with walking(source, walks=2) as progress:
            closed = measure(source, bins=bins, bootstrap=bootstrap, seed=seed, progress=progress)
            evaluation = replace(closed, open_set=judged)
        if html is not None:
            from equipoise.report.evaluation import evaluation_page

            command = shlex.join(["equipoise", *sys.argv[1:]])
            write_text(html, evaluation_page(evaluation, command=command))
    if as_json:
        typer.echo(json_text(evaluation.to_json()))
    else:
        from equipoise.cli.summary import print_evaluation

        print_evaluation(evaluation, worst)
    if html is not None:
        echo(f"wrote {html}", err=as_json)


def check_open_options(
    open_set: Path | None, open_label: int | None, open_threshold: float | None, val: Path | None
) -> None:
    """Raise where options of the open set do not fit together."""
    if open_set is not None and open_label is not None:
        raise InputError(
            "--open-set and --open-label both say where the samples of no known class are; use one of them"
        )
    if open_set is None and open_label is None and (open_threshold is not None or val is not None):
        name = "--open-threshold" if open_threshold is not None else "--val"
        raise InputError(f"{name} is for an open set, and there is none; give --open-set FILE or --open-label K")


def judged_open(
    known: Predictions,
    unknown: Predictions,
    threshold: float | None,
    val: Path | None,
    open_label: int | None,
    seed: int,
) -> OpenSetEvaluation:
    """Evaluate the open set; the open label marks unknown samples of the validation data too, if it is there."""
    from equipoise.evaluation import evaluate_open_set

    checks = open_checks = None
    if val is not None:
        checks = open_predictions(val, task="multiclass", ignore_index=known.ignore_index, open_label=open_label)
        if open_label is not None:
            both, (checks, open_checks) = checks, split_open(checks)
            if not any((chunk.targets == open_label).any() for chunk in both.read(100_000)):
                open_checks = None
    return evaluate_open_set(known, unknown, threshold=threshold, val=checks, open_val=open_checks, seed=seed)
