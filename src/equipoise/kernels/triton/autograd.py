"""Autograd functions around the fused kernels.

Forward saves the inputs and two numbers per row (three if every class has a term); backward reads the logits again.
If the loss is reduced and the batch is large, one fused pass computes loss and gradient, and backward returns that
gradient. The device scales it if the incoming gradient is not 1.
For a second derivative, or a batch of gradients as in a vectorised Jacobian, the operations of the reference compute
the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from equipoise._checks import has_saved_tensor_hooks, is_batched
from equipoise.kernels import reference
from equipoise.kernels.autograd import applied
from equipoise.kernels.hyper import accumulation_dtype
from equipoise.kernels.spec import SigmoidSpec, SoftmaxSpec
from equipoise.kernels.triton.launch import sigmoid as sigmoid_launch
from equipoise.kernels.triton.launch import softmax as softmax_launch
from equipoise.kernels.triton.launch.rows import AT_ONCE, scale, weigh
from equipoise.kernels.triton.launch.sigmoid import Observed
from equipoise.kernels.triton.ops import sigmoid_backward, sigmoid_forward, softmax_backward, softmax_forward

__all__ = [
    "SigmoidElements",
    "SoftmaxRows",
    "sigmoid_reduced",
    "sigmoid_totals",
    "softmax_reduced",
    "softmax_rows_and_counts",
    "softmax_totals",
    "softmax_weighed",
    "support_and_hits",
]


def _needs_differentiable_backward(grad: Tensor) -> bool:
    """Whether backward must use plain operations: for a second derivative, or for a batch of gradients."""
    return torch.is_grad_enabled() or is_batched(grad)


def _may_keep_gradient(logits: Tensor) -> bool:
    """Whether forward may store the gradient: not under saved-tensor hooks, which are used to save memory."""
    return torch.is_grad_enabled() and logits.requires_grad and not has_saved_tensor_hooks()


def _stored_gradient(ctx: Any, grad: Tensor, inverse: Tensor | None = None) -> Tensor | None:  # noqa: ANN401
    """The scaled gradient that forward has stored; None if there is none or it has been returned before.

    The receiver may change it in place, so it is returned only once.
    """
    gradient, ctx.gradient = ctx.gradient, None
    if gradient is None or _needs_differentiable_backward(grad) or torch.compiler.is_compiling():
        return None
    scale(gradient, grad, inverse)
    return gradient  # type: ignore[no-any-return]


# ---------------------------------------------------------------------------------------------------------------------
# Softmax link
# ---------------------------------------------------------------------------------------------------------------------


def softmax_reduced(
    logits: Tensor, targets: Tensor, weight: Tensor | None, hyper: Tensor, spec: SoftmaxSpec, reduction: str
) -> Tensor:
    """Softmax loss reduced to a scalar."""
    fused_backward = _may_keep_gradient(logits)
    loss: Tensor = applied(SoftmaxReduced, logits, targets, weight, hyper, spec, reduction, fused_backward)
    return loss


def softmax_totals(
    logits: Tensor, targets: Tensor, weight: Tensor | None, hyper: Tensor, spec: SoftmaxSpec
) -> tuple[Tensor, Tensor, Tensor]:
    """Summed softmax loss, and without gradient the class weights of the valid targets and the number of valid rows.

    For dense targets both are the number of valid rows.
    """
    totals: tuple[Tensor, Tensor, Tensor] = applied(SoftmaxTotals, logits, targets, weight, hyper, spec)
    return totals


def softmax_weighed(
    logits: Tensor,
    targets: Tensor,
    hyper: Tensor,
    spec: SoftmaxSpec,
    weigh: Callable[[Tensor], Tensor],
    reduction: str | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Softmax loss whose class weights depend on the batch; index targets without smoothing, not while compiling.

    ``weigh`` maps the support and true positives of each class, (2, C) int64, to weights (C,). It is called once,
    between the two kernels of forward. With a ``reduction`` the first result is the reduced loss; without one the
    results are those of ``softmax_totals``: sum, class weights of the valid targets, and number of valid rows.
    """
    totals: tuple[Tensor, Tensor, Tensor] = applied(
        SoftmaxWeighed, logits, targets, None, hyper, spec, weigh, reduction
    )
    return totals


def softmax_rows_and_counts(
    logits: Tensor, targets: Tensor, weight: Tensor | None, hyper: Tensor, spec: SoftmaxSpec
) -> tuple[Tensor, Tensor]:
    """Unreduced softmax loss, and without gradient the support and true positives of each class, (2, C)."""
    both: tuple[Tensor, Tensor] = applied(SoftmaxRowsAndCounts, logits, targets, weight, hyper, spec)
    return both


