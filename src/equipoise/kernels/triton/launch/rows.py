"""Launching the kernels that count, weight and reduce rows."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.kernels.triton.device.rows import (
    add_kernel,
    count_kernel,
    finish_kernel,
    mass_kernel,
    scale_kernel,
    weigh_kernel,
)
from equipoise.kernels.triton.launch.geometry import SMALL, power_of_2
from equipoise.kernels.triton.launch.launcher import Launch, Launcher, scratch, ticket

__all__ = [
    "AT_ONCE",
    "REDUCTIONS",
    "Reduced",
    "added",
    "asked",
    "code_dtype",
    "count",
    "denominate",
    "finish",
    "finishes_itself",
    "roomy",
    "scale",
    "sums_of",
    "weigh",
]

FEW_CLASSES = 256  # up to here a program counts in its own histogram
LINE = 2048  # rows or elements that a program processes at a time
COUNTED = 8192  # the same when counting with a histogram
COUNTING = 528  # programs that count, at most; each adds its histogram to the counts
WEIGHING = 528  # programs that apply weights, at most
MOST_SCALING = 2048  # programs that scale a tensor: enough for the memory bandwidth, cheap if the factor is 1
FEW_PROGRAMS = 528  # up to here the last program reduces all sums, which saves a launch
MANY_PROGRAMS = 2**15  # beyond, PyTorch adds up the sums first
FEW_COLUMNS = 1024  # up to here few programs add them up, which needs larger tiles
AT_ONCE = (torch.float32, torch.bfloat16)  # gradient may be divided before it is scaled; float16 would underflow
REDUCTIONS = {"sum": 0, "mean": 1, "valid_mean": 2, "batch_mean": 3}

_count = Launcher(count_kernel)
_weigh = Launcher(weigh_kernel)
_finish = Launcher(finish_kernel)
_mass = Launcher(mass_kernel)
_scale = Launcher(scale_kernel)
_add = Launcher(add_kernel)


class Reduced(NamedTuple):
    """A reduced loss and the inverse of its denominator, scalars."""

    loss: Tensor
    inverse: Tensor

    @classmethod
    def empty(cls, dtype: torch.dtype, device: torch.device) -> Reduced:
        """Two output tensors of a kernel; not views, so the loss may be changed in place."""
        return cls(torch.empty((), dtype=dtype, device=device), torch.empty((), dtype=dtype, device=device))


def finishes_itself(reduction: str | None, programs: int) -> int:
    """The reduction that the last of so many programs applies itself, -1 for none."""
    return REDUCTIONS[reduction] if reduction is not None and 0 < programs <= FEW_PROGRAMS else -1


def sums_of(kinds: int, programs: int, inside: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory for the sums of each program, (kinds, programs); temporary if the kernel reduces them itself."""
    if inside >= 0:
        return scratch(kinds * programs, dtype, device)
    return torch.empty((kinds, programs), dtype=dtype, device=device)


