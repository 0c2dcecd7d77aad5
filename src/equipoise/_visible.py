"""Escape untrusted text, so that a terminal does not interpret it as commands."""

from __future__ import annotations

import re

__all__ = ["visible"]

HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters except tab and newline
    "\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"  # invisible characters and marks of direction
    "\ud800-\udfff]"  # lone surrogates, which no file and no terminal accepts
)


def visible(text: str, *, lines: bool = True) -> str:
    r"""Text with control characters, marks of direction and lone surrogates as escapes.

    Args:
        text: from data, files, or other libraries.
        lines: whether to keep tabs and newlines.

    >>> visible("caf\u00e9 \x1b[31mred\x07")
    'café \\x1b[31mred\\x07'
    """
    shown = HIDDEN.sub(lambda match: match[0].encode("unicode_escape", "surrogatepass").decode("ascii"), text)
    return shown if lines else shown.replace("\n", "\\n").replace("\t", "\\t")
