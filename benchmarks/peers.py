"""The same losses as others have them: the formula in plain torch operations, and other libraries where installed.

Reductions are made equal to ours, so that every candidate of one name computes one number.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.cases import EAGER_ASYMMETRIC, TORCH, Batch, Case
from benchmarks.measure import Forward

__all__ = [
    "COMPILED_ASYMMETRIC",
    "COMPILED_CROSS_ENTROPY",
    "COMPILED_FOCAL",
    "COMPILED_RECALL",
    "SIGMOID_PEERS",
    "SOFTMAX_PEERS",
    "asymmetric_formula",
    "focal_formula",
    "recall_formula",
]

COMPILED_CROSS_ENTROPY = f"{TORCH['softmax']}, compiled"
COMPILED_FOCAL = "focal, compiled"
COMPILED_RECALL = "recall, compiled"
COMPILED_ASYMMETRIC = "asymmetric, compiled"


def cross_entropy_formula(logits: Tensor, targets: Tensor) -> Tensor:
    """Torch's cross-entropy, as a function of ours that ``torch.compile`` can trace."""
    return F.cross_entropy(logits, targets)


def focal_formula(logits: Tensor, targets: Tensor, gamma: float = 2.0) -> Tensor:
    """The focal loss in its usual form: the cross-entropy of each row, times a power of 1 - p."""
    cost = F.cross_entropy(logits, targets, reduction="none")
    return ((1.0 - (-cost).exp()) ** gamma * cost).mean()


def recall_formula(logits: Tensor, targets: Tensor) -> Tensor:
    """The recall loss of a batch operation by operation, counting without ``bincount``, which would synchronise."""
    labels = targets.flatten()
    missed = (logits.argmax(1).flatten() != labels).float()
    zeros = torch.zeros(logits.shape[1], device=logits.device)
    support = zeros.scatter_add(0, labels, torch.ones_like(missed))
    misses = zeros.scatter_add(0, labels, missed)
    weight = torch.where(support > 0, misses.clamp(min=1.0) / support.clamp(min=1.0), 1.0)
    return (weight[targets] * F.cross_entropy(logits, targets, reduction="none")).mean()


def asymmetric_formula(logits: Tensor, targets: Tensor, gamma_neg: float = 4.0, margin: float = 0.05) -> Tensor:
    """The asymmetric loss operation by operation; gamma_pos is 0, so its factor is left out, to be fair."""
    p = logits.sigmoid()
    p_m = (p - margin).clamp(min=0.0)
    positive = -p.log()
    negative = -(1.0 - p_m).log() * p_m**gamma_neg
    return (targets * positive + (1.0 - targets) * negative).sum() / len(logits)


def _formula(name: str, function: Callable[[Tensor, Tensor], Tensor]) -> Case:
    return Case(name, lambda batch: lambda: function(batch.logits, batch.targets), "formula")


def _compiled(name: str, function: Callable[[Tensor, Tensor], Tensor]) -> Case:
    def build(batch: Batch) -> Forward:
        compiled = torch.compile(function, fullgraph=True, dynamic=False)
        return lambda: compiled(batch.logits, batch.targets)

    return Case(name, build, "compiled", cuda_only=True)


def _peer(
    name: str,
    module: str,
    build: Callable[[Any, Batch], Forward],
    spatial: bool = False,
    cuda_only: bool = False,
) -> Case:
    """A loss of another library, whose ``module`` is imported when it is built."""
    return Case(
        name,
        lambda batch: build(importlib.import_module(module), batch),
        "peer",
        package=module.partition(".")[0],
        spatial=spatial,
        cuda_only=cuda_only,
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


def _torchvision_focal(ops: Any, batch: Batch) -> Forward:  # noqa: ANN401
    return lambda: ops.sigmoid_focal_loss(batch.logits, batch.targets, alpha=-1, gamma=2.0, reduction="mean")


def _timm_asymmetric(losses: Any, batch: Batch) -> Forward:  # noqa: ANN401
    loss = losses.AsymmetricLossMultiLabel(gamma_neg=4, gamma_pos=0, clip=0.05)
    return lambda: loss(batch.logits, batch.targets) / len(batch.logits)  # it sums


def _liger_cross_entropy(functional: Any, batch: Batch) -> Forward:  # noqa: ANN401
    def forward() -> Tensor:
        # it takes rows of classes and writes the gradient over them, so it gets a copy
        rows = batch.logits.movedim(1, -1).clone(memory_format=torch.contiguous_format).flatten(0, -2)
        return functional.liger_cross_entropy(rows, batch.targets.flatten())

    return forward


SOFTMAX_PEERS = (
    _compiled(COMPILED_CROSS_ENTROPY, cross_entropy_formula),
    _formula("focal, eager formula", focal_formula),
    _compiled(COMPILED_FOCAL, focal_formula),
    _formula("recall, eager formula", recall_formula),
    _compiled(COMPILED_RECALL, recall_formula),
    _peer("MONAI FocalLoss(2), softmax", "monai.losses", _monai_focal),
    _peer("kornia focal_loss(2)", "kornia.losses", _kornia_focal),
    _peer("MONAI DiceLoss", "monai.losses", _monai_dice, spatial=True),
    _peer("kornia lovasz_softmax_loss", "kornia.losses", _kornia_lovasz, spatial=True),
    _peer(
        "Liger cross_entropy, of a copy", "liger_kernel.transformers.functional", _liger_cross_entropy, cuda_only=True
    ),
)
SIGMOID_PEERS = (
    _formula(EAGER_ASYMMETRIC, asymmetric_formula),
    _compiled(COMPILED_ASYMMETRIC, asymmetric_formula),
    _peer("MONAI FocalLoss(2), sigmoid", "monai.losses", _monai_focal),
    _peer("kornia binary_focal_loss_with_logits(2)", "kornia.losses", _kornia_focal),
    _peer("torchvision sigmoid_focal_loss(2)", "torchvision.ops", _torchvision_focal, cuda_only=True),
    _peer("timm AsymmetricLossMultiLabel", "timm.loss", _timm_asymmetric, cuda_only=True),
)