def asked(sums: Tensor, reduced: Reduced | None, inside: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ticket, reduced loss and inverse for a kernel; placeholders if it does not reduce itself."""
    return (sums, sums, sums) if inside < 0 or reduced is None else (ticket(sums.device), *reduced)


def finish(sums: Tensor, reduced: Reduced, reduction: str, samples: int) -> None:
    """Write the reduced loss of sums (2 or 3, programs) and the inverse of its denominator."""
    if sums.shape[1] > MANY_PROGRAMS:
        sums = sums.sum(1, keepdim=True)
    _finish(_finishing(sums.shape[1], samples, reduction), sums, *reduced)


@lru_cache(maxsize=1024)
def _finishing(sums: int, samples: int, reduction: str) -> Launch:
    return Launch(1, (sums, samples), (REDUCTIONS[reduction], 4096), 8)


def roomy(rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialised tensor (rows,) with padding behind it, so that kernels can load blocks of 16."""
    return torch.empty(rows + 15, dtype=dtype, device=device)[:rows]


def code_dtype(classes: int) -> torch.dtype:
    """The smallest type for the codes of rows, 0 to 2 C + 1."""
    return torch.uint8 if classes < 2**7 else torch.int16 if classes < 2**14 else torch.int32


def count(codes: Tensor, counts: Tensor) -> None:
    """Add support and true positives of each class to ``counts``, (2, C) int64; ``codes`` is padded, see ``roomy``."""
    rows = codes.numel()
    if rows:
        _count(_counting(rows, counts.shape[1]), codes, counts)
    else:
        counts.zero_()


@lru_cache(maxsize=1024)
def _counting(rows: int, classes: int) -> Launch:
    bins = power_of_2(2 * classes + 1) if classes <= FEW_CLASSES else 0
    line = COUNTED if bins else LINE
    warps = 16 if bins == 512 else 8  # by measurements on an H200
    return Launch(_sweeps(rows, COUNTING, line), (rows, -(-rows // 16)), (classes, bins, rows >= SMALL, line), warps)


def weigh(
    codes: Tensor, losses: Tensor, weight: Tensor, reduction: str | None, samples: int
) -> tuple[Tensor, Reduced | None]:
    """Sums (3, programs) of loss, mass and valid rows for unweighted losses (rows,) and class weights (C,).

    The second result is the reduced loss, if there is a reduction. ``codes`` and ``losses`` are padded, see ``roomy``.
    """
    rows = losses.numel()
    launch, inside = _weighing(rows, weight.numel(), reduction, samples)
    sums = sums_of(3, launch.programs, inside, losses.dtype, losses.device)
    reduced = None if reduction is None else Reduced.empty(losses.dtype, losses.device)
    if rows:
        _weigh(launch, codes, losses, weight, sums, *asked(sums, reduced, inside))
    if reduction is not None and reduced is not None and inside < 0:
        finish(sums, reduced, reduction, samples)
    return sums, reduced


@lru_cache(maxsize=1024)
def _weighing(rows: int, classes: int, reduction: str | None, samples: int) -> tuple[Launch, int]:
    """The launch, and the reduction inside the kernel, see ``finishes_itself``."""
    programs = _sweeps(rows, WEIGHING)
    inside = finishes_itself(reduction, programs)
    numbers, constants = (rows, -(-rows // 16), samples), (classes, rows >= SMALL, inside, LINE)
    return Launch(programs, numbers, constants, 8), inside


def denominate(
    targets: Tensor, weight: Tensor | None, reduced: Reduced, reduction: str, classes: int, ignore_index: int
) -> None:
    """Write the inverse of the denominator for contiguous class indices, before losses are computed."""
    rows = targets.numel()
    programs = _sweeps(rows, WEIGHING)
    sums = scratch(3 * programs, reduced.loss.dtype, targets.device)
    launch = _denominating(programs, rows, targets.shape[0], classes, weight is not None, ignore_index, reduction)
    _mass(launch, targets, sums if weight is None else weight, sums, ticket(sums.device), *reduced)


@lru_cache(maxsize=1024)
def _denominating(
    programs: int, rows: int, samples: int, classes: int, weighted: bool, ignore_index: int, reduction: str
) -> Launch:
    constants = (classes, weighted, rows >= SMALL, REDUCTIONS[reduction], LINE)
    return Launch(programs, (rows, ignore_index, samples), constants, 8)


def scale(tensor: Tensor, factor: Tensor, inverse: Tensor | None = None) -> None:
    """Multiply a dense tensor by a scalar in place; almost free if the scalar is 1.

    With ``inverse``, that of the correct denominator: the tensor was divided by the number of its elements instead.
    """
    if tensor.numel():
        _scale(_scaling(tensor.numel(), inverse is not None), tensor, factor, factor if inverse is None else inverse)


@lru_cache(maxsize=1024)
def _scaling(size: int, counted: bool) -> Launch:
    return Launch(min(-(-size // LINE), MOST_SCALING), (size,), (counted, size >= SMALL, LINE), 8)


def added(partial: Tensor) -> Tensor:
    """Sums (kinds, columns) of the partial sums of each program, (kinds, programs, columns)."""
    kinds, programs, columns = partial.shape
    if programs > (FEW_PROGRAMS if columns > FEW_COLUMNS else MANY_PROGRAMS) or partial.numel() >= SMALL:
        return partial.sum(1)
    sums = torch.empty((kinds, columns), dtype=partial.dtype, device=partial.device)
    _add(_adding(kinds, programs, columns), partial, sums)
    return sums


@lru_cache(maxsize=1024)
def _adding(kinds: int, programs: int, columns: int) -> Launch:
    tile = (16, 64) if columns > FEW_COLUMNS else (min(power_of_2(programs), 1024), 1 if columns == 1 else 4)
    return Launch(kinds * -(-columns // tile[1]), (programs, columns), tile, 4)


def _sweeps(rows: int, most: int, line: int = LINE) -> int:
    """Number of programs that process the rows in lines."""
    return min(-(-rows // line), most)
