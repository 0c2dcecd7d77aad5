"""Errors about unusable data."""

from __future__ import annotations

from pathlib import Path

__all__ = ["DataError", "UndecodableError"]


class DataError(ValueError):
    """Unusable data: the message names the file, what was expected, what came and what to do."""


def refuse(where: str | Path, expected: str, actual: str, advice: str) -> DataError:
    """Build the error from these four parts. It consists of its message only, so it can be pickled."""
    return DataError(f"{where}: {expected}, found {actual}; {advice}")


class UndecodableError(DataError):
    """An image file that cannot be decoded."""
