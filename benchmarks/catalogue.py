"""The candidates: our losses with their targets, those of torch as baselines, and those of other libraries."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import nn

import equipoise as eq
from benchmarks.cases import CALL, EAGER_ASYMMETRIC, TORCH, Batch, Case, Limit, Link
from benchmarks.measure import Forward
from benchmarks.peers import (
    COMPILED_ASYMMETRIC,
    COMPILED_CROSS_ENTROPY,
    COMPILED_FOCAL,
    COMPILED_RECALL,
    SIGMOID_PEERS,
    SOFTMAX_PEERS,
)

__all__ = ["all_cases"]


def all_cases(link: Link) -> list[Case]:
    """Losses of torch, ours, and those of other libraries, in the order of the table."""
    return [*SOFTMAX, *SOFTMAX_PEERS] if link == "softmax" else [*SIGMOID, *SIGMOID_PEERS]


def _torch(name: str, build: Callable[[Batch], Forward]) -> Case:
    return Case(name, build, "torch")


def _ours(
    name: str,
    module: Callable[[list[float]], nn.Module],
    limit: Limit | None = None,
    against: tuple[str, ...] = (),
    compiled: str | None = None,
    rival: str | None = None,
    dense: bool = False,
    spatial: bool = False,
) -> Case:
    def build(batch: Batch) -> Forward:
        loss, targets = module(batch.counts).to(batch.logits.device), batch.dense if dense else batch.targets
        return lambda: loss(batch.logits, targets)

    return Case(
        name,
        build,
        "ours",
        limit,
        against,
        compiled=compiled,
        rival=rival,
        pointwise=not spatial,
        reads="dense" if dense else "targets",
        spatial=spatial,
        module=module,
    )


def _one_label(batch: Batch) -> Forward:
    labels = batch.targets.argmax(1)
    return lambda: F.cross_entropy(batch.logits, labels)


def _midway(loss: eq.losses.Loss) -> eq.losses.Loss:
    """The loss at an epoch in which both terms of a cyclical loss are active."""
    loss.set_epoch(1)
    return loss


def _weights(counts: list[float]) -> list[float]:
    return [1.0 + 0.5 * (k % 3) for k in range(len(counts))]


POINTWISE = Limit(1.5, TORCH["softmax"])
RECALL = Limit(1.6, TORCH["softmax"])
SMOOTHED = Limit(3.0, TORCH["softmax"])
ASYMMETRIC = Limit(0.7, EAGER_ASYMMETRIC, held=2)
TORCH_SMOOTHED = "torch cross_entropy, smoothing 0.1"
TORCH_DENSE = "torch cross_entropy, dense targets"

SOFTMAX = (
    _torch(TORCH["softmax"], lambda b: lambda: F.cross_entropy(b.logits, b.targets)),
    _torch(TORCH_SMOOTHED, lambda b: lambda: F.cross_entropy(b.logits, b.targets, label_smoothing=0.1)),
    Case(TORCH_DENSE, lambda b: lambda: F.cross_entropy(b.logits, b.dense), "torch", reads="dense"),
    _ours("CrossEntropyLoss", lambda counts: eq.CrossEntropyLoss(), POINTWISE, compiled=COMPILED_CROSS_ENTROPY),
    _ours("CrossEntropyLoss, weight", lambda counts: eq.CrossEntropyLoss(_weights(counts)), POINTWISE),
    _ours("FocalLoss(2)", lambda counts: eq.FocalLoss(2.0), POINTWISE, compiled=COMPILED_FOCAL),
    _ours("FocalLoss, gamma of each class", lambda counts: eq.FocalLoss(gamma=_weights(counts)), POINTWISE),
    _ours("SampleDependentFocalLoss", lambda counts: eq.SampleDependentFocalLoss(), POINTWISE),
    _ours("CyclicalFocalLoss", lambda counts: _midway(eq.CyclicalFocalLoss(9)), POINTWISE),
    # made for cosines: three times these logits is as wide as its usual 30 times cosines
    _ours("LDAMLoss", lambda counts: eq.LDAMLoss(counts, scale=3.0), POINTWISE),
    _ours("LogitAdjustedLoss", lambda counts: eq.LogitAdjustedLoss(counts), POINTWISE),
    _ours("ClassBalancedLoss", lambda counts: eq.ClassBalancedLoss(counts), POINTWISE),
    _ours("BrierLoss", lambda counts: eq.BrierLoss(), POINTWISE),
    _ours("RecallLoss", lambda counts: eq.RecallLoss(len(counts)), RECALL, compiled=COMPILED_RECALL),
    _ours("RecallLoss, momentum 0.1", lambda counts: eq.RecallLoss(len(counts), momentum=0.1), RECALL),
    _ours(
        "CrossEntropyLoss, smoothing 0.1",
        lambda counts: eq.CrossEntropyLoss(label_smoothing=0.1),
        SMOOTHED,
        against=(TORCH_SMOOTHED,),
    ),
    _ours("FocalLoss(2), smoothing 0.1", lambda counts: eq.FocalLoss(2.0, label_smoothing=0.1), SMOOTHED),
    _ours(
        "CyclicalFocalLoss, published", lambda counts: _midway(eq.CyclicalFocalLoss(9, preset="published")), SMOOTHED
    ),
    _ours("AsymmetricSoftmaxLoss", lambda counts: eq.AsymmetricSoftmaxLoss(), SMOOTHED),
    _ours("CyclicalAsymmetricLoss", lambda counts: _midway(eq.CyclicalAsymmetricLoss(9)), SMOOTHED),
    _ours(
        "CrossEntropyLoss, dense targets",
        lambda counts: eq.CrossEntropyLoss(),
        against=(TORCH_DENSE,),
        rival=TORCH_DENSE,
        dense=True,
    ),
    _ours("DiceLoss", lambda counts: eq.DiceLoss(), spatial=True),
    _ours("LovaszSoftmaxLoss", lambda counts: eq.LovaszSoftmaxLoss(), spatial=True),
)

SIGMOID = (
    _torch(TORCH["sigmoid"], lambda b: lambda: F.binary_cross_entropy_with_logits(b.logits, b.targets)),
    Case(CALL["sigmoid"], _one_label, "torch", reads="labels", cuda_only=True),
    _ours("BinaryCrossEntropyLoss", lambda counts: eq.BinaryCrossEntropyLoss()),
    _ours("BinaryFocalLoss(2)", lambda counts: eq.BinaryFocalLoss(2.0)),
    _ours("AsymmetricLoss", lambda counts: eq.AsymmetricLoss(), ASYMMETRIC, compiled=COMPILED_ASYMMETRIC),
    _ours("AsymmetricLoss, adaptive", lambda counts: eq.AsymmetricLoss(target_gap=0.1)),
)
