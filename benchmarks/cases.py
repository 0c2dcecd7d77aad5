"""What a benchmark of losses is made of: batches, candidates and the limits that the project has set itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measure import Forward

__all__ = ["EAGER_ASYMMETRIC", "SHAPES", "TORCH", "Batch", "Case", "Limit", "Link", "make_batch"]

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
