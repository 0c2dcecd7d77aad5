"""The Triton backend: autograd functions around the fused kernels.

Forward keeps the inputs and two numbers a row (three where every class has a term); backward reads the logits again.
Where a scalar comes out and the batch is large, forward writes the gradient at once, and backward hands it over, scaled
where what comes in is not 1, which the device finds out.
Where a second derivative may be wanted, or many gradients at once, as in a vectorised jacobian, the gradient is
computed by the plain operations of the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from equipoise._checks import has_saved_tensor_hooks, is_batched
from equipoise.kernels.autograd import applied
from equipoise.kernels.hyper import Hyper, Layout, accumulation_dtype
from equipoise.kernels.reference.sigmoid import sigmoid_slopes
from equipoise.kernels.reference.softmax import softmax_terms
from equipoise.kernels.triton.launch import sigmoid as sigmoid_launch
from equipoise.kernels.triton.launch import softmax as softmax_launch
from equipoise.kernels.triton.launch.rows import AT_ONCE, scale
from equipoise.kernels.triton.launch.rows import weigh as sum_weighed
from equipoise.kernels.triton.launch.sigmoid import Seen
from equipoise.kernels.triton.ops import (
    sigmoid_backward,
    sigmoid_forward,
    softmax_backward,
    softmax_forward,
)

__all__ = [
    "sigmoid_elements",
    "sigmoid_reduced",
    "sigmoid_totals",
    "softmax_reduced",
    "softmax_rows",
    "softmax_rows_and_hits",
    "softmax_totals",
    "softmax_weighed",
    "support_and_hits",
]


# ---------------------------------------------------------------------------------------------------------------------
# Softmax link
# ---------------------------------------------------------------------------------------------------------------------


def softmax_reduced(
    logits: Tensor,
    targets: Tensor,
    weight: Tensor | None,
    hyper: Tensor,
    layout: Layout,
    ignore_index: int,
    reduction: str,
) -> Tensor:
    """Softmax loss reduced to a scalar."""
    wanted = _may_keep_gradient(logits)
    loss: Tensor = applied(SoftmaxReduced, logits, targets, weight, hyper, layout, ignore_index, reduction, wanted)
    return loss


def softmax_totals(
    logits: Tensor, targets: Tensor, weight: Tensor | None, hyper: Tensor, layout: Layout, ignore_index: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Summed softmax loss, and without gradient the class weights of the valid targets and the number of valid rows.

    For dense targets both are the number of valid rows.
    """
    totals: tuple[Tensor, Tensor, Tensor] = applied(SoftmaxTotals, logits, targets, weight, hyper, layout, ignore_index)
    return totals


def softmax_rows(
    logits: Tensor, targets: Tensor, weight: Tensor | None, hyper: Tensor, layout: Layout, ignore_index: int
) -> Tensor:
    """Unreduced softmax loss, as ``reference.softmax_rows``."""
    rows: Tensor = applied(SoftmaxRows, logits, targets, weight, hyper, layout, ignore_index)
    return rows


