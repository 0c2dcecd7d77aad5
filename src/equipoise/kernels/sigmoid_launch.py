"""Launching the sigmoid kernels: strides, block sizes, and the tensors that they fill."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from equipoise.kernels.geometry import Geometry, is_long, merged, power_of_2
from equipoise.kernels.hyper import Layout, accumulation_dtype
from equipoise.kernels.launch import Launcher
from equipoise.kernels.sigmoid_triton import elements_backward_kernel, elements_forward_kernel
from equipoise.kernels.triton_forms import Plan, plan_of

__all__ = ["Forward", "Seen", "sigmoid_backward", "sigmoid_forward"]

Seen = Literal["nothing", "all", "labels"]

_forward = Launcher(elements_forward_kernel)
_backward = Launcher(elements_backward_kernel)


class Forward(NamedTuple):
    """What the forward kernel leaves behind."""

    sums: Tensor  # (2, programs) loss, known elements
    elements: Tensor | None  # losses, shaped like the logits
    seen: Tensor | None  # (4, 1) or (4, C): sums of p, t, p t and known elements


@dataclass(frozen=True)
class Walk:
    """How the kernels walk over a batch."""

    geometry: Geometry
    classes: int
    strides: tuple[int, ...]  # of the classes, one for each tensor
    rows: int  # tile
    columns: int
    warps: int

    @cached_property
    def split(self) -> int:
        """How the rows are shared out, see ``Geometry.programs``."""
        return self.geometry.programs(self.rows)[0]

    @cached_property
    def row_blocks(self) -> int:
        """Programs along the rows."""
        return self.geometry.programs(self.rows)[1]

    @cached_property
    def programs(self) -> int:
        """All programs."""
        return self.row_blocks * -(-self.classes // self.columns)

    @cached_property
    def units(self) -> tuple[int, ...]:
        """Units of the tensors' strides."""
        return tuple(unit for unit, _ in self.geometry.walks)

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """The integers that the kernels take."""
        steps = zip(self.geometry.walks, self.strides, strict=True)
        strides = [step for (_, along), class_stride in steps for step in (*along, class_stride)]
        return (self.geometry.rows, *self.geometry.sizes[1:], self.classes, *strides)


def sigmoid_forward(
    logits: Tensor,
    targets: Tensor,
    element_weight: Tensor | None,
    hyper: Tensor,
    layout: Layout,
    ignore_value: float | None,
    *,
    keep_elements: bool = False,
    seen: Seen = "nothing",
) -> Forward:
    """Losses of (N, C, d1, ..., dk) logits; ``element_weight`` broadcasts to them."""
    dtype, device, plan = accumulation_dtype(logits), logits.device, plan_of(layout)
    weight = logits if element_weight is None else element_weight.expand(logits.shape)
    out = torch.empty_like(logits, dtype=dtype) if keep_elements else logits
    (logits, targets, weight, out), walk = _walk((logits, targets, weight, out), plan, by_label=seen == "labels")
    sums = torch.empty((2, walk.programs), dtype=dtype, device=device)
    partial = sums
    if seen == "all":
        partial = torch.empty((4, walk.programs), dtype=dtype, device=device)
    elif seen == "labels":
        partial = torch.empty((4, walk.row_blocks, walk.classes), dtype=dtype, device=device)
    if logits.numel():
        _forward(
            walk.programs,
            (logits, targets, weight, hyper, out, sums, partial),
            walk.numbers,
            (plan, ignore_value, element_weight is not None, keep_elements, ("nothing", "all", "labels").index(seen),
             *walk.units, is_long(walk.geometry.rows, logits, targets, weight, out), walk.split,
             walk.rows, walk.columns),
            walk.warps,
        )  # fmt: skip
    totals = None if seen == "nothing" else partial.sum(1).view(4, -1)
    return Forward(sums, out if keep_elements else None, totals)


def sigmoid_backward(
    logits: Tensor,
    targets: Tensor,
    element_weight: Tensor | None,
    hyper: Tensor,
    layout: Layout,
    ignore_value: float | None,
    detach_focus: bool,
    grad: Tensor,
    inverse: Tensor | None = None,
) -> Tensor:
    """Gradient of the logits; ``grad`` is a scalar or shaped like them, ``inverse`` that of the denominator."""
    plan = plan_of(layout)
    weight = logits if element_weight is None else element_weight.expand(logits.shape)
    result = torch.empty_like(logits)
    each = grad if grad.ndim else logits
    (logits, targets, weight, out, each), walk = _walk((logits, targets, weight, result, each), plan, by_label=False)
    if logits.numel():
        _backward(
            walk.programs,
            (logits, targets, weight, hyper, each if grad.ndim else grad, hyper if inverse is None else inverse, out),
            walk.numbers,
            (plan, ignore_value, element_weight is not None, detach_focus,
             2 if grad.ndim else 1 if inverse is None else 3,
             *walk.units, is_long(walk.geometry.rows, logits, targets, weight, out, each),
             walk.split, walk.rows, walk.columns),
            walk.warps,
        )  # fmt: skip
    return result if out.data_ptr() == result.data_ptr() else out


def _walk(tensors: tuple[Tensor, ...], plan: Plan, *, by_label: bool) -> tuple[tuple[Tensor, ...], Walk]:
    """Where no label differs from another and all tensors lie alike, one long row; else rows of labels."""
    shape, strides = tensors[0].shape, tuple([tensor.stride() for tensor in tensors])
    walk = _walk_over(shape, strides, by_label or _differs_by_label(plan))
    if walk is None:
        tensors = tuple(tensor.contiguous() for tensor in tensors)
        walk = _walk_over(shape, tuple([tensor.stride() for tensor in tensors]), by_label or _differs_by_label(plan))
        assert walk is not None
    return tensors, walk


@lru_cache(maxsize=1024)
def _walk_over(shape: tuple[int, ...], strides: tuple[tuple[int, ...], ...], by_label: bool) -> Walk | None:
    """The same of shape and strides; None where more than three dimensions cannot be merged."""
    if not by_label and len(set(strides)) == 1 and _is_dense(shape, strides[0]):
        flat = Geometry((1, 1, 1), ((0, 0, 0),) * len(strides))
        return Walk(flat, math.prod(shape), (1,) * len(strides), 1, 2048, 4)
    geometry = merged(shape, strides, len(strides))
    if geometry is None:
        return None
    columns = 1
    if strides[0][1] == 1:
        columns = min(power_of_2(shape[1]), 2048)
    return Walk(geometry, shape[1], tuple(stride[1] for stride in strides), 2048 // columns, columns, 4)


def _differs_by_label(plan: Plan) -> bool:
    steps = (plan.offset_step, plan.gamma_pos_step, plan.gamma_neg_step, plan.pos_weight_step, plan.weight_step)
    return any(steps)


def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the elements fill a stretch of memory without gaps or overlap."""
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
