"""A thin way into Triton: a kernel that has run once for the same kind of arguments is launched directly.

Triton's own launch path binds and specialises every argument anew, which on small batches costs several times what the
kernel does. Here the key is made of just what Triton specialises on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from triton import knobs

__all__ = ["Launcher"]


class Launcher:
    """Launches ``kernel``, whose parameters are tensors, then integers, then constants, in this order."""

    def __init__(self, kernel: Any) -> None:  # noqa: ANN401
        self.kernel = kernel
        self.compiled: dict[tuple[Any, ...], Any] = {}

    def __call__(
        self,
        programs: int,
        tensors: tuple[Tensor, ...],
        numbers: tuple[int, ...],
        constants: tuple[Any, ...],
        warps: int,
    ) -> None:
        """Run ``programs`` programs of ``warps`` warps on the current stream of the tensors' device."""
        device = tensors[0].device
        if device.type != "cuda":  # the interpreter
            self.kernel[(programs,)](*tensors, *numbers, *constants)
        elif device.index == torch.cuda.current_device():
            self._launch(device.index, programs, tensors, numbers, constants, warps)
        else:
            with torch.cuda.device(device):
                self._launch(device.index, programs, tensors, numbers, constants, warps)

    def _launch(
        self,
        device: int,
        programs: int,
        tensors: tuple[Tensor, ...],
        numbers: tuple[int, ...],
        constants: tuple[Any, ...],
        warps: int,
    ) -> None:
        key = (
            device,
            warps,
            constants,
            *[tensor.dtype for tensor in tensors],
            *[tensor.data_ptr() % 16 == 0 for tensor in tensors],
            *[1 if n == 1 else (n % 16 == 0, n.bit_length() < 32) for n in numbers],
        )
        compiled = self.compiled.get(key)
        if compiled is None or _observed():
            self.compiled[key] = self.kernel[(programs,)](*tensors, *numbers, *constants, num_warps=warps)
            return
        stream = torch._C._cuda_getCurrentRawStream(device)
        compiled.run(
            programs, 1, 1, stream, compiled.function, compiled.packed_metadata, None, None, None,
            *tensors, *numbers, *constants,
        )  # fmt: skip


def _observed() -> bool:
    """Whether a profiler has asked Triton to be told of launches."""
    hook = knobs.runtime.launch_enter_hook
    return hook is not None and bool(getattr(hook, "calls", True))  # Triton 3.6 has a chain, empty by default
