"""Calls that a loss has made before, made again without Python.

On a small batch the Python of a loss takes longer than its kernels. Where ``replay.cpp`` has been compiled, a loss that
has been called twice on batches of the same kind is put on record: the kernels that it launches, with what arguments,
forward and backward. From then on ``replay.cpp`` launches them. A recording is forgotten as soon as an option, a part
or a buffer of the loss is another one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.distributed import world_size
from equipoise.kernels import choice
from equipoise.kernels.native import forgo, native
from equipoise.kernels.recording import UnrepeatableError, recorded, recorder

__all__ = ["LARGEST", "Replays"]

DRIVER = "libcuda.so.1"
LARGEST = 36_000_000  # bytes of logits: beyond, the kernels take longer than Python
MOST_KINDS = 8  # of batches of one loss: ever new shapes are not worth it
MOST_TRIES = 16  # at one kind: backward has to run before there is something to record


class Replays:
    """The recordings of one loss; a copy of the loss begins anew."""

    def __init__(self) -> None:
        self._forget()

    def __deepcopy__(self, memo: dict[int, Any]) -> Replays:
        return Replays()

    def __reduce__(self) -> tuple[type[Replays], tuple[()]]:
        return Replays, ()

    def _forget(self) -> None:
        self._native: Any = None
        self._of: dict[str, Any] | None = None
        self._watched: list[tuple[dict[str, Any], str, Any]] = []
        self._sizes: list[tuple[dict[str, Any], int]] = []
        self._tries: dict[tuple[Any, ...], int] = {}

    def __call__(
        self, forward: Callable[..., Tensor], loss: nn.Module, logits: Tensor, targets: Tensor
    ) -> Tensor | None:
        """What ``forward(loss, logits, targets)`` would give, None where it has to be called."""
        if torch.compiler.is_compiling() or not (logits.is_cuda and loss.training) or recorder.tape is not None:
            return None
        if _compiles_backward() or (getattr(loss, "sync", False) and world_size() > 1):
            return None
        if self._native is not None:
            if vars(loss) is not self._of:  # a shallow copy, which has options of its own
                return None
            if self._has_changed():
                self._forget()
        replayed: Tensor | None = None if self._native is None else self._native(logits, targets)
        if replayed is None and self._learn(forward, loss, logits, targets):
            replayed = self._native(logits, targets)
        return replayed

    def _watch(self, loss: nn.Module) -> None:
        """Remember what the loss is, for ``_has_changed``."""
        self._of, self._watched = vars(loss), list(_rests_on(loss))
        owners = [owner for module in loss.modules() for owner in (module._modules, module._buffers)]
        self._sizes = [(owner, len(owner)) for owner in owners]

    def _has_changed(self) -> bool:
        """Whether the loss is another one than that of the recordings."""
        for owner, name, value in self._watched:
            if owner.get(name, self) is not value:
                return True
        return any(len(owner) != size for owner, size in self._sizes)

    def _learn(self, forward: Callable[..., Tensor], loss: nn.Module, logits: Tensor, targets: Tensor) -> bool:
        """Put this kind of batch on record, once its kernels have been compiled."""
        compiled = native()
        if compiled is None or logits.nbytes > LARGEST or not (torch.is_grad_enabled() and logits.requires_grad):
            return False
        device = logits.device.index
        if torch.cuda.is_current_stream_capturing() or device != torch.cuda.current_device():
            return False
        if "_is_replica" in vars(loss):  # of DataParallel, which makes a new one for every batch
            return False
        stream = torch._C._cuda_getCurrentRawStream(device)
        batch = (logits.shape, logits.stride(), logits.dtype, targets.shape, targets.stride(), targets.dtype)
        kind = (device, stream, *batch)
        if kind not in self._tries and len(self._tries) >= MOST_KINDS:
            return False
        self._tries[kind] = tries = self._tries.get(kind, -1) + 1
        if not 0 < tries <= MOST_TRIES or not choice.triton_serves(logits):
            return False
        if any(buffer.device != logits.device for buffer in loss.buffers()):
            return False
        if self._native is None:
            ask = torch._C._cuda_getCurrentRawStream, torch._C._cuda_isCurrentStreamCapturing
            try:
                self._native = compiled.Replays(DRIVER, *ask)
            except RuntimeError:  # a driver from before CUDA 12.4
                forgo()
                return False
            self._watch(loss)
        try:
            arguments = recorded(compiled, forward, loss, logits, targets)
        except UnrepeatableError:
            return False
        return bool(self._native.add(logits, targets, *arguments))


def _rests_on(loss: nn.Module) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Entries of dictionaries that say what the loss does: the backend, parts, options, buffers."""
    yield choice.wanted_backend, "name", choice.wanted()
    for module in loss.modules():
        for owner in (module._modules, module._buffers):
            yield from ((owner, name, value) for name, value in owner.items())
        options = vars(module)
        yield from ((options, name, value) for name, value in options.items() if not name.startswith("_"))


def _compiles_backward() -> bool:
    """Whether PyTorch traces backward in order to compile it, which does not know what the node of a replay is."""
    tracing = sys.modules.get("torch._dynamo.compiled_autograd")
    return tracing is not None and getattr(tracing, "compiled_autograd_enabled", False)