@torch.no_grad()
def support_and_hits(logits: Tensor, targets: Tensor, ignore_index: int) -> Tensor:
    """Support and true positives of each class, (2, C) int64."""
    no_hyper = torch.empty(0, dtype=accumulation_dtype(logits), device=logits.device)
    outcome = softmax_forward(logits, targets, None, no_hyper, SoftmaxSpec((), ignore_index), hits=True)
    assert outcome.counts is not None
    return outcome.counts


class SoftmaxReduced(torch.autograd.Function):
    """Reduced loss; the gradient is computed in the same pass, or by the kernel of backward."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:  # noqa: ANN401
        """Loss."""
        *arguments, reduction, fused_backward = inputs
        fused_pass = softmax_launch.softmax_at_once(*inputs[:-1]) if fused_backward else None
        if fused_pass is not None:
            reduced, ctx.gradient = fused_pass
            _keep(ctx, arguments, None, reduced.inverse)
            return reduced.loss
        outcome = softmax_launch.softmax_forward(*arguments, reduction=reduction)
        assert outcome.reduced is not None
        ctx.gradient = None
        _keep(ctx, arguments, outcome.state, outcome.reduced.inverse)
        return outcome.reduced.loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Gradient of the logits."""
        gradient = _stored_gradient(ctx, grad)
        return _softmax_gradient(ctx, grad) if gradient is None else gradient, None, None, None, None, None, None


class SoftmaxFunction(torch.autograd.Function):
    """Base class of functions whose first output is differentiable with respect to the logits."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Gradient of the logits."""
        return _softmax_gradient(ctx, grad), None, None, None, None


class SoftmaxTotals(SoftmaxFunction):
    """Loss, mass and number of valid rows."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:  # noqa: ANN401
        """Sums."""
        outcome = softmax_forward(*inputs)
        assert outcome.sums is not None
        _keep(ctx, inputs, outcome.state, None)
        loss, mass, valid = outcome.sums.sum(1)
        ctx.mark_non_differentiable(mass, valid)
        ctx.set_materialize_grads(False)
        return loss, mass, valid


class SoftmaxRows(SoftmaxFunction):
    """Unreduced losses."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:  # noqa: ANN401
        """Rows."""
        outcome = softmax_forward(*inputs, keep_rows=True)
        _keep(ctx, inputs, outcome.state, None)
        assert outcome.rows is not None
        return outcome.rows


class SoftmaxRowsAndCounts(SoftmaxFunction):
    """Unreduced losses, and the support and true positives of each class."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        """Rows, counts."""
        outcome = softmax_forward(*inputs, keep_rows=True, hits=True)
        _keep(ctx, inputs, outcome.state, None)
        assert outcome.rows is not None
        assert outcome.counts is not None
        ctx.mark_non_differentiable(outcome.counts)
        ctx.set_materialize_grads(False)
        return outcome.rows, outcome.counts


class SoftmaxWeighed(torch.autograd.Function):
    """Loss, mass and number of valid rows with weights computed between the two kernels."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:  # noqa: ANN401
        """Loss, or its sum."""
        *arguments, weights_of, reduction = inputs
        logits, targets, _, hyper, spec = arguments
        outcome = softmax_launch.softmax_forward(*arguments, keep_rows=True, hits=True, coded=True)
        assert outcome.rows is not None
        assert outcome.codes is not None
        weight = weights_of(outcome.counts)
        sums, reduced = weigh(outcome.codes, outcome.rows, weight, reduction, logits.shape[0])
        inverse = None
        if reduced is None:
            loss, mass, valid = sums.sum(1).unbind()
        else:
            loss, inverse = reduced
            mass = valid = inverse
        _keep(ctx, (logits, targets, weight, hyper, spec), outcome.state, inverse, outcome.codes)
        ctx.mark_non_differentiable(mass, valid)
        ctx.set_materialize_grads(False)
        return loss, mass, valid

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Gradient of the logits."""
        return _softmax_gradient(ctx, grad), None, None, None, None, None, None


def _keep(
    ctx: Any,  # noqa: ANN401
    inputs: Sequence[Any],
    state: Tensor | None,
    inverse: Tensor | None,
    codes: Tensor | None = None,
) -> None:
    *tensors, ctx.spec = inputs
    ctx.save_for_backward(*tensors, state, inverse, codes)


def _softmax_gradient(ctx: Any, grad: Tensor | None) -> Tensor | None:  # noqa: ANN401
    """Gradient of the logits, given the gradient of a scalar or of the rows."""
    if grad is None:
        return None
    logits, targets, weight, hyper, state, inverse, codes = ctx.saved_tensors
    spec: SoftmaxSpec = ctx.spec
    if not _needs_differentiable_backward(grad):
        if codes is not None and not torch.compiler.is_compiling():
            return softmax_launch.softmax_backward(logits, codes, weight, hyper, spec, state, grad, inverse, coded=True)
        if state is None:
            state = softmax_forward(logits, targets, weight, hyper, spec).state
        return softmax_backward(logits, targets, weight, hyper, spec, state, grad, inverse)
    targets = targets if targets.is_floating_point() else targets.long()  # the reference indexes with int64
    _, direction, length = reference.softmax_terms(logits, targets, weight, hyper, spec)
    grad = grad if inverse is None else grad * inverse
    return (direction * (length * (grad.unsqueeze(1) if grad.ndim else grad))).to(logits.dtype)


# ---------------------------------------------------------------------------------------------------------------------
# Sigmoid link
# ---------------------------------------------------------------------------------------------------------------------


def sigmoid_reduced(
    logits: Tensor,
    targets: Tensor,
    element_weight: Tensor | None,
    hyper: Tensor,
    spec: SigmoidSpec,
    reduction: str,
    observed: Observed = "nothing",
) -> tuple[Tensor, Tensor | None]:
    """Sigmoid loss reduced by ``"sum"``, ``"mean"`` or ``"batch_mean"``; ``observed`` as in ``sigmoid_totals``."""
    fused_backward = _may_keep_gradient(logits) and logits.dtype in AT_ONCE
    reduced: tuple[Tensor, Tensor | None] = applied(
        SigmoidReduced, logits, targets, element_weight, hyper, spec, reduction, observed, fused_backward
    )
    return reduced


def sigmoid_totals(
    logits: Tensor,
    targets: Tensor,
    element_weight: Tensor | None,
    hyper: Tensor,
    spec: SigmoidSpec,
    observed: Observed = "nothing",
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Summed sigmoid loss, and without gradient the number of known elements and the sums of p, t, p t and 1.

    The sums are partial: (4, parts, 1) over ``"all"`` labels, (4, parts, C) for each of the ``"labels"``, or None.
    """
    totals: tuple[Tensor, Tensor, Tensor | None] = applied(
        SigmoidTotals, logits, targets, element_weight, hyper, spec, observed
    )
    return totals


