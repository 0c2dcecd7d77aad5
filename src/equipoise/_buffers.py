"""Buffers that keep their precision: ``.half()`` does not convert them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from equipoise._checks import on_host

__all__: list[str] = []


class PreciseBuffers(nn.Module):
    """Module whose floating-point buffers follow ``.to(device)`` but keep their dtype.

    Class weights, recalls and exponents need float32, even if the model that contains the loss is converted to half
    precision. A saved state is loaded in its own precision.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PreciseBuffers:
        buffers = {name: buffer for name, buffer in self._buffers.items() if buffer is not None}
        for name in buffers:
            self._buffers[name] = None
        try:
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        finally:
            self._buffers.update(buffers)
        for name, buffer in buffers.items():
            # a float32 probe finds the device, also for backends without float64, which keep such buffers on the CPU
            device = fn(torch.empty(0, dtype=torch.float32, device=buffer.device)).device
            # values would be lost on the meta device, and are needed when the model is materialised
            keep = device.type == "meta" or (device.type == "mps" and buffer.dtype is torch.float64)
            self._buffers[name] = buffer if keep else buffer.to(device)
        return self

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:  # noqa: ANN401
        for name, buffer in list(self._buffers.items()):
            saved = state_dict.get(prefix + name)
            precise = isinstance(saved, Tensor) and saved.dtype is torch.float64
            if precise and buffer is not None and buffer.is_floating_point():
                self._buffers[name] = buffer.to(torch.float64)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _constant(self, name: str, logits: Tensor) -> Tensor:
        """A copy of the buffer ``name`` for traced logits: a constant of the trace, on their device."""
        buffer: Tensor = getattr(self, name)
        return torch.tensor(_numbers(buffer), dtype=buffer.dtype, device=logits.device)

    def _widen(self, name: str, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The buffer ``name`` on the device of the logits, converted to float64 by the first float64 logits."""
        buffer: Tensor = getattr(self, name)
        wanted = torch.float64 if dtype is torch.float64 else buffer.dtype
        if buffer.dtype is not wanted or buffer.device != device:
            with torch.inference_mode(False):  # a validation pass must not create a buffer that cannot be updated
                buffer = buffer.to(device, wanted)
            setattr(self, name, buffer)
        return buffer


@on_host
def _numbers(buffer: Tensor) -> list[Any]:
    return buffer.tolist()
