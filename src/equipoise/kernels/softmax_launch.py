"""Launching the softmax kernels: strides, block sizes, and the tensors that they fill."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.kernels.geometry import is_long, rows_of
from equipoise.kernels.hyper import Layout, accumulation_dtype
from equipoise.kernels.launch import Launcher
from equipoise.kernels.softmax_triton import (
    backward_kernel,
    count_kernel,
    finish_kernel,
    forward_kernel,
    weigh_kernel,
)
from equipoise.kernels.triton_forms import Plan, plan_of

__all__ = ["Forward", "finish", "is_spread", "softmax_backward", "softmax_counts", "softmax_forward", "softmax_weighed"]

FEW_CLASSES = 256  # up to here a program counts in a table of its own
LINE = 1024  # rows that a program counts or weighs at a time
SWEEPS = 1024  # programs that do so
MANY_PROGRAMS = 4096  # beyond, their sums are added up before the last step
REDUCTIONS = {"sum": 0, "mean": 1, "valid_mean": 2, "batch_mean": 3}

_forward = Launcher(forward_kernel)
_backward = Launcher(backward_kernel)
_count = Launcher(count_kernel)
_weigh = Launcher(weigh_kernel)
_finish = Launcher(finish_kernel)


class Forward(NamedTuple):
    """What the forward kernel leaves behind."""

    state: Tensor  # (2 or 3, rows) in the accumulation type, for backward
    sums: Tensor  # (3, programs) loss, mass, valid rows
    rows: Tensor | None  # (rows,) losses
    hits: Tensor | None  # (rows,) uint8


class Blocks(NamedTuple):
    """Tile of one program."""

    rows: int
    classes: int
    warps: int


def softmax_forward(
    logits: Tensor,
    targets: Tensor,
    weight: Tensor | None,
    hyper: Tensor,
    layout: Layout,
    ignore_index: int,
    *,
    keep_rows: bool = False,
    hits: bool = False,
) -> Forward:
    """Losses of (N, C, d1, ..., dk) logits; ``targets`` indices or dense, as they lie in memory."""
    dense, plan = targets.is_floating_point(), plan_of(layout)
    geometry = rows_of(logits, targets, per_class=1 + dense)
    if geometry is None:
        logits, targets = logits.contiguous(), targets.contiguous()
        geometry = rows_of(logits, targets, per_class=1 + dense)
        assert geometry is not None
    dtype, device, rows = accumulation_dtype(logits), logits.device, geometry.rows
    blocks = blocks_for(logits, plan, dense, backward=False)
    split, programs = geometry.programs(blocks.rows)
    state = torch.empty((3 if is_spread(plan, dense) else 2, rows), dtype=dtype, device=device)
    sums = torch.empty((3, programs), dtype=dtype, device=device)
    losses = torch.empty(rows, dtype=dtype, device=device) if keep_rows else None
    hit = torch.empty(rows, dtype=torch.uint8, device=device) if hits else None
    if programs:
        (z_unit, z), (t_unit, t) = geometry.walks
        _forward(
            programs,
            (logits, targets, hyper if weight is None else weight, hyper, state,
             state if losses is None else losses, state if hit is None else hit, sums),
            (rows, *geometry.sizes[1:], *z, logits.stride(1), *t, targets.stride(1) if dense else 0, ignore_index),
            (logits.shape[1], plan, dense, weight is not None, hits, keep_rows, z_unit, t_unit,
             is_long(rows, logits, targets), split, blocks.rows, blocks.classes),
            blocks.warps,
        )  # fmt: skip
    return Forward(state, sums, losses, hit)


def finish(sums: Tensor, reduction: str, samples: int) -> Tensor:
    """The reduced loss and the inverse of its denominator, (2,)."""
    out = torch.empty(2, dtype=sums.dtype, device=sums.device)
    if sums.shape[1] > MANY_PROGRAMS:
        sums = sums.sum(1, keepdim=True)
    _finish(1, (sums, out), (sums.shape[1], samples), (REDUCTIONS[reduction], 1024), 4)
    return out


def softmax_backward(
    logits: Tensor,
    targets: Tensor,
    weight: Tensor | None,
    hyper: Tensor,
    layout: Layout,
    state: Tensor,
    grad: Tensor,
    inverse: Tensor | None = None,
) -> Tensor:
    """Gradient of the logits; ``grad`` is a scalar or one for each row, ``inverse`` that of the denominator."""
    dense, plan = targets.is_floating_point(), plan_of(layout)
    out = torch.empty_like(logits)
    geometry = rows_of(logits, out, targets, per_class=2 + dense)
    if geometry is None:
        logits, out, targets = logits.contiguous(), out.contiguous(), targets.contiguous()
        geometry = rows_of(logits, out, targets, per_class=2 + dense)
        assert geometry is not None
    rows, blocks = geometry.rows, blocks_for(logits, plan, dense, backward=True)
    if rows:
        (z_unit, z), (g_unit, g), (t_unit, t) = geometry.walks
        kind = 2 if grad.ndim else 1 if inverse is None else 3
        split, programs = geometry.programs(blocks.rows)
        _backward(
            programs,
            (logits, targets, hyper if weight is None else weight, hyper, state,
             grad.contiguous(), hyper if inverse is None else inverse, out),
            (rows, *geometry.sizes[1:], *z, logits.stride(1), *t, targets.stride(1) if dense else 0, *g, out.stride(1)),
            (logits.shape[1], plan, dense, weight is not None, kind, z_unit, t_unit, g_unit,
             is_long(rows, logits, targets, out), split, blocks.rows, blocks.classes),
            blocks.warps,
        )  # fmt: skip
    return out


def softmax_counts(targets: Tensor, hits: Tensor, classes: int, ignore_index: int) -> Tensor:
    """Rows of each class and its hits, (2, C) int64, of index targets."""
    targets, rows, numbers, how = _rows_of_targets(targets, ignore_index)
    counts = torch.zeros((2, classes), dtype=torch.int64, device=targets.device)
    bins = _power_of_2(2 * classes) if classes <= FEW_CLASSES else 0
    if rows:
        programs = min(-(-rows // LINE), SWEEPS)
        _count(programs, (targets, hits, counts), numbers, (classes, bins, *how, LINE), 4)
    return counts


def softmax_weighed(targets: Tensor, losses: Tensor, weight: Tensor, ignore_index: int) -> Tensor:
    """Loss, mass and valid rows, (3, programs), of losses (rows,) that lack the class weights (C,)."""
    targets, rows, numbers, how = _rows_of_targets(targets, ignore_index)
    programs = min(-(-rows // LINE), SWEEPS)
    sums = torch.empty((3, programs), dtype=losses.dtype, device=losses.device)
    if rows:
        _weigh(programs, (targets, losses, weight, sums), numbers, (weight.numel(), *how, LINE), 4)
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


def is_spread(plan: Plan, dense: bool) -> bool:
    """Whether every class of a row has a term of its own."""
    return dense or plan.label_smoothing >= 0 or plan.squared_error >= 0


def _power_of_2(number: int) -> int:
    """The next power of two, at least 2."""
    return 1 << max(1, (number - 1).bit_length())


def blocks_for(logits: Tensor, plan: Plan, dense: bool, *, backward: bool) -> Blocks:
    """Tile for these logits."""
    aligned = logits.data_ptr() % 16 == 0
    lone = backward and not is_spread(plan, dense)
    return _blocks(logits.shape, logits.stride(), logits.element_size(), aligned, lone)


@lru_cache(maxsize=1024)
def _blocks(shape: tuple[int, ...], strides: tuple[int, ...], element_size: int, aligned: bool, lone: bool) -> Blocks:
    """By measurements on an H200; ``lone``: no sum over the classes is needed.

    Classes next to each other: one warp walks along a row, several rows at once where they are short. Strided classes:
    neighbouring threads have neighbouring rows, as many to a thread as one load can hold, and keep all classes of a
    tile to themselves, so that sums over classes need no exchange.
    """
    width = _power_of_2(shape[1])
    if strides[1] == 1:
        if lone:
            width = min(width, 8192)
            return Blocks(max(1, 1024 // width), width, max(1, width // 1024))
        width = min(width, 1024)
        return Blocks(1024 // width, width, 1)
    steps = [stride for size, stride in zip(shape, strides, strict=True) if size > 1 and stride != 1]
    together = aligned and all(stride % 16 == 0 for stride in steps)  # neighbouring rows, as Triton sees it
    vector = 16 // element_size if together else 1
    warps = 8 if vector == 1 else 4
    return Blocks(32 * warps * vector, min(width, 64 // vector, 32 if vector == 1 else 8), warps)
