"""``equipoise calibrate``: fit a calibrator on held-out predictions and evaluate it, or apply it to others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise._suggestions import nearest
from equipoise._visible import visible
from equipoise._writing import check_place
from equipoise.cli.console import Console, echo
from equipoise.cli.inputs import Counts, IgnoreIndex, Seed, TaskOption, bad_input, json_text, opened, walking
from equipoise.predictions import InputError, Predictions

if TYPE_CHECKING:
    from equipoise.calibration import Method
    from equipoise.evaluation.calibrators import CalibrationReport, Threshold

__all__ = ["calibrate"]

TABLES = (".csv", ".parquet")
LISTED = 20
"""Maximum number of printed thresholds."""


def calibrate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Predictions, as for equipoise evaluate.")],
    out: Annotated[Path, typer.Option(help="File of the fit (.json); with --apply, of the predictions.")],
    method: Annotated[
        str,
        typer.Option(
            help="temperature (the default), temperature-ece, vector, dirichlet, isotonic, histogram, "
            "group-temperatures, prior, focal; for multi-label data label-temperatures (the default), isotonic, "
            "histogram, focal, thresholds."
        ),
    ] = "",
    apply: Annotated[Path | None, typer.Option(metavar="FITTED", help="Apply this fit to FILE instead.")] = None,
    on: Annotated[
        Path | None, typer.Option(metavar="FILE2", help="Evaluate on these predictions; the fit uses all of FILE.")
    ] = None,
    split: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Without --on: fraction of FILE for a fit that is evaluated on the rest; the saved fit uses all.",
        ),
    ] = 0.5,
    task: TaskOption = None,
    train_counts: Counts = None,
    ignore_index: IgnoreIndex = -100,
    gamma: Annotated[
        float | None,
        typer.Option(min=0.0, help="For focal: a known exponent (default: fitted, which is usually better)."),
    ] = None,
    bias: Annotated[
        bool,
        typer.Option(
            "--bias",
            help="For label-temperatures: a bias for each label too, as after asymmetric losses; decisions may change.",
        ),
    ] = False,
    seed: Seed = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Fit a calibrator and evaluate it on other samples, or apply a fit."""
    with bad_input():
        if apply is not None:
            if method or on is not None or bias or gamma is not None:
                raise InputError("--apply takes an existing fit; omit --method, --on and --bias, and --gamma")
            _apply(apply, file, out, task, train_counts, ignore_index)
            return
        source = opened(file, task, train_counts, ignore_index)
        check_place(out)
        if out.suffix != ".json":
            raise InputError(f"--out: a fit is written as .json, got {out.name!r}; for example --out fit.json")
        other = None if on is None else opened(on, task or source.task, train_counts, ignore_index)
        if other is not None and other.train_counts is None and other.num_classes == source.num_classes:
            other = replace(other, train_counts=source.train_counts)
        if other is None and not 0.0 < split < 1.0:
            raise InputError(
                f"--split must be between 0 and 1 so that both parts have samples, got {split:g}; or give --on FILE2"
            )
        from equipoise.calibration import save
        from equipoise.evaluation.calibrators import fit_and_evaluate

        chosen = _method(method or source.task.calibration, source)
        options = _fit_options(chosen, source, gamma, bias)
        with walking(source, walks=1 if other is not None else 3) as progress:
            fitted, report = fit_and_evaluate(source, other, chosen, options, share=split, seed=seed, progress=progress)
        save(fitted, out)
    if as_json:
        typer.echo(json_text(report.to_json()))
    else:
        _print(report)
        echo(f"wrote {out}; apply it: equipoise calibrate --apply {out} FILE --out FILE2")


def _method(name: str, source: Predictions) -> Method:
    """The calibration method with this name; it must support the task."""
    from equipoise.calibration import METHODS

    known = [method.name for method in METHODS.values() if source.task.fitted in method.tasks]
    if name not in METHODS:
        raise InputError(f"--method must be the name of a method, got {name!r}; {nearest(name, known)}")
    if name not in known:
        things = "multi-label data" if source.task.multilabel else "single-label data"
        raise InputError(f"--method {name} does not support {things}; for this file: {', '.join(known)}")
    return METHODS[name]


