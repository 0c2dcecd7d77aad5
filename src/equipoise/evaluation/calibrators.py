"""Calibrators on saved predictions: fit them, evaluate them on other samples, apply them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from equipoise._records import Record
from equipoise.calibration import Fitted, Method, Thresholds
from equipoise.evaluation.meters import meter_for
from equipoise.evaluation.results import GroupResult
from equipoise.evaluation.rounding import Rounding
from equipoise.evaluation.sanity_checks import SanityChecks
from equipoise.evaluation.split import FitSplit, try_fit
from equipoise.predictions import Chunk, InputError, Predictions, write_predictions
from equipoise.tasks import Task

__all__ = ["AppliedFit", "CalibrationReport", "Threshold", "apply_fit", "fit_and_evaluate"]

Progress = Callable[[int], None]


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
        method: name of the calibration method.
        task: task of the predictions.
        judged: description of the evaluated fit.
        judged_fitted_on: number of rows that it was fitted on.
        reported_on: number of samples that it was evaluated on.
        before: metrics of the uncalibrated probabilities.
        after: metrics of the calibrated ones.
        main: main metric of the groups.
        groups: results of the groups ``"before"`` and ``"after"`` calibration.
        fitted: description of the saved fit.
        fitted_on: number of rows that it was fitted on.
        converged: whether the saved fit converged.
        note: notes on the fit.
        thresholds: thresholds of the labels; only for the method ``thresholds``.
        notes: notes on the predictions.
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


def fit_and_evaluate(
    source: Predictions,
    other: Predictions | None,
    method: Method,
    options: dict[str, Any],
    *,
    share: float,
    seed: int,
    progress: Progress,
) -> tuple[Fitted, CalibrationReport]:
    """Fit a calibrator, and evaluate it on samples that the evaluated fit has not seen.

    Args:
        source: predictions to fit on.
        other: predictions to evaluate on. If None, a fit on a random part of ``source`` is evaluated on the rest, and
            the returned fit uses all of ``source``.
        method: calibration method.
        options: keyword arguments of its fit.
        share: fraction of ``source`` in that part.
        seed: random seed of that part.
        progress: called with the number of samples read since the last call.
    """
    if other is not None and (other.num_classes, other.task) != (source.num_classes, source.task):
        raise InputError(
            f"{other.path}: it must have the task and classes of {source.path.name}, {source.task} with "
            f"{source.num_classes}, found {other.task} with {other.num_classes}"
        )
    everything = FitSplit(source, seed, 1.0, progress)
    first_part = replace(everything, share=share)
    judged = _fitted_on(first_part if other is None else everything, method, options)
    held_out = first_part if other is None else FitSplit(other, seed, 0.0)
    evaluated = _evaluated(judged, held_out)
    final = judged if other is not None else _fitted_on(everything, method, options)
    if source.named:
        judged, final = (replace(fit, class_names=source.class_names) for fit in (judged, final))
    report = CalibrationReport(
        method=method.name,
        task=source.task,
        judged=judged.describe(),
        judged_fitted_on=judged.samples,
        reported_on=evaluated.samples,
        before=evaluated.metrics["before"],
        after=evaluated.metrics["after"],
        main=evaluated.main,
        groups=evaluated.groups,
        fitted=final.describe(),
        fitted_on=final.samples,
        converged=final.converged,
        note=final.note,
        thresholds=_thresholds(final, source.class_names),
        notes=evaluated.notes,
    )
    return final, report


class _Evaluated(NamedTuple):
    """Metrics ``"before"`` and ``"after"`` calibration, of all samples and of groups of classes."""

    metrics: dict[str, dict[str, float | None]]
    groups: dict[str, list[GroupResult]]
    main: str
    samples: int
    notes: list[str]


def _evaluated(fit: Fitted, held_out: FitSplit) -> _Evaluated:
    """Evaluate a fit on the samples that are not in the first part of a split."""
    before, after = (meter_for(held_out.source, from_logits=True, bins=15) for _ in range(2))
    samples, rounding, checks = 0, Rounding(held_out.source), SanityChecks(held_out.source)
    for part in held_out.parts():
        rest = ~part.first
        logits, targets = part.logits[rest], part.targets[rest]
        rounding.look(part._replace(scores=part.scores[rest], targets=targets))
        checks.look(part.scores, part.targets)
        samples += len(logits)
        before.update(logits, targets)
        after.update(fit(logits), targets)
    if samples == 0:
        raise InputError(f"{held_out.source.path}: no sample is left to report on; lower --split or give --on FILE2")
    meters = {"before": before, "after": after}
    return _Evaluated(
        metrics={when: meter.overall() for when, meter in meters.items()},
        groups={when: meter.group_rows(meter.per_class()) for when, meter in meters.items()},
        main=held_out.source.task.main,
        samples=samples,
        notes=[*checks.sentences(None), *rounding.sentences()],
    )


def _thresholds(fitted: Fitted, names: Sequence[str]) -> list[Threshold]:
    """One row per label; empty for other fits."""
    if not isinstance(fitted, Thresholds):
        return []
    rows = zip(names, fitted.probabilities, fitted.f1, strict=True)
    return [Threshold(*row) for row in rows]


def _fitted_on(samples: FitSplit, method: Method, options: dict[str, Any]) -> Fitted:
    """Fit on the first part of the samples."""
    (rows,) = samples.rows(True)
    fitted, reason = try_fit(method.fit, rows, **options)
    if fitted is None:
        share = "" if samples.share == 1.0 else f" on the share {samples.share:g} of the samples"
        raise InputError(f"{samples.source.path}: --method {method.name} cannot be fitted{share}: {reason}")
    return fitted


@dataclass(frozen=True)
class AppliedFit:
    """The result of ``apply_fit``.

    Args:
        logits: whether logits were written instead of probabilities.
        notes: on the class names and on rounded probabilities.
    """

    logits: bool
    notes: list[str]


def apply_fit(fitted: Fitted, source: Predictions, out: Path, *, name: str, progress: Progress) -> AppliedFit:
    """Write calibrated predictions.

    Args:
        fitted: the fit.
        source: predictions.
        out: the file to write, .npz, .csv or .parquet.
        name: name of the fit in error messages.
        progress: called with the number of samples read since the last call.
    """
    if fitted.task != source.task.fitted:
        raise InputError(f"{name}: the fit is for task {fitted.task}, {source.path} is {source.task}; use another fit")
    if fitted.num_classes is not None and fitted.num_classes != source.num_classes:
        raise InputError(
            f"{name}: the fit is for {fitted.num_classes} classes, {source.path} has {source.num_classes}; use another"
        )
    if fitted.class_names and source.named and fitted.class_names != source.class_names:
        raise InputError(
            f"{name}: the fit is for the classes {', '.join(fitted.class_names[:8])} in this order, {source.path} has "
            f"{', '.join(source.class_names[:8])}; order them alike"
        )
    rounding = Rounding(source)
    write_predictions(out, source, _calibrated(fitted, source, rounding, progress))
    notes = []
    if fitted.class_names and not source.named:
        notes.append(
            f"{source.path.name} names no classes: they are taken to be in the order of the fit, "
            f"{', '.join(fitted.class_names[:8])}{' ...' if len(fitted.class_names) > 8 else ''}"
        )
    return AppliedFit(source.from_logits, [*notes, *rounding.sentences(nll=False)])


def _calibrated(fitted: Fitted, source: Predictions, rounding: Rounding, progress: Progress) -> Iterator[Chunk]:
    """Calibrated logits or probabilities, as in the source, with decisions if the fit has thresholds."""
    for part in FitSplit(source, 0, progress=progress).parts():
        scores = fitted(part.logits)
        if not source.from_logits:
            scores = scores.sigmoid() if source.task.multilabel else scores.softmax(1)
        decisions = fitted.decide(part.logits).numpy() if isinstance(fitted, Thresholds) else None
        rounding.look(part)
        yield Chunk(scores.numpy(), part.targets.numpy(), part.rounded, part.others, decisions)
