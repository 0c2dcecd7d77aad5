"""Launching the kernels that count, weigh and divide rows."""

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

FEW_CLASSES = 256  # up to here a program counts in a table of its own
LINE = 2048  # rows or elements that a program walks over at a time
COUNTED = 8192  # where it counts
COUNTING = 528  # programs that count, each of which adds a table to that of all
WEIGHING = 528  # programs that weigh
MOST_SCALING = 2048  # programs that scale a tensor: enough to use all of the memory, few enough to find nothing to do
FEW_PROGRAMS = 528  # up to here the last of them adds up the sums of all, which is slower but spares a launch
MANY_PROGRAMS = 2**15  # beyond, their sums are added up before the last step
FEW_COLUMNS = 1024  # up to here the programs that add them up are too few to walk slowly
AT_ONCE = (torch.float32, torch.bfloat16)  # whose gradient may be divided before it is scaled: float16 underflows
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
        """Two tensors that a kernel is to fill, neither a view: the loss may be changed in place."""
        return cls(torch.empty((), dtype=dtype, device=device), torch.empty((), dtype=dtype, device=device))


def finishes_itself(reduction: str | None, programs: int) -> int:
    """How a kernel of so many programs reduces its sums, -1 where it does not."""
    return REDUCTIONS[reduction] if reduction is not None and 0 < programs <= FEW_PROGRAMS else -1


def sums_of(kinds: int, programs: int, inside: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Room for the sums of each program, (kinds, programs); for now only, where the kernel reduces them itself."""
    if inside >= 0:
        return scratch(kinds * programs, dtype, device)
    return torch.empty((kinds, programs), dtype=dtype, device=device)


def asked(sums: Tensor, reduced: Reduced | None, inside: int) -> tuple[Tensor, Tensor, Tensor]:
    """The ticket and the reduced loss that a kernel takes; anything where it does not finish itself."""
    return (sums, sums, sums) if inside < 0 or reduced is None else (ticket(sums.device), *reduced)


def finish(sums: Tensor, reduced: Reduced, reduction: str, samples: int) -> None:
    """Writes the reduced loss of sums (2 or 3, programs) and the inverse of its denominator."""
    if sums.shape[1] > MANY_PROGRAMS:
        sums = sums.sum(1, keepdim=True)
    _finish(_finishing(sums.shape[1], samples, reduction), sums, *reduced)


@lru_cache(maxsize=1024)
def _finishing(sums: int, samples: int, reduction: str) -> Launch:
    return Launch(1, (sums, samples), (REDUCTIONS[reduction], 4096), 8)


def roomy(rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """An empty tensor (rows,) behind which there is room, so that kernels can read it by sixteens."""
    return torch.empty(rows + 15, dtype=dtype, device=device)[:rows]


def code_dtype(classes: int) -> torch.dtype:
    """The smallest type that holds the codes of rows, 0 to 2 C + 1."""
    return torch.uint8 if classes < 2**7 else torch.int16 if classes < 2**14 else torch.int32


def count(codes: Tensor, counts: Tensor) -> None:
    """Adds rows of each class and its hits to ``counts``, (2, C) int64; the codes are roomy."""
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
    """Loss, mass and valid rows, (3, programs), of losses (rows,) that lack the class weights (C,); see ``finish``.

    ``codes`` and ``losses`` are roomy.
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
    """The launch, and how the kernel reduces its sums."""
    programs = _sweeps(rows, WEIGHING)
    inside = finishes_itself(reduction, programs)
    numbers, constants = (rows, -(-rows // 16), samples), (classes, rows >= SMALL, inside, LINE)
    return Launch(programs, numbers, constants, 8), inside


def denominate(
    targets: Tensor, weight: Tensor | None, reduced: Reduced, reduction: str, classes: int, ignore_index: int
) -> None:
    """Writes the inverse of the denominator of class indices, contiguous, before there are losses."""
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
    """Multiplies a tensor without gaps by a scalar, in place, which costs next to nothing where it is 1.

    ``inverse`` of a denominator: the tensor has been divided by the number of its elements instead.
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
    """Programs that walk over rows."""
    return min(-(-rows // line), most)
