"""Code in tables may be broken where a reader would break it, so that a table fits its page."""

from __future__ import annotations

import re

__all__ = ["let_code_break"]

_CELL = re.compile(r"<t[dh][^>]*>.*?</t[dh]>", re.DOTALL)
_CODE = re.compile(r"(?<=<code>)[^<]{16,}(?=</code>)")
_PLACE = re.compile(r"(?<=[(,.=/:])(?=[^\s(,.=/:)])")


def let_code_break(page: str) -> str:
    """The HTML of a page, with places to break after brackets and signs of longer code in cells."""
    return _CELL.sub(lambda cell: _CODE.sub(lambda code: _PLACE.sub("<wbr>", code[0]), cell[0]), page)
