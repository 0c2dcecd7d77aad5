"""All methods by name, with the information that programs need to offer them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from equipoise._checks import check_choice
from equipoise.calibration.dirichlet import fit_dirichlet
from equipoise.calibration.fitted import Fitted
from equipoise.calibration.focal import fit_focal
from equipoise.calibration.groups import fit_group_temperatures
from equipoise.calibration.histogram import fit_histogram
from equipoise.calibration.isotonic import fit_isotonic
from equipoise.calibration.labels import fit_label_temperatures
from equipoise.calibration.prior import fit_prior
from equipoise.calibration.temperature import fit_temperature
from equipoise.calibration.thresholds import fit_thresholds
from equipoise.calibration.vector import fit_vector
from equipoise.tasks import Task

__all__ = ["METHODS", "Method", "temperature_scaling"]


@dataclass(frozen=True)
class Method:
    """A calibration method: ``method.fit(logits, targets, **needs)``.

    Args:
        name: name on the command line.
        fit: the fit function.
        tasks: supported tasks, ``"multiclass"`` and ``"multilabel"``; a method for both infers the task from the
            shape of the targets.
        keeps_accuracy: whether predictions are unchanged (multi-label: no decision at probability 1/2).
        summary: one line.
        needs: required keyword arguments of ``fit``.
    """

    name: str
    fit: Callable[..., Fitted]
    tasks: frozenset[Task]
    keeps_accuracy: bool
    summary: str
    needs: tuple[str, ...] = ()


SINGLE: frozenset[Task] = frozenset({Task.MULTICLASS})
MULTI: frozenset[Task] = frozenset({Task.MULTILABEL})
BOTH: frozenset[Task] = SINGLE | MULTI

METHODS: Mapping[str, Method] = MappingProxyType(
    {
        method.name: method
        for method in (
            Method("temperature", fit_temperature, SINGLE, True, "one temperature by likelihood; the default choice"),
            Method(
                "temperature-ece",
                partial(fit_temperature, by="ece"),
                SINGLE,
                True,
                "one temperature by calibration error on the grid 0.1 ... 10",
            ),
            Method("vector", fit_vector, SINGLE, False, "a factor and a bias per class"),
            Method("dirichlet", fit_dirichlet, SINGLE, False, "a shrunk matrix on log-probabilities; needs many rows"),
            Method("isotonic", fit_isotonic, BOTH, False, "an increasing curve per class; needs many rows"),
            Method("histogram", fit_histogram, BOTH, False, "the fraction of positives in bins of each class"),
            Method(
                "label-temperatures",
                fit_label_temperatures,
                MULTI,
                True,
                "a temperature per label, shrunk to the common one",
            ),
            Method(
                "group-temperatures",
                fit_group_temperatures,
                SINGLE,
                True,
                "a temperature per group of predicted classes, shrunk to the common one",
                needs=("groups",),
            ),
            Method(
                "prior",
                fit_prior,
                SINGLE,
                False,
                "corrects for label shift, with given or estimated class frequencies",
                needs=("train_counts",),
            ),
            Method("focal", fit_focal, BOTH, True, "the posterior of a model trained with focal loss"),
            Method("thresholds", fit_thresholds, MULTI, False, "a decision threshold per label, for F1"),
        )
    }
)


def temperature_scaling(task: Task, by: str = "nll") -> Method:
    """The method that evaluations and runs fit: one temperature, or one per label of multi-label data.

    Args:
        task: of the predictions.
        by: what one temperature minimises, ``"nll"`` or ``"ece"``, as in ``fit_temperature``; labels have ``"nll"``.

    >>> temperature_scaling(Task.SEGMENTATION, "ece").name
    'temperature-ece'
    """
    check_choice("temperature_by", by, ("nll", "ece"))
    if by == "ece" and task.multilabel:
        raise ValueError("temperature_by must be 'nll' for multi-label data, got 'ece'; omit it")
    return METHODS["temperature-ece" if by == "ece" else task.calibration]
