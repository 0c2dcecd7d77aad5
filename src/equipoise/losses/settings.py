"""Current hyper-parameters of a loss as plain numbers, for logging."""

from __future__ import annotations

from torch import Tensor, nn

from equipoise.kernels.hyper import EXPONENTS
from equipoise.losses.asymmetry import AdaptiveAsymmetry
from equipoise.losses.base import Loss, LossPart, Scalar
from equipoise.losses.modulate import ByConfidence, Modulation
from equipoise.schedules import Moment, Schedule
from equipoise.weights.deferred import Deferred
from equipoise.weights.recall import RecallWeights

__all__ = ["current_settings", "scheduled_values"]

ALWAYS = ("xi", "gamma_hc", "gamma_pos", "gamma_neg", "label_smoothing")
"""Hyper-parameters that are included even if they are constant."""


def current_settings(loss: nn.Module) -> dict[str, float | list[float]]:
    """Current hyper-parameters of a loss and of all losses inside it: schedules, adaptive exponents, running recalls.

    The result has every scheduled argument under its name, ``deferred_weights`` (0 or 1), ``gamma_neg`` and
    ``adaptive_gap`` if the exponent is adaptive, ``recall_weights`` if recalls have ``momentum``, and exponents and
    label smoothing even if they are constant. Lists have one entry per class or per probability range. This reads from
    the device: call it once per epoch, not in every step.

    >>> from equipoise import FocalLoss
    >>> from equipoise.losses import current_settings
    >>> from equipoise.schedules import Linear
    >>> loss = FocalLoss(Linear(5.0, 1.0), epochs=4)
    >>> loss.set_epoch(2)
    >>> current_settings(loss)
    {'gamma': 3.0}
    """
    settings: dict[str, float | list[float]] = {}
    for part in loss.modules():
        if isinstance(part, Loss):
            for piece in part.layout:
                if piece.name in ALWAYS:
                    values = part.hyper_double[piece.start : piece.stop]
                    name = piece.argument or piece.name if piece.name in EXPONENTS else piece.name
                    settings[name] = _plain(values)
            for stateless in part.parts:
                settings |= scheduled_values(stateless, part.moment())
        elif isinstance(part, AdaptiveAsymmetry):
            settings["gamma_neg"], settings["adaptive_gap"] = _plain(part.gamma_neg), _plain(part.gap)
            if part.adapts_margin:
                settings["margin"] = _plain(part.margin)
        elif isinstance(part, RecallWeights) and part.momentum is not None:
            settings["recall_weights"] = _rounded(1.0 - part.recall)
    return settings


def scheduled_values(part: LossPart, moment: Moment) -> dict[str, float | list[float]]:
    """Values of the schedules of a part, under the names of the arguments."""
    if isinstance(part, Deferred):
        return {"deferred_weights": float(part.started(moment))}
    settings: dict[str, float | list[float]] = {}
    for name, value in vars(part).items():
        if isinstance(part, Scalar):
            called = "balance" if part.name == "weight" else part.name
        else:
            called = (isinstance(part, Modulation) and name in EXPONENTS and part.called) or name
        if isinstance(value, Schedule):
            settings[called] = moment.value(value)
        elif isinstance(value, ByConfidence) and any(isinstance(gamma, Schedule) for _, gamma in value.table):
            settings[called] = [moment.value(gamma) for _, gamma in value.table]
    return settings


def _plain(values: Tensor) -> float | list[float]:
    return float(values) if values.numel() == 1 else _rounded(values)


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 5) for value in values.tolist()]
