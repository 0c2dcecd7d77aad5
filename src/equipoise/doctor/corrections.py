"""Effect of post-hoc corrections, by two-fold cross-validation: fitted on one half, evaluated on the other."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from equipoise.calibration import METHODS
from equipoise.evaluation.meters import group_names
from equipoise.evaluation.split import Picker, Split
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
    split = Split(source, seed, progress=progress)
    pickers = Picker(split, first=True), Picker(split, first=False)
    for part in split.parts():
        for picker in pickers:
            picker.add(part)
    halves = [picker.rows() for picker in pickers]
    corrections = []
    for options, method, arguments in _candidates(source):
        nll = NegativeLogLikelihood(
            **({"kind": "multilabel"} if source.task == "multi" else {"ignore_index": source.ignore_index})
        )
        try:
            for fitting_half, other in (halves, reversed(halves)):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # an unusual fit shows in the likelihood
                    fitted = METHODS[method].fit(*fitting_half, **arguments)
                    nll.update(fitted(other[0]), other[1])
        except ValueError:  # too few samples to fit it
            continue
        value = float(nll.compute())
        if math.isfinite(value):
            corrections.append(Correction(options, value, METHODS[method].keeps_accuracy and not arguments.get("bias")))
    return corrections


def _candidates(source: Predictions) -> list[tuple[str, str, dict[str, Any]]]:
    """Command-line options, method and arguments of each candidate."""
    if source.task == "multi":
        return [
            ("--method label-temperatures", "label-temperatures", {}),
            ("--method label-temperatures --bias", "label-temperatures", {"bias": True}),
        ]
    ignore = {"ignore_index": source.ignore_index}
    candidates: list[tuple[str, str, dict[str, Any]]] = [
        (f"--method {name}", name, dict(ignore)) for name in ("temperature", "vector")
    ]
    if source.train_counts is not None:
        groups = {"groups": group_names(source.train_counts)}
        candidates.append(("--method group-temperatures", "group-temperatures", ignore | groups))
        candidates.append(("--method prior", "prior", ignore | {"train_counts": source.train_counts}))
    return candidates
