"""The theme of all figures: colours for light and dark pages, strokes, fonts, grid, and margins.

Figures are drawn in the light colours, which PNG and PDF files keep. In an SVG the colours become variables of a style
sheet, see ``rendering``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

__all__ = [
    "BETTER",
    "DASHED",
    "INK",
    "LINE",
    "PAPER",
    "SERIES",
    "SHADES",
    "SOFT",
    "STYLE",
    "WORSE",
    "Stroke",
    "css",
    "css_variables",
    "mixed",
    "panel",
    "percent",
    "shades",
    "short",
    "strokes",
    "theme",
    "titled",
]

LIGHT = {
    **{"paper": "#ffffff", "ink": "#1c2024", "soft": "#5c6670", "line": "#d5dadf", "panel": "#f5f7f9"},
    **{"edge": "#b4bdc6", "better": "#00795a", "worse": "#b84d00"},
    # colours of Okabe and Ito, distinguishable with all common forms of colour blindness; lines also differ in dashes
    **{"series-1": "#0072b2", "series-2": "#d55e00", "series-3": "#009e73", "series-4": "#cc79a7"},
    **{"series-5": "#e09b00", "series-6": "#56b4e9", "series-7": "#7b5ea7", "series-8": "#8c6d31"},
}
DARK = {
    **{"paper": "#14171a", "ink": "#e8ebee", "soft": "#9aa5b0", "line": "#3a424a", "panel": "#1d2226"},
    **{"edge": "#5c6670", "better": "#3ccf9f", "worse": "#ff9a4d"},
    **{"series-1": "#5aa2f0", "series-2": "#ff9a4d", "series-3": "#3ccf9f", "series-4": "#e6a3c8"},
    **{"series-5": "#f2cf63", "series-6": "#58dbe8", "series-7": "#b49be0", "series-8": "#c4a06a"},
}
"""Colours of dark mode, with the same names."""
INK, SOFT, LINE, PAPER, BETTER, WORSE = (LIGHT[name] for name in ("ink", "soft", "line", "paper", "better", "worse"))
SERIES = tuple(LIGHT[f"series-{number}"] for number in range(1, 9))


def mixed(start: str, end: str, share: float) -> str:
    """Interpolate two colours in OKLab (Ottosson 2020), like ``color-mix(in oklab, ...)`` of CSS."""
    rgb = np.array([to_rgb(start), to_rgb(end)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    cones = np.cbrt(linear @ _CONES.T)  # OKLab is linear in these values
    mixed = ((1 - share) * cones[0] + share * cones[1]) ** 3 @ np.linalg.inv(_CONES).T
    mixed = mixed.clip(0, 1)
    return to_hex(tuple(np.where(mixed <= 0.0031308, 12.92 * mixed, 1.055 * mixed ** (1 / 2.4) - 0.055)))


_CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)


def _between(share: float) -> tuple[int, int, float]:
    """Two of the colours 1, 3 and 5 of the series between which a shade is interpolated, and the fraction."""
    return (1, 3, 2 * share) if share <= 0.5 else (3, 5, 2 * share - 1)


_MIXTURES = [_between(number / 12) for number in range(13)]
SHADES = tuple(mixed(SERIES[a - 1], SERIES[b - 1], share) for a, b, share in _MIXTURES)
"""Colours for ordered curves, from first to last."""
_CSS = {
    **{
        shade: f"color-mix(in oklab, var(--series-{a}), var(--series-{b}) {100 * share:.0f}%)"
        for shade, (a, b, share) in zip(SHADES, _MIXTURES, strict=True)
    },
    **{colour: f"var(--{name})" for name, colour in LIGHT.items()},
}


def css(colour: str) -> str:
    """A colour of the theme as a CSS variable; other colours unchanged."""
    return _CSS.get(colour, colour)


def css_variables() -> str:
    """The style sheet that defines the colours, for light and dark."""
    light, dark = (";".join(f"--{name}:{value}" for name, value in colours.items()) for colours in (LIGHT, DARK))
    return f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"


@dataclass(frozen=True)
class Stroke:
    """The style of a loss, or another series, in all figures.

    Args:
        colour: colour of the theme.
        dash: lengths of dashes and gaps in line widths; empty for a solid line.
        marker: marker of points in the notation of matplotlib.
        hatch: hatching of areas in the notation of matplotlib; empty for none.
    """

    colour: str
    dash: tuple[float, ...] = ()
    marker: str = "o"
    hatch: str = ""

    @property
    def style(self) -> Any:  # noqa: ANN401
        """The line style in the notation of matplotlib."""
        return (0, self.dash) if self.dash else "solid"


_ROUNDS: tuple[tuple[tuple[float, ...], str, str], ...] = (
    ((), "o", ""),
    ((4.0, 1.6), "s", "///"),
    ((1.2, 1.4), "^", "..."),
    ((6.0, 1.5, 1.2, 1.5), "D", "xxx"),
)
"""Dash, marker and hatch for each round through all colours."""


def strokes(count: int) -> list[Stroke]:
    """Distinct strokes, which differ in colour, and beyond eight in dash, marker and hatch."""
    return [Stroke(SERIES[k % len(SERIES)], *_ROUNDS[k // len(SERIES) % len(_ROUNDS)]) for k in range(count)]


def shades(count: int) -> list[str]:
    """``count`` colours for ordered curves, from first to last."""
    return [SHADES[round(k * (len(SHADES) - 1) / max(count - 1, 1))] for k in range(count)]


DASHED: dict[str, Any] = {"color": INK, "linewidth": 0.8, "linestyle": (0, (3, 3))}
"""Style of reference lines: perfect calibration, chance, no change."""
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9.0,
    "text.color": INK,
    "text.parse_math": False,  # a class may be called "$x$"
    "axes.edgecolor": LINE,
    "axes.labelcolor": INK,
    "axes.prop_cycle": cycler(color=SERIES),
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LINE,
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


@contextmanager
def theme() -> Iterator[None]:
    """Draw in the theme."""
    with matplotlib.rc_context(STYLE):
        yield


def panel(
    width: float, height: float, *, left: float = 0.5, right: float = 0.16, top: float = 0.3, bottom: float = 0.42
) -> tuple[Figure, Axes]:
    """A figure with one plot and margins, all in inches; plots with the same margins line up."""
    figure = Figure(figsize=(width, height))
    box = (left / width, bottom / height, 1 - (left + right) / width, 1 - (top + bottom) / height)
    return figure, figure.add_axes(box)


def percent(axis: Axis) -> None:
    """Show fractions in percent, without superfluous digits."""
    axis.set_major_formatter(FuncFormatter(lambda fraction, _: f"{100 * fraction:.3g}%"))


def titled(figure: Figure, title: str) -> None:
    """Add a title at the left edge of the figure."""
    height = float(figure.get_size_inches()[1])
    figure.text(0.0, 1 - 0.03 / height, title, ha="left", va="top", fontsize=10.0, fontweight="bold")


def short(name: str, longest: int = 28) -> str:
    """A name in one line of at most ``longest`` characters.

    >>> short("a   long name", 6)
    'a lon…'
    """
    line = " ".join(name.split())
    return line if len(line) <= longest else line[: longest - 1] + "…"
