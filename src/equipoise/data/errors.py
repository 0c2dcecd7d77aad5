"""What is said about data that cannot be used."""

from __future__ import annotations

from pathlib import Path

__all__ = ["DataError", "UndecodableError"]


class DataError(ValueError):
    """Data that cannot be used: the message says which file, what was expected, what came and what to do."""


def refuse(where: str | Path, expected: str, found: str, advice: str) -> DataError:
    """The error with these four parts. It is made of its message alone, so it travels between processes."""
    return DataError(f"{where}: {expected}, found {found}; {advice}")


class UndecodableError(DataError):
    """An image file that cannot be decoded."""
