"""Launching the softmax kernels: strides, block sizes, and the tensors that they fill."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.kernels.geometry import is_long, power_of_2, rows_of
from equipoise.kernels.hyper import Layout, accumulation_dtype
from equipoise.kernels.launch import Launcher
from equipoise.kernels.softmax_triton import backward_kernel, forward_kernel
from equipoise.kernels.triton_forms import Plan, plan_of

__all__ = ["Forward", "is_spread", "softmax_backward", "softmax_forward"]

_forward = Launcher(forward_kernel)
_backward = Launcher(backward_kernel)


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


def is_spread(plan: Plan, dense: bool) -> bool:
    """Whether every class of a row has a term of its own."""
    return dense or plan.label_smoothing >= 0 or plan.squared_error >= 0


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
    width = power_of_2(shape[1])
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
