"""Formulas become MathML while the site is built: browsers draw it by themselves, without scripts or fonts."""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert

__all__ = ["as_mathml", "draw_formulas"]

# What pymdownx.arithmatex leaves of $...$, $$...$$ and ```math.
_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
_DISPLAY = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)
# TeX sets a thin space on either side of a function, unless a bracket or a sign stands there.
_THIN = '<mspace width="0.1667em"></mspace>'
_FUNCTION = r"<mi>[a-z]{2,}</mi>"
_BEFORE = re.compile(rf"(</(?:mi|mn|msup|msub|msubsup|mfrac)>|&#x00029;</mo>)(?={_FUNCTION})")
_AFTER = re.compile(rf"({_FUNCTION})(?=<(?:mi|mn|msup|msub|msubsup|mfrac)>)")
_CALLED = re.compile(r"<mo>(max|min)</mo>(?=<mo[^>]*>&#x00028;)")
_UNKNOWN = re.compile(r"\\[a-zA-Z]+")


def as_mathml(tex: str, *, display: bool = False) -> str:
    """MathML of a formula in TeX.

    Raises:
        ValueError: a command that the converter does not know, which readers would see as it is written.
    """
    found = convert(tex.strip(), display="block" if display else "inline")
    if unknown := _UNKNOWN.findall(found):
        raise ValueError(f"formula {tex.strip()!r}: {', '.join(unknown)} cannot be drawn; write it in other commands")
    return _spaced(found)


def _spaced(mathml: str) -> str:
    mathml = _CALLED.sub(r"<mi>\1</mi>", mathml)
    return _AFTER.sub(rf"\1{_THIN}", _BEFORE.sub(rf"\1{_THIN}", mathml))


def draw_formulas(page: str) -> str:
    """The HTML of a page with every formula drawn."""
    page = _DISPLAY.sub(lambda found: f'<div class="formula">{_drawn(found[1], display=True)}</div>', page)
    return _INLINE.sub(lambda found: _drawn(found[1], display=False), page)


def _drawn(escaped: str, *, display: bool) -> str:
    return as_mathml(html.unescape(escaped), display=display)
