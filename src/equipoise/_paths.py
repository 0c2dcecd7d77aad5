"""Checks of data paths, without torch, so that mistakes are reported immediately."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from equipoise._suggestions import nearest

__all__ = ["EMBEDDED_NAMES", "nothing_there", "same_place"]

EMBEDDED_NAMES = ("digits-lt", "digit-scenes", "digit-maps")
"""Embedded data sets."""


def nothing_there(path_or_name: str | Path) -> str | None:
    """Error message for a path without data; None if it exists.

    >>> nothing_there("digit-lt")
    "digit-lt: there must be a file, a folder or an embedded data set ... did you mean 'digits-lt'?"
    """
    path = Path(path_or_name)
    if str(path_or_name) in EMBEDDED_NAMES or path.exists():
        return None
    expected = "there must be a file, a folder or an embedded data set of that name"
    return f"{path}: {expected}, found nothing; {_meant(path)}"


def same_place(one: str, other: str) -> bool:
    """Whether two paths refer to the same file or folder: ``photos``, ``./photos/``, an absolute path.

    >>> same_place("photos", "./photos/"), same_place("digits-lt", "./digits-lt")
    (True, False)
    """
    if one == other or one in EMBEDDED_NAMES or other in EMBEDDED_NAMES:
        return one == other
    return Path(one).resolve() == Path(other).resolve()


def _meant(path: Path) -> str:
    """Suggestion for a path that does not exist."""
    known = list(EMBEDDED_NAMES) if len(path.parts) == 1 else []
    with suppress(OSError):
        known += [str(path.with_name(one.name)) for one in path.parent.iterdir() if not one.name.startswith(".")]
    names = {Path(one).name: one for one in reversed(known)}
    otherwise = f"known are {', '.join(EMBEDDED_NAMES)}" if len(path.parts) == 1 else "check the path"
    return nearest(path.name, names, shown=names.__getitem__, otherwise=otherwise)
