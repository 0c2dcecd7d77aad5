"""``equipoise evaluate``: how good saved predictions are, on rare classes too, and how far they can be trusted."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli.inputs import Counts, IgnoreIndex, Seed, TaskOption, bad_input, json_text, opened, walking
from equipoise.predictions.write import appearing, check_place

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
) -> None:
    """Evaluate saved predictions of any framework: by class, by group, calibration before and after temperature."""
    with bad_input():
        if html is not None:
            check_place(html)
        source = opened(file, task, train_counts, ignore_index)
        from equipoise.evaluation import evaluate as measure  # torch, torchmetrics and scipy: only once they are needed

        with walking(source, walks=2) as progress:
            found = measure(source, bins=bins, bootstrap=bootstrap, seed=seed, progress=progress)
        if html is not None:
            from equipoise.report.evaluation import evaluation_page

            command = shlex.join(["equipoise", *sys.argv[1:]])
            with appearing(html) as draft:
                draft.write_text(evaluation_page(found, command=command), encoding="utf-8")
    if as_json:
        typer.echo(json_text(found))
    else:
        from equipoise.cli.summary import print_evaluation

        print_evaluation(found, worst)
    if html is not None:
        typer.echo(f"wrote {html}", err=as_json)
