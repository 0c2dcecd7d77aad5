"""``equipoise calibrate``: fit a correction on held-out predictions, say what it is worth, apply it to others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equipoise._records import Record
from equipoise._suggestions import nearest
from equipoise._visible import visible
from equipoise._writing import check_place
from equipoise.cli.console import echo
from equipoise.cli.inputs import Counts, IgnoreIndex, Seed, TaskOption, bad_input, json_text, opened, walking
from equipoise.evaluation.results import GroupResult
from equipoise.predictions import Chunk, InputError, Predictions, write_predictions
from equipoise.tasks import Task

if TYPE_CHECKING:
    from equipoise.calibration import Fitted, Method
    from equipoise.evaluation.rounding import Rounding
    from equipoise.evaluation.split import FitSplit

__all__ = ["calibrate"]

TABLES = (".csv", ".parquet")
LISTED = 20
"""Labels whose thresholds are printed."""


@dataclass(frozen=True)
class Threshold(Record):
    """The threshold of a label as a probability, and the F1 to expect."""

    label: str
    threshold: float
    f1: float | None


@dataclass(frozen=True)
class CalibrationReport(Record):
    """A fit with its metrics on samples that it was not fitted on.

    Args:
        method: of the fit.
        task: of the predictions.
        judged: the fit that the metrics are of.
        judged_fitted_on: rows that it was fitted on.
        reported_on: samples that the metrics are over.
        before: metrics of the uncalibrated probabilities.
        after: metrics of the calibrated ones.
        main: the metric that groups are judged by.
        groups: results of groups ``"before"`` and ``"after"``.
        fitted: the fit that is kept.
        fitted_on: rows that it was fitted on.
        converged: whether the fit converged.
        note: what to know about the fit.
        thresholds: of method thresholds.
        notes: what to know about the predictions.
    """

    method: str
    task: Task
    judged: str
    judged_fitted_on: int | None
    reported_on: int
    before: dict[str, float | None]
    after: dict[str, float | None]
    main: str
    groups: dict[str, list[GroupResult]]
    fitted: str
    fitted_on: int | None
    converged: bool
    note: str
    thresholds: list[Threshold]
    notes: list[str]


def calibrate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Predictions, as for equipoise evaluate.")],
    out: Annotated[Path, typer.Option(help="Where the fit goes (.json); with --apply, the predictions.")],
    method: Annotated[
        str,
        typer.Option(
            help="temperature (the default), temperature-ece, vector, dirichlet, isotonic, histogram, "
            "group-temperatures, prior, focal; for several labels label-temperatures (the default), isotonic, "
            "histogram, focal, thresholds."
        ),
    ] = "",
    apply: Annotated[Path | None, typer.Option(metavar="FITTED", help="Apply this fit to FILE instead.")] = None,
    on: Annotated[
        Path | None, typer.Option(metavar="FILE2", help="Report on these predictions; FILE is used whole for the fit.")
    ] = None,
    split: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Without --on: share of FILE for a fit that is reported on the rest; kept is one on all.",
        ),
    ] = 0.5,
    task: TaskOption = None,
    train_counts: Counts = None,
    ignore_index: IgnoreIndex = -100,
    gamma: Annotated[
        float | None,
        typer.Option(min=0.0, help="For focal: a known exponent. Fitted where nothing is said, better as a rule."),
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
    """Fit a correction of the probabilities, say what it is worth on other samples, or apply a fit."""
    with bad_input():
        if apply is not None:
            if method or on is not None or bias:
                raise InputError("--apply takes a fit that is there; leave out --method, --on and --bias")
            if out.exists() and out.samefile(file):
                raise InputError(
                    f"--out must be another file than the predictions that are read, got {out} for both; choose a new "
                    "name, or a fit applied twice would go unnoticed"
                )
            fitted = _loaded(apply)
            beside = file.suffix in TABLES and out.suffix in TABLES
            source = opened(file, task, train_counts, ignore_index, unlabelled=fitted.task, others=beside)
            echo(_apply(apply, fitted, source, out))
            return
        source = opened(file, task, train_counts, ignore_index)
        method = method or source.task.calibration
        check_place(out)
        if out.suffix != ".json":
            raise InputError(f"--out: a fit is written as .json, got {out.name!r}; for example --out fit.json")
        other = None if on is None else opened(on, task or source.task, train_counts, ignore_index)
        if other is not None and other.train_counts is None and other.num_classes == source.num_classes:
            other = replace(other, train_counts=source.train_counts)
        report = _fit(source, other, method, out, split, gamma, bias, seed)
    if as_json:
        typer.echo(json_text(report.to_json()))
    else:
        _print(report)
        if report.method == "thresholds":
            echo(
                "thresholds are for the scores as they are in the file; applied, they move the scores: a label is "
                "chosen above probability 0.5, whatever its threshold"
            )
        echo(f"wrote {out}; apply it: equipoise calibrate --apply {out} FILE --out FILE2")


def _fit(
    source: Predictions,
    other: Predictions | None,
    name: str,
    out: Path,
    split: float,
    gamma: float | None,
    bias: bool,
    seed: int,
) -> CalibrationReport:
    from equipoise.calibration import save
    from equipoise.evaluation.meters import meter_for
    from equipoise.evaluation.rounding import Rounding
    from equipoise.evaluation.sanity_checks import SanityChecks
    from equipoise.evaluation.split import FitSplit

    method = _method(name, source)
    options = _needs(method, source, gamma, bias)
    if other is None and not 0.0 < split < 1.0:
        raise InputError(
            f"--split must be between 0 and 1 so that both parts have samples, got {split:g}; or give --on FILE2"
        )
    if other is not None and (other.num_classes, other.task) != (source.num_classes, source.task):
        raise InputError(
            f"{other.path}: it must have the task and classes of {source.path.name}, {source.task} with "
            f"{source.num_classes}, found {other.task} with {other.num_classes}"
        )
    with walking(source, walks=1 if other is not None else 3) as progress:
        everything = FitSplit(source, seed, 1.0, progress)
        part_of_it = replace(everything, share=split)
        judged = _fitted_on(part_of_it if other is None else everything, method, options)
        held_out = part_of_it if other is None else FitSplit(other, seed, 0.0)
        meters = [meter_for(held_out.source, from_logits=True, bins=15) for _ in range(2)]
        reported, rounding, checks = 0, Rounding(held_out.source), SanityChecks(held_out.source)
        for part in held_out.parts():
            rest = ~part.first
            logits, targets = part.logits[rest], part.targets[rest]
            rounding.look(part._replace(scores=part.scores[rest], targets=targets))
            checks.look(part.scores, part.targets)
            reported += len(logits)
            for meter, values in zip(meters, (logits, judged(logits)), strict=True):
                meter.update(values, targets)
        if reported == 0:
            raise InputError(f"{source.path}: no sample is left to report on; lower --split or give --on FILE2")
        kept = judged if other is not None else _fitted_on(everything, method, options)
    if source.named:
        judged, kept = (replace(fit, class_names=source.class_names) for fit in (judged, kept))
    save(kept, out)
    return CalibrationReport(
        method=name,
        task=source.task,
        judged=judged.describe(),
        judged_fitted_on=judged.samples,
        reported_on=reported,
        before=meters[0].overall(),
        after=meters[1].overall(),
        main=source.task.main,
        groups={
            when: meter.group_rows(meter.per_class()) for when, meter in zip(("before", "after"), meters, strict=True)
        },
        fitted=kept.describe(),
        fitted_on=kept.samples,
        converged=kept.converged,
        note=kept.note,
        thresholds=_thresholds(kept, source.class_names),
        notes=[*checks.sentences(None), *rounding.sentences()],
    )


def _thresholds(fitted: Fitted, names: Sequence[str]) -> list[Threshold]:
    """The label, its threshold as a probability and the F1 to expect, a row for each label; none for other fits."""
    from equipoise.calibration import Thresholds

    if not isinstance(fitted, Thresholds):
        return []
    rows = zip(names, fitted.probabilities, fitted.f1, strict=True)
    return [Threshold(*row) for row in rows]


def _fitted_on(samples: FitSplit, method: Method, options: dict[str, Any]) -> Fitted:
    """A fit on the first part of the samples."""
    from equipoise.evaluation.split import try_fit

    (rows,) = samples.rows(True)
    fitted, reason = try_fit(method.fit, rows, **options)
    if fitted is None:
        share = "" if samples.share == 1.0 else f" on the share {samples.share:g} of the samples"
        raise InputError(f"{samples.source.path}: --method {method.name} cannot be fitted{share}: {reason}")
    return fitted


def _method(name: str, source: Predictions) -> Method:
    """The method of that name, if it serves the task."""
    from equipoise.calibration import METHODS

    known = [method.name for method in METHODS.values() if source.task.fitted in method.tasks]
    if name not in METHODS:
        raise InputError(f"--method must be the name of a method, got {name!r}; {nearest(name, known)}")
    if name not in known:
        things = "several labels a sample" if source.task.multilabel else "one label a sample"
        raise InputError(f"--method {name} does not serve {things}; for this file: {', '.join(known)}")
    return METHODS[name]


def _needs(method: Method, source: Predictions, gamma: float | None, bias: bool) -> dict[str, Any]:
    """Keyword arguments of a fit."""
    options: dict[str, Any] = {**source.ignoring}
    if gamma is not None:
        if method.name != "focal":
            raise InputError(f"--gamma belongs to --method focal, got --method {method.name}; leave it out")
        options["gamma"] = gamma
    if bias:
        if method.name != "label-temperatures":
            raise InputError(f"--bias belongs to --method label-temperatures, got --method {method.name}; leave it out")
        options["bias"] = True
    from equipoise.evaluation.meters import group_names

    if method.needs:
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


def _loaded(path: Path) -> Fitted:
    from equipoise.calibration import load

    if not path.is_file():
        raise InputError(f"{path}: there is no such fit; equipoise calibrate FILE --out {path.name} makes one")
    return load(path)


def _apply(path: Path, fitted: Fitted, source: Predictions, out: Path) -> str:
    from equipoise.calibration import Thresholds
    from equipoise.evaluation.rounding import Rounding

    if fitted.task != source.task.fitted:
        raise InputError(f"{path}: the fit is for task {fitted.task}, {source.path} is {source.task}; use another fit")
    if fitted.num_classes is not None and fitted.num_classes != source.num_classes:
        raise InputError(
            f"{path}: the fit is for {fitted.num_classes} classes, {source.path} has {source.num_classes}; use another"
        )
    if fitted.class_names and source.named and fitted.class_names != source.class_names:
        raise InputError(
            f"{path}: the fit is for the classes {', '.join(fitted.class_names[:8])} in this order, {source.path} has "
            f"{', '.join(source.class_names[:8])}; order them alike"
        )
    rounding = Rounding(source)
    write_predictions(out, source, _corrected(fitted, source, rounding))
    lines = [fitted.describe()]
    if fitted.class_names and not source.named:
        lines.append(
            f"{source.path.name} names no classes: they are taken to be in the order of the fit, "
            f"{', '.join(fitted.class_names[:8])}{' ...' if len(fitted.class_names) > 8 else ''}"
        )
    lines += rounding.sentences(nll=False)
    probabilities = "" if isinstance(fitted, Thresholds) else f"; their {source.task.link} gives the probabilities"
    lines.append(f"wrote {out}, {f'logits{probabilities}' if source.from_logits else 'probabilities'}")
    if isinstance(fitted, Thresholds):
        where = "the columns decision_<label>" if out.suffix in TABLES else "decisions"
        lines.append(
            f"a label is chosen above {'0' if source.from_logits else '0.5'}, as {where} say; what was written is for "
            "decisions and no calibrated probability"
        )
    return "\n".join(lines)


def _corrected(fitted: Fitted, source: Predictions, rounding: Rounding) -> Iterator[Chunk]:
    from equipoise.calibration import Thresholds
    from equipoise.evaluation.split import FitSplit

    with walking(source, walks=1) as progress:
        for part in FitSplit(source, 0, progress=progress).parts():
            scores = fitted(part.logits)
            if not source.from_logits:
                scores = scores.sigmoid() if source.task.multilabel else scores.softmax(1)
            chosen = fitted.decide(part.logits).numpy() if isinstance(fitted, Thresholds) else None
            rounding.look(part)
            yield Chunk(scores.numpy(), part.targets.numpy(), part.rounded, part.others, chosen)


def _print(report: CalibrationReport) -> None:
    from equipoise.cli.console import Console
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
        table = plain_table("label", "threshold", "F1 expected")
        for row in report.thresholds[:LISTED]:
            f1 = metric_info("f1").text(row.f1)
            table.add_row(visible(row.label, lines=False), f"{row.threshold:.3f}", f1)
        console.print(table)
        if (more := len(report.thresholds) - LISTED) > 0:
            console.print(f"and {more:,} more: --json has all")
