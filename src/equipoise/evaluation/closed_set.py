"""Evaluate predictions in two passes: one for the metrics, one for the metrics after temperature scaling."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from equipoise._checks import check_whole
from equipoise.calibration import Fitted, Method, temperature_scaling
from equipoise.evaluation.meters import meter_for
from equipoise.evaluation.results import FORMAT, Calibration, Evaluation, Reliability
from equipoise.evaluation.rounding import Rounding
from equipoise.evaluation.sample_statistics import COLLECTORS, WITH_INTERVALS, SampleStatistics
from equipoise.evaluation.sanity_checks import SanityChecks
from equipoise.evaluation.split import FitRows, FitSplit, RowCollector, cross_fit
from equipoise.metrics import bootstrap as resample
from equipoise.predictions import InputError, Predictions, open_predictions
from equipoise.predictions.source import UNKNOWN

__all__ = ["evaluate"]

MOST_BINS = 10_000
MOST_DRAWS = 100_000


def evaluate(
    source: Predictions | str | Path | Mapping[str, Any],
    *,
    bins: int = 15,
    bootstrap: int = 0,
    seed: int = 0,
    fitted: Fitted | None = None,
    temperature_by: Literal["nll", "ece"] = "nll",
    progress: Callable[[int], None] = lambda samples: None,
) -> Evaluation:
    """Evaluate saved predictions.

    Args:
        source: predictions from ``open_predictions``, or its argument: a path, or arrays such as
            ``{"logits": logits, "targets": targets}``.
        bins: number of bins of the calibration errors.
        bootstrap: number of resamplings for 95 % confidence intervals; 0 for none.
        seed: random seed of the halves for cross-fitting the temperature, and of the resampling.
        fitted: calibration fitted on validation data, evaluated instead of temperatures that are cross-fitted on halves
            of ``source``.
        temperature_by: what the temperature minimises, ``"nll"``, or ``"ece"`` on a grid, as in
            :func:`equipoise.calibration.fit_temperature`; of ``fitted``, what it was fitted by.
        progress: called with the number of samples read since the last call; every sample is read twice.

    Returns:
        The metrics, their intervals, calibration, groups, classes and reliability diagrams. ``to_json()`` returns
        plain data. None stands for an undefined value, such as the accuracy of a class without samples. The NLL clips
        probabilities at 1e-12, and is infinite if the logit of a true class is -inf; ``notes`` report both, and
        probabilities that were rounded.
    """
    check_whole("bins", bins, low=1, high=MOST_BINS)
    check_whole("bootstrap", bootstrap, low=0, high=MOST_DRAWS)
    source = source if isinstance(source, Predictions) else open_predictions(source)
    method = temperature_scaling(source.task, temperature_by)
    split = FitSplit(source, seed, progress=progress)
    before = meter_for(source, from_logits=source.from_logits, bins=bins)
    collector = COLLECTORS[source.task](source, metrics=WITH_INTERVALS[source.task], bins=bins) if bootstrap else None
    halves = [RowCollector(split, side) for side in (True, False)] if fitted is None else []
    checks, rounding = SanityChecks(source), Rounding(source)
    samples = unknown = 0
    for part in split.parts():
        before.update(part.scores, part.targets, part.logits)
        rounding.look(part)
        checks.look(part.scores, part.targets)
        samples += len(part.scores)
        unknown += int((part.targets == UNKNOWN).sum()) if source.task.multilabel else 0
        for rows in halves:
            rows.add(part)
        if collector is not None:
            collector.add(part.logits.numpy(), part.targets.numpy())
    overall = before.overall()
    if overall["ece"] is None:
        raise InputError(
            f"{source.path}: there must be at least one target that counts, found only ignored ones; check the labels "
            "or --ignore-index"
        )
    intervals = _intervals(collector.finish(), bootstrap, seed) if collector is not None else {}
    fits = (
        _temperatures(method, source, [rows.finish() for rows in halves]) if fitted is None else [(fitted, fitted.note)]
    )
    (for_first, _), (for_second, _) = fits[0], fits[-1]
    after = None
    if for_first is not None and for_second is not None:
        after = meter_for(source, from_logits=True, bins=bins)
        for part in split.parts():  # no sample is evaluated with a fit that has used it
            first = part.first.view(-1, *(1 for _ in part.logits.shape[1:]))
            after.update(torch.where(first, for_first(part.logits), for_second(part.logits)), part.targets)

    # if one fit is missing, report only the reason
    notes = [note for fit, note in reversed(fits) if note and (fit is None or after is not None)]

    per_class = before.per_class()
    curves = before.curves()
    curves_after = after.curves() if after is not None else {}
    return Evaluation(
        format=FORMAT,
        file=source.path.name,
        task=source.task,
        samples=samples,
        classes=source.num_classes,
        unknown=unknown,
        scores="logits" if source.from_logits else "probabilities",
        bins=bins,
        main=source.task.main,
        suspicions=checks.sentences(overall.get("accuracy", overall.get("pixel_accuracy"))),
        notes=rounding.sentences(),
        overall=overall,
        intervals=intervals,
        calibration=Calibration(
            before=before.calibration(),
            after=after.calibration() if after is not None else None,
            fits=[fit.describe() for fit, _ in reversed(fits) if fit is not None],
            fitted_on="the other half of the samples" if fitted is None else "validation data",
            note="; ".join(dict.fromkeys(notes)),
            by=temperature_by,
        ),
        groups=before.group_rows(per_class),
        per_class=per_class,
        reliability={name: Reliability(curve, curves_after.get(name)) for name, curve in curves.items()},
    )


def _temperatures(method: Method, source: Predictions, halves: list[FitRows]) -> list[tuple[Fitted | None, str]]:
    """For each half a temperature, or one per label, fitted on the other half, with its note or the reason for None."""
    return cross_fit(method.fit, halves, **source.ignoring)


def _intervals(statistics: SampleStatistics, draws: int, seed: int) -> dict[str, list[float]]:
    """95 % confidence limits of each metric, clipped at the lowest value it can have."""

    def metrics(_: Tensor, *, weight: Tensor) -> Tensor:
        values = statistics.weigh(np.ascontiguousarray(weight.numpy().T))
        return torch.from_numpy(np.stack(list(values.values()), 1))

    interval = resample(metrics, torch.empty(statistics.samples), draws=draws, seed=seed, weighted=True)
    limits = zip(statistics.metrics.items(), interval.low.tolist(), interval.high.tolist(), strict=True)
    return {name: [max(low, metric.lowest), high] for (name, metric), low, high in limits}