def softmax_weighed(
    logits: Tensor,
    targets: Tensor,
    hyper: Tensor,
    layout: Layout,
    ignore_index: int,
    weigh: Callable[[Tensor], Tensor],
    reduction: str | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Softmax loss whose class weights follow from the batch; index targets without smoothing, not while compiling.

    ``weigh`` turns rows and hits of each class, (2, C) int64, into weights (C,), and is called once, in between: no
    gradient needs them before backward. The loss is reduced where a reduction is given; else it is a sum, and mass and
    number of valid rows follow, as in ``softmax_totals``.
    """
    totals: tuple[Tensor, Tensor, Tensor] = applied(
        SoftmaxWeighed, logits, targets, None, hyper, layout, ignore_index, weigh, reduction
    )
    return totals


def softmax_rows_and_hits(
    logits: Tensor, targets: Tensor, hyper: Tensor, layout: Layout, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """Unreduced softmax loss without class weights, and without gradient the rows and hits of each class, (2, C)."""
    both: tuple[Tensor, Tensor] = applied(SoftmaxRowsAndHits, logits, targets, None, hyper, layout, ignore_index)
    return both


@torch.no_grad()
def support_and_hits(logits: Tensor, targets: Tensor, ignore_index: int) -> Tensor:
    """Rows and hits of each class, (2, C) int64."""
    nothing = torch.empty(0, dtype=accumulation_dtype(logits), device=logits.device)
    done = softmax_forward(logits, targets, None, nothing, (), ignore_index, hits=True)
    assert done.counts is not None
    return done.counts


class SoftmaxReduced(torch.autograd.Function):
    """Reduced loss; the gradient at once, or divided inside the kernel of backward."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:  # noqa: ANN401
        """Loss."""
        *arguments, reduction, wanted = inputs
        at_once = softmax_launch.softmax_at_once(*inputs[:-1]) if wanted else None
        if at_once is not None:
            reduced, ctx.gradient = at_once
            _keep(ctx, arguments, None, reduced.inverse)
            return reduced.loss
        done = softmax_launch.softmax_forward(*arguments, reduction=reduction)
        assert done.reduced is not None
        ctx.gradient = None
        _keep(ctx, arguments, done.state, done.reduced.inverse)
        return done.reduced.loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Gradient of the logits."""
        gradient = _handed_over(ctx, grad)
        return _gradient(ctx, grad) if gradient is None else gradient, None, None, None, None, None, None, None


class SoftmaxTotals(torch.autograd.Function):
    """Loss, mass and number of valid rows."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:  # noqa: ANN401
        """Sums."""
        done = softmax_forward(*inputs)
        assert done.sums is not None
        _keep(ctx, inputs, done.state, None)
        loss, mass, valid = done.sums.sum(1)
        ctx.mark_non_differentiable(mass, valid)
        ctx.set_materialize_grads(False)
        return loss, mass, valid

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Gradient of the logits."""
        return _gradient(ctx, grad), None, None, None, None, None


class SoftmaxRows(torch.autograd.Function):
    """Unreduced losses."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:  # noqa: ANN401
        """Rows."""
        done = softmax_forward(*inputs, keep_rows=True)
        _keep(ctx, inputs, done.state, None)
        assert done.rows is not None
        return done.rows

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Gradient of the logits."""
        return _gradient(ctx, grad), None, None, None, None, None


class SoftmaxRowsAndHits(torch.autograd.Function):
    """Unreduced losses, and the rows and hits of each class."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        """Rows, counts."""
        done = softmax_forward(*inputs, keep_rows=True, hits=True)
        _keep(ctx, inputs, done.state, None)
        assert done.rows is not None
        assert done.counts is not None
        ctx.mark_non_differentiable(done.counts)
        ctx.set_materialize_grads(False)
        return done.rows, done.counts

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Gradient of the logits."""
        return _gradient(ctx, grad), None, None, None, None, None


class SoftmaxWeighed(torch.autograd.Function):
    """Loss, mass and number of valid rows with weights that are found on the way."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:  # noqa: ANN401
        """Loss, or its sum."""
        *arguments, weigh, reduction = inputs
        logits, targets, _, hyper, layout, ignore_index = arguments
        done = softmax_launch.softmax_forward(*arguments, keep_rows=True, hits=True, coded=True)
        assert done.rows is not None
        assert done.codes is not None
        weight = weigh(done.counts)
        sums, reduced = sum_weighed(done.codes, done.rows, weight, reduction, logits.shape[0])
        inverse = None
        if reduced is None:
            loss, mass, valid = sums.sum(1).unbind()
        else:
            loss, inverse = reduced
            mass = valid = inverse
        _keep(ctx, (logits, targets, weight, hyper, layout, ignore_index), done.state, inverse, done.codes)
        ctx.mark_non_differentiable(mass, valid)
        ctx.set_materialize_grads(False)
        return loss, mass, valid

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Gradient of the logits."""
        return _gradient(ctx, grad), None, None, None, None, None, None, None


def _is_seen_through(grad: Tensor) -> bool:
    """Whether backward has to be made of plain operations: for its own derivative, or for many gradients at once."""
    return torch.is_grad_enabled() or is_batched(grad)


def _may_keep_gradient(logits: Tensor) -> bool:
    """Whether forward may write the gradient at once: not under saved-tensor hooks, which are there to save memory."""
    return torch.is_grad_enabled() and logits.requires_grad and not has_saved_tensor_hooks()


def _handed_over(ctx: Any, grad: Tensor, inverse: Tensor | None = None) -> Tensor | None:  # noqa: ANN401
    """The gradient that forward has written, scaled; None where it has not, or where it has been handed over before.

    Whoever takes it may write into it, so it is given away once.
    """
    gradient, ctx.gradient = ctx.gradient, None
    if gradient is None or _is_seen_through(grad) or torch.compiler.is_compiling():
        return None
    scale(gradient, grad, inverse)
    return gradient  # type: ignore[no-any-return]


def _keep(
    ctx: Any,  # noqa: ANN401
    inputs: Sequence[Any],
    state: Tensor | None,
    inverse: Tensor | None,
    codes: Tensor | None = None,
) -> None:
    *tensors, ctx.layout, ctx.ignore_index = inputs
    ctx.save_for_backward(*tensors, state, inverse, codes)


def _gradient(ctx: Any, grad: Tensor | None) -> Tensor | None:  # noqa: ANN401
    """Gradient of the logits for that of a scalar or of the rows."""
    if grad is None:
        return None
    logits, targets, weight, hyper, state, inverse, codes = ctx.saved_tensors
    if not _is_seen_through(grad):
        if codes is not None and not torch.compiler.is_compiling():
            return softmax_launch.softmax_backward(
                logits, codes, weight, hyper, ctx.layout, state, grad, inverse, coded=True
            )
        if state is None:
            state = softmax_forward(logits, targets, weight, hyper, ctx.layout, ctx.ignore_index).state
        return softmax_backward(logits, targets, weight, hyper, ctx.layout, state, grad, inverse)
    targets = targets if targets.is_floating_point() else targets.long()  # as the reference knows them
    _, direction, length = softmax_terms(logits, targets, weight, Hyper(hyper, ctx.layout), ctx.ignore_index)
    grad = grad if inverse is None else grad * inverse
    return (direction * (length * (grad.unsqueeze(1) if grad.ndim else grad))).to(logits.dtype)


# ---------------------------------------------------------------------------------------------------------------------
# Sigmoid link
# ---------------------------------------------------------------------------------------------------------------------


def sigmoid_elements(
    logits: Tensor,
    targets: Tensor,
    element_weight: Tensor | None,
    hyper: Tensor,
    layout: Layout,
    ignore_value: float | None,
    detach_focus: bool,
) -> Tensor:
    """Unreduced sigmoid loss, as ``reference.sigmoid_elements``."""
    elements: Tensor = applied(
        SigmoidElements, logits, targets, element_weight, hyper, layout, ignore_value, detach_focus
    )
    return elements


def sigmoid_reduced(
    logits: Tensor,
    targets: Tensor,
    element_weight: Tensor | None,
    hyper: Tensor,
    layout: Layout,
    ignore_value: float | None,
    detach_focus: bool,
    reduction: str,
    seen: Seen = "nothing",
) -> tuple[Tensor, Tensor | None]:
    """Sigmoid loss reduced to a scalar by ``"sum"``, ``"mean"`` or ``"batch_mean"``; seen: as in ``sigmoid_totals``."""
    at_once = _may_keep_gradient(logits) and logits.dtype in AT_ONCE
    reduced: tuple[Tensor, Tensor | None] = applied(
        SigmoidReduced, logits, targets, element_weight, hyper, layout, ignore_value, detach_focus, reduction, seen,
        at_once,
    )  # fmt: skip
    return reduced


def sigmoid_totals(
    logits: Tensor,
    targets: Tensor,
    element_weight: Tensor | None,
    hyper: Tensor,
    layout: Layout,
    ignore_value: float | None,
    detach_focus: bool,
    seen: Seen = "nothing",
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Summed sigmoid loss, and without gradient the number of known elements and the sums of p, t, p t and 1.

    The last come in parts: (4, parts, 1) for ``"all"`` labels together, (4, parts, C) for each of the ``"labels"``, or
    None.
    """
    totals: tuple[Tensor, Tensor, Tensor | None] = applied(
        SigmoidTotals, logits, targets, element_weight, hyper, layout, ignore_value, detach_focus, seen
    )
    return totals


class SigmoidElements(torch.autograd.Function):
    """Unreduced losses."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:  # noqa: ANN401
        """Elements."""
        logits, targets, element_weight, hyper, layout, ignore_value, _ = inputs
        done = sigmoid_forward(logits, targets, element_weight, hyper, layout, ignore_value, keep_elements=True)
        _keep_elements(ctx, inputs, None)
        assert done.elements is not None
        return done.elements

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Gradient of the logits."""
        return _elements_gradient(ctx, grad), None, None, None, None, None, None


class SigmoidReduced(torch.autograd.Function):
    """Reduced loss; the gradient at once, or divided inside the kernel of backward."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor | None]:  # noqa: ANN401
        """Loss, and what adaptive asymmetry looks at."""
        *arguments, detach_focus, reduction, seen, at_once = inputs
        done = sigmoid_launch.sigmoid_forward(
            *arguments, seen=seen, reduction=reduction, at_once=at_once, detach_focus=detach_focus
        )
        assert done.reduced is not None
        _keep_elements(ctx, inputs[:-3], done.reduced.inverse)
        ctx.gradient = done.gradient
        ctx.correction = done.reduced.inverse if reduction == "mean" else None
        if done.seen is not None:
            ctx.mark_non_differentiable(done.seen)
        return done.reduced.loss, done.seen

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Gradient of the logits."""
        gradient = _handed_over(ctx, grad, ctx.correction)
        gradient = _elements_gradient(ctx, grad) if gradient is None else gradient
        return gradient, None, None, None, None, None, None, None, None, None


class SigmoidTotals(torch.autograd.Function):
    """Loss, number of known elements, and what adaptive asymmetry looks at."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor, Tensor | None]:  # noqa: ANN401
        """Sums."""
        logits, targets, element_weight, hyper, layout, ignore_value, _, seen = inputs
        done = sigmoid_forward(logits, targets, element_weight, hyper, layout, ignore_value, seen=seen)
        _keep_elements(ctx, inputs[:-1], None)
        loss, known = done.sums.sum(1)
        ctx.mark_non_differentiable(known, *(() if done.seen is None else (done.seen,)))
        ctx.set_materialize_grads(False)
        return loss, known, done.seen

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Gradient of the logits."""
        return None if grad is None else _elements_gradient(ctx, grad), None, None, None, None, None, None, None


def _keep_elements(ctx: Any, inputs: Sequence[Any], inverse: Tensor | None) -> None:  # noqa: ANN401
    *tensors, ctx.layout, ctx.ignore_value, ctx.detach_focus = inputs
    ctx.save_for_backward(*tensors, inverse)


def _elements_gradient(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ANN401
    """Gradient of the logits for that of a scalar or of the elements."""
    logits, targets, weight, hyper, inverse = ctx.saved_tensors
    layout, ignore_value, detach_focus = ctx.layout, ctx.ignore_value, ctx.detach_focus
    if not _is_seen_through(grad):
        return sigmoid_backward(logits, targets, weight, hyper, layout, ignore_value, detach_focus, grad, inverse)
    grad = grad if inverse is None else grad * inverse
    slopes = sigmoid_slopes(logits, targets, weight, Hyper(hyper, layout), ignore_value, detach_focus, grad)
    return slopes.to(logits.dtype)
