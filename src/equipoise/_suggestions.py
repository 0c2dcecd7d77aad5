"""Suggestions for unknown names, and short lists of names in messages. Does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)

__all__: list[str] = []

LISTED = 20
"""Maximum number of known names to list if none is similar."""
ALONE = 0.85
"""Similarity (difflib's ratio) above which only the nearest name is suggested."""


def nearest(word: str, known: Iterable[str], *, shown: Callable[[str], str] = str, otherwise: str | None = None) -> str:
    """Advice about an unknown name: similar names, or else all known names.

    Args:
        word: the unknown name.
        known: the valid names.
        shown: formats a name.
        otherwise: text if none is similar, instead of the known names.

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
    """The first names, and the number of the others.

    >>> some(["cat", "dog", "emu"], 2)
    'cat, dog and 1 more'
    """
    listed = [str(name) for name in names]
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")


def shortened(text: str, most: int = 80) -> str:
    """A long text, truncated.

    >>> shortened("a" * 100, 8)
    'aaaaaaaa... (100 characters)'
    """
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def repeated(names: Iterable[Name]) -> Name | None:
    """The first value that occurs twice, None if all differ.

    >>> repeated(["cat", "dog", "emu", "dog"])
    'dog'
    """
    seen: set[Name] = set()
    return next((name for name in names if name in seen or seen.add(name)), None)  # type: ignore[func-returns-value]


def _near(word: str, known: Iterable[str]) -> list[str]:
    """The best match, or else up to three similar names, the nearest first.

    Case, dashes and underscores are ignored.
    """
    import difflib  # not at the top: names are rarely wrong

    spelt, plain = {_plain(name): name for name in known}, _plain(word)
    close = difflib.get_close_matches(plain, spelt, 1, ALONE) or difflib.get_close_matches(plain, spelt, 3)
    return [spelt[key] for key in close]


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")
