"""Docstrings are written for ``help()``; here they become Markdown: roles, formulas, examples and remarks on shapes."""

from __future__ import annotations

import re
from typing import Any

import griffe

from website.reference import public_path

__all__ = ["SphinxRoles", "as_markdown"]

_MATH = re.compile(r":math:`(.+?)`", re.DOTALL)
_MATH_BLOCK = re.compile(r"^( *)\.\. math::(.*(?:\n\1 +.*)*)", re.MULTILINE)
_ROLE = re.compile(r":(?:class|func|meth|data):`~?([\w.]+)`")
_SESSION = re.compile(r"^( *)>>> .*(?:\n\1\S.*|\n\1 +\S.*)*", re.MULTILINE)
_SHAPE = re.compile(r"^( *)Shape: ", re.MULTILINE)


def as_markdown(text: str) -> str:
    """A docstring, without its common indentation, as Markdown."""
    text = _SESSION.sub(_fenced, text)
    text = _MATH_BLOCK.sub(lambda found: f"{found[1]}$${_one_line(found[2])}$$", text)
    text = _MATH.sub(lambda found: f"${_one_line(found[1])}$", text)
    text = _SHAPE.sub(r"\1**Shape:** ", text)
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


class SphinxRoles(griffe.Extension):
    """Rewrites every docstring before it is taken apart."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:  # noqa: ANN401
        """Called for each module, class, function and attribute once it is loaded."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
