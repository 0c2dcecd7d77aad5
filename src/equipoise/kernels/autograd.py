"""The reference backend: plain PyTorch, the definition of right, on every device and in every dtype.

One autograd function for each link around the closed forms of ``softmax_reference`` and ``sigmoid_reference``. Both
work in log space in float32 (float64 for float64 logits), support double backward, ``torch.func`` and
``torch.compile(fullgraph=True)``, and never write to the caller's tensors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from equipoise._checks import is_traced, transforms_active
from equipoise.kernels.hyper import Hyper, Layout
from equipoise.kernels.reference.sigmoid import sigmoid_losses, sigmoid_slopes
from equipoise.kernels.reference.softmax import index_terms, softmax_terms

__all__ = ["applied", "hits_come_along", "sigmoid_elements", "softmax_rows", "softmax_rows_and_hits"]


def applied(function: type[torch.autograd.Function], *inputs: Any) -> Any:  # noqa: ANN401
    """``function.apply``, where no ``torch.func`` transform is active without its care for them.

    That care binds the arguments by their signature, which takes as long as a loss of a small batch.
    """
    if torch.compiler.is_compiling():
        return function.apply(*inputs)  # type: ignore[no-untyped-call]
    if transforms_active():
        _refuse_second_forward_derivative()
        return function.apply(*inputs)  # type: ignore[no-untyped-call]
    return super(torch.autograd.Function, function).apply(*inputs)  # type: ignore[misc]


def softmax_rows(
    logits: Tensor, targets: Tensor, weight: Tensor | None, hyper: Tensor, layout: Layout, ignore_index: int
) -> Tensor:
    """Unreduced softmax loss.

    Shape: ``logits`` (N, C, d1, ..., dk), ``targets`` int64 (N, d1, ..., dk) or dense like the logits, ``weight``
    (C,); result (N, d1, ..., dk) in the accumulation type, 0 at ignored rows.
    """
    function = SoftmaxRows if torch.compiler.is_compiling() else SoftmaxRowsForwardMode
    rows: Tensor = applied(function, logits, targets, weight, hyper, layout, ignore_index)[0]
    return rows


def hits_come_along(logits: Tensor, targets: Tensor, layout: Layout) -> bool:
    """Whether ``softmax_rows_and_hits`` serves: index targets, the softmax of the logits as they are, on the CPU."""
    adjusted = {"label_smoothing", "squared_error", "offset", "scale", "true_margin"}
    return (
        logits.device.type == "cpu"
        and not targets.is_floating_point()
        and not adjusted & {piece.name for piece in layout}
        and not torch.compiler.is_compiling()
        and not transforms_active()
        and not is_traced(logits)
    )


def softmax_rows_and_hits(
    logits: Tensor, targets: Tensor, weight: Tensor | None, hyper: Tensor, layout: Layout, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """Unreduced softmax loss, and whether the target is the prediction, (N, d1, ..., dk) bool, False where ignored.

    The softmax is at hand, so that hits need no second look at the logits but where probabilities are nearly equal.
    """
    rows: Tensor
    rows, direction, _, own = applied(SoftmaxRowsAndTrue, logits, targets, weight, hyper, layout, ignore_index)
    with torch.no_grad():
        own, rival = own.squeeze(1), direction.amax(1)  # the true class stands in the direction as a negative number
        hit = own > rival
        unsure = ((own - rival).abs() <= 1e-5 * rival) & (targets != ignore_index)
        if unsure.any():
            hit[unsure] = logits.movedim(1, -1)[unsure].max(1).indices == targets[unsure]
        return rows, hit & (targets != ignore_index)


def sigmoid_elements(
    logits: Tensor,
    targets: Tensor,
    element_weight: Tensor | None,
    hyper: Tensor,
    layout: Layout,
    ignore_value: float | None,
    detach_focus: bool,
) -> Tensor:
    """Unreduced sigmoid loss.

    Shape: all tensors (N, C, d1, ..., dk), ``element_weight`` anything that broadcasts to it; result the same, in the
    accumulation type, 0 where the target is ``ignore_value``; None promises that
    no target is.
    """
    function = SigmoidElements if torch.compiler.is_compiling() else SigmoidElementsForwardMode
    elements: Tensor = applied(function, logits, targets, element_weight, hyper, layout, ignore_value, detach_focus)
    return elements


def _refuse_second_forward_derivative() -> None:
    """Raise inside two ``torch.func.jvp``: PyTorch would take the second derivative of our functions for 0."""
    levels = [level.key() for level in torch._C._functorch.get_interpreter_stack() or ()]
    if levels.count(torch._C._functorch.TransformType.Jvp) > 1:
        raise RuntimeError(
            "losses can be differentiated forward once, got torch.func.jvp or jacfwd inside another one; use "
            "torch.func.hessian, or jacrev for the inner or the outer derivative"
        )


class SoftmaxRows(torch.autograd.Function):
    """Rows and their gradient in two factors; backward multiplies them with what comes in."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        logits: Tensor, targets: Tensor, weight: Tensor | None, hyper: Tensor, layout: Layout, ignore_index: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, and the two factors of their gradient."""
        return softmax_terms(logits, targets, weight, Hyper(hyper, layout), ignore_index)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # noqa: ANN401
        """Keep the factors, and the inputs for a second derivative."""
        logits, targets, weight, hyper, ctx.layout, ctx.ignore_index = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(logits, targets, weight, hyper, *output[1:3])
        ctx.save_for_forward(logits, targets, weight, hyper, *output[1:3])

    @staticmethod
    def backward(ctx: Any, grad_rows: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Gradient with respect to the logits."""
        if grad_rows is None:
            return (None,) * 6
        direction, length, dtype = _factors(ctx)
        gradient = direction * (length * grad_rows.unsqueeze(1))
        return gradient.to(dtype), None, None, None, None, None


class SoftmaxRowsForwardMode(SoftmaxRows):
    """With forward-mode derivatives, which ``torch.compile`` refuses to trace."""

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor | None, *_: None) -> tuple[Tensor | None, None, None]:  # noqa: ANN401
        """Change of the rows along a change of the logits."""
        if tangent is None:
            return None, None, None
        direction, length = _factors(ctx)[:2]
        return (direction * tangent * length).sum(1), None, None


class SoftmaxRowsAndTrue(SoftmaxRowsForwardMode):
    """With the probability of the true class, of index targets without smoothing."""

    @staticmethod
    def forward(  # type: ignore[override]
        logits: Tensor, targets: Tensor, weight: Tensor | None, hyper: Tensor, layout: Layout, ignore_index: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Rows, the two factors of their gradient, and the probability."""
        return index_terms(logits, targets, weight, Hyper(hyper, layout), ignore_index)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor | None, *_: None) -> tuple[Tensor | None, None, None, None]:  # type: ignore[override]  # noqa: ANN401
        """Change of the rows along a change of the logits."""
        return *SoftmaxRowsForwardMode.jvp(ctx, tangent), None


