"""Launching the sigmoid kernels: strides, block sizes and output tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from equipoise.kernels.hyper import accumulation_dtype
from equipoise.kernels.spec import SigmoidSpec
from equipoise.kernels.triton.device.sigmoid import elements_backward_kernel, elements_forward_kernel
from equipoise.kernels.triton.launch.geometry import Geometry, is_long, merged, power_of_2
from equipoise.kernels.triton.launch.launcher import Launch, Launcher
from equipoise.kernels.triton.launch.rows import REDUCTIONS, Reduced, asked, finish, finishes_itself, sums_of
from equipoise.kernels.triton.plan import Plan, plan_of

__all__ = ["Observed", "SigmoidForward", "sigmoid_backward", "sigmoid_forward"]

Observed = Literal["nothing", "all", "labels"]

TILE = 2048  # elements per program
SUMMED_LABELS = 64  # labels per program for sums per label: fewer labels leave more rows and fewer partial sums
WARPS = 4

_forward = Launcher(elements_forward_kernel)
_backward = Launcher(elements_backward_kernel)


class SigmoidForward(NamedTuple):
    """The results of the forward kernel."""

    sums: Tensor  # (2, programs) loss, known elements; undefined if the kernel reduces them
    elements: Tensor | None  # losses, shaped like the logits
    observed: Tensor | None  # (4, parts, 1) or (4, parts, C): sums of p, t, p t and known elements
    reduced: Reduced | None
    gradient: Tensor | None


@dataclass(frozen=True)
class ElementWalk:
    """How the kernels iterate over a batch."""

    geometry: Geometry
    classes: int
    strides: tuple[int, ...]  # of the classes, one per tensor
    rows: int  # rows of a tile
    columns: int
    warps: int

    @property
    def row_blocks(self) -> int:
        """Programs along the rows."""
        return self.geometry.programs(self.rows)[1]

    @property
    def tiles(self) -> int:
        """Total number of tiles, one per program."""
        return self.row_blocks * -(-self.classes // self.columns)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The integers from which the kernels compute the positions of elements."""
        steps = zip(self.geometry.walks, self.strides, strict=True)
        strides = [step for (_, along), class_stride in steps for step in (*along, class_stride)]
        return (self.geometry.rows, *self.geometry.sizes[1:], self.classes, *strides)

    def constants(self, *of_loss: Any, long: bool) -> tuple[Any, ...]:  # noqa: ANN401
        """The compile-time constants of a kernel."""
        units = [unit for unit, _ in self.geometry.walks]
        return (*of_loss, *units, long, self.geometry.programs(self.rows)[0], self.rows, self.columns)


class SigmoidOutputs(NamedTuple):
    """The outputs of the forward kernel other than its sums."""

    elements: bool = False
    observed: Observed = "nothing"
    reduction: str | None = None
    gradient: bool = False


def sigmoid_forward(
    logits: Tensor,
    targets: Tensor,
    element_weight: Tensor | None,
    hyper: Tensor,
    spec: SigmoidSpec,
    *,
    keep_elements: bool = False,
    observed: Observed = "nothing",
    reduction: str | None = None,
    at_once: bool = False,
) -> SigmoidForward:
    """Losses of (N, C, d1, ..., dk) logits; ``element_weight`` broadcasts to them.

    With ``at_once`` the same pass computes the gradient of the reduced loss. The gradient of a mean is divided by the
    number of all elements, because the number of known ones is not available yet; see ``launch.rows.scale``.
    """
    dtype, device = accumulation_dtype(logits), logits.device
    weight = logits if element_weight is None else element_weight.expand(logits.shape)
    out = filled = torch.empty_like(logits, dtype=None if at_once else dtype) if keep_elements or at_once else logits
    how = (spec, element_weight is not None, SigmoidOutputs(keep_elements, observed, reduction, at_once))
    tensors: tuple[Tensor, ...] = (logits, targets, weight, out)
    planned = _forward_plan(logits.shape, tuple([tensor.stride() for tensor in tensors]), *how)
    if planned is None:
        logits, targets, weight, filled = tensors = tuple([tensor.contiguous() for tensor in tensors])
        planned = _forward_plan(logits.shape, tuple([tensor.stride() for tensor in tensors]), *how)
        assert planned is not None
    launch, shape, inside = planned
    sums = sums_of(2, launch.programs, inside, dtype, device)
    partial = sums if shape is None else torch.empty(shape, dtype=dtype, device=device)
    reduced = None if reduction is None else Reduced.empty(dtype, device)
    if logits.numel():
        _forward(launch, logits, targets, weight, hyper, filled, sums, partial, *asked(sums, reduced, inside))
    if (keep_elements or at_once) and filled is not out:
        out.copy_(filled)  # the compiler counts on the strides of the logits
    if reduction is not None and reduced is not None and inside < 0:
        finish(sums, reduced, reduction, logits.shape[0])
    return SigmoidForward(
        sums, out if keep_elements else None, None if shape is None else partial, reduced, out if at_once else None
    )


