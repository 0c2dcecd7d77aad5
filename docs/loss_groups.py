"""Losses by task: the order of the index of losses, of the cheat sheet and of the navigation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["BASELINES", "GROUPS", "NOT_FOR_TRAINING", "Group", "role_of"]


@dataclass(frozen=True)
class Group:
    """Losses for one task.

    Args:
        key: name of the generated part of the index.
        title: heading.
        short: title in the navigation.
        losses: names of the classes; a baseline is last.
    """

    key: str
    title: str
    short: str
    losses: tuple[str, ...]


GROUPS = (
    Group(
        "long-tail",
        "Single-label: rare classes",
        "Rare classes",
        (
            "BalancedSoftmaxLoss",
            "LogitAdjustedLoss",
            "RecallLoss",
            "ClassBalancedLoss",
            "LDAMLoss",
            "CrossEntropyLoss",
            "InverseFrequencyLoss",
        ),
    ),
    Group(
        "calibration",
        "Single-label: calibration and hard samples",
        "Calibration, hard samples",
        (
            "SampleDependentFocalLoss",
            "FocalLoss",
            "CyclicalFocalLoss",
            "CyclicalAsymmetricLoss",
            "AsymmetricSoftmaxLoss",
            "BrierLoss",
            "OHEMLoss",
            "MMCELoss",
        ),
    ),
    Group(
        "multi-label",
        "Multi-label data and detection",
        "Multi-label",
        ("AsymmetricLoss", "DistributionBalancedLoss", "BinaryFocalLoss", "BinaryCrossEntropyLoss"),
    ),
    Group(
        "segmentation",
        "Segmentation: overlap of regions",
        "Segmentation",
        ("DiceLoss", "TverskyLoss", "SoftIoULoss", "LovaszSoftmaxLoss"),
    ),
    Group("counter-example", "Not for training", "Not for training", ("PrecisionLoss",)),
)
"""Every loss once."""

BASELINES = ("CrossEntropyLoss", "InverseFrequencyLoss", "MMCELoss", "BinaryCrossEntropyLoss")
"""Losses to compare others with."""
NOT_FOR_TRAINING = ("PrecisionLoss",)
"""Counter-examples of a paper."""


def role_of(name: str) -> Literal["", "baseline", "counter-example"]:
    """Why a loss is here if it is not to be chosen."""
    return "baseline" if name in BASELINES else "counter-example" if name in NOT_FOR_TRAINING else ""
