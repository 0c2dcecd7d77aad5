"""Checks of the numbers that a model is built from."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

__all__ = ["check_whole", "check_wholes"]


def check_whole(name: str, value: object) -> int:
    """Return ``value`` as an int; raise unless it is a whole number of at least 1."""
    if not _is_whole(value):
        raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}; pass e.g. {name}=8")
    return int(value)  # type: ignore[call-overload, no-any-return]


def check_wholes(name: str, values: object) -> tuple[int, ...]:
    """Return ``values`` as ints; raise unless they are a sequence of whole numbers of at least 1."""
    if not isinstance(values, Sequence) or not all(map(_is_whole, values)):
        raise ValueError(
            f"{name} must be a sequence of whole numbers of at least 1, got {values!r}; pass e.g. {name}=(8, 8)"
        )
    return tuple(map(int, values))


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1