def _fit_options(method: Method, source: Predictions, gamma: float | None, bias: bool) -> dict[str, Any]:
    """Keyword arguments of a fit."""
    options: dict[str, Any] = {**source.ignoring}
    if gamma is not None:
        if method.name != "focal":
            raise InputError(f"--gamma belongs to --method focal, got --method {method.name}; omit it")
        options["gamma"] = gamma
    if bias:
        if method.name != "label-temperatures":
            raise InputError(f"--bias belongs to --method label-temperatures, got --method {method.name}; omit it")
        options["bias"] = True
    if method.needs:
        from equipoise.evaluation.meters import group_names

        if source.train_counts is None:
            raise InputError(
                f"{source.path}: --method {method.name} needs the training samples of each class; add train_counts to "
                "the file or pass --train-counts"
            )
        if "groups" in method.needs:
            options["groups"] = group_names(source.train_counts)
        if "train_counts" in method.needs:
            options["train_counts"] = source.train_counts
    return options


def _apply(fit: Path, file: Path, out: Path, task: str | None, train_counts: str | None, ignore_index: int) -> None:
    """Write the calibrated predictions of a file."""
    from equipoise.calibration import Thresholds, load
    from equipoise.evaluation.calibrators import apply_fit

    if out.exists() and out.samefile(file):
        raise InputError(
            f"--out must be another file than the predictions that are read, got {out} for both; choose a new "
            "name, or a fit applied twice would go unnoticed"
        )
    if not fit.is_file():
        raise InputError(f"{fit}: there is no such fit; equipoise calibrate FILE --out {fit.name} makes one")
    fitted = load(fit)
    tables = file.suffix in TABLES and out.suffix in TABLES
    source = opened(file, task, train_counts, ignore_index, unlabelled=fitted.task, others=tables)
    with walking(source, walks=1) as progress:
        applied = apply_fit(fitted, source, out, name=str(fit), progress=progress)
    for line in (fitted.describe(), *applied.notes):
        echo(line)
    if isinstance(fitted, Thresholds):
        echo(f"wrote {out}, {'logits' if applied.logits else 'probabilities'}")
        where = "the columns decision_<label>" if out.suffix in TABLES else "decisions"
        echo(
            f"a label is chosen above {'0' if applied.logits else '0.5'}, as {where} say; what was written is for "
            "decisions and no calibrated probability"
        )
        return
    link = fitted.task.link
    echo(f"wrote {out}, {f'logits; their {link} gives the probabilities' if applied.logits else 'probabilities'}")


def _print(report: CalibrationReport) -> None:
    from equipoise.cli.summary import plain_table
    from equipoise.evaluation.sentences import group_notes
    from equipoise.metric_registry import metric_info

    console = Console()
    console.print(report.judged)
    console.print(f"reported on {report.reported_on:,} other samples")
    table = plain_table("", "before", "after")
    for key, value in report.before.items():
        metric = metric_info(key)
        table.add_row(metric.label, metric.text(value), metric.text(report.after[key]))
    console.print(table)
    if report.groups["before"]:
        task, main, ece = report.task, metric_info(report.main), metric_info("ece")
        table = plain_table("training samples", task.many, "support", f"mean {main.label}", "after", "ECE", "after")
        for pair in zip(report.groups["before"], report.groups["after"], strict=True):
            cells = [metric.text(row.metrics[metric.key]) for metric in (main, ece) for row in pair]
            table.add_row(pair[0].name, f"{pair[0].classes:,}", f"{pair[0].support:,}", *cells)
        console.print(table)
        for sentence in group_notes(report.task):
            console.print(sentence)
    for sentence in report.notes:
        console.print(sentence)
    if report.fitted_on != report.judged_fitted_on:
        console.print(f"saved fit, on all samples: {report.fitted}")
    if report.thresholds:
        _print_thresholds(report.thresholds, console)


def _print_thresholds(thresholds: Sequence[Threshold], console: Console) -> None:
    from equipoise.cli.summary import plain_table
    from equipoise.metric_registry import metric_info

    table = plain_table("label", "threshold", "F1 expected")
    for row in thresholds[:LISTED]:
        table.add_row(visible(row.label, lines=False), f"{row.threshold:.3f}", metric_info("f1").text(row.f1))
    console.print(table)
    if (more := len(thresholds) - LISTED) > 0:
        console.print(f"and {more:,} more: --json has all")
    console.print(
        "thresholds are for the scores as they are in the file; applied, they move the scores: a label is chosen above "
        "probability 0.5, whatever its threshold",
        soft_wrap=True,
    )