class SigmoidElements(torch.autograd.Function):
    """Unreduced losses."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:  # noqa: ANN401
        """Elements."""
        outcome = sigmoid_forward(*inputs, keep_elements=True)
        _keep_elements(ctx, inputs, None)
        assert outcome.elements is not None
        return outcome.elements

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Gradient of the logits."""
        return _sigmoid_gradient(ctx, grad), None, None, None, None


class SigmoidReduced(torch.autograd.Function):
    """Reduced loss; the gradient is computed in the same pass, or by the kernel of backward."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor | None]:  # noqa: ANN401
        """Loss, and the statistics for adaptive asymmetry."""
        *arguments, reduction, observed, fused_backward = inputs
        outcome = sigmoid_launch.sigmoid_forward(
            *arguments, observed=observed, reduction=reduction, at_once=fused_backward
        )
        assert outcome.reduced is not None
        _keep_elements(ctx, arguments, outcome.reduced.inverse)
        ctx.gradient = outcome.gradient
        ctx.correction = outcome.reduced.inverse if reduction == "mean" else None
        if outcome.observed is not None:
            ctx.mark_non_differentiable(outcome.observed)
        return outcome.reduced.loss, outcome.observed

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Gradient of the logits."""
        gradient = _stored_gradient(ctx, grad, ctx.correction)
        return _sigmoid_gradient(ctx, grad) if gradient is None else gradient, None, None, None, None, None, None, None


class SigmoidTotals(torch.autograd.Function):
    """Loss, number of known elements, and the statistics for adaptive asymmetry."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor, Tensor | None]:  # noqa: ANN401
        """Sums."""
        *arguments, observed = inputs
        outcome = sigmoid_forward(*arguments, observed=observed)
        _keep_elements(ctx, arguments, None)
        loss, known = outcome.sums.sum(1)
        ctx.mark_non_differentiable(known, *(() if outcome.observed is None else (outcome.observed,)))
        ctx.set_materialize_grads(False)
        return loss, known, outcome.observed

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Gradient of the logits."""
        return None if grad is None else _sigmoid_gradient(ctx, grad), None, None, None, None, None


def _keep_elements(ctx: Any, inputs: Sequence[Any], inverse: Tensor | None) -> None:  # noqa: ANN401
    *tensors, ctx.spec = inputs
    ctx.save_for_backward(*tensors, inverse)


def _sigmoid_gradient(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ANN401
    """Gradient of the logits, given the gradient of a scalar or of the elements."""
    logits, targets, weight, hyper, inverse = ctx.saved_tensors
    spec: SigmoidSpec = ctx.spec
    if not _needs_differentiable_backward(grad):
        return sigmoid_backward(logits, targets, weight, hyper, spec, grad, inverse)
    grad = grad if inverse is None else grad * inverse
    slopes = reference.sigmoid_slopes(logits, targets, weight, hyper, spec)
    return (slopes * grad).to(logits.dtype)
