"""Hyper-parameters of a kernel: one flat tensor on the device and a static layout that names its pieces.

If a name is missing from the layout, the loss does not have that term, and a backend skips it without reading values.
Schedules and adaptive rules write into the tensor, without recompilation or synchronisation. Only a fixed exponent that
is a small integer is part of the layout, so that a backend can multiply instead of computing a power.

Names: ``xi``, ``gamma_hc``, ``gamma_pos`` and ``gamma_neg`` (one number or one per class), ``confidence_bounds``
and ``confidence_gammas`` (gamma by confidence), ``weight``, ``offset``, and for the softmax link ``label_smoothing``,
``true_margin``, ``scale``, ``squared_error`` (a switch), ``keep``, ``strength``; for the sigmoid link ``neg_scale``,
``margin``, ``thin_margin`` (a switch), ``alpha``, ``pos_weight``, ``rebalance``, ``inverse_counts``.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from equipoise._checks import check_length

__all__ = ["Hyper", "Layout", "Piece", "Values", "accumulation_dtype", "check_layout", "layout_of", "pack", "view_of"]

Values: TypeAlias = Mapping[str, tuple[float, ...]]


class Piece(NamedTuple):
    """Position of one hyper-parameter in the flat tensor."""

    name: str
    start: int
    stop: int
    whole: int | None = None  # a fixed exponent from 1 to 4
    argument: str | None = None  # the name of the user's argument, if it differs


Layout: TypeAlias = tuple[Piece, ...]

EXPONENTS = ("gamma_pos", "gamma_neg")
OVER_TIME = ", or pass Steps(...) of equipoise.schedules for values one after the other"
PER_CLASS = ("gamma_pos", "gamma_neg", "weight", "offset", "true_margin", "pos_weight", "inverse_counts")


def accumulation_dtype(logits: Tensor) -> torch.dtype:
    """float64 for float64 logits, float32 for all others."""
    return torch.float64 if logits.dtype is torch.float64 else torch.float32


def layout_of(values: Values, fixed: Container[str], arguments: Mapping[str, str]) -> Layout:
    """Layout of the flat tensor; ``fixed``: names of exponents that never change; ``arguments``: users' names."""
    pieces, start = [], 0
    for name, numbers in values.items():
        whole = name in fixed and numbers in ((1.0,), (2.0,), (3.0,), (4.0,))
        exponent = int(numbers[0]) if whole else None
        pieces.append(Piece(name, start, start + len(numbers), exponent, arguments.get(name)))
        start += len(numbers)
    return tuple(pieces)


def pack(values: Values, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu") -> Tensor:
    """All hyper-parameters in one flat tensor."""
    flat = torch.tensor([number for numbers in values.values() for number in numbers], dtype=dtype, device="cpu")
    return flat.to(device, non_blocking=True)  # does not wait for the device


def view_of(hyper: Tensor, layout: Layout, name: str) -> Tensor | None:
    """One hyper-parameter, a view of shape (1,) or (C,); None if the loss does not have it."""
    for piece in layout:
        if piece.name == name:
            return hyper[piece.start : piece.stop]
    return None


class Hyper(dict[str, Tensor]):
    """Hyper-parameters by name, each a view of shape (1,) or (C,), and the exponents that are fixed small integers."""

    def __init__(self, hyper: Tensor, layout: Layout) -> None:
        super().__init__({piece.name: hyper[piece.start : piece.stop] for piece in layout})
        self.whole = {piece.name: piece.whole for piece in layout}


def check_layout(layout: Layout, num_classes: int) -> None:
    """Raise if the length of a per-class hyper-parameter is not the number of classes of the logits."""
    for piece in layout:
        length = piece.stop - piece.start
        if piece.name in PER_CLASS and length != 1:
            check_length(
                piece.argument or piece.name, length, num_classes, OVER_TIME if piece.name in EXPONENTS else ""
            )
