"""What is measured: batches, our losses, torch's own as baselines, and the limits that the project has set itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import equipoise as eq
from benchmarks.measure import Forward

__all__ = ["SHAPES", "TORCH", "Batch", "Case", "Limit", "Link", "all_cases", "make_batch"]

Link: TypeAlias = Literal["softmax", "sigmoid"]
Shape: TypeAlias = tuple[int, ...]

SHAPES: dict[Link, tuple[Shape, ...]] = {
    "softmax": ((8192, 1000), (8, 19, 256, 256)),
    "sigmoid": ((4096, 80), (1024, 9605)),
}
TORCH: dict[Link, str] = {"softmax": "torch cross_entropy", "sigmoid": "torch binary_cross_entropy_with_logits"}
"""The loss of torch that 'times torch' means."""
EAGER_ASYMMETRIC = "asymmetric, eager formula"


@dataclass(frozen=True)
class Batch:
    """One batch of made-up data, as a model halfway through its training would give it."""

    link: Link
    logits: Tensor  # (N, C, d1, ..., dk), a leaf
    targets: Tensor  # softmax: indices (N, d1, ..., dk); sigmoid: 0 or 1 like the logits, in their type
    dense: Tensor  # softmax: distributions like the logits, in their type; sigmoid: the targets
    counts: list[float]  # (C,) training samples of each class, long-tailed

    @property
    def num_classes(self) -> int:
        """C."""
        return self.logits.shape[1]


@dataclass(frozen=True)
class Limit:
    """The time allowed, as a multiple of another case's, and the logits-sized tensors held, inputs included."""

    times: float
    of: str
    held: int | None = None


@dataclass(frozen=True)
class Case:
    """One candidate.

    Args:
        name: unique for its link.
        build: batch to forward pass.
        kind: torch itself, ours, a formula in plain torch operations, or another library.
        limit: what was set as the target, None for information only.
        against: further cases whose time it is compared with, besides torch's.
        package: what must be installed.
        spatial: only for logits (N, C, d1, ..., dk) with k > 0.
    """

    name: str
    build: Callable[[Batch], Forward]
    kind: Literal["torch", "ours", "formula", "peer"]
    limit: Limit | None = None
    against: tuple[str, ...] = ()
    package: str | None = None
    spatial: bool = False


def make_batch(link: Link, shape: Shape, dtype: torch.dtype, device: torch.device) -> Batch:
    """The same batch for every candidate, the same at every run."""
    draw = torch.Generator().manual_seed(0)
    num_classes = shape[1]
    counts = [max(1.0, 1000.0 * 0.01 ** (k / max(1, num_classes - 1))) for k in range(num_classes)]
    noise = 2.0 * torch.randn(shape, generator=draw)
    if link == "sigmoid":
        targets = (torch.rand(shape, generator=draw) < 0.04).float()
        logits, dense = noise - 3.0 + 4.0 * targets, targets
    else:
        rows = shape[0] * torch.Size(shape[2:]).numel()
        targets = torch.multinomial(torch.tensor(counts), rows, replacement=True, generator=draw)
        targets = targets.view(shape[0], *shape[2:])
        one_hot = F.one_hot(targets, num_classes).movedim(-1, 1).to(noise.dtype)
        logits, dense = noise + 5.0 * one_hot, 0.7 * one_hot + 0.3 * one_hot.roll(1, 0)  # as mixup gives them
    return Batch(
        link,
        logits.to(device, dtype).contiguous().requires_grad_(),
        targets.to(device, dtype) if link == "sigmoid" else targets.to(device),
        dense.to(device, dtype).contiguous(),
        counts,
    )


def all_cases(link: Link) -> list[Case]:
    """Torch's losses, ours, and what others have, in the order of the table."""
    from benchmarks.peers import SIGMOID_PEERS, SOFTMAX_PEERS

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
    _ours("AsymmetricLoss, adaptive", lambda b: eq.AsymmetricLoss(target_gap=0.1), ASYMMETRIC),
)
