"""One thing that was found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "listed"]


@dataclass(frozen=True)
class Finding:
    """Something to know.

    Args:
        level: ``"problem"`` breaks something, ``"warning"`` may mislead, ``"note"`` is worth knowing.
        about: a few words.
        text: what was found and why it matters, with its numbers.
        advice: what to do.
    """

    level: Literal["problem", "warning", "note"]
    about: str
    text: str
    advice: str


def listed(names: Sequence[str], most: int = 5) -> str:
    """Some names in a row."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
