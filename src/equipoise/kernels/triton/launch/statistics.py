"""Launching the kernels that turn the statistics of a batch into class weights and exponents."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from equipoise.kernels.triton.device.statistics import recall_kernel, steer_kernel
from equipoise.kernels.triton.launch.geometry import power_of_2
from equipoise.kernels.triton.launch.launcher import Launch, Launcher
from equipoise.kernels.triton.launch.rows import added

__all__ = ["recall_weights", "steer"]

BLOCK = 256
MOST_PARTS = 1024  # partial sums that one program adds up, at most
STEERED = 4096  # partial sums of one kind per program, at most

_recall = Launcher(recall_kernel)
_steer = Launcher(steer_kernel)


def recall_weights(
    counts: Tensor,
    dtype: torch.dtype,
    min_errors: float | None,
    momentum: float | None = None,
    recall: Tensor | None = None,
    batches: Tensor | None = None,
) -> Tensor:
    """Recall weights (C,) from support and hits, (2, C); with ``momentum`` also updates the average ``recall``."""
    classes = counts.shape[1]
    weight = torch.empty(classes, dtype=dtype, device=counts.device)
    launch = _weighting(classes, momentum, min_errors)
    _recall(launch, counts, weight if recall is None else recall, counts if batches is None else batches, weight)
    return weight


@lru_cache(maxsize=1024)
def _weighting(classes: int, momentum: float | None, min_errors: float | None) -> Launch:
    return Launch(-(-classes // BLOCK), (), (classes, momentum, min_errors, BLOCK), 1)


def steer(seen: Tensor, gamma: Tensor, gap: Tensor, target_gap: float, gap_step: float, gamma_max: float) -> None:
    """Update ``gamma`` and ``gap``, (labels,), from partial sums of p, t, p t and 1, (4, parts, labels)."""
    if seen.shape[1] > MOST_PARTS:
        seen = added(seen).unsqueeze(1)
    _steer(_steering(seen.shape[1], gamma.numel(), target_gap, gap_step, gamma_max), seen, gamma, gap)


@lru_cache(maxsize=1024)
def _steering(parts: int, labels: int, target_gap: float, gap_step: float, gamma_max: float) -> Launch:
    rows = power_of_2(parts)
    columns = min(BLOCK, power_of_2(labels), max(1, STEERED // rows))
    constants = (target_gap, gap_step, gamma_max, rows, columns)
    return Launch(-(-labels // columns), (parts, labels), constants, max(1, rows * columns // BLOCK // 4))
