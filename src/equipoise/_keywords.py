"""Keyword arguments that nobody knows: an error that names the ones that come near."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

from equipoise._nearest import nearest

__all__: list[str] = []


@functools.cache
def arguments_of(made: Callable[..., Any]) -> Mapping[str, Any] | None:
    """Arguments of a class or a function, and their annotations; None where these say nothing.

    Those behind ``**options`` are among them.
    """
    make, bound = (made.__init__, 1) if isinstance(made, type) else (made, 0)  # type: ignore[misc]
    try:
        hints = typing.get_type_hints(make)
    except NameError:  # annotations of a class of the user's that only type checkers can read
        return None
    found: dict[str, Any] = {}
    for name, parameter in list(inspect.signature(make).parameters.items())[bound:]:
        if parameter.kind is parameter.VAR_KEYWORD:
            options = typing.get_args(hints.get(name))
            if not options:
                return None
            found |= typing.get_type_hints(options[0])
        else:
            found[name] = hints.get(name, Any)
    return found


def check_keywords(made: Callable[..., Any], given: Mapping[str, object]) -> None:
    """Raise where a class or a function does not take an argument."""
    known = arguments_of(made) if given else None
    unknown = [key for key in given if known is not None and key not in known]
    if known is None or not unknown:
        return
    hint = nearest(unknown[0], known, otherwise=f"it takes {', '.join(known)}")
    raise TypeError(f"{made.__name__} got an unexpected keyword argument {unknown[0]!r}; {hint}")
