"""Figures as SVG inside a page: they take the page's colours, light or dark, and its fonts."""

from __future__ import annotations

import io
import itertools
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.figure import Figure

__all__ = ["INK", "MUTED", "PAPER", "SERIES", "as_svg", "page_style"]

# Colours that stand for a variable of the page's style sheet; they never reach the reader.
INK, MUTED, PAPER = "#010203", "#040506", "#070809"
SERIES = ("#0a0b01", "#0a0b02", "#0a0b03", "#0a0b04")
_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--line)",
    PAPER: "var(--paper)",
    **{colour: f"var(--series-{number})" for number, colour in enumerate(SERIES, 1)},
}
_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9.0,
    "text.color": INK,
    "text.parse_math": False,  # a class may be called "$x$"
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": MUTED,
    "grid.linewidth": 0.5,
    "grid.alpha": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "figure.facecolor": "none",
    "svg.fonttype": "none",  # text stays text: it scales, can be searched, and is escaped
    "svg.hashsalt": "equipoise",
}


@contextmanager
def page_style() -> Iterator[None]:
    """Draw in the style of the page."""
    with matplotlib.rc_context(_STYLE):
        yield


_numbers = itertools.count()


def as_svg(figure: Figure, description: str) -> str:
    """The figure as an ``<svg>`` element with names of its own, told to those who cannot see it by ``description``."""
    buffer = io.StringIO()
    with page_style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # text is drawn by the browser, with its fonts
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    mark = f"f{next(_numbers)}-"
    svg = re.sub(r'\bid="', f'id="{mark}', svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{mark}", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, variable)
    svg = re.sub(r'<svg ([^>]*?)width="[^"]*pt"', r"<svg \1", svg, count=1)
    svg = re.sub(r'<svg ([^>]*?)height="[^"]*pt"', r"<svg \1", svg, count=1)
    label = description.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" style="width:{_width(figure)}px" ', 1)


def _width(figure: Figure) -> int:
    return round(float(figure.get_size_inches()[0]) * 100)
