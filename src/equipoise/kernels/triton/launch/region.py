"""Launching the kernels of the region losses: strides, block sizes and output tensors."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.kernels.hyper import accumulation_dtype
from equipoise.kernels.triton.device.region import errors_kernel, gradient_kernel, overlap_kernel, sums_kernel
from equipoise.kernels.triton.launch.batch import Batch
from equipoise.kernels.triton.launch.geometry import SMALL, Geometry, power_of_2
from equipoise.kernels.triton.launch.launcher import Launch, Launcher
from equipoise.kernels.triton.launch.rows import added
from equipoise.kernels.triton.launch.tiles import Blocks, gradient_blocks, summing_blocks

__all__ = ["MOST_ENTRIES", "TverskyOptions", "launch_errors", "launch_gradient", "launch_loss", "launch_sums"]

WARPS = 4224  # approximate number of warps in all; half of it if the sums need many registers
MOST_ENTRIES = 8192  # sums that one program reduces to a loss, at most

_sums = Launcher(sums_kernel)
_errors = Launcher(errors_kernel)
_gradient = Launcher(gradient_kernel)
_loss = Launcher(overlap_kernel)


class TverskyOptions(NamedTuple):
    """Options that reduce the overlaps of all classes to a scalar, see ``losses.region.tversky_loss``."""

    alpha: float
    beta: float
    smooth: float
    every: bool  # include classes that are not present
    mean: bool  # mean over classes and images, instead of the sum


class RowWalk(NamedTuple):
    """How the kernels iterate over a batch."""

    geometry: Geometry
    blocks: Blocks
    split: int
    tiles: int  # number of tiles of a group
    groups: int  # 1 for the batch, or the number of images

    @property
    def constants(self) -> tuple[int, bool, int, int, int]:
        """The last compile-time constants of a kernel."""
        return self.split, self.geometry.even(self.blocks.rows, self.groups * self.tiles), *self.blocks.tile


def _walk(batch: Batch, per_image: bool, blocks: Blocks) -> RowWalk | None:
    """Iteration over a batch; None if its tensors must be copied first."""
    geometry = batch.geometry(per_image=per_image)
    if geometry is None:
        return None
    if not per_image:
        return RowWalk(geometry, blocks, *geometry.programs(blocks.rows), 1)
    return RowWalk(geometry, blocks, 1, geometry.sizes[1] * -(-geometry.sizes[2] // blocks.rows), batch.shape[0])


def launch_sums(logits: Tensor, targets: Tensor, ignore_index: int, per_image: bool) -> Tensor:
    """Sums of p t, p (1 - t) and (1 - p) t, (3, C) or (3, N, C)."""
    classes, dtype, device = logits.shape[1], accumulation_dtype(logits), logits.device
    shape = (3, *logits.shape[:2]) if per_image else (3, classes)
    if logits.numel() == 0:
        return torch.zeros(shape, dtype=dtype, device=device)
    plan = _summing(Batch.of(logits, targets), ignore_index, per_image)
    if plan is None:
        return launch_sums(logits.contiguous(), targets.contiguous(), ignore_index, per_image)
    launch, groups = plan
    partial = torch.empty((3 * groups, launch.programs // groups, classes), dtype=dtype, device=device)
    _sums(launch, logits, targets, partial)
    return added(partial).view(shape)


@lru_cache(maxsize=1024)
def _summing(batch: Batch, ignore_index: int, per_image: bool) -> tuple[Launch, int] | None:
    """The launch and the number of groups."""
    classes = batch.shape[1]
    blocks = summing_blocks(batch.shape, batch.strides[0], batch.element_size, batch.aligned)
    walk = _walk(batch, per_image, blocks)
    if walk is None:
        return None
    lanes = walk.tiles
    if classes <= blocks.classes:
        warps = WARPS if blocks.classes <= 8 else WARPS // 2
        lanes = min(lanes, -(-warps // (blocks.warps * walk.groups)))
    (z_unit, z), (t_unit, t) = walk.geometry.walks
    z_c, t_c = batch.class_strides
    long = batch.long or 3 * walk.groups * lanes * classes >= SMALL
    launch = Launch(
        walk.groups * lanes,
        (walk.tiles, lanes, walk.geometry.rows, *walk.geometry.sizes[1:], *z, z_c, *t, t_c, ignore_index),
        (classes, batch.dense, z_unit, t_unit, long, *walk.constants),
        blocks.warps,
    )
    return launch, walk.groups


def launch_errors(logits: Tensor, labels: Tensor, ignore_index: int, per_image: bool) -> Tensor:
    """Errors abs(t - p), -1 at ignored pixels; (classes, pixels), or (images * classes, pixels)."""
    launch = _erring(Batch.of(logits, labels), ignore_index, per_image)
    if launch is None:
        return launch_errors(logits.contiguous(), labels.contiguous(), ignore_index, per_image)
    lines = logits.shape[1] * (logits.shape[0] if per_image else 1)
    out = torch.empty(lines, logits.numel() // lines, dtype=accumulation_dtype(logits), device=logits.device)
    _errors(launch, logits, labels, out)
    return out


@lru_cache(maxsize=1024)
def _erring(batch: Batch, ignore_index: int, per_image: bool) -> Launch | None:
    blocks = gradient_blocks(batch.shape, batch.strides[0], batch.element_size, batch.aligned)
    walk = _walk(batch, per_image, blocks)
    if walk is None:
        return None
    (z_unit, z), (t_unit, t) = walk.geometry.walks
    long = batch.long or math.prod(batch.shape) >= SMALL
    return Launch(
        walk.groups * walk.tiles,
        (walk.tiles, walk.groups, walk.geometry.rows, *walk.geometry.sizes[1:], *z, batch.class_strides[0], *t,
         ignore_index),
        (batch.shape[1], z_unit, t_unit, long, *walk.constants),
        blocks.warps,
    )  # fmt: skip


def launch_gradient(
    slopes: Tensor, logits: Tensor, targets: Tensor, ignore_index: int, each: Tensor | None = None
) -> Tensor:
    """Gradient of the logits, given the gradient ``slopes`` of the sums, (3, C) or (3, N, C).

    With ``each``, the derivatives of Lovász losses in the layout of ``launch_errors``, ``slopes`` is the gradient of
    these losses, (C,) or (N, C).
    """
    out = torch.empty_like(logits)
    if logits.numel() == 0:
        return out
    per_image = slopes.ndim == (3 if each is None else 2)
    launch = _descending(Batch.of(logits, out, targets), ignore_index, per_image, each is not None)
    if launch is None:
        return out.copy_(launch_gradient(slopes, logits.contiguous(), targets.contiguous(), ignore_index, each))
    _gradient(launch, logits, targets, slopes.contiguous(), slopes if each is None else each, out)
    return out


@lru_cache(maxsize=1024)
def _descending(batch: Batch, ignore_index: int, per_image: bool, each: bool) -> Launch | None:
    blocks = gradient_blocks(batch.shape, batch.strides[0], batch.element_size, batch.aligned)
    walk = _walk(batch, per_image, blocks)
    if walk is None:
        return None
    (z_unit, z), (g_unit, g), (t_unit, t) = walk.geometry.walks
    z_c, g_c, t_c = batch.class_strides
    long = batch.long or (math.prod(batch.shape) if each else 3 * walk.groups * batch.shape[1]) >= SMALL
    return Launch(
        walk.groups * walk.tiles,
        (walk.tiles, walk.groups, walk.geometry.rows, *walk.geometry.sizes[1:], *z, z_c, *t, t_c, *g, g_c,
         ignore_index),
        (batch.shape[1], batch.dense, each, z_unit, t_unit, g_unit, long, *walk.constants),
        blocks.warps,
    )  # fmt: skip


def launch_loss(sums: Tensor, options: TverskyOptions) -> tuple[Tensor, Tensor]:
    """The loss of sums (3, C) or (3, N, C), at most ``MOST_ENTRIES``, and its gradient with respect to them."""
    loss, slopes = torch.empty((), dtype=sums.dtype, device=sums.device), torch.empty_like(sums)
    groups = sums[0].numel() // sums.shape[-1]
    _loss(_reducing(groups, sums.shape[-1], sums.dtype, options), sums, loss, slopes)
    return loss, slopes


@lru_cache(maxsize=1024)
def _reducing(groups: int, classes: int, dtype: torch.dtype, options: TverskyOptions) -> Launch:
    numbers = torch.finfo(dtype)
    constants = (classes, *options, numbers.tiny / numbers.eps, power_of_2(groups), power_of_2(classes))
    return Launch(1, (groups,), constants, 4)
