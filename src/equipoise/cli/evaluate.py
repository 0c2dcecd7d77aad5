"""``equipoise evaluate``: metrics of saved predictions by class and group, and their calibration."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from equipoise._writing import check_place, write_text
from equipoise.cli.console import echo
from equipoise.cli.inputs import Counts, IgnoreIndex, Seed, TaskOption, bad_input, json_text, opened, walking
from equipoise.predictions import InputError, Predictions, open_predictions, split_open

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
    temperature_by: Annotated[
        str,
        typer.Option(
            metavar="METRIC", help="Metric that the temperature minimises: nll, or ece on the grid 0.1 ... 10."
        ),
    ] = "nll",
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
        _check_open_options(open_set, open_label, open_threshold, val)
        source, unknown = opened(file, task, train_counts, ignore_index, open_label=open_label), None
        if open_label is not None:
            source, unknown = split_open(source)
        elif open_set is not None:
            unknown = open_predictions(open_set, ignore_index=ignore_index, targets=False)
        from equipoise.evaluation import evaluate as evaluate_predictions
        from equipoise.evaluation import evaluate_open_set  # torch and scipy: only once they are needed

        rejection = None
        if unknown is not None:  # first, because it reports immediately that files do not fit together
            known_val, unknown_val = _validation(val, source.ignore_index, open_label)
            rejection = evaluate_open_set(
                source, unknown, threshold=open_threshold, val=known_val, open_val=unknown_val, seed=seed
            )
        with walking(source, walks=2) as progress:
            evaluation = evaluate_predictions(
                source,
                bins=bins,
                bootstrap=bootstrap,
                seed=seed,
                temperature_by=temperature_by,  # type: ignore[arg-type]  # it is checked there
                progress=progress,
            )
            evaluation = replace(evaluation, open_set=rejection)
        if html is not None:
            from equipoise.report.evaluation import evaluation_page

            write_text(html, evaluation_page(evaluation, command=shlex.join(["equipoise", *sys.argv[1:]])))
    if as_json:
        typer.echo(json_text(evaluation.to_json()))
    else:
        from equipoise.cli.summary import print_evaluation

        print_evaluation(evaluation, worst)
    if html is not None:
        echo(f"wrote {html}", err=as_json)


def _check_open_options(
    open_set: Path | None, open_label: int | None, open_threshold: float | None, val: Path | None
) -> None:
    """Raise if options of the open set contradict each other."""
    if open_set is not None and open_label is not None:
        raise InputError("--open-set and --open-label both give the samples of unknown classes; use one of them")
    if open_set is None and open_label is None and (open_threshold is not None or val is not None):
        name = "--open-threshold" if open_threshold is not None else "--val"
        raise InputError(f"{name} is for an open set, and there is none; give --open-set FILE or --open-label K")


def _validation(
    val: Path | None, ignore_index: int, open_label: int | None
) -> tuple[Predictions | None, Predictions | None]:
    """Known and unknown validation samples; the open label marks unknown ones, if there are any."""
    if val is None:
        return None, None
    source = open_predictions(val, task="multiclass", ignore_index=ignore_index, open_label=open_label)
    if open_label is None:
        return source, None
    known, unknown = split_open(source)
    return known, unknown if any((chunk.targets == open_label).any() for chunk in source.read(100_000)) else None
