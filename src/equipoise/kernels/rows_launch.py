"""Launching the kernels that count, weigh and divide rows."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from equipoise.kernels.geometry import is_long, power_of_2, rows_of
from equipoise.kernels.launch import Launch, Launcher
from equipoise.kernels.rows_triton import count_kernel, finish_kernel, weigh_kernel

__all__ = ["count", "finish", "weigh"]

FEW_CLASSES = 256  # up to here a program counts in a table of its own
LINE = 1024  # rows that a program counts or weighs at a time
SWEEPS = 1024  # programs that do so
MANY_PROGRAMS = 4096  # beyond, their sums are added up before the last step
REDUCTIONS = {"sum": 0, "mean": 1, "valid_mean": 2, "batch_mean": 3}

_count = Launcher(count_kernel)
_weigh = Launcher(weigh_kernel)
_finish = Launcher(finish_kernel)


def finish(sums: Tensor, reduction: str, samples: int) -> Tensor:
    """The reduced loss and the inverse of its denominator, (2,)."""
    out = torch.empty(2, dtype=sums.dtype, device=sums.device)
    if sums.shape[1] > MANY_PROGRAMS:
        sums = sums.sum(1, keepdim=True)
    _finish(_finishing(sums.shape[1], samples, reduction), sums, out)
    return out


@lru_cache(maxsize=1024)
def _finishing(sums: int, samples: int, reduction: str) -> Launch:
    return Launch(1, (sums, samples), (REDUCTIONS[reduction], 1024), 4)


def count(targets: Tensor, hits: Tensor, classes: int, ignore_index: int) -> Tensor:
    """Rows of each class and its hits, (2, C) int64, of index targets."""
    targets, rows, numbers, how = _rows_of_targets(targets, ignore_index)
    counts = torch.zeros((2, classes), dtype=torch.int64, device=targets.device)
    bins = power_of_2(2 * classes) if classes <= FEW_CLASSES else 0
    if rows:
        programs = min(-(-rows // LINE), SWEEPS)
        _count(Launch(programs, numbers, (classes, bins, *how, LINE), 4), targets, hits, counts)
    return counts


def weigh(targets: Tensor, losses: Tensor, weight: Tensor, ignore_index: int) -> Tensor:
    """Loss, mass and valid rows, (3, programs), of losses (rows,) that lack the class weights (C,)."""
    targets, rows, numbers, how = _rows_of_targets(targets, ignore_index)
    programs = min(-(-rows // LINE), SWEEPS)
    sums = torch.empty((3, programs), dtype=losses.dtype, device=losses.device)
    if rows:
        _weigh(Launch(programs, numbers, (weight.numel(), *how, LINE), 4), targets, losses, weight, sums)
    return sums


def _rows_of_targets(targets: Tensor, ignore_index: int) -> tuple[Tensor, int, tuple[int, ...], tuple[bool, bool]]:
    """Index targets as the kernels walk over them: number, the integers that say how, whether single and 64-bit."""
    geometry = rows_of(targets.unsqueeze(1), per_class=1)
    if geometry is None:
        targets = targets.contiguous()
        geometry = rows_of(targets.unsqueeze(1), per_class=1)
        assert geometry is not None
    rows = geometry.rows
    numbers = (rows, *geometry.sizes[1:], *geometry.strides[0], ignore_index)
    return targets, rows, numbers, (geometry.single, is_long(rows, targets))
