"""Tables that fit their page: code breaks where a reader would break it, and a mean stays with its ±."""

from __future__ import annotations

import re

__all__ = ["keep_spreads", "let_code_break"]

_CELL = re.compile(r"<t[dh][^>]*>.*?</t[dh]>", re.DOTALL)
_CODE = re.compile(r"(?<=<code>)[^<]{16,}(?=</code>)")
_PLACE = re.compile(r"(?<=[(,.=/:])(?=[^\s(,.=/:)])")


_SPREAD = re.compile(r"(?<=[\d%]) ± (?=\d)")


def keep_spreads(page: str) -> str:
    """The HTML of a page in whose cells no line breaks before or after ±."""
    return _CELL.sub(lambda cell: _SPREAD.sub("\u00a0±\u00a0", cell[0]), page)


def let_code_break(page: str) -> str:
    """The HTML of a page, with places to break after brackets and signs of longer code in cells."""
    return _CELL.sub(lambda cell: _CODE.sub(lambda code: _PLACE.sub("<wbr>", code[0]), cell[0]), page)
