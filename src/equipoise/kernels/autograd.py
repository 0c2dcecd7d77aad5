"""Unreduced losses as autograd functions: the closed forms of the reference or of the CPU backend, differentiable.

Both work in log space in float32 (float64 for float64 logits) and never write to the caller's tensors. Second
derivatives, ``torch.func`` and ``torch.compile(fullgraph=True)`` go through the operations of the reference.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from equipoise._checks import is_batched, transforms_active
from equipoise.kernels import cpu, reference
from equipoise.kernels.choice import Backend, cpu_serves
from equipoise.kernels.spec import SigmoidSpec, SoftmaxSpec

__all__ = [
    "applied",
    "counts_come_along",
    "has_terms_of_all_classes",
    "sigmoid_elements",
    "softmax_rows",
    "softmax_rows_and_hits",
]


def softmax_rows(
    backend: Backend, logits: Tensor, targets: Tensor, weight: Tensor | None, hyper: Tensor, spec: SoftmaxSpec
) -> Tensor:
    """Unreduced softmax loss.

    Shape: ``logits`` (N, C, d1, ..., dk), ``targets`` int64 (N, d1, ..., dk) or dense like the logits, ``weight``
    (C,); result (N, d1, ..., dk) in the accumulation type, 0 at ignored rows.
    """
    rows: Tensor
    if backend == "triton":
        from equipoise.kernels.triton import autograd as fused  # Triton is optional

        rows = applied(fused.SoftmaxRows, logits, targets, weight, hyper, spec)
        return rows
    # torch.compile refuses to trace a jvp
    plain = SoftmaxRows if torch.compiler.is_compiling() else SoftmaxRowsForwardMode
    rows = applied(SoftmaxRowsOnCPU if backend == "cpu" else plain, logits, targets, weight, hyper, spec)[0]
    return rows


def has_terms_of_all_classes(spec: SoftmaxSpec) -> bool:
    """Whether every class of a row of index targets has a term of its own."""
    return any(piece.name in ("label_smoothing", "squared_error") for piece in spec.layout)


def counts_come_along(backend: Backend, targets: Tensor, spec: SoftmaxSpec) -> bool:
    """Whether a backend counts the true positives of each class in the same pass as the rows."""
    if backend == "reference" or targets.is_floating_point() or has_terms_of_all_classes(spec):
        return False
    if backend == "triton":  # in eager mode its kernels weigh the rows, and make those of labels out of range NaN
        return torch.compiler.is_compiling()
    return not any(piece.name in ("offset", "scale", "true_margin") for piece in spec.layout)


def softmax_rows_and_hits(
    logits: Tensor, targets: Tensor, weight: Tensor | None, hyper: Tensor, spec: SoftmaxSpec
) -> tuple[Tensor, Tensor]:
    """By the CPU backend: unreduced softmax loss, and whether the target is the prediction, False where ignored.

    For index targets and the softmax of the logits as they are, which is at hand, so that hits need no second look at
    the logits but where probabilities are nearly equal. Both (N, d1, ..., dk).
    """
    rows: Tensor
    rows, direction, _, own = applied(SoftmaxRowsAndTrue, logits, targets, weight, hyper, spec)
    with torch.no_grad():
        own, rival = own.squeeze(1), direction.amax(1)  # the true class stands in the direction as a negative number
        valid = targets != spec.ignore_index
        hit = own > rival
        unsure = ((own - rival).abs() <= 1e-5 * rival) & valid
        if unsure.any():
            hit[unsure] = logits.movedim(1, -1)[unsure].max(1).indices == targets[unsure]
        return rows, hit & valid


def sigmoid_elements(
    backend: Backend, logits: Tensor, targets: Tensor, element_weight: Tensor | None, hyper: Tensor, spec: SigmoidSpec
) -> Tensor:
    """Unreduced sigmoid loss.

    Shape: all tensors (N, C, d1, ..., dk), ``element_weight`` anything that broadcasts to it; result the same, in the
    accumulation type, 0 where the target is ignored.
    """
    function: type[torch.autograd.Function]
    if backend == "triton":
        from equipoise.kernels.triton import autograd as fused  # Triton is optional

        function = fused.SigmoidElements
    elif backend == "cpu":
        function = SigmoidElementsOnCPU
    else:
        function = SigmoidElements if torch.compiler.is_compiling() else SigmoidElementsForwardMode
    elements: Tensor = applied(function, logits, targets, element_weight, hyper, spec)
    return elements


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

    forward = staticmethod(reference.softmax_terms)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # noqa: ANN401
        """Keep the factors, and the inputs for a second derivative."""
        *tensors, ctx.spec = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *output[1:3])
        ctx.save_for_forward(*tensors, *output[1:3])

    @staticmethod
    def backward(ctx: Any, grad_rows: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Gradient with respect to the logits."""
        if grad_rows is None:
            return (None,) * 5
        direction, length, dtype = _factors(ctx)
        gradient = direction * (length * grad_rows.unsqueeze(1))
        return gradient.to(dtype), None, None, None, None


