"""Equipoise: learning from imbalanced, long-tailed and multi-label data with well-calibrated probabilities."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from equipoise import calibration, data, functional, heads, kernels, losses, metrics, models, schedules, weights
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
        SumOfLosses,
        TverskyLoss,
        focal_gradient_ratio,
        focal_kl_bound,
        focal_optimum,
        gamma_for,
        mislabel_point,
        smoothing_for,
    )
    from equipoise.train.export import load_exported

__version__ = "0.1.0"

_MODULES = (
    "calibration",
    "data",
    "functional",
    "heads",
    "kernels",
    "losses",
    "metrics",
    "models",
    "schedules",
    "weights",
)


def __getattr__(name: str) -> Any:  # noqa: ANN401
    """Import names on first use, so that the command line and reports do not import torch."""
    if name in _MODULES:
        return importlib.import_module(f"equipoise.{name}")
    if name == "load_exported":
        return importlib.import_module("equipoise.train.export").load_exported
    if name in __all__:
        return getattr(importlib.import_module("equipoise.losses"), name)
    raise AttributeError(f"module 'equipoise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


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
    "SumOfLosses",
    "TverskyLoss",
    "__version__",
    "calibration",
    "data",
    "focal_gradient_ratio",
    "focal_kl_bound",
    "focal_optimum",
    "functional",
    "gamma_for",
    "heads",
    "kernels",
    "load_exported",
    "losses",
    "metrics",
    "mislabel_point",
    "models",
    "schedules",
    "smoothing_for",
    "weights",
]
