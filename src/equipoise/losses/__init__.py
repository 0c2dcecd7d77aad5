"""Losses: the base classes, their parts, and the losses of the papers by name."""

from __future__ import annotations

from equipoise.losses.adjust import Adjustment, NegativeTolerance, logit_adjustment, margin_adjustment
from equipoise.losses.asymmetry import AdaptiveAsymmetry
from equipoise.losses.base import Loss
from equipoise.losses.modulate import ByConfidence, Modulation, asymmetric, cyclical, focal
from equipoise.losses.named import (
    AsymmetricLoss,
    AsymmetricSoftmaxLoss,
    BalancedSoftmaxLoss,
    BinaryCrossEntropyLoss,
    BinaryFocalLoss,
    ClassBalancedLoss,
    CrossEntropyLoss,
    CyclicalAsymmetricLoss,
    CyclicalFocalLoss,
    DistributionBalancedLoss,
    FocalLoss,
    InverseFrequencyLoss,
    LDAMLoss,
    LogitAdjustedLoss,
    PrecisionLoss,
    RecallLoss,
    SampleDependentFocalLoss,
)
from equipoise.losses.objectives import BrierLoss, MMCELoss, OHEMLoss
from equipoise.losses.region import DiceLoss, LovaszSoftmaxLoss, SoftIoULoss, TverskyLoss
from equipoise.losses.representation import LiftedStructureLoss, RangeLoss
from equipoise.losses.settings import current_settings
from equipoise.losses.sigmoid import SigmoidLoss
from equipoise.losses.softmax import SoftmaxLoss
from equipoise.losses.sums import SumOfLosses
from equipoise.losses.theory import (
    focal_gradient_ratio,
    focal_kl_bound,
    focal_optimum,
    gamma_for,
    mislabel_point,
    smoothing_for,
)

__all__ = [
    "AdaptiveAsymmetry",
    "Adjustment",
    "AsymmetricLoss",
    "AsymmetricSoftmaxLoss",
    "BalancedSoftmaxLoss",
    "BinaryCrossEntropyLoss",
    "BinaryFocalLoss",
    "BrierLoss",
    "ByConfidence",
    "ClassBalancedLoss",
    "CrossEntropyLoss",
    "CyclicalAsymmetricLoss",
    "CyclicalFocalLoss",
    "DiceLoss",
    "DistributionBalancedLoss",
    "FocalLoss",
    "InverseFrequencyLoss",
    "LDAMLoss",
    "LiftedStructureLoss",
    "LogitAdjustedLoss",
    "Loss",
    "LovaszSoftmaxLoss",
    "MMCELoss",
    "Modulation",
    "NegativeTolerance",
    "OHEMLoss",
    "PrecisionLoss",
    "RangeLoss",
    "RecallLoss",
    "SampleDependentFocalLoss",
    "SigmoidLoss",
    "SoftIoULoss",
    "SoftmaxLoss",
    "SumOfLosses",
    "TverskyLoss",
    "asymmetric",
    "current_settings",
    "cyclical",
    "focal",
    "focal_gradient_ratio",
    "focal_kl_bound",
    "focal_optimum",
    "gamma_for",
    "logit_adjustment",
    "margin_adjustment",
    "mislabel_point",
    "smoothing_for",
]
