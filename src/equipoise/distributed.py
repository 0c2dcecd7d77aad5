"""Helpers for distributed training. Without an initialised process group they have no effect."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["all_rows", "all_sum", "sum_before", "world_size"]


def world_size() -> int:
    """World size; 1 without an initialised process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def all_sum(tensor: Tensor) -> Tensor:
    """Sum over all processes as a new tensor without gradient; with one process ``tensor`` itself."""
    if world_size() == 1:
        return tensor
    total = tensor.detach().clone()
    dist.all_reduce(total)
    return total


def sum_before(tensor: Tensor) -> Tensor:
    """Sum of a scalar over the processes of lower rank; 0 in the first."""
    by_process = tensor.new_zeros(world_size())
    rank = dist.get_rank() if by_process.numel() > 1 else 0
    by_process[rank] = tensor.detach()
    return all_sum(by_process)[:rank].sum()


def all_rows(tensor: Tensor) -> Tensor:
    """Gather the rows of all processes in order, with a gradient for local rows; (R, ...) to (sum of R, ...).

    Waits for the device, because the host needs the number of rows.
    """
    if world_size() == 1:
        return tensor
    rank, sizes = dist.get_rank(), torch.zeros(world_size(), dtype=torch.int64, device=tensor.device)
    sizes[rank] = len(tensor)
    rows = all_sum(sizes).tolist()
    padded = tensor.new_zeros((max(rows), *tensor.shape[1:]))
    padded[: len(tensor)] = tensor.detach()
    parts = [torch.empty_like(padded) for _ in rows]
    dist.all_gather(parts, padded)
    return torch.cat([tensor if i == rank else part[: rows[i]] for i, part in enumerate(parts)])
