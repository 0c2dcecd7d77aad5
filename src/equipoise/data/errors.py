"""What is said about data that cannot be used."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

__all__ = ["DataError"]


class DataError(ValueError):
    """Data that cannot be used: the message says which file, what was expected, what came and what to do."""


def refuse(where: str | Path, expected: str, found: str, advice: str) -> DataError:
    """The error with these four parts. It is made of its message alone, so it travels between processes."""
    return DataError(f"{where}: {expected}, found {found}; {advice}")


def some(names: Iterable[object], most: int = 8) -> str:
    """A few names in a row, for messages."""
    listed = [str(name) for name in names]
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")


def nearest(word: str, known: Iterable[str]) -> str:
    """``did you mean ...?`` where a known word is near, otherwise which words are known."""
    names = list(known)
    close = difflib.get_close_matches(word, names, 1)
    return f"did you mean {close[0]!r}?" if close else f"known are {some(names)}"
