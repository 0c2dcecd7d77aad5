"""``equipoise evaluate``: how good saved predictions are, on rare classes too, and how far they can be trusted."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

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
    bootstrap: Annotated[int, typer.Option(min=0, metavar="N", help="95 % intervals from N resamplings.")] = 0,
    worst: Annotated[int, typer.Option(min=0, help="How many of the worst classes to show.")] = 5,
    seed: Seed = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON.")] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="PAGE", help="Write a page with tables and figures, one self-contained file.")
    ] = None,
    open_set: Annotated[
        Path | None,
        typer.Option(
            "--open-set",
            metavar="FILE",
            help="Predictions of samples of no known class, without targets or with any: how well they are rejected.",
        ),
    ] = None,
    open_label: Annotated[
        int | None,
        typer.Option("--open-label", metavar="K", help="The target of such samples where they are in the same FILE."),
    ] = None,
    open_threshold: Annotated[
        float | None,
        typer.Option(
            "--open-threshold",
            min=0.0,
            max=1.0,
            metavar="P",
            help="Reject samples whose largest probability is below; 0.1 as published, or chosen on --val.",
        ),
    ] = None,
    val: Annotated[
        Path | None,
        typer.Option(
            "--val", metavar="FILE", help="Predictions of validation data, to choose the threshold of the open set on."
        ),
    ] = None,
) -> None:
    """Evaluate saved predictions of any framework: by class, by group, calibration before and after temperature."""
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
        judged = {}
        if unknown is not None:
            judged["open_set"] = judged_open(source, unknown, open_threshold, val, open_label, seed)
        with walking(source, walks=2) as progress:
            found = measure(source, bins=bins, bootstrap=bootstrap, seed=seed, progress=progress) | judged
        if html is not None:
            from equipoise.report.evaluation import evaluation_page

            command = shlex.join(["equipoise", *sys.argv[1:]])
            write_text(html, evaluation_page(found, command=command))
    if as_json:
        typer.echo(json_text(found))
    else:
        from equipoise.cli.summary import print_evaluation

        print_evaluation(found, worst)
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
) -> dict[str, Any]:
    """The numbers of the open set; in the validation data the open label marks unknown samples too, if it is there."""
    from equipoise.evaluation import evaluate_open_set

    checks = open_checks = None
    if val is not None:
        checks = open_predictions(val, task="single", ignore_index=known.ignore_index, open_label=open_label)
        if open_label is not None:
            both, (checks, open_checks) = checks, split_open(checks)
            if not any((chunk.targets == open_label).any() for chunk in both.read(100_000)):
                open_checks = None
    return evaluate_open_set(known, unknown, threshold=threshold, val=checks, open_val=open_checks, seed=seed)
