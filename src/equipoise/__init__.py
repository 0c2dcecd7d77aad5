"""Equipoise: learning from imbalanced, long-tailed and multi-label data with probabilities that can be trusted."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from equipoise import functional, losses, schedules, weights
from equipoise.losses import (
    AsymmetricLoss,
    AsymmetricSoftmaxLoss,
    BalancedSoftmaxLoss,
    BinaryCrossEntropyLoss,
    BinaryFocalLoss,
    BrierLoss,
    ClassBalancedLoss,
    CrossEntropyLoss,
    CyclicalAsymmetricLoss,
    CyclicalFocalLoss,
    DiceLoss,
    DistributionBalancedLoss,
    FocalLoss,
    InverseFrequencyLoss,
    LDAMLoss,
    LogitAdjustedLoss,
    LovaszSoftmaxLoss,
    MMCELoss,
    OHEMLoss,
    PrecisionLoss,
    RecallLoss,
    SampleDependentFocalLoss,
    SigmoidLoss,
    SoftIoULoss,
    SoftmaxLoss,
    TverskyLoss,
    gamma_for,
    mislabel_point,
)

if TYPE_CHECKING:
    from equipoise import calibration, heads, kernels, metrics

__version__ = "0.1.0"

_ON_DEMAND = ("calibration", "heads", "kernels", "metrics")
"""Modules that load what the losses do not need, such as torchmetrics: imported when they are first asked for."""


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name in _ON_DEMAND:
        return importlib.import_module(f"equipoise.{name}")
    raise AttributeError(f"module 'equipoise' has no attribute {name!r}")


__all__ = [
    "AsymmetricLoss",
    "AsymmetricSoftmaxLoss",
    "BalancedSoftmaxLoss",
    "BinaryCrossEntropyLoss",
    "BinaryFocalLoss",
    "BrierLoss",
    "ClassBalancedLoss",
    "CrossEntropyLoss",
    "CyclicalAsymmetricLoss",
    "CyclicalFocalLoss",
    "DiceLoss",
    "DistributionBalancedLoss",
    "FocalLoss",
    "InverseFrequencyLoss",
    "LDAMLoss",
    "LogitAdjustedLoss",
    "LovaszSoftmaxLoss",
    "MMCELoss",
    "OHEMLoss",
    "PrecisionLoss",
    "RecallLoss",
    "SampleDependentFocalLoss",
    "SigmoidLoss",
    "SoftIoULoss",
    "SoftmaxLoss",
    "TverskyLoss",
    "__version__",
    "calibration",
    "functional",
    "gamma_for",
    "heads",
    "kernels",
    "losses",
    "metrics",
    "mislabel_point",
    "schedules",
    "weights",
]
