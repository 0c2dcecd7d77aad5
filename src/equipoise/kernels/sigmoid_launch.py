"""Launching the sigmoid kernels: strides, block sizes, and the tensors that they fill."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from equipoise.kernels.geometry import Geometry, is_long, rows_of
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


class Walk(NamedTuple):
    """How the kernels walk over a batch."""

    geometry: Geometry
    classes: int
    strides: tuple[int, ...]  # of the classes, one for each tensor
    rows: int  # tile
    columns: int
    warps: int

    @property
    def programs(self) -> int:
        return self.geometry.programs(self.rows)[1] * -(-self.classes // self.columns)

    @property
    def row_blocks(self) -> int:
        return self.geometry.programs(self.rows)[1]


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
        units, numbers = _numbers(walk)
        _forward(
            walk.programs,
            (logits, targets, weight, hyper, out, sums, partial),
            numbers,
            (plan, ignore_value, element_weight is not None, keep_elements, ("nothing", "all", "labels").index(seen),
             *units, is_long(walk.geometry.rows, logits, targets, weight, out), walk.geometry.programs(walk.rows)[0],
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
        units, numbers = _numbers(walk)
        _backward(
            walk.programs,
            (logits, targets, weight, hyper, each if grad.ndim else grad, hyper if inverse is None else inverse, out),
            numbers,
            (plan, ignore_value, element_weight is not None, detach_focus,
             2 if grad.ndim else 1 if inverse is None else 3,
             *units, is_long(walk.geometry.rows, logits, targets, weight, out, each),
             walk.geometry.programs(walk.rows)[0], walk.rows, walk.columns),
            walk.warps,
        )  # fmt: skip
    return result if out.data_ptr() == result.data_ptr() else out


def _numbers(walk: Walk) -> tuple[list[int], tuple[int, ...]]:
    """Units of the tensors' strides, and the integers that the kernels take."""
    units: list[int] = []
    numbers = [walk.geometry.rows, *walk.geometry.sizes[1:], walk.classes]
    for tensor, class_stride in enumerate(walk.strides):
        unit, strides = walk.geometry.walk(tensor)
        units.append(unit)
        numbers += [*strides, class_stride]
    return units, tuple(numbers)


def _walk(tensors: tuple[Tensor, ...], plan: Plan, *, by_label: bool) -> tuple[tuple[Tensor, ...], Walk]:
    """Where no label differs from another and all tensors lie alike, one long row; else rows of labels."""
    first = tensors[0]
    alike = all(tensor.stride() == first.stride() for tensor in tensors)
    if not (_differs_by_label(plan) or by_label) and alike and _is_dense(first):
        flat = Geometry((1, 1, 1), ((0, 0, 0),) * len(tensors))
        return tensors, Walk(flat, first.numel(), (1,) * len(tensors), 1, 2048, 4)
    geometry = rows_of(*tensors, per_class=len(tensors))
    if geometry is None:
        tensors = tuple(tensor.contiguous() for tensor in tensors)
        geometry = rows_of(*tensors, per_class=len(tensors))
        assert geometry is not None
    first = tensors[0]
    classes = first.shape[1]
    if first.stride(1) == 1:
        columns = min(1 << max(1, (classes - 1).bit_length()), 2048)
        rows = 2048 // columns
    else:
        columns, rows = 1, 2048
    return tensors, Walk(geometry, classes, tuple(tensor.stride(1) for tensor in tensors), rows, columns, 4)


def _differs_by_label(plan: Plan) -> bool:
    steps = (plan.offset_step, plan.gamma_pos_step, plan.gamma_neg_step, plan.pos_weight_step, plan.weight_step)
    return any(steps)


def _is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill a stretch of memory without gaps or overlap."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
