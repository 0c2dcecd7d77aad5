"""Low-overhead launches: a kernel that has run for the same kind of arguments is launched directly.

Triton's own launch path binds and specialises every argument again, which takes several times as long as the kernel
itself on small batches. Here the cache key contains only what Triton specialises on. What depends on shapes and strides
alone is a ``Launch``, created once for all batches with the same memory layout.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from triton import knobs

__all__ = ["Launch", "Launcher", "scratch", "ticket"]

_tickets: dict[tuple[int, int], Tensor] = {}
_scratches: dict[tuple[int, int, torch.dtype], Tensor] = {}


class Launch:
    """The arguments of a kernel other than its tensors.

    Args:
        programs: number of programs.
        numbers: integers, in the order of the kernel's parameters.
        constants: compile-time constants, in the same order.
        warps: number of warps of a program.
    """

    __slots__ = ("compiled", "constants", "numbers", "programs", "warps")

    def __init__(self, programs: int, numbers: tuple[int, ...], constants: tuple[Any, ...], warps: int) -> None:
        self.programs, self.constants, self.warps = programs, constants, warps
        self.numbers = tuple(int(number) for number in numbers)  # Triton does not accept NumPy integers
        self.compiled: dict[tuple[Any, ...], Any] = {}
        """Compiled kernels by device, types and alignment of the tensors."""


class Launcher:
    """Launches ``kernel``, whose parameters are tensors, integers and constants, in this order."""

    def __init__(self, kernel: Any) -> None:  # noqa: ANN401
        self.kernel = kernel
        self.compiled: dict[tuple[Any, ...], Any] = {}

    def __call__(self, launch: Launch, *tensors: Tensor) -> None:
        """Run the kernel on the current stream of the tensors' device."""
        device = tensors[0].device
        if device.type != "cuda":  # the interpreter
            self.kernel[(launch.programs,)](*tensors, *launch.numbers, *launch.constants)
        elif device.index == torch._C._cuda_getDevice():
            self._launch(device.index, launch, tensors)
        else:
            with torch.cuda.device(device):
                self._launch(device.index, launch, tensors)

    def _launch(self, device: int, launch: Launch, tensors: tuple[Tensor, ...]) -> None:
        pointers = [tensor.data_ptr() for tensor in tensors]  # Triton would call data_ptr itself
        key = _kind(device, tensors, pointers)
        compiled = launch.compiled.get(key)
        if compiled is None or _observed():
            launch.compiled[key] = self._compiled(launch, tensors, pointers, key)
        else:
            _run(compiled, device, launch, pointers)

    def _compiled(
        self, launch: Launch, tensors: tuple[Tensor, ...], pointers: list[int], tensors_key: tuple[Any, ...]
    ) -> Any:  # noqa: ANN401
        """Launch the kernel, through Triton if it is not compiled yet, and return the compiled kernel."""
        key = (
            *tensors_key,
            launch.warps,
            launch.constants,
            *[1 if n == 1 else (n % 16 == 0, n.bit_length() < 32) for n in launch.numbers],
        )
        compiled = self.compiled.get(key)
        if compiled is None or _observed():
            arguments = (*tensors, *launch.numbers, *launch.constants)
            compiled = self.compiled[key] = self.kernel[(launch.programs,)](*arguments, num_warps=launch.warps)
        else:
            _run(compiled, tensors_key[0], launch, pointers)
        return compiled


def _kind(device: int, tensors: tuple[Tensor, ...], pointers: list[int]) -> tuple[Any, ...]:
    """What a kernel is specialised on: device, types, and whether tensors are aligned to 16 bytes."""
    return (device, *[tensor.dtype for tensor in tensors], *[pointer % 16 == 0 for pointer in pointers])


def ticket(device: torch.device) -> Tensor:
    """A zero on the device with which kernels count their finished programs, and which they reset to zero.

    There is one per stream, because the kernels of a stream run in sequence. A CUDA graph under capture gets its own.
    """
    if device.type != "cuda" or torch._C._cuda_isCurrentStreamCapturing():
        return torch.zeros(1, dtype=torch.int32, device=device)
    key = (device.index, torch._C._cuda_getCurrentRawStream(device.index))
    cached = _tickets.get(key)
    if cached is None:
        with torch.inference_mode(False):
            cached = _tickets[key] = torch.zeros(1, dtype=torch.int32, device=device)
    return cached


def scratch(numbers: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory that only one kernel of the current stream writes and reads; shared per stream as in ``ticket``."""
    if device.type != "cuda" or torch._C._cuda_isCurrentStreamCapturing():
        return torch.empty(numbers, dtype=dtype, device=device)
    key = (device.index, torch._C._cuda_getCurrentRawStream(device.index), dtype)
    cached = _scratches.get(key)
    if cached is None or cached.numel() < numbers:
        with torch.inference_mode(False):
            cached = _scratches[key] = torch.empty(max(numbers, 4096), dtype=dtype, device=device)
    return cached


def _run(compiled: Any, device: int, launch: Launch, pointers: list[int]) -> None:  # noqa: ANN401
    stream = torch._C._cuda_getCurrentRawStream(device)
    compiled.run(
        launch.programs, 1, 1, stream, compiled.function, compiled.packed_metadata, None, None, None,
        *pointers, *launch.numbers, *launch.constants,
    )  # fmt: skip


def _observed() -> bool:
    """Whether a profiler observes the launches of Triton."""
    hook = knobs.runtime.launch_enter_hook
    return hook is not None and bool(getattr(hook, "calls", True))  # Triton 3.6: a chain of hooks, empty by default
