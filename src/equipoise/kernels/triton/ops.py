"""The kernels as ``torch.library`` operations, so that ``torch.compile(fullgraph=True)`` can trace a loss.

In eager mode the launchers are called directly, which avoids the overhead of the dispatcher on small batches.
Operations return only tensors, empty ones for outputs that were not requested. The schema of an operation does not
support tuples, so the spec of a loss is passed as its options and its layout encoded as text.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from equipoise.kernels.hyper import Layout, Piece, accumulation_dtype
from equipoise.kernels.spec import SigmoidSpec, SoftmaxSpec
from equipoise.kernels.triton.launch import sigmoid as sigmoid_launch
from equipoise.kernels.triton.launch import softmax as softmax_launch
from equipoise.kernels.triton.launch.sigmoid import Observed
from equipoise.kernels.triton.plan import plan_of

__all__ = ["sigmoid_backward", "sigmoid_forward", "softmax_backward", "softmax_forward"]


def _encoded(layout: Layout) -> str:
    """A layout as text, for the schema of an operation."""
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
    spec: SoftmaxSpec,
    *,
    keep_rows: bool = False,
    hits: bool = False,
) -> softmax_launch.SoftmaxForward:
    """See ``launch.softmax.softmax_forward``."""
    if not torch.compiler.is_compiling():
        return softmax_launch.softmax_forward(logits, targets, weight, hyper, spec, keep_rows=keep_rows, hits=hits)
    state, sums, rows, counts = _softmax_forward(
        logits, targets, weight, hyper, _encoded(spec.layout), spec.ignore_index, keep_rows, hits
    )
    return softmax_launch.SoftmaxForward(state, sums, rows if keep_rows else None, None, counts if hits else None, None)


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
    spec = SoftmaxSpec(_decoded(layout), ignore_index)
    outcome = softmax_launch.softmax_forward(logits, targets, weight, hyper, spec, keep_rows=keep_rows, hits=hits)
    assert outcome.state is not None
    rows = outcome.rows if outcome.rows is not None else outcome.state.new_empty(0)
    counts = outcome.counts if outcome.counts is not None else rows.new_empty((2, 0), dtype=torch.int64)
    sums = outcome.state.new_empty(3, 1) if outcome.sums is None else outcome.sums.sum(1, keepdim=True)
    return outcome.state, sums, rows, counts


@_softmax_forward.register_fake
def _(logits: Tensor, targets: Tensor, *options: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # noqa: ANN401
    *_, layout, _, keep_rows, hits = options
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
    spec: SoftmaxSpec,
    state: Tensor,
    grad: Tensor,
    inverse: Tensor | None = None,
) -> Tensor:
    """See ``launch.softmax.softmax_backward``."""
    if not torch.compiler.is_compiling():
        return softmax_launch.softmax_backward(logits, targets, weight, hyper, spec, state, grad, inverse)
    grad = grad if inverse is None else grad * inverse
    gradient: Tensor = _softmax_backward(logits, targets, weight, hyper, _encoded(spec.layout), state, grad)
    return gradient


@torch.library.custom_op("equipoise::softmax_backward", mutates_args=())
def _softmax_backward(
    logits: Tensor, targets: Tensor, weight: Tensor | None, hyper: Tensor, layout: str, state: Tensor, grad: Tensor
) -> Tensor:
    return softmax_launch.softmax_backward(logits, targets, weight, hyper, SoftmaxSpec(_decoded(layout)), state, grad)


@_softmax_backward.register_fake
def _(logits: Tensor, *_: object) -> Tensor:
    return torch.empty_like(logits)


# ---------------------------------------------------------------------------------------------------------------------
# Sigmoid link
# ---------------------------------------------------------------------------------------------------------------------


def sigmoid_forward(
    logits: Tensor,
    targets: Tensor,
    element_weight: Tensor | None,
    hyper: Tensor,
    spec: SigmoidSpec,
    *,
    keep_elements: bool = False,
    observed: Observed = "nothing",
) -> sigmoid_launch.SigmoidForward:
    """See ``launch.sigmoid.sigmoid_forward``."""
    if not torch.compiler.is_compiling():
        return sigmoid_launch.sigmoid_forward(
            logits, targets, element_weight, hyper, spec, keep_elements=keep_elements, observed=observed
        )
    sums, elements, table = _sigmoid_forward(
        logits, targets, element_weight, hyper, _encoded(spec.layout), spec.ignore_value, keep_elements, observed
    )
    return sigmoid_launch.SigmoidForward(
        sums, elements if keep_elements else None, None if observed == "nothing" else table, None, None
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
    observed: str,
) -> tuple[Tensor, Tensor, Tensor]:
    outcome = sigmoid_launch.sigmoid_forward(
        logits,
        targets,
        element_weight,
        hyper,
        SigmoidSpec(_decoded(layout), ignore_value),
        keep_elements=keep_elements,
        observed=observed,  # type: ignore[arg-type]
    )
    empty = outcome.sums.new_empty(0)
    return (
        outcome.sums.sum(1, keepdim=True),
        empty if outcome.elements is None else outcome.elements,
        empty.clone() if outcome.observed is None else outcome.observed.sum(1, keepdim=True),
    )


@_sigmoid_forward.register_fake
def _(logits: Tensor, *options: Any) -> tuple[Tensor, Tensor, Tensor]:  # noqa: ANN401
    *_, keep_elements, observed = options
    dtype = accumulation_dtype(logits)
    columns = {"nothing": None, "all": 1, "labels": logits.shape[1]}[observed]
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
    spec: SigmoidSpec,
    grad: Tensor,
    inverse: Tensor | None = None,
) -> Tensor:
    """See ``launch.sigmoid.sigmoid_backward``."""
    if not torch.compiler.is_compiling():
        return sigmoid_launch.sigmoid_backward(logits, targets, element_weight, hyper, spec, grad, inverse)
    grad = grad if inverse is None else grad * inverse
    layout, ignore_value, detach_focus = spec
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
    spec = SigmoidSpec(_decoded(layout), ignore_value, detach_focus)
    return sigmoid_launch.sigmoid_backward(logits, targets, element_weight, hyper, spec, grad)


@_sigmoid_backward.register_fake
def _(logits: Tensor, *_: object) -> Tensor:
    return torch.empty_like(logits)
