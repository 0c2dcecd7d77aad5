"""Batches, candidates and targets of the benchmark of losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.measure import Forward

__all__ = [
    "CALL",
    "CUDA_SHAPES",
    "EAGER_ASYMMETRIC",
    "SHAPES",
    "TORCH",
    "Batch",
    "Case",
    "Limit",
    "Link",
    "Shapes",
    "long_tail",
    "make_batch",
]

Link: TypeAlias = Literal["softmax", "sigmoid"]
Shape: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = Mapping[Link, Sequence[Shape]]

SHAPES: dict[Link, tuple[Shape, ...]] = {
    "softmax": ((8192, 1000), (8, 19, 256, 256)),
    "sigmoid": ((4096, 80), (1024, 9605)),
}
CUDA_SHAPES: dict[Link, tuple[Shape, ...]] = {
    "softmax": ((65536, 1000), (16384, 8142), (8, 19, 769, 769), (4, 150, 512, 512), (2, 4, 128, 128, 128)),
    "sigmoid": ((4096, 80), (4096, 9605)),
}
TORCH: dict[Link, str] = {"softmax": "torch cross_entropy", "sigmoid": "torch binary_cross_entropy_with_logits"}
"""The loss of torch that the column 'times torch' refers to."""
CALL: dict[Link, str] = {"softmax": TORCH["softmax"], "sigmoid": "torch cross_entropy, one label"}
"""The loss of torch that calls on small batches are compared with: cross-entropy with integer targets."""
EAGER_ASYMMETRIC = "asymmetric, eager formula"


@dataclass(frozen=True)
class Batch:
    """A synthetic batch that resembles the outputs of a half-trained model."""

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
    """CPU targets: time relative to another case, and number of tensors of the size of the logits held."""

    times: float
    of: str
    held: int | None = None


@dataclass(frozen=True)
class Case:
    """One candidate.

    Args:
        name: unique for its link.
        build: batch to forward pass.
        kind: torch, ours, a formula in plain torch operations, the same compiled, or another library.
        limit: target on the CPU, None for information only.
        against: further cases to compare the time with, besides torch.
        compiled: case of the same loss under ``torch.compile``, the target on a GPU.
        rival: loss of torch that is the target on a GPU, if it is not the plain cross-entropy.
        pointwise: whether the GPU targets apply to this loss of ours.
        reads: the targets of its link, distributions like the logits, or one label per row.
        package: required package.
        spatial: only for logits (N, C, d1, ..., dk) with k > 0.
        cuda_only: skipped on the CPU.
        module: our loss, from the training samples of each class.
    """

    name: str
    build: Callable[[Batch], Forward]
    kind: Literal["torch", "ours", "formula", "compiled", "peer"]
    limit: Limit | None = None
    against: tuple[str, ...] = ()
    compiled: str | None = None
    rival: str | None = None
    pointwise: bool = False
    reads: Literal["targets", "dense", "labels"] = "targets"
    package: str | None = None
    spatial: bool = False
    cuda_only: bool = False
    module: Callable[[list[float]], nn.Module] | None = None


def long_tail(num_classes: int) -> list[float]:
    """Synthetic training samples of each class, from 1000 down to 10."""
    return [max(1.0, 1000.0 * 0.01 ** (k / max(1, num_classes - 1))) for k in range(num_classes)]


def make_batch(link: Link, shape: Shape, dtype: torch.dtype, device: torch.device) -> Batch:
    """The batch of all candidates, the same in every run and on every device, because it is drawn on the CPU."""
    draw = torch.Generator().manual_seed(0)
    counts = long_tail(shape[1])
    noise = (2.0 * torch.randn(shape, generator=draw)).to(device)
    if link == "sigmoid":
        targets = (torch.rand(shape, generator=draw) < 0.04).to(device).float()
        logits, dense = noise - 3.0 + 4.0 * targets, targets
    else:
        rows = shape[0] * torch.Size(shape[2:]).numel()
        targets = torch.multinomial(torch.tensor(counts), rows, replacement=True, generator=draw).to(device)
        targets = targets.view(shape[0], *shape[2:])
        one_hot = F.one_hot(targets, shape[1]).movedim(-1, 1).to(noise.dtype)
        logits, dense = noise + 5.0 * one_hot, 0.7 * one_hot + 0.3 * one_hot.roll(1, 0)  # as from mixup
    return Batch(
        link,
        logits.to(dtype).contiguous().requires_grad_(),
        targets.to(dtype) if link == "sigmoid" else targets,
        dense.to(dtype).contiguous(),
        counts,
    )
