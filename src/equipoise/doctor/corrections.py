"""What corrections after training would be worth: fitted on one half of the samples, judged on the other, both ways."""

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
    """A method of ``equipoise calibrate`` that was tried.

    Args:
        options: of the command.
        nll: of samples that it was not fitted on.
        keeps_predictions: whether no prediction changes.
    """

    options: str
    nll: float
    keeps_predictions: bool


def try_corrections(
    source: Predictions, *, seed: int = 0, progress: Callable[[int], None] = lambda samples: None
) -> list[Correction]:
    """What fits the task and what is known, the temperature first; nothing of what cannot be fitted on these samples.

    Args:
        source: from ``open_predictions``; all of it is read once.
        seed: of the halves.
        progress: called with the number of samples that were read since the last call.
    """
    split = Split(source, seed, progress=progress)
    pickers = Picker(split, first=True), Picker(split, first=False)
    for part in split.parts():
        for picker in pickers:
            picker.add(part)
    halves = [picker.rows() for picker in pickers]
    found = []
    for options, method, arguments in _candidates(source):
        kind: dict[str, Any] = {"kind": "multilabel"} if source.task.multilabel else {}
        nll = NegativeLogLikelihood(**kind, **source.ignoring)
        try:
            for own, other in (halves, reversed(halves)):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # a fit that is odd shows in its likelihood
                    fitted = METHODS[method].fit(*own, **arguments)
                    nll.update(fitted(other[0]), other[1])
        except ValueError:  # too few samples for it
            continue
        value = float(nll.compute())
        if math.isfinite(value):
            found.append(Correction(options, value, METHODS[method].keeps_accuracy and not arguments.get("bias")))
    return found


def _candidates(source: Predictions) -> list[tuple[str, str, dict[str, Any]]]:
    """Options of the command, method and arguments."""
    if source.task.multilabel:
        return [
            ("--method label-temperatures", "label-temperatures", {}),
            ("--method label-temperatures --bias", "label-temperatures", {"bias": True}),
        ]
    ignore = source.ignoring
    found: list[tuple[str, str, dict[str, Any]]] = [
        (f"--method {name}", name, dict(ignore)) for name in ("temperature", "vector")
    ]
    if source.train_counts is not None:
        groups = {"groups": group_names(source.train_counts)}
        found.append(("--method group-temperatures", "group-temperatures", ignore | groups))
        found.append(("--method prior", "prior", ignore | {"train_counts": source.train_counts}))
    return found
