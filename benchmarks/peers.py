"""The same losses as others have them: the formula in plain torch operations, and other libraries where installed.

Reductions are made equal to ours, so that every candidate of one name computes one number.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from benchmarks.cases import EAGER_ASYMMETRIC, Batch, Case
from benchmarks.measure import Forward

__all__ = ["SIGMOID_PEERS", "SOFTMAX_PEERS", "asymmetric_formula", "focal_formula"]


def focal_formula(logits: Tensor, targets: Tensor, gamma: float = 2.0) -> Tensor:
    """The focal loss as it is usually written: the cross-entropy of each row, times a power of 1 - p."""
    cost = F.cross_entropy(logits, targets, reduction="none")
    return ((1.0 - (-cost).exp()) ** gamma * cost).mean()


def asymmetric_formula(logits: Tensor, targets: Tensor, gamma_neg: float = 4.0, margin: float = 0.05) -> Tensor:
    """The asymmetric loss operation by operation; gamma_pos is 0, so its factor is left out, to be fair."""
    p = logits.sigmoid()
    p_m = (p - margin).clamp(min=0.0)
    positive = -p.log()
    negative = -(1.0 - p_m).log() * p_m**gamma_neg
    return (targets * positive + (1.0 - targets) * negative).sum() / len(logits)


def _formula(name: str, function: Callable[[Tensor, Tensor], Tensor]) -> Case:
    return Case(name, lambda batch: lambda: function(batch.logits, batch.targets), "formula")


def _peer(name: str, package: str, build: Callable[[Any, Batch], Forward], spatial: bool = False) -> Case:
    """A loss of another library, whose module ``<package>.losses`` is imported when it is built."""
    return Case(
        name,
        lambda batch: build(importlib.import_module(f"{package}.losses"), batch),
        "peer",
        package=package,
        spatial=spatial,
    )


def _monai_focal(losses: Any, batch: Batch) -> Forward:  # noqa: ANN401
    softmax = batch.link == "softmax"
    loss = losses.FocalLoss(gamma=2.0, use_softmax=softmax, to_onehot_y=softmax)
    if softmax:  # its mean is over rows and classes
        return lambda: loss(batch.logits, batch.targets.unsqueeze(1)) * batch.num_classes
    return lambda: loss(batch.logits, batch.targets)


def _kornia_focal(losses: Any, batch: Batch) -> Forward:  # noqa: ANN401
    if batch.link == "softmax":
        return lambda: (
            losses.focal_loss(batch.logits, batch.targets, alpha=None, gamma=2.0, reduction="sum")
            / batch.targets.numel()
        )
    return lambda: losses.binary_focal_loss_with_logits(
        batch.logits, batch.targets, alpha=None, gamma=2.0, reduction="mean"
    )


def _monai_dice(losses: Any, batch: Batch) -> Forward:  # noqa: ANN401
    loss = losses.DiceLoss(softmax=True, to_onehot_y=True, batch=True, smooth_nr=0.0, smooth_dr=0.0)
    return lambda: loss(batch.logits, batch.targets.unsqueeze(1))


def _kornia_lovasz(losses: Any, batch: Batch) -> Forward:  # noqa: ANN401
    return lambda: losses.lovasz_softmax_loss(batch.logits, batch.targets)


SOFTMAX_PEERS = (
    _formula("focal, eager formula", focal_formula),
    _peer("MONAI FocalLoss(2), softmax", "monai", _monai_focal),
    _peer("kornia focal_loss(2)", "kornia", _kornia_focal),
    _peer("MONAI DiceLoss", "monai", _monai_dice, spatial=True),
    _peer("kornia lovasz_softmax_loss", "kornia", _kornia_lovasz, spatial=True),
)
SIGMOID_PEERS = (
    _formula(EAGER_ASYMMETRIC, asymmetric_formula),
    _peer("MONAI FocalLoss(2), sigmoid", "monai", _monai_focal),
    _peer("kornia binary_focal_loss_with_logits(2)", "kornia", _kornia_focal),
)
