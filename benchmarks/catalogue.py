"""The candidates: our losses with their limits, torch's own as baselines, and what others have."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import nn

import equipoise as eq
from benchmarks.cases import EAGER_ASYMMETRIC, TORCH, Batch, Case, Limit, Link
from benchmarks.measure import Forward
from benchmarks.peers import SIGMOID_PEERS, SOFTMAX_PEERS

__all__ = ["all_cases"]


def all_cases(link: Link) -> list[Case]:
    """Torch's losses, ours, and what others have, in the order of the table."""
    return [*SOFTMAX, *SOFTMAX_PEERS] if link == "softmax" else [*SIGMOID, *SIGMOID_PEERS]


def _torch(name: str, build: Callable[[Batch], Forward]) -> Case:
    return Case(name, build, "torch")


def _ours(
    name: str,
    make: Callable[[Batch], nn.Module],
    limit: Limit | None = None,
    against: tuple[str, ...] = (),
    dense: bool = False,
    spatial: bool = False,
) -> Case:
    def build(batch: Batch) -> Forward:
        loss, targets = make(batch).to(batch.logits.device), batch.dense if dense else batch.targets
        return lambda: loss(batch.logits, targets)

    return Case(name, build, "ours", limit, against, spatial=spatial)


def _midway(loss: eq.losses.Loss) -> eq.losses.Loss:
    """At an epoch where both terms of a cyclical loss count."""
    loss.set_epoch(1)
    return loss


def _weights(batch: Batch) -> list[float]:
    return [1.0 + 0.5 * (k % 3) for k in range(batch.num_classes)]


POINTWISE = Limit(1.5, TORCH["softmax"])
RECALL = Limit(1.6, TORCH["softmax"])
SMOOTHED = Limit(3.0, TORCH["softmax"])
ASYMMETRIC = Limit(0.7, EAGER_ASYMMETRIC, held=2)
TORCH_SMOOTHED = "torch cross_entropy, smoothing 0.1"
TORCH_DENSE = "torch cross_entropy, dense targets"

SOFTMAX = (
    _torch(TORCH["softmax"], lambda b: lambda: F.cross_entropy(b.logits, b.targets)),
    _torch(TORCH_SMOOTHED, lambda b: lambda: F.cross_entropy(b.logits, b.targets, label_smoothing=0.1)),
    _torch(TORCH_DENSE, lambda b: lambda: F.cross_entropy(b.logits, b.dense)),
    _ours("CrossEntropyLoss", lambda b: eq.CrossEntropyLoss(), POINTWISE),
    _ours("CrossEntropyLoss, weight", lambda b: eq.CrossEntropyLoss(_weights(b)), POINTWISE),
    _ours("FocalLoss(2)", lambda b: eq.FocalLoss(2.0), POINTWISE),
    _ours("FocalLoss, gamma of each class", lambda b: eq.FocalLoss(_weights(b)), POINTWISE),
    _ours("SampleDependentFocalLoss", lambda b: eq.SampleDependentFocalLoss(), POINTWISE),
    _ours("CyclicalFocalLoss", lambda b: _midway(eq.CyclicalFocalLoss(9)), POINTWISE),
    _ours("LDAMLoss", lambda b: eq.LDAMLoss(b.counts), POINTWISE),
    _ours("LogitAdjustedLoss", lambda b: eq.LogitAdjustedLoss(b.counts), POINTWISE),
    _ours("ClassBalancedLoss", lambda b: eq.ClassBalancedLoss(b.counts), POINTWISE),
    _ours("BrierLoss", lambda b: eq.BrierLoss(), POINTWISE),
    _ours("RecallLoss", lambda b: eq.RecallLoss(b.num_classes), RECALL),
    _ours("RecallLoss, momentum 0.1", lambda b: eq.RecallLoss(b.num_classes, momentum=0.1), RECALL),
    _ours(
        "CrossEntropyLoss, smoothing 0.1",
        lambda b: eq.CrossEntropyLoss(label_smoothing=0.1),
        SMOOTHED,
        against=(TORCH_SMOOTHED,),
    ),
    _ours("FocalLoss(2), smoothing 0.1", lambda b: eq.FocalLoss(2.0, label_smoothing=0.1), SMOOTHED),
    _ours("CyclicalFocalLoss, published", lambda b: _midway(eq.CyclicalFocalLoss(9, preset="published")), SMOOTHED),
    _ours("AsymmetricSoftmaxLoss", lambda b: eq.AsymmetricSoftmaxLoss(), SMOOTHED),
    _ours("CyclicalAsymmetricLoss", lambda b: _midway(eq.CyclicalAsymmetricLoss(9)), SMOOTHED),
    _ours("CrossEntropyLoss, dense targets", lambda b: eq.CrossEntropyLoss(), against=(TORCH_DENSE,), dense=True),
    _ours("DiceLoss", lambda b: eq.DiceLoss(), spatial=True),
    _ours("LovaszSoftmaxLoss", lambda b: eq.LovaszSoftmaxLoss(), spatial=True),
)

SIGMOID = (
    _torch(TORCH["sigmoid"], lambda b: lambda: F.binary_cross_entropy_with_logits(b.logits, b.targets)),
    _ours("BinaryCrossEntropyLoss", lambda b: eq.BinaryCrossEntropyLoss()),
    _ours("BinaryFocalLoss(2)", lambda b: eq.BinaryFocalLoss(2.0)),
    _ours("AsymmetricLoss", lambda b: eq.AsymmetricLoss(), ASYMMETRIC),
    _ours("AsymmetricLoss, adaptive", lambda b: eq.AsymmetricLoss(target_gap=0.1)),
)