class SoftmaxRowsForwardMode(SoftmaxRows):
    """With forward-mode derivatives."""

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Change of the rows along a change of the logits."""
        if tangent is None:
            return None, None, None
        direction, length = _factors(ctx)[:2]
        return (direction * tangent * length).sum(1), None, None


class SoftmaxRowsOnCPU(SoftmaxRowsForwardMode):
    """By the CPU backend."""

    forward = staticmethod(cpu.softmax_terms)


class SoftmaxRowsAndTrue(SoftmaxRowsForwardMode):
    """By the CPU backend with the probability of the true class, of index targets without smoothing."""

    forward = staticmethod(cpu.index_terms)  # type: ignore[assignment]

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Change of the rows along a change of the logits."""
        return *SoftmaxRowsForwardMode.jvp(ctx, tangent), None


def _factors(ctx: Any) -> tuple[Tensor, Tensor, torch.dtype]:  # noqa: ANN401
    """The stored factors, or where a second derivative may be wanted the same through operations that have one.

    With them the type of the logits: checkpointing allows saved tensors to be read once.
    """
    logits, targets, weight, hyper, direction, length = ctx.saved_tensors
    if torch.is_grad_enabled():
        _, direction, length = reference.softmax_terms(logits, targets, weight, hyper, ctx.spec)
    return direction, length, logits.dtype


class SigmoidElements(torch.autograd.Function):
    """Elements of the loss; backward recomputes their slope, so only the inputs are held."""

    generate_vmap_rule = True

    forward = staticmethod(reference.sigmoid_losses)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ANN401
        """Keep the inputs."""
        *tensors, ctx.spec = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad_elements: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Gradient with respect to the logits."""
        slopes, dtype = _slopes(ctx)
        return (slopes * grad_elements).to(dtype), None, None, None, None


class SigmoidElementsForwardMode(SigmoidElements):
    """With forward-mode derivatives."""

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor | None, *_: None) -> Tensor | None:  # noqa: ANN401
        """Change of the elements along a change of the logits."""
        return None if tangent is None else _slopes(ctx)[0] * tangent


class SigmoidElementsOnCPU(SigmoidElementsForwardMode):
    """By the CPU backend."""

    forward = staticmethod(cpu.sigmoid_losses)

    @staticmethod
    def backward(ctx: Any, grad_elements: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Gradient with respect to the logits, by the reference where somebody else looks on."""
        if torch.is_grad_enabled() or is_batched(grad_elements) or not cpu_serves(grad_elements):
            return SigmoidElements.backward(ctx, grad_elements)
        logits, targets, weight, hyper = ctx.saved_tensors
        slopes = cpu.sigmoid_slopes(logits, targets, weight, hyper, ctx.spec, grad_elements)
        return slopes.to(logits.dtype), None, None, None, None


def _slopes(ctx: Any) -> tuple[Tensor, torch.dtype]:  # noqa: ANN401
    """Slopes, and the type of the logits: checkpointing allows saved tensors to be read once."""
    logits, targets, weight, hyper = ctx.saved_tensors
    return reference.sigmoid_slopes(logits, targets, weight, hyper, ctx.spec), logits.dtype
