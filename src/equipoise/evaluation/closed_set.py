"""Evaluate predictions in two passes: one for the metrics, one for the metrics after temperature scaling."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise._checks import check_whole
from equipoise.calibration import METHODS, Fitted
from equipoise.evaluation.intervals import Resampling
from equipoise.evaluation.meters import meter_for
from equipoise.evaluation.results import FORMAT, Calibration, Evaluation, Reliability
from equipoise.evaluation.rounding import Rounding
from equipoise.evaluation.sanity_checks import SanityChecks
from equipoise.evaluation.split import Picker, Split
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
    progress: Callable[[int], None] = lambda samples: None,
) -> Evaluation:
    """Evaluate saved predictions.

    Args:
        source: from ``open_predictions``, or what it takes: a path, or arrays such as
            ``{"logits": logits, "targets": targets}``.
        bins: of the calibration errors.
        bootstrap: number of resamplings for 95 % confidence intervals; 0 for none.
        seed: of the halves that the temperature is cross-fitted on, and of the resampling.
        fitted: a calibration fitted on validation data, evaluated instead of temperatures fitted on halves of these.
        progress: called with the number of samples read since the last call; all are read twice.

    Returns:
        The metrics, their intervals, calibration, groups, classes and reliability diagrams. ``to_json()`` gives plain
        data. None stands for a value that does not exist, such as the accuracy of a class without samples. The NLL
        takes probabilities below 1e-12 as 1e-12, and is infinite where a logit of -inf rules out the true class;
        ``notes`` are sentences on that, and on probabilities that were rounded.
    """
    check_whole("bins", bins, low=1, high=MOST_BINS)
    check_whole("bootstrap", bootstrap, low=0, high=MOST_DRAWS)
    source = source if isinstance(source, Predictions) else open_predictions(source)
    split = Split(source, seed, progress=progress)
    before = meter_for(source, from_logits=source.from_logits, bins=bins)
    resampling = Resampling(source, bins) if bootstrap else None
    pickers = () if fitted is not None else (Picker(split, False), Picker(split, True))
    checks, rounding = SanityChecks(source), Rounding(source)
    samples = unknown = 0
    for part in split.parts():
        before.update(part.scores, part.targets, part.logits)
        rounding.look(part)
        checks.look(part.scores, part.targets)
        samples += len(part.scores)
        unknown += int((part.targets == UNKNOWN).sum()) if source.task.multilabel else 0
        for picker in pickers:
            picker.add(part)
        if resampling is not None:
            resampling.add(part.logits, part.targets)
    overall = before.overall()
    if overall["ece"] is None:
        raise InputError(
            f"{source.path}: there must be at least one target that counts, found only ignored ones; check the labels "
            "or --ignore-index"
        )
    intervals = resampling.intervals(bootstrap, seed) if resampling is not None else {}
    first, first_note = second, second_note = fitted, "" if fitted is None else fitted.note
    if pickers:
        (second, second_note), (first, first_note) = (_temperature(source, *picker.rows()) for picker in pickers)
    after = None
    if first is not None and second is not None:
        after = meter_for(source, from_logits=True, bins=bins)
        for part in split.parts():  # no sample is judged by a fit that it took part in
            own = part.first.view(-1, *(1 for _ in part.logits.shape[1:]))
            after.update(torch.where(own, second(part.logits), first(part.logits)), part.targets)

    # where one fit is missing, nothing but the reason matters
    fits = ((first, first_note), (second, second_note))
    notes = [note for fit, note in fits if note and (fit is None or after is not None)]

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
            fits=[fit.describe() for fit in ((first, second) if pickers else (first,)) if fit is not None],
            fitted_on="the other half of the samples" if pickers else "validation data",
            note="; ".join(dict.fromkeys(notes)),
        ),
        groups=before.group_rows(per_class),
        per_class=per_class,
        reliability={name: Reliability(curve, curves_after.get(name)) for name, curve in curves.items()},
    )


def _temperature(source: Predictions, logits: Tensor, targets: Tensor) -> tuple[Fitted | None, str]:
    """A temperature, or one for each label; and why there is none, or what is odd about it."""
    if not len(logits):  # halves are drawn, and one of very few samples may be empty
        return None, "it is fitted on one half of the samples for the other, and one half has none"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the note says the same
        try:
            fitted = METHODS[source.task.calibration].fit(logits, targets, **source.ignoring)
        except ValueError as error:
            return None, str(error)
    return fitted, fitted.note
