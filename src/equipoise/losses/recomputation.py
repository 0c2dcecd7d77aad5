"""Support for activation checkpointing, where backward runs the forward pass a second time.

``torch.utils.checkpoint`` (``use_reentrant=False``) runs the first pass under saved-tensor hooks. The second pass
starts from the buffers before the first one, so that it gives the same loss, and its updates are discarded, so that
running statistics are updated once. With ``use_reentrant=True`` the first pass runs without gradients and updates
nothing, so the second pass needs no special treatment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

__all__ = ["Passes"]

MOST_PASSES = 64  # their backward pass may still follow


@dataclass
class Pass:
    """A forward pass under saved-tensor hooks: its inputs and the buffers before it."""

    memory: list[StorageWeakRef]  # weak references: the id of a freed tensor may be reused
    buffers: list[tuple[dict[str, Tensor | None], str, Tensor]]  # owner, name and a copy of the value
    task: int = -1  # the backward pass that has recomputed it


class Passes:
    """The last forward passes of one loss that may be recomputed; copies of the loss start with an empty list."""

    def __init__(self) -> None:
        self._kept: deque[Pass] = deque(maxlen=MOST_PASSES)

    def __reduce__(self) -> tuple[type[Passes], tuple[()]]:
        return Passes, ()

    def __call__(self, loss: nn.Module, inputs: list[Tensor], forward: Callable[[], Any]) -> Any:  # noqa: ANN401
        """Run ``forward()``; inside a backward pass, run it with the buffers that the first pass started from."""
        task, memory = torch._C._current_graph_task_id(), [_memory(one) for one in inputs]
        if task == -1:
            self._kept.append(Pass(memory, [(owner, name, value.clone()) for owner, name, value in _buffers(loss)]))
        if task == -1 or not self._kept:
            return forward()
        # Often only the targets are inputs of the checkpointed function, so one shared input is enough to match;
        # the latest pass is recomputed first.
        first = max(
            reversed(self._kept),
            key=lambda one: (one.memory[1:] == memory[1:], one.memory == memory, one.task != task),
        )
        first.task = task
        present = list(_buffers(loss))
        try:
            for owner, name, value in first.buffers:
                owner[name] = value.clone()
            return forward()
        finally:
            for owner, name, value in present:
                owner[name] = value


def _memory(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def _buffers(loss: nn.Module) -> list[tuple[dict[str, Tensor | None], str, Tensor]]:
    owners = [module._buffers for module in loss.modules()]
    return [(owner, name, value) for owner in owners for name, value in owner.items() if value is not None]
