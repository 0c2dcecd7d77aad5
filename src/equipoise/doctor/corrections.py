"""Effect of post-hoc corrections, by two-fold cross-validation: fitted on one half, evaluated on the other."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from equipoise.calibration import METHODS
from equipoise.evaluation.meters import group_names
from equipoise.evaluation.split import FitSplit, cross_fit
from equipoise.metrics import NegativeLogLikelihood
from equipoise.predictions import Predictions

__all__ = ["Correction", "try_corrections"]


@dataclass(frozen=True)
class Correction:
    """A method of ``equipoise calibrate`` with its cross-validated result.

    Args:
        options: command-line options of the method.
        nll: NLL of held-out samples.
        keeps_predictions: whether predictions are unchanged.
    """

    options: str
    nll: float
    keeps_predictions: bool


def try_corrections(
    source: Predictions, *, seed: int = 0, progress: Callable[[int], None] = lambda samples: None
) -> list[Correction]:
    """Corrections that suit the task, temperature scaling first; those that cannot be fitted are omitted.

    Args:
        source: from ``open_predictions``; all of it is read once.
        seed: random seed of the split.
        progress: called with the number of samples read since the last call.
    """
    halves = FitSplit(source, seed, progress=progress).rows(True, False)
    corrections = []
    for options, method, arguments in _candidates(source):
        fits = [fit for fit, _ in cross_fit(METHODS[method].fit, halves, **arguments)]
        nll = NegativeLogLikelihood(**({"kind": "multilabel"} if source.task.multilabel else source.ignoring))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of probabilities called logits, which the evaluation reports
            for fit, (logits, targets) in zip(fits, halves, strict=True):
                if fit is not None:
                    nll.update(fit(logits), targets)
        value = float(nll.compute()) if all(fits) else math.nan  # None: too few samples for the method
        if math.isfinite(value):
            keeps = METHODS[method].keeps_accuracy and not arguments.get("bias")
            corrections.append(Correction(options, value, keeps))
    return corrections


def _candidates(source: Predictions) -> list[tuple[str, str, dict[str, Any]]]:
    """Command-line options, method and arguments of each candidate."""
    if source.task.multilabel:
        return [
            ("--method label-temperatures", "label-temperatures", {}),
            ("--method label-temperatures --bias", "label-temperatures", {"bias": True}),
        ]
    ignore = source.ignoring
    candidates: list[tuple[str, str, dict[str, Any]]] = [
        (f"--method {name}", name, dict(ignore)) for name in ("temperature", "vector")
    ]
    if source.train_counts is not None:
        groups = {"groups": group_names(source.train_counts)}
        candidates.append(("--method group-temperatures", "group-temperatures", ignore | groups))
        candidates.append(("--method prior", "prior", ignore | {"train_counts": source.train_counts}))
    return candidates