def _factors(ctx: Any) -> tuple[Tensor, Tensor, torch.dtype]:  # noqa: ANN401
    """The stored factors, or where a second derivative may be wanted the same through operations that have one.

    With them the type of the logits: checkpointing allows saved tensors to be read once.
    """
    logits, targets, weight, hyper, direction, length = ctx.saved_tensors
    if torch.is_grad_enabled():
        _, direction, length = softmax_terms(logits, targets, weight, Hyper(hyper, ctx.layout), ctx.ignore_index)
    return direction, length, logits.dtype


class SigmoidElements(torch.autograd.Function):
    """Elements of the loss; backward recomputes their slope, so only the inputs are held."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        logits: Tensor,
        targets: Tensor,
        element_weight: Tensor | None,
        hyper: Tensor,
        layout: Layout,
        ignore_value: float | None,
        detach_focus: bool,
    ) -> Tensor:
        """Unreduced losses."""
        return sigmoid_losses(logits, targets, element_weight, Hyper(hyper, layout), ignore_value)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ANN401
        """Keep the inputs."""
        *tensors, ctx.layout, ctx.ignore_value, ctx.detach_focus = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad_elements: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Gradient with respect to the logits."""
        slopes, dtype = _slopes(ctx, grad_elements)
        return slopes.to(dtype), None, None, None, None, None, None


class SigmoidElementsForwardMode(SigmoidElements):
    """With forward-mode derivatives, which ``torch.compile`` refuses to trace."""

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor | None, *_: None) -> Tensor | None:  # noqa: ANN401
        """Change of the elements along a change of the logits."""
        return None if tangent is None else _slopes(ctx, tangent)[0]


def _slopes(ctx: Any, factor: Tensor) -> tuple[Tensor, torch.dtype]:  # noqa: ANN401
    """Slopes times ``factor``, and the type of the logits: checkpointing allows saved tensors to be read once."""
    logits, targets, element_weight, hyper = ctx.saved_tensors
    named = Hyper(hyper, ctx.layout)
    slopes = sigmoid_slopes(logits, targets, element_weight, named, ctx.ignore_value, ctx.detach_focus, factor)
    return slopes, logits.dtype
