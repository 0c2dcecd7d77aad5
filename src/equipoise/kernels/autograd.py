"""Unreduced losses as autograd functions, computed by the reference or the CPU backend.

Both work in log space in float32 (float64 for float64 logits) and never write to the caller's tensors. Second
derivatives, ``torch.func`` and ``torch.compile(fullgraph=True)`` use the operations of the reference.
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
    # torch.compile cannot trace a function with a jvp
    plain = SoftmaxRows if torch.compiler.is_compiling() else SoftmaxRowsForwardMode
    rows = applied(SoftmaxRowsOnCPU if backend == "cpu" else plain, logits, targets, weight, hyper, spec)[0]
    return rows


def has_terms_of_all_classes(spec: SoftmaxSpec) -> bool:
    """Whether every class contributes a term to the loss of a row with an index target."""
    return any(piece.name in ("label_smoothing", "squared_error") for piece in spec.layout)


def counts_come_along(backend: Backend, targets: Tensor, spec: SoftmaxSpec) -> bool:
    """Whether a backend counts the true positives of each class in the same pass as the rows."""
    if backend == "reference" or targets.is_floating_point() or has_terms_of_all_classes(spec):
        return False
    if backend == "triton":  # in eager mode its kernels apply the weights
        return torch.compiler.is_compiling()
    return not any(piece.name in ("offset", "scale", "true_margin") for piece in spec.layout)


def softmax_rows_and_hits(
    logits: Tensor, targets: Tensor, weight: Tensor | None, hyper: Tensor, spec: SoftmaxSpec
) -> tuple[Tensor, Tensor]:
    """Unreduced softmax loss on the CPU backend, and whether the prediction is correct (False where ignored).

    Requires index targets and a loss that does not adjust the logits. The comparison uses the probabilities that the
    loss has computed; the logits decide only where two probabilities are nearly equal. Both results have shape
    (N, d1, ..., dk).
    """
    rows: Tensor
    rows, direction, _, own = applied(SoftmaxRowsAndTrue, logits, targets, weight, hyper, spec)
    with torch.no_grad():
        own, rival = own.squeeze(1), direction.amax(1)  # the entry of the true class in the direction is not positive
        valid = targets != spec.ignore_index
        hit = own > rival
        near_tie = ((own - rival).abs() <= 1e-5 * rival) & valid
        if near_tie.any():
            hit[near_tie] = logits.movedim(1, -1)[near_tie].max(1).indices == targets[near_tie]
        return rows, hit & valid


def sigmoid_elements(
    backend: Backend, logits: Tensor, targets: Tensor, element_weight: Tensor | None, hyper: Tensor, spec: SigmoidSpec
) -> Tensor:
    """Unreduced sigmoid loss.

    Shape: all tensors (N, C, d1, ..., dk); ``element_weight`` may broadcast to it. The result has the same shape
    and the accumulation type, and is 0 where the target is ignored.
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
    """``function.apply``, without its support for ``torch.func`` transforms if none is active.

    That support binds the arguments to the signature, which takes as long as the loss of a small batch.
    """
    if torch.compiler.is_compiling():
        return function.apply(*inputs)  # type: ignore[no-untyped-call]
    if transforms_active():
        _refuse_second_forward_derivative()
        return function.apply(*inputs)  # type: ignore[no-untyped-call]
    return super(torch.autograd.Function, function).apply(*inputs)  # type: ignore[misc]


def _refuse_second_forward_derivative() -> None:
    """Raise inside a nested ``torch.func.jvp``: PyTorch would return 0 for the second derivative of these functions."""
    levels = [level.key() for level in torch._C._functorch.get_interpreter_stack() or ()]
    if levels.count(torch._C._functorch.TransformType.Jvp) > 1:
        raise RuntimeError(
            "losses can be differentiated forward once, got torch.func.jvp or jacfwd inside another one; use "
            "torch.func.hessian, or jacrev for the inner or the outer derivative"
        )


class SoftmaxRows(torch.autograd.Function):
    """Rows, and two factors of their gradient, which backward multiplies by the incoming gradient."""

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
    """The same with forward-mode derivatives."""

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Directional derivative of the rows."""
        if tangent is None:
            return None, None, None
        direction, length = _factors(ctx)[:2]
        return (direction * tangent * length).sum(1), None, None


class SoftmaxRowsOnCPU(SoftmaxRowsForwardMode):
    """The same on the CPU backend."""

    forward = staticmethod(cpu.softmax_terms)


class SoftmaxRowsAndTrue(SoftmaxRowsForwardMode):
    """The same on the CPU backend, with the probability of the true class; index targets without smoothing."""

    forward = staticmethod(cpu.index_terms)  # type: ignore[assignment]

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Directional derivative of the rows."""
        return *SoftmaxRowsForwardMode.jvp(ctx, tangent), None


def _factors(ctx: Any) -> tuple[Tensor, Tensor, torch.dtype]:  # noqa: ANN401
    """The two factors of the gradient and the type of the logits.

    The factors are recomputed by differentiable operations if a second derivative may be needed. All come from one
    access, because checkpointing allows saved tensors to be read only once.
    """
    logits, targets, weight, hyper, direction, length = ctx.saved_tensors
    if torch.is_grad_enabled():
        _, direction, length = reference.softmax_terms(logits, targets, weight, hyper, ctx.spec)
    return direction, length, logits.dtype


class SigmoidElements(torch.autograd.Function):
    """Elements of the loss; backward recomputes their slopes, so only the inputs are saved."""

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
    """The same with forward-mode derivatives."""

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor | None, *_: None) -> Tensor | None:  # noqa: ANN401
        """Directional derivative of the elements."""
        return None if tangent is None else _slopes(ctx)[0] * tangent


class SigmoidElementsOnCPU(SigmoidElementsForwardMode):
    """The same on the CPU backend."""

    forward = staticmethod(cpu.sigmoid_losses)

    @staticmethod
    def backward(ctx: Any, grad_elements: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Gradient with respect to the logits; by the reference under autograd, vmap, transforms or tracing."""
        if torch.is_grad_enabled() or is_batched(grad_elements) or not cpu_serves(grad_elements):
            return SigmoidElements.backward(ctx, grad_elements)
        logits, targets, weight, hyper = ctx.saved_tensors
        slopes = cpu.sigmoid_slopes(logits, targets, weight, hyper, ctx.spec, grad_elements)
        return slopes.to(logits.dtype), None, None, None, None


def _slopes(ctx: Any) -> tuple[Tensor, torch.dtype]:  # noqa: ANN401
    """Slopes and type of the logits, from one access: checkpointing allows saved tensors to be read only once."""
    logits, targets, weight, hyper = ctx.saved_tensors
    return reference.sigmoid_slopes(logits, targets, weight, hyper, ctx.spec), logits.dtype
