"""Docstrings are written for ``help()``; here they become Markdown: roles, formulas, examples and remarks on shapes."""

from __future__ import annotations

import re
from typing import Any

import griffe

from website.reference import public_path

__all__ = ["Docstrings", "as_markdown"]

_MATH = re.compile(r":math:`(.+?)`", re.DOTALL)
_MATH_BLOCK = re.compile(r"^( *)\.\. math::(.*(?:\n\1 +.*)*)", re.MULTILINE)
_ROLE = re.compile(r":(?:class|func|meth|data):`~?([\w.]+)`")
_SESSION = re.compile(r"^( *)>>> .*(?:\n\1\S.*|\n\1 +\S.*)*", re.MULTILINE)
_TOP = re.compile(r"see the top of (?:the module|``losses\.named``)")
_SHAPE = re.compile(r"^( *)Shape: ", re.MULTILINE)


def as_markdown(text: str) -> str:
    """A docstring, without its common indentation, as Markdown."""
    text = _SESSION.sub(_fenced, text)
    text = _MATH_BLOCK.sub(lambda found: f"{found[1]}$${_one_line(found[2])}$$", text)
    text = _MATH.sub(lambda found: f"${_one_line(found[1])}$", text)
    text = _SHAPE.sub(r"\1**Shape:** ", text)
    text = _TOP.sub("see [common options][common-options]", text)
    return _ROLE.sub(lambda found: _link(found[1]), text)


def _one_line(tex: str) -> str:
    return " ".join(tex.split())


def _fenced(found: re.Match[str]) -> str:
    indent = found[1]
    return f"{indent}```pycon\n{found[0]}\n{indent}```"


def _link(name: str) -> str:
    """A link to where the reference shows it; a name that is nowhere shown stays a name."""
    short, place = name.rpartition(".")[2], public_path(name)
    return f"[`{short}`][{place}]" if place else f"`{short}`"


class Docstrings(griffe.Extension):
    """Rewrites every docstring before it is taken apart, and shows of a class what readers can use."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:  # noqa: ANN401
        """Called for each module, class, function and attribute once it is loaded."""
        if isinstance(obj, griffe.Class) and "NamedTuple" in map(str, obj.bases):
            obj.set_member("__init__", _constructor(obj))
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value) + _derivation(obj)


def _constructor(fields: griffe.Class) -> griffe.Function:
    """That of a named tuple; griffe knows those of dataclasses."""
    known = [one for one in fields.attributes.values() if one.annotation is not None]
    parameters = [
        griffe.Parameter(
            one.name,
            annotation=one.annotation,
            kind=griffe.ParameterKind.positional_or_keyword,
            default=str(one.value) if one.value is not None else None,
        )
        for one in known
    ]
    return griffe.Function("__init__", parameters=griffe.Parameters(griffe.Parameter("self"), *parameters))


def _derivation(obj: griffe.Object) -> str:
    """What a class derives from, where that can be looked up too."""
    bases = obj.bases if isinstance(obj, griffe.Class) else []
    paths = [base if isinstance(base, str) else base.canonical_path for base in bases]
    links = [_link(path) for path in paths if path.startswith("equipoise.") and public_path(path)]
    return f"\n\nDerives from {', '.join(links)}." if links else ""
