"""Launching the softmax kernels: strides, block sizes and output tensors."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.kernels.hyper import accumulation_dtype
from equipoise.kernels.spec import SoftmaxSpec
from equipoise.kernels.triton.device.softmax_backward import backward_kernel
from equipoise.kernels.triton.device.softmax_forward import forward_kernel
from equipoise.kernels.triton.launch.batch import Batch
from equipoise.kernels.triton.launch.geometry import power_of_2
from equipoise.kernels.triton.launch.launcher import Launch, Launcher
from equipoise.kernels.triton.launch.rows import (
    AT_ONCE,
    Reduced,
    asked,
    code_dtype,
    count,
    denominate,
    finish,
    finishes_itself,
    roomy,
    sums_of,
)
from equipoise.kernels.triton.launch.tiles import Blocks, Work, blocks_of
from equipoise.kernels.triton.plan import Plan, plan_of

__all__ = ["SoftmaxForward", "is_spread", "softmax_at_once", "softmax_backward", "softmax_forward"]

MOST_PROGRAMS = 8448  # of a forward pass over tiles of whole rows, which limits the number of partial sums
LEAST_AT_ONCE = 36_000_000  # bytes: smaller logits may still be in the cache when backward reads them

_forward = Launcher(forward_kernel)
_backward = Launcher(backward_kernel)


class SoftmaxForward(NamedTuple):
    """The results of the forward kernel."""

    state: Tensor | None  # (2 or 3, rows) in the accumulation type, for backward if it needs it
    sums: Tensor | None  # (3, programs) loss, mass, valid rows; None with hits, undefined if the kernel reduces them
    rows: Tensor | None  # (N, d1, ..., dk) losses
    codes: Tensor | None  # (N, d1, ..., dk) label, plus C if it is a hit; 2 C: ignored, 2 C + 1: loss is NaN
    counts: Tensor | None  # (2, C) support and hits (true positives) of each class
    reduced: Reduced | None


class SoftmaxOutputs(NamedTuple):
    """The outputs of the forward kernel other than its sums."""

    rows: bool = False
    hits: bool = False
    coded: bool = False
    gradient: bool = False
    reduction: str | None = None


def softmax_forward(
    logits: Tensor,
    targets: Tensor,
    weight: Tensor | None,
    hyper: Tensor,
    spec: SoftmaxSpec,
    *,
    keep_rows: bool = False,
    hits: bool = False,
    coded: bool = False,
    reduction: str | None = None,
) -> SoftmaxForward:
    """Losses of (N, C, d1, ..., dk) logits; ``targets`` indices or dense, of any strides.

    With ``hits`` there are codes and counts instead of sums. With ``coded`` backward will use the codes, and the state
    is omitted if it can recompute it.
    """
    outputs = SoftmaxOutputs(keep_rows, hits, coded, False, reduction)
    planned = _forward_plan(Batch.of(logits, targets), spec, weight is not None, outputs)
    if planned is None:
        logits, targets = logits.contiguous(), targets.contiguous()
        planned = _forward_plan(Batch.of(logits, targets), spec, weight is not None, outputs)
        assert planned is not None
    kept, rows, inside, launch = planned
    dtype, device = accumulation_dtype(logits), logits.device
    state = torch.empty((kept, rows), dtype=dtype, device=device) if kept else None
    each, classes = logits.shape[:1] + logits.shape[2:], logits.shape[1]
    codes = counts = losses = None
    if hits:
        codes = roomy(rows, code_dtype(classes), device).view(each)
        sums = counts = torch.empty((2, classes), dtype=torch.int64, device=device)
    else:
        sums = sums_of(3, launch.programs, inside, dtype, device)
    if keep_rows:
        losses = roomy(rows, dtype, device).view(each) if hits else torch.empty(each, dtype=dtype, device=device)
    reduced = None if reduction is None else Reduced.empty(dtype, device)
    if rows:
        _forward(
            launch, logits, targets, hyper if weight is None else weight, hyper, sums if state is None else state,
            sums if losses is None else losses, sums if codes is None else codes, sums,
            *asked(sums, reduced, inside),
        )  # fmt: skip
    if reduction is not None and reduced is not None and inside < 0:
        finish(sums, reduced, reduction, logits.shape[0])
    if codes is None or counts is None:
        return SoftmaxForward(state, sums, losses, None, None, reduced)
    count(codes, counts)
    return SoftmaxForward(state, None, losses, codes, counts, None)


def softmax_at_once(
    logits: Tensor,
    targets: Tensor,
    weight: Tensor | None,
    hyper: Tensor,
    spec: SoftmaxSpec,
    reduction: str,
) -> tuple[Reduced, Tensor] | None:
    """Reduced loss and the gradient of the logits in one pass; None if two passes are faster.

    The denominator is needed beforehand; for class indices one small kernel computes it.
    """
    if (
        logits.nbytes < LEAST_AT_ONCE
        or logits.dtype not in AT_ONCE
        or logits.shape[1] > _widest_at_once(plan_of(spec.layout), logits.element_size(), logits.stride(1) != 1)
        or targets.is_floating_point()
        or not targets.is_contiguous()
    ):
        return None
    gradient = torch.empty_like(logits)
    if gradient.stride() != logits.stride():
        return None
    outputs = SoftmaxOutputs(gradient=True, reduction=reduction)
    planned = _forward_plan(Batch.of(logits, targets), spec, weight is not None, outputs)
    if planned is None:
        return None
    *_, inside, launch = planned
    sums = sums_of(3, launch.programs, inside, hyper.dtype, logits.device)
    reduced = Reduced.empty(hyper.dtype, logits.device)
    denominate(targets, weight, reduced, reduction, logits.shape[1], spec.ignore_index)
    _forward(
        launch, logits, targets, hyper if weight is None else weight, hyper, gradient, sums, sums, sums,
        *asked(sums, reduced, inside)[:2], reduced.inverse,
    )  # fmt: skip
    if inside < 0:
        finish(sums, reduced, reduction, logits.shape[0])
    return reduced, gradient


def _widest_at_once(plan: Plan, element_size: int, strided: bool) -> int:
    """Classes of a row up to which one pass is faster than two, by measurements on an H200."""
    small = element_size == 2
    if strided:
        return 256 if small else 32
    return 4096 if small and plan.has_costly_off_target_terms else 8192


@lru_cache(maxsize=1024)
def _forward_plan(
    batch: Batch, spec: SoftmaxSpec, weighted: bool, outputs: SoftmaxOutputs
) -> tuple[int, int, int, Launch] | None:
    """Saved numbers per row, number of rows, reduction inside the kernel, and launch.

    None if the tensors must be copied first.
    """
    geometry, plan, shape, dense = batch.geometry(), plan_of(spec.layout), batch.shape, batch.dense
    if geometry is None:
        return None
    rows, spread, once = geometry.rows, is_spread(plan, dense), outputs.gradient
    costly = plan.has_costly_off_target_terms or plan.true_margin >= 0
    blocks = _blocks(batch, "forward" if not once else "much at once" if costly else "at once", spread)
    recomputed = outputs.coded and _blocks(batch, "backward", spread).hold_rows(shape[1])
    kept = 0 if once or recomputed else 3 if spread else 2
    split, tiles = geometry.programs(blocks.rows)
    turns = max(1, -(-tiles // MOST_PROGRAMS)) if shape[1] <= blocks.classes and not dense else 1
    programs = -(-tiles // turns)
    inside = finishes_itself(outputs.reduction, programs)
    (z_unit, z), (t_unit, t) = geometry.walks
    z_c, t_c = batch.class_strides
    launch = Launch(
        programs,
        (turns, rows, *geometry.sizes[1:], *z, z_c, *t, t_c, spec.ignore_index, shape[0]),
        (shape[1], plan, dense, weighted, outputs.hits, outputs.rows, kept > 0, once, inside, z_unit, t_unit,
         batch.long, split, geometry.even(blocks.rows, programs * turns), *blocks.tile),
        blocks.warps,
    )  # fmt: skip
    return kept, rows, inside, launch


def softmax_backward(
    logits: Tensor,
    targets: Tensor,
    weight: Tensor | None,
    hyper: Tensor,
    spec: SoftmaxSpec,
    state: Tensor | None,
    grad: Tensor,
    inverse: Tensor | None = None,
    *,
    coded: bool = False,
) -> Tensor:
    """Gradient of the logits; ``grad`` is a scalar or has one value per row, ``inverse`` is 1 / denominator.

    With ``coded`` the targets are the codes of forward, and there may be no state.
    """
    out = filled = torch.empty_like(logits)
    kind = 2 if grad.ndim else 1 if inverse is None else 3
    how = (spec, weight is not None, coded, state is not None, kind)
    launch = _backward_launch(Batch.of(logits, out, targets), *how)
    if launch is None:
        logits, filled, targets = logits.contiguous(), out.contiguous(), targets.contiguous()
        launch = _backward_launch(Batch.of(logits, filled, targets), *how)
        assert launch is not None
    if launch.programs:
        _backward(
            launch, logits, targets, hyper if weight is None else weight, hyper, hyper if state is None else state,
            grad.contiguous(), hyper if inverse is None else inverse, filled,
        )  # fmt: skip
    return out if filled is out else out.copy_(filled)  # the compiler counts on the strides of the logits


@lru_cache(maxsize=1024)
def _backward_launch(
    batch: Batch, spec: SoftmaxSpec, weighted: bool, coded: bool, kept: bool, kind: int
) -> Launch | None:
    """The launch; None if the tensors must be copied first."""
    geometry, plan, classes, dense = batch.geometry(), plan_of(spec.layout), batch.shape[1], batch.dense
    if geometry is None:
        return None
    blocks = _blocks(batch, "backward", is_spread(plan, dense))
    if not kept and not blocks.hold_rows(classes):  # the logits had other strides in forward
        blocks = Blocks(256, power_of_2(classes), 8, 1)
    split, programs = geometry.programs(blocks.rows)
    (z_unit, z), (g_unit, g), (t_unit, t) = geometry.walks
    z_c, g_c, t_c = batch.class_strides
    return Launch(
        programs,
        (geometry.rows, *geometry.sizes[1:], *z, z_c, *t, t_c, *g, g_c),
        (classes, plan, dense, coded, kept, weighted, kind, z_unit, t_unit, g_unit,
         batch.long, split, geometry.even(blocks.rows, programs), *blocks.tile),
        blocks.warps,
    )  # fmt: skip


def _blocks(batch: Batch, work: Work, spread: bool) -> Blocks:
    return blocks_of(batch.shape, batch.strides[0], batch.element_size, batch.aligned, work, spread)


def is_spread(plan: Plan, dense: bool) -> bool:
    """Whether every class contributes a term to the loss of a row."""
    return dense or plan.label_smoothing >= 0 or plan.squared_error >= 0
