"""Names in messages: those nearest to one that nobody knows, or a few of many. Without torch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)

__all__: list[str] = []

LISTED = 20
"""Known names that are listed where none is near."""
ALONE = 0.85
"""Likeness (difflib's ratio) from which on the nearest name is named alone."""


def nearest(word: str, known: Iterable[str], *, shown: Callable[[str], str] = str, otherwise: str | None = None) -> str:
    """How a message about an unknown name ends: with the known ones that are near, or else with all of them.

    Args:
        word: the unknown name.
        known: names it is compared with.
        shown: what is written for a known name.
        otherwise: what is said where none is near, instead of which are known.

    >>> nearest("focl", ["ce", "focal"])
    "did you mean 'focal'?"
    >>> nearest("gamma", ["gamma_pos", "weight", "gamma_neg"])
    "did you mean 'gamma_pos' or 'gamma_neg'?"
    >>> nearest("xyz", ["ce", "focal"])
    'known are ce, focal'
    """
    names = list(known)
    close = [repr(name) for name in map(shown, _near(word, names))]
    if close:
        *others, last = close
        return f"did you mean {', '.join(others)}{' or ' if others else ''}{last}?"
    if otherwise is not None:
        return otherwise
    return f"known are {some(map(shown, names), LISTED)}" if names else "there are none"


def some(names: Iterable[object], most: int = 8) -> str:
    """A few names in a row.

    >>> some(["cat", "dog", "emu"], 2)
    'cat, dog and 1 more'
    """
    listed = [str(name) for name in names]
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")


def shortened(text: str, most: int = 80) -> str:
    """The beginning of a long text.

    >>> shortened("a" * 100, 8)
    'aaaaaaaa... (100 characters)'
    """
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def repeated(names: Iterable[Name]) -> Name | None:
    """The first that occurs twice, None where all differ.

    >>> repeated(["cat", "dog", "emu", "dog"])
    'dog'
    """
    seen: set[Name] = set()
    return next((name for name in names if name in seen or seen.add(name)), None)  # type: ignore[func-returns-value]


def _near(word: str, known: Iterable[str]) -> list[str]:
    """The known name that is nearly the same, or else up to three that are near, the nearest first.

    Capitals do not matter, nor whether it is a dash or an underscore.
    """
    import difflib  # not at the top: names are seldom wrong

    spelt, plain = {_plain(name): name for name in known}, _plain(word)
    close = difflib.get_close_matches(plain, spelt, 1, ALONE) or difflib.get_close_matches(plain, spelt, 3)
    return [spelt[key] for key in close]


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")