@lru_cache(maxsize=1024)
def _forward_plan(
    shape: tuple[int, ...],
    strides: tuple[tuple[int, ...], ...],
    spec: SigmoidSpec,
    weighted: bool,
    outputs: SigmoidOutputs,
) -> tuple[Launch, tuple[int, ...] | None, int] | None:
    """The launch, the shape of the observed sums, and the reduction inside the kernel.

    None if the tensors must be copied first.
    """
    plan, by_label, reduction = plan_of(spec.layout), outputs.observed == "labels", outputs.reduction
    tile = TILE // 2 if outputs.gradient and plan.margin >= 0 else TILE  # registers
    walk = _walk(shape, strides, tile, SUMMED_LABELS if by_label else tile, by_label or _differs_by_label(plan))
    if walk is None:
        return None
    inside = finishes_itself(reduction, walk.tiles)
    seen = ("nothing", "all", "labels").index(outputs.observed)
    fused = REDUCTIONS[reduction] if outputs.gradient and reduction is not None else -1
    of_loss = (
        plan, _as_float(spec.ignore_value), weighted, spec.detach_focus, outputs.elements, fused, seen, inside
    )  # fmt: skip
    constants = walk.constants(*of_loss, long=is_long(walk.geometry.rows, *[(shape, along) for along in strides]))
    launch = Launch(walk.tiles, (*walk.numbers, shape[0]), constants, walk.warps)
    observed_shapes = {"nothing": None, "all": (4, walk.tiles, 1), "labels": (4, walk.row_blocks, walk.classes)}
    return launch, observed_shapes[outputs.observed], inside


def sigmoid_backward(
    logits: Tensor,
    targets: Tensor,
    element_weight: Tensor | None,
    hyper: Tensor,
    spec: SigmoidSpec,
    grad: Tensor,
    inverse: Tensor | None = None,
) -> Tensor:
    """Gradient of the logits; ``grad`` is a scalar or shaped like them, ``inverse`` 1 / denominator."""
    weight = logits if element_weight is None else element_weight.expand(logits.shape)
    out = torch.empty_like(logits)
    tensors: tuple[Tensor, ...] = (logits, targets, weight, out, grad if grad.ndim else logits)
    how = (spec, element_weight is not None, 2 if grad.ndim else 1 if inverse is None else 3)
    launch = _backward_launch(logits.shape, tuple([tensor.stride() for tensor in tensors]), *how)
    if launch is None:
        tensors = tuple([tensor.contiguous() for tensor in tensors])
        launch = _backward_launch(logits.shape, tuple([tensor.stride() for tensor in tensors]), *how)
        assert launch is not None
    logits, targets, weight, filled, each = tensors
    if logits.numel():
        _backward(
            launch, logits, targets, weight, hyper, each if grad.ndim else grad, hyper if inverse is None else inverse,
            filled,
        )  # fmt: skip
    return out if filled is out else out.copy_(filled)  # the compiler counts on the strides of the logits


@lru_cache(maxsize=1024)
def _backward_launch(
    shape: tuple[int, ...], strides: tuple[tuple[int, ...], ...], spec: SigmoidSpec, weighted: bool, kind: int
) -> Launch | None:
    """The launch; None if the tensors must be copied first."""
    plan = plan_of(spec.layout)
    walk = _walk(shape, strides, TILE, TILE, _differs_by_label(plan))
    if walk is None:
        return None
    of_loss = (plan, _as_float(spec.ignore_value), weighted, spec.detach_focus, kind)
    constants = walk.constants(*of_loss, long=is_long(walk.geometry.rows, *[(shape, along) for along in strides]))
    return Launch(walk.tiles, walk.numbers, constants, walk.warps)


def _as_float(ignore_value: float | None) -> float | None:
    """As a float, whatever its type."""
    return None if ignore_value is None else float(ignore_value)


def _walk(
    shape: tuple[int, ...], strides: tuple[tuple[int, ...], ...], tile: int, widest: int, by_label: bool
) -> ElementWalk | None:
    """One long row if all labels are treated alike and all tensors have the same dense layout; else rows of labels.

    None if more than three dimensions remain.
    """
    if not by_label and len(set(strides)) == 1 and _is_dense(shape, strides[0]):
        flat = Geometry((1, 1, 1), ((0, 0, 0),) * len(strides))
        return ElementWalk(flat, math.prod(shape), (1,) * len(strides), 1, tile, WARPS)
    geometry = merged(shape, strides, len(strides))
    if geometry is None:
        return None
    columns = 1
    if strides[0][1] == 1:
        columns = min(power_of_2(shape[1]), widest)
    return ElementWalk(geometry, shape[1], tuple(stride[1] for stride in strides), tile // columns, columns, WARPS)


def _differs_by_label(plan: Plan) -> bool:
    steps = (plan.offset_step, plan.gamma_pos_step, plan.gamma_neg_step, plan.pos_weight_step, plan.weight_step)
    return any(steps)


def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether the elements fill a contiguous range of memory without gaps or overlap."""
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
