"""The two things losses need of ``torch.distributed``. Without an initialised process group they change nothing."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

__all__ = ["all_sum", "world_size"]


def world_size() -> int:
    """Number of processes that train together; 1 without an initialised process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def all_sum(tensor: Tensor) -> Tensor:
    """Sum over all processes in a new tensor without gradient; with one process ``tensor`` itself."""
    if world_size() == 1:
        return tensor
    total = tensor.detach().clone()
    dist.all_reduce(total)
    return total
