"""Launching the kernels of the overlap losses: strides, block sizes, and the tensors that they fill."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.kernels.geometry import SMALL, Geometry, images, is_long, merged, power_of_2
from equipoise.kernels.hyper import accumulation_dtype
from equipoise.kernels.launch import Launch, Launcher
from equipoise.kernels.region_reference import Prices
from equipoise.kernels.region_triton import gradient_kernel, overlap_kernel, sums_kernel
from equipoise.kernels.rows_launch import added
from equipoise.kernels.tiles import Blocks, gradient_blocks, is_aligned, summing_blocks

__all__ = ["MOST_ENTRIES", "launch_gradient", "launch_loss", "launch_sums"]

WARPS = 4224  # that share the rows, about; half as many where the registers of their sums allow no more
MOST_ENTRIES = 8192  # of the sums that one program makes a loss of

_sums = Launcher(sums_kernel)
_gradient = Launcher(gradient_kernel)
_loss = Launcher(overlap_kernel)


class Walk(NamedTuple):
    """How the kernels walk over a batch."""

    geometry: Geometry
    blocks: Blocks
    split: int
    tiles: int  # of a group
    groups: int  # the batch, or its images

    @property
    def constants(self) -> tuple[int, bool, int, int, int]:
        """The last of those that a kernel is compiled for."""
        return self.split, self.geometry.even(self.blocks.rows, self.groups * self.tiles), *self.blocks.tile


def launch_sums(logits: Tensor, targets: Tensor, ignore_index: int, per_image: bool) -> Tensor:
    """Sums of p t, p (1 - t) and (1 - p) t, (3, C) or (3, N, C)."""
    classes, dtype, device = logits.shape[1], accumulation_dtype(logits), logits.device
    shape = (3, *logits.shape[:2]) if per_image else (3, classes)
    if logits.numel() == 0:
        return torch.zeros(shape, dtype=dtype, device=device)
    long = is_long(logits.numel() // classes, logits, targets)
    how = (logits.element_size(), targets.is_floating_point(), long, ignore_index, per_image)
    planned = _summing(logits.shape, logits.stride(), targets.stride(), is_aligned(logits), *how)
    if planned is None:
        return launch_sums(logits.contiguous(), targets.contiguous(), ignore_index, per_image)
    launch, groups = planned
    partial = torch.empty((3 * groups, launch.programs // groups, classes), dtype=dtype, device=device)
    _sums(launch, logits, targets, partial)
    return added(partial).view(shape)


@lru_cache(maxsize=1024)
def _summing(
    shape: tuple[int, ...],
    z_strides: tuple[int, ...],
    t_strides: tuple[int, ...],
    aligned: bool,
    element_size: int,
    dense: bool,
    long: bool,
    ignore_index: int,
    per_image: bool,
) -> tuple[Launch, int] | None:
    """The launch and the number of groups; None where the rows cannot be walked over in place."""
    blocks = summing_blocks(shape, z_strides, element_size, aligned)
    walk = _walk(shape, (z_strides, t_strides), 1 + dense, blocks, per_image)
    if walk is None:
        return None
    lanes = walk.tiles
    if shape[1] <= blocks.classes:
        warps = WARPS if blocks.classes <= 8 else WARPS // 2
        lanes = min(lanes, -(-warps // (blocks.warps * walk.groups)))
    (z_unit, z), (t_unit, t) = walk.geometry.walks
    launch = Launch(
        walk.groups * lanes,
        (walk.tiles, lanes, walk.geometry.rows, *walk.geometry.sizes[1:], *z, z_strides[1], *t,
         t_strides[1] if dense else 0, ignore_index),
        (shape[1], dense, z_unit, t_unit, long or 3 * walk.groups * lanes * shape[1] >= SMALL, *walk.constants),
        blocks.warps,
    )  # fmt: skip
    return launch, walk.groups


def launch_gradient(slopes: Tensor, logits: Tensor, targets: Tensor, ignore_index: int) -> Tensor:
    """Gradient of the logits for that of the sums, (3, C) or (3, N, C)."""
    out = torch.empty_like(logits)
    if logits.numel() == 0:
        return out
    long = is_long(logits.numel() // logits.shape[1], logits, out, targets)
    how = (logits.element_size(), targets.is_floating_point(), long, ignore_index)
    strides = logits.stride(), out.stride(), targets.stride()
    launch = _descending(logits.shape, *strides, is_aligned(logits), *how, slopes.ndim == 3)
    if launch is None:
        return out.copy_(launch_gradient(slopes, logits.contiguous(), targets.contiguous(), ignore_index))
    _gradient(launch, logits, targets, slopes.contiguous(), out)
    return out


@lru_cache(maxsize=1024)
def _descending(
    shape: tuple[int, ...],
    z_strides: tuple[int, ...],
    g_strides: tuple[int, ...],
    t_strides: tuple[int, ...],
    aligned: bool,
    element_size: int,
    dense: bool,
    long: bool,
    ignore_index: int,
    per_image: bool,
) -> Launch | None:
    """None where the rows cannot be walked over in place."""
    blocks = gradient_blocks(shape, z_strides, element_size, aligned)
    walk = _walk(shape, (z_strides, g_strides, t_strides), 2 + dense, blocks, per_image)
    if walk is None:
        return None
    (z_unit, z), (g_unit, g), (t_unit, t) = walk.geometry.walks
    return Launch(
        walk.groups * walk.tiles,
        (walk.tiles, walk.groups, walk.geometry.rows, *walk.geometry.sizes[1:], *z, z_strides[1], *t,
         t_strides[1] if dense else 0, *g, g_strides[1], ignore_index),
        (shape[1], dense, z_unit, t_unit, g_unit, long or 3 * walk.groups * shape[1] >= SMALL, *walk.constants),
        blocks.warps,
    )  # fmt: skip


def _walk(
    shape: tuple[int, ...], strides: tuple[tuple[int, ...], ...], per_class: int, blocks: Blocks, per_image: bool
) -> Walk | None:
    if per_image:
        geometry = images(shape, strides, per_class)
        if geometry is None:
            return None
        inner = geometry.sizes[-1]
        return Walk(geometry, blocks, 1, geometry.sizes[1] * -(-inner // blocks.rows), shape[0])
    geometry = merged(shape, strides, per_class)
    return None if geometry is None else Walk(geometry, blocks, *geometry.programs(blocks.rows), 1)


def launch_loss(sums: Tensor, prices: Prices) -> tuple[Tensor, Tensor]:
    """The loss of sums (3, C) or (3, N, C), at most ``MOST_ENTRIES``, and its gradient with respect to them."""
    loss, slopes = torch.empty((), dtype=sums.dtype, device=sums.device), torch.empty_like(sums)
    groups = sums[0].numel() // sums.shape[-1]
    _loss(_reducing(groups, sums.shape[-1], sums.dtype, prices), sums, loss, slopes)
    return loss, slopes


@lru_cache(maxsize=1024)
def _reducing(groups: int, classes: int, dtype: torch.dtype, prices: Prices) -> Launch:
    numbers = torch.finfo(dtype)
    constants = (classes, *prices, numbers.tiny / numbers.eps, power_of_2(groups), power_of_2(classes))
    return Launch(1, (groups,), constants, 4)
