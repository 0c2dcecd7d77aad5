"""Findings of the diagnostics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "listed"]


@dataclass(frozen=True)
class Finding:
    """A diagnostic message.

    Args:
        level: ``"problem"`` (results are invalid), ``"warning"`` (results may mislead) or ``"note"``.
        about: title in a few words.
        text: the observation with its numbers, and why it matters.
        advice: recommended action.
    """

    level: Literal["problem", "warning", "note"]
    about: str
    text: str
    advice: str


def listed(names: Sequence[str], most: int = 5) -> str:
    """The first names, and the number of the others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
