"""Launching the kernels of the Lovász loss around PyTorch's sort."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from equipoise.kernels.reference.lovasz import lines_at_once
from equipoise.kernels.triton.device.lovasz import hits_kernel, steps_kernel
from equipoise.kernels.triton.launch.launcher import Launch, Launcher
from equipoise.kernels.triton.launch.region import launch_errors

__all__ = ["launch_lovasz"]

BLOCK = 2048  # pixels per program
WARPS = 4

_hits = Launcher(hits_kernel)
_steps = Launcher(steps_kernel)


def launch_lovasz(logits: Tensor, labels: Tensor, ignore_index: int, per_image: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Losses of the classes, (C,) or (N, C), which of them are present, and the slopes for ``launch_gradient``.

    The slopes overwrite the errors; sorting needs extra memory for a few lines at a time only.
    """
    errors = launch_errors(logits, labels, ignore_index, per_image)
    labels = labels.contiguous()
    classes, (lines, pixels) = logits.shape[1], errors.shape
    blocks = -(-pixels // BLOCK)
    losses = torch.empty(lines, blocks, dtype=errors.dtype, device=errors.device)
    hits = torch.empty(lines, blocks, dtype=torch.int32, device=errors.device)
    for first in range(0, lines, lines_at_once(pixels)):
        chunk = slice(first, first + lines_at_once(pixels))
        ordered, order = errors[chunk].sort(dim=-1, descending=True, stable=True)
        launch = _along(len(ordered), first, pixels, blocks, classes)
        _hits(launch, ordered, order, labels, hits[chunk])
        cumulative = hits[chunk].cumsum(1, dtype=torch.int32)
        _steps(launch, ordered, order, labels, hits[chunk], cumulative, errors[chunk], losses[chunk])
    shape = logits.shape[:2] if per_image else logits.shape[1:2]
    return losses.sum(1).view(shape), (hits.sum(1) > 0).view(shape), errors


@lru_cache(maxsize=1024)
def _along(lines: int, first: int, pixels: int, blocks: int, classes: int) -> Launch:
    return Launch(lines * blocks, (first, pixels, blocks), (classes, BLOCK), WARPS)
