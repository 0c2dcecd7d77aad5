"""Figures as SVG inside a page: they take the page's colours, light or dark, and its fonts."""

from __future__ import annotations

import io
import itertools
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

__all__ = [
    "BETTER",
    "INK",
    "MUTED",
    "PAPER",
    "SERIES",
    "SHADES",
    "SOFT",
    "WORSE",
    "Stroke",
    "as_svg",
    "css",
    "page_style",
    "panel",
    "percent",
    "strokes",
    "titled",
]

# Colours that stand for a variable of the page's style sheet; they never reach the reader.
INK, MUTED, PAPER, SOFT = "#010203", "#040506", "#070809", "#0a0c01"
BETTER, WORSE = "#0a0c02", "#0a0c03"
SERIES = tuple(f"#0a0b{number:02}" for number in range(1, 9))
SHADES = tuple(f"#0a0d{number:02}" for number in range(13))
"""From one end of an order to the other."""


def _shade(share: float) -> str:
    """A colour between the first, the third and the fifth of the page."""
    start, end, part = (1, 3, 2 * share) if share <= 0.5 else (3, 5, 2 * share - 1)
    return f"color-mix(in oklab, var(--series-{start}), var(--series-{end}) {100 * part:.0f}%)"


_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--line)",
    PAPER: "var(--paper)",
    SOFT: "var(--soft)",
    BETTER: "var(--better)",
    WORSE: "var(--worse)",
    **{colour: f"var(--series-{number})" for number, colour in enumerate(SERIES, 1)},
    **{colour: _shade(number / (len(SHADES) - 1)) for number, colour in enumerate(SHADES)},
}
_ROUNDS: tuple[tuple[tuple[float, ...], str, str], ...] = (
    ((), "o", ""),
    ((4.0, 1.6), "s", "///"),
    ((1.2, 1.4), "^", "..."),
    ((6.0, 1.5, 1.2, 1.5), "D", "xxx"),
)
"""Dashes, marker and hatching of those that have the colours first, of those that have them again, and so on."""
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
    "hatch.color": PAPER,
    "hatch.linewidth": 0.9,
    "svg.fonttype": "none",  # text stays text: it scales, can be searched, and is escaped
    "svg.hashsalt": "equipoise",
}


@dataclass(frozen=True)
class Stroke:
    """How one thing looks wherever it is drawn.

    Args:
        colour: one of the colours above.
        dash: lengths of strokes and gaps in widths of the line; none for a solid line.
        marker: of its points, as matplotlib says it.
        hatch: over its areas, as matplotlib says it; none for plain ones.
    """

    colour: str
    dash: tuple[float, ...] = ()
    marker: str = "o"
    hatch: str = ""

    @property
    def style(self) -> Any:  # noqa: ANN401
        """As matplotlib says it."""
        return (0, self.dash) if self.dash else "solid"


def strokes(count: int) -> list[Stroke]:
    """Strokes for so many things, told apart by colour, and by the rest of their looks where colours do not suffice."""
    return [Stroke(SERIES[k % len(SERIES)], *_ROUNDS[k // len(SERIES) % len(_ROUNDS)]) for k in range(count)]


def css(colour: str) -> str:
    """A colour as the page says it."""
    return _VARIABLES[colour]


@contextmanager
def page_style() -> Iterator[None]:
    """Draw in the style of the page."""
    with matplotlib.rc_context(_STYLE):
        yield


def panel(
    width: float, height: float, *, left: float = 0.5, right: float = 0.16, top: float = 0.3, bottom: float = 0.42
) -> tuple[Figure, Axes]:
    """A figure with one plot and margins, all in inches; plots of the same margins stand in line with each other."""
    figure = Figure(figsize=(width, height))
    box = (left / width, bottom / height, 1 - (left + right) / width, 1 - (top + bottom) / height)
    return figure, figure.add_axes(box)


def percent(axis: Axis) -> None:
    """Show shares in percent, with no more digits than there are."""
    axis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.3g}%"))


def titled(figure: Figure, title: str) -> None:
    """A title that begins where the figure begins."""
    height = float(figure.get_size_inches()[1])
    figure.text(0.0, 1 - 0.03 / height, title, ha="left", va="top", fontsize=10.0, fontweight="bold")


_numbers = itertools.count()


def as_svg(figure: Figure, description: str) -> str:
    """The figure as an ``<svg>`` element with names of its own, told to those who cannot see it by ``description``."""
    buffer = io.StringIO()
    with page_style(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # text is drawn by the browser, with its fonts
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)
    svg = re.sub(r">\s*\n\s*<", ">\n<", svg)
    mark = f"f{next(_numbers)}-"
    svg = re.sub(r"<[^>]+>", lambda tag: _tidied(tag[0], mark), svg)
    svg = re.sub(r'<svg ([^>]*?)width="[^"]*pt"', r"<svg \1", svg, count=1)
    svg = re.sub(r'<svg ([^>]*?)height="[^"]*pt"', r"<svg \1", svg, count=1)
    label = description.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    width = round(float(figure.get_size_inches()[0]) * 100)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" style="--width:{width}px" ', 1)


def _tidied(tag: str, mark: str) -> str:
    """A tag without what a page does not need: fonts of its own, names nobody refers to, digits nobody sees."""
    tag = re.sub(r'^<g id="[^"]*"', "<g", tag)
    tag = re.sub(r'font-family: [^;"]*;? ?| transform="rotate\(-0 [^"]*"', "", tag)
    tag = re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", " ".join(tag.split()))
    tag = re.sub(r"#0[0-9a-f]{5}", lambda colour: _VARIABLES.get(colour[0], colour[0]), tag)
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{mark}", tag)
