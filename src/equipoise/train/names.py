"""What stands where in the text of a loss or method, and whether its names are known; without torch.

``loss_text`` and ``methods`` read the rest. ``FILE.py:NAME`` is a loss of the user's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from equipoise._suggestions import nearest
from equipoise.catalogue import find

__all__ = [
    "METHOD_NAMES",
    "TermText",
    "check_loss_names",
    "check_method_name",
    "is_method",
    "is_own",
    "list_losses",
    "listed",
    "method_name",
    "split_terms",
]

METHOD_NAMES = ("none", "sdn", "ldam-drw", "bbn", "crt", "lws", "tau-norm", "ncm", "oltr")
"""What ``equipoise.train.methods.METHODS`` knows."""
RULE_AND_LOSS = "inverse"
"""A rule for weights that is the name of a loss too; behind an option it is the rule."""


class TermText(NamedTuple):
    """One loss of a text, not read yet; ``factor`` is None where there is none."""

    factor: str | None
    name: str
    options: tuple[str, ...]


def split_terms(text: str) -> list[TermText]:
    """The losses between the plus signs, that of 1e+5 aside.

    >>> split_terms("ce + 0.5*mine.py:Tail:strength=2")
    [TermText(factor=None, name='ce', options=()),
     TermText(factor='0.5', name='mine.py:Tail', options=('strength=2',))]
    """
    return [_split(term.strip()) for term in re.split(r"(?<![\d.][eE])\+", text)]


def _split(term: str) -> TermText:
    head, *options = term.split(":")
    factor, star, name = head.rpartition("*")
    name = name.strip()
    if name.endswith(".py") and options:
        name = f"{name}:{options.pop(0).strip()}"
    return TermText(factor if star else None, name, tuple(options))


def is_own(name: str) -> bool:
    """Whether a name is ``FILE.py:NAME``, or was meant to be."""
    return ".py" in name


def check_loss_names(text: str) -> None:
    """Raise where a loss of a text is not known, or there is no file that it could be in."""
    for term in split_terms(text):
        if is_own(term.name):
            _check_own(term.name)
        else:
            find(term.name)


def _check_own(name: str) -> None:
    path, _, inside = name.rpartition(":")
    if not path.endswith(".py") or not inside.isidentifier():
        raise ValueError(
            f"a loss of your own must be FILE.py:NAME, got {name!r}; say which class or function of the file makes it"
        )
    file = Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"{name}: there must be such a file, found none at {file.resolve()}; check the path")


def is_method(text: str) -> bool:
    """Whether a text names a method and no loss."""
    return method_name(text) in METHOD_NAMES


def check_method_name(text: str) -> None:
    """Raise where a method is not known."""
    if not is_method(text):
        name = text.partition(":")[0]
        raise ValueError(f"a method must be one that is known, got {name!r}; {nearest(name, METHOD_NAMES)}")


def method_name(text: str) -> str:
    """The name at the head of a text, as ``METHOD_NAMES`` spells it."""
    return text.partition(":")[0].strip().lower().replace("_", "-")


def list_losses(text: str, begins: Callable[[str], bool] = lambda part: False) -> list[str]:
    """The losses of a line, with blanks or commas between them; they are not checked.

    A comma behind an option goes on with the values of that option, unless the name of a loss follows it, or what
    ``begins`` takes for the beginning of something else.

    >>> list_losses("ce, focal:gamma=1,2,3 ldam:weight=drw,recall")
    ['ce', 'focal:gamma=1,2,3', 'ldam:weight=drw', 'recall']
    """
    found: list[str] = []
    for words in re.sub(r"\s*\+\s*", "+", text).split():
        first, *others = listed(words)
        found.append(first)
        for part in filter(None, others):  # a comma and a blank
            if "=" in found[-1] and not (begins(part) or _begins_with_a_loss(part)):
                found[-1] += f",{part}"
            else:
                found.append(part)
    return [part for part in found if part]


def listed(text: str, separator: str = ",") -> list[str]:
    """The parts of a text between separators that stand in no brackets.

    >>> listed("1,(2,3)")
    ['1', '(2,3)']
    """
    found, depth = [""], 0
    for sign in text:
        depth += (sign == "(") - (sign == ")")
        if sign == separator and depth == 0:
            found.append("")
        else:
            found[-1] += sign
    return [value.strip() for value in found]


def _begins_with_a_loss(part: str) -> bool:
    """Whether a part of a list is no value."""
    if re.match(r"[^:=(]*\.py:", part):
        return True
    name = re.match(r"(?:[^*]*\*)?([A-Za-z][\w-]*)", part)
    if name is None or name[1] == RULE_AND_LOSS:
        return False
    try:
        find(name[1])
    except ValueError:
        return False
    return True
