"""The kernels as ``torch.library`` operations, so that ``torch.compile(fullgraph=True)`` sees through a loss.

In eager mode the launchers are called directly, which costs a small batch less than a trip through the dispatcher.
Operations return tensors only: what was not asked for is empty.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.kernels.hyper import Layout, Piece, accumulation_dtype
from equipoise.kernels.triton.launch import sigmoid as sigmoid_launch
from equipoise.kernels.triton.launch import softmax as softmax_launch
from equipoise.kernels.triton.launch.sigmoid import Seen
from equipoise.kernels.triton.plan import plan_of

__all__ = ["sigmoid_backward", "sigmoid_forward", "softmax_backward", "softmax_forward"]


def _encoded(layout: Layout) -> str:
    """A layout as the schema of an operation can carry it."""
    return ";".join(f"{piece.name}:{piece.start}:{piece.stop}:{piece.whole or 0}" for piece in layout)


def _decoded(text: str) -> Layout:
    pieces = [part.split(":") for part in text.split(";") if part]
    return tuple(Piece(name, int(start), int(stop), int(whole) or None) for name, start, stop, whole in pieces)


# ---------------------------------------------------------------------------------------------------------------------
# Softmax link
# ---------------------------------------------------------------------------------------------------------------------


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
) -> softmax_launch.Forward:
    """See ``softmax_launch.softmax_forward``."""
    if not torch.compiler.is_compiling():
        return softmax_launch.softmax_forward(
            logits, targets, weight, hyper, layout, ignore_index, keep_rows=keep_rows, hits=hits
        )
    state, sums, rows, counts = _softmax_forward(
        logits, targets, weight, hyper, _encoded(layout), ignore_index, keep_rows, hits
    )
    return softmax_launch.Forward(state, sums, rows if keep_rows else None, None, counts if hits else None, None)


@torch.library.custom_op("equipoise::softmax_forward", mutates_args=())
def _softmax_forward(
    logits: Tensor,
    targets: Tensor,
    weight: Tensor | None,
    hyper: Tensor,
    layout: str,
    ignore_index: int,
    keep_rows: bool,
    hits: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    done = softmax_launch.softmax_forward(
        logits, targets, weight, hyper, _decoded(layout), ignore_index, keep_rows=keep_rows, hits=hits
    )
    assert done.state is not None
    rows = done.rows if done.rows is not None else done.state.new_empty(0)
    counts = done.counts if done.counts is not None else rows.new_empty((2, 0), dtype=torch.int64)
    sums = done.state.new_empty(3, 1) if done.sums is None else done.sums.sum(1, keepdim=True)
    return done.state, sums, rows, counts


@_softmax_forward.register_fake
def _(
    logits: Tensor,
    targets: Tensor,
    weight: Tensor | None,
    hyper: Tensor,
    layout: str,
    ignore_index: int,
    keep_rows: bool,
    hits: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dtype, rows = accumulation_dtype(logits), logits.numel() // logits.shape[1]
    numbers = 3 if softmax_launch.is_spread(plan_of(_decoded(layout)), targets.is_floating_point()) else 2
    return (
        logits.new_empty((numbers, rows), dtype=dtype),
        logits.new_empty((3, 1), dtype=dtype),
        logits.new_empty(logits.shape[:1] + logits.shape[2:] if keep_rows else (0,), dtype=dtype),
        logits.new_empty((2, logits.shape[1] if hits else 0), dtype=torch.int64),
    )


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
    """See ``softmax_launch.softmax_backward``."""
    if not torch.compiler.is_compiling():
        return softmax_launch.softmax_backward(logits, targets, weight, hyper, layout, state, grad, inverse)
    grad = grad if inverse is None else grad * inverse
    gradient: Tensor = _softmax_backward(logits, targets, weight, hyper, _encoded(layout), state, grad)
    return gradient


@torch.library.custom_op("equipoise::softmax_backward", mutates_args=())
def _softmax_backward(
    logits: Tensor,
    targets: Tensor,
    weight: Tensor | None,
    hyper: Tensor,
    layout: str,
    state: Tensor,
    grad: Tensor,
) -> Tensor:
    return softmax_launch.softmax_backward(logits, targets, weight, hyper, _decoded(layout), state, grad)


@_softmax_backward.register_fake
def _(
    logits: Tensor,
    targets: Tensor,
    weight: Tensor | None,
    hyper: Tensor,
    layout: str,
    state: Tensor,
    grad: Tensor,
) -> Tensor:
    return torch.empty_like(logits)


# ---------------------------------------------------------------------------------------------------------------------
# Sigmoid link
# ---------------------------------------------------------------------------------------------------------------------


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
) -> sigmoid_launch.Forward:
    """See ``sigmoid_launch.sigmoid_forward``."""
    if not torch.compiler.is_compiling():
        return sigmoid_launch.sigmoid_forward(
            logits, targets, element_weight, hyper, layout, ignore_value, keep_elements=keep_elements, seen=seen
        )
    sums, elements, table = _sigmoid_forward(
        logits, targets, element_weight, hyper, _encoded(layout), ignore_value, keep_elements, seen
    )
    return sigmoid_launch.Forward(
        sums, elements if keep_elements else None, None if seen == "nothing" else table, None, None
    )


@torch.library.custom_op("equipoise::sigmoid_forward", mutates_args=())
def _sigmoid_forward(
    logits: Tensor,
    targets: Tensor,
    element_weight: Tensor | None,
    hyper: Tensor,
    layout: str,
    ignore_value: float | None,
    keep_elements: bool,
    seen: str,
) -> tuple[Tensor, Tensor, Tensor]:
    done = sigmoid_launch.sigmoid_forward(
        logits,
        targets,
        element_weight,
        hyper,
        _decoded(layout),
        ignore_value,
        keep_elements=keep_elements,
        seen=seen,  # type: ignore[arg-type]
    )
    nothing = done.sums.new_empty(0)
    return (
        done.sums.sum(1, keepdim=True),
        nothing if done.elements is None else done.elements,
        done.sums.new_empty(0) if done.seen is None else done.seen.sum(1, keepdim=True),
    )


@_sigmoid_forward.register_fake
def _(
    logits: Tensor,
    targets: Tensor,
    element_weight: Tensor | None,
    hyper: Tensor,
    layout: str,
    ignore_value: float | None,
    keep_elements: bool,
    seen: str,
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = accumulation_dtype(logits)
    columns = {"nothing": None, "all": 1, "labels": logits.shape[1]}[seen]
    return (
        logits.new_empty((2, 1), dtype=dtype),
        torch.empty_like(logits, dtype=dtype) if keep_elements else logits.new_empty(0, dtype=dtype),
        logits.new_empty(0 if columns is None else (4, 1, columns), dtype=dtype),
    )


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
    """See ``sigmoid_launch.sigmoid_backward``."""
    if not torch.compiler.is_compiling():
        return sigmoid_launch.sigmoid_backward(
            logits, targets, element_weight, hyper, layout, ignore_value, detach_focus, grad, inverse
        )
    grad = grad if inverse is None else grad * inverse
    gradient: Tensor = _sigmoid_backward(
        logits, targets, element_weight, hyper, _encoded(layout), ignore_value, detach_focus, grad
    )
    return gradient


@torch.library.custom_op("equipoise::sigmoid_backward", mutates_args=())
def _sigmoid_backward(
    logits: Tensor,
    targets: Tensor,
    element_weight: Tensor | None,
    hyper: Tensor,
    layout: str,
    ignore_value: float | None,
    detach_focus: bool,
    grad: Tensor,
) -> Tensor:
    return sigmoid_launch.sigmoid_backward(
        logits, targets, element_weight, hyper, _decoded(layout), ignore_value, detach_focus, grad
    )


@_sigmoid_backward.register_fake
def _(
    logits: Tensor,
    targets: Tensor,
    element_weight: Tensor | None,
    hyper: Tensor,
    layout: str,
    ignore_value: float | None,
    detach_focus: bool,
    grad: Tensor,
) -> Tensor:
    return torch.empty_like(logits)
