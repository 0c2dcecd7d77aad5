"""Choice of the backend: the reference in plain PyTorch, the optimised CPU backend, or the fused Triton kernels.

A backend that is requested by name runs or raises. ``"auto"`` uses Triton on CUDA devices and the CPU backend on the
CPU, and falls back to the reference where they are not supported.
"""

from __future__ import annotations

import importlib.util
import os
from types import TracebackType
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad

from equipoise._checks import FLOATS, check_choice, is_traced, transforms_active

__all__ = ["Backend", "Choice", "backend", "cpu_serves", "obstacle", "triton_serves", "use", "wanted", "wanted_backend"]

Choice: TypeAlias = Literal["auto", "reference", "triton"]
Backend: TypeAlias = Literal["reference", "cpu", "triton"]

INSTALLED = importlib.util.find_spec("triton") is not None

wanted_backend: dict[str, str] = {"name": "auto"}


class use:  # noqa: N801 - reads as a verb, like torch.no_grad
    """Choose the backend of all losses, permanently or inside a ``with`` block.

    Args:
        backend: ``"auto"`` (the fastest supported backend), ``"reference"`` (the definition in plain PyTorch) or
            ``"triton"``, which raises if it is not supported.

    >>> import torch, equipoise
    >>> with equipoise.kernels.use("reference"):
    ...     equipoise.FocalLoss()(torch.zeros(1, 2), torch.tensor([0]))
    tensor(0.1733)
    """

    def __init__(self, backend: Choice) -> None:
        check_choice("backend", backend, ("auto", "reference", "triton"))
        self.before = wanted()
        wanted_backend["name"] = backend

    def __enter__(self) -> use:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        wanted_backend["name"] = self.before


def wanted() -> str:
    """The requested backend."""
    return wanted_backend["name"]


def backend(logits: Tensor) -> Backend:
    """The backend that computes a pointwise loss of these logits."""
    if triton_serves(logits):
        return "triton"
    return "cpu" if wanted() == "auto" and cpu_serves(logits) else "reference"


def cpu_serves(tensor: Tensor) -> bool:
    """Whether the CPU backend may read values and overwrite temporaries: a CPU tensor, no transform, no tracing."""
    if torch.compiler.is_compiling() or tensor.device.type != "cpu":
        return False
    return not (transforms_active() or torch._C._len_torch_dispatch_stack() or is_traced(tensor))


def triton_serves(logits: Tensor) -> bool:
    """Whether the kernels run for these logits; raises if they were requested by name and cannot run."""
    choice = wanted()
    if choice == "reference":
        return False
    if choice == "auto":
        return logits.is_cuda and obstacle(logits) is None
    reason = obstacle(logits)
    if reason is not None:
        raise RuntimeError(f"backend 'triton' cannot run: {reason}; use equipoise.kernels.use('auto') to fall back")
    return True


def obstacle(logits: Tensor) -> str | None:
    """Why the kernels cannot run for these logits, or None."""
    if not logits.is_cuda and not (INSTALLED and _interpreted() and logits.device.type == "cpu"):
        return f"the logits are on {logits.device}, and the kernels need a CUDA device"
    if not INSTALLED:
        return "the package triton is not installed"
    if logits.dtype not in FLOATS:
        return f"the logits are {logits.dtype}, and the kernels know float16, bfloat16, float32 and float64"
    if torch.version.hip is not None:
        return "this PyTorch is built for ROCm, and the kernels are written for CUDA"
    if is_traced(logits):
        return "the operations are traced, or the logits have a shape and no values"
    if not torch.compiler.is_compiling() and (transforms_active() or forward_ad._current_level >= 0):
        return "torch.func or forward-mode differentiation is active, which sees through plain operations only"
    return None


def _interpreted() -> bool:
    """Whether Triton interprets kernels in Python on CPU tensors, which is slow and meant for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"
