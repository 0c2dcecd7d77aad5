"""Operations that overwrite their first argument, a temporary of ours, where nobody else can see it.

Fresh memory is what elementwise chains on the CPU spend most of their time on. While autograd, a ``torch.func``
transform or the compiler looks on, these are the plain operations.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise._checks import is_traced, transforms_active

__all__ = [
    "at_least",
    "between",
    "inverse",
    "log1p",
    "looking_is_free",
    "may_overwrite",
    "minus",
    "negative",
    "plus",
    "plus_product",
    "put",
    "sigmoid",
    "softmax",
    "times",
]


def may_overwrite() -> bool:
    """Whether temporaries may be overwritten."""
    watched = torch.is_grad_enabled() or torch.compiler.is_compiling() or transforms_active()
    return not (watched or torch._C._len_torch_dispatch_stack())


def looking_is_free(tensor: Tensor) -> bool:
    """Whether the values may decide what is computed: on the CPU, and nobody else looks on."""
    return tensor.device.type == "cpu" and may_overwrite() and not is_traced(tensor)


def times(temporary: Tensor, factor: Tensor | float) -> Tensor:
    """Product."""
    return temporary.mul_(factor) if may_overwrite() else temporary * factor


def plus(temporary: Tensor, other: Tensor | float) -> Tensor:
    """Sum."""
    return temporary.add_(other) if may_overwrite() else temporary + other


def minus(temporary: Tensor, other: Tensor | float) -> Tensor:
    """Difference."""
    return temporary.sub_(other) if may_overwrite() else temporary - other


def plus_product(temporary: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The temporary plus ``a * b``."""
    return temporary.addcmul_(a, b) if may_overwrite() else torch.addcmul(temporary, a, b)


def negative(temporary: Tensor) -> Tensor:
    """Minus the temporary."""
    return temporary.neg_() if may_overwrite() else -temporary


def at_least(temporary: Tensor, low: float) -> Tensor:
    """The larger of the temporary and ``low``."""
    return temporary.clamp_(min=low) if may_overwrite() else temporary.clamp(min=low)


def inverse(temporary: Tensor) -> Tensor:
    """One over the temporary."""
    return temporary.reciprocal_() if may_overwrite() else temporary.reciprocal()


def log1p(temporary: Tensor) -> Tensor:
    """Logarithm of one plus the temporary."""
    return temporary.log1p_() if may_overwrite() else temporary.log1p()


def sigmoid(temporary: Tensor) -> Tensor:
    """Sigmoid of the temporary."""
    return temporary.sigmoid_() if may_overwrite() else temporary.sigmoid()


def softmax(temporary: Tensor) -> Tensor:
    """Softmax of the temporary over dimension 1."""
    return torch.softmax(temporary, 1, out=temporary) if may_overwrite() else temporary.softmax(1)


def between(temporary: Tensor, end: Tensor, share: Tensor) -> Tensor:
    """``(1 - share) * temporary + share * end``."""
    return temporary.lerp_(end, share) if may_overwrite() else torch.lerp(temporary, end, share)


def put(temporary: Tensor, labels: Tensor, value: Tensor) -> Tensor:
    """The temporary with the class ``labels`` (N, 1, d1, ..., dk) of each row set to ``value``."""
    return temporary.scatter_(1, labels, value) if may_overwrite() else temporary.scatter(1, labels, value)
