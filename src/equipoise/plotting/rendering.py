"""Rendering of figures: SVG elements of an HTML page, SVG files for light and dark mode, and PNG, SVG or PDF files."""

from __future__ import annotations

import html
import io
import itertools
import re
import warnings
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from equipoise._writing import appearing
from equipoise.plotting.theme import PAPER, css, css_variables, theme

__all__ = ["adaptive_svg", "inline_svg", "save", "svg_file"]

SUFFIXES = (".png", ".svg", ".pdf")
_numbers = itertools.count()


def inline_svg(figure: Figure, description: str) -> str:
    """The figure as an ``<svg>`` element for a page that has :func:`css_variables`; its ids are unique.

    Args:
        figure: figure drawn in the theme.
        description: text alternative for screen readers.
    """
    svg, (width, _) = _tidied(_text_of(figure), f"f{next(_numbers)}-")
    return svg.replace("<svg ", f'<svg {_labelled(description)} style="--width:{width}px" ', 1)


def svg_file(figure: Figure, description: str) -> str:
    """The figure as an SVG file whose colours adapt to the light or dark mode of the viewer."""
    return adaptive_svg(_text_of(figure), description)


def adaptive_svg(svg: str, description: str) -> str:
    """The same from an SVG file that matplotlib wrote in the theme."""
    svg, (width, height) = _tidied(svg)
    svg = svg.replace("<svg ", f'<svg {_labelled(description)} width="{width}" height="{height}" ', 1)
    rules = "svg{background:var(--paper)}text{font-family:system-ui,sans-serif}*{stroke-linejoin:round}"
    return svg.replace(">", f">\n<style>{css_variables()}{rules}</style>", 1)


def _text_of(figure: Figure) -> str:
    buffer = io.StringIO()
    with theme(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # text is drawn by the browser, with its fonts
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _labelled(description: str) -> str:
    """Attributes of the text alternative."""
    return f'role="img" aria-label="{html.escape(description)}"'


def _tidied(svg: str, prefix: str = "") -> tuple[str, tuple[int, int]]:
    """The ``<svg>`` element of matplotlib without its size, and the size in pixels; adds ``prefix`` to its ids."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r">\s*\n\s*<", ">\n<", svg)
    svg = re.sub(r"<[^>]+>", lambda tag: _tidied_tag(tag[0], prefix), svg)
    points = [float(re.findall(rf'\b{side}="([\d.]+)pt"', svg)[0]) for side in ("width", "height")]
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    return svg, (round(points[0] * 100 / 72), round(points[1] * 100 / 72))


def _tidied_tag(tag: str, prefix: str) -> str:
    """A tag without unneeded fonts, ids and digits, with colours as variables and ``prefix`` before its ids."""
    tag = re.sub(r'^<g id="[^"]*"', "<g", tag)
    tag = re.sub(r'font-family: [^;"]*;? ?| transform="rotate\(-0 [^"]*"', "", tag)
    tag = re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", " ".join(tag.split()))
    tag = re.sub(r"#[0-9a-f]{6}\b", lambda colour: css(colour[0]), tag)
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}", tag)


def save(figure: Figure, path: Path) -> None:
    """Write the figure in the colours of the light page; the suffix of ``path`` is the format."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(
            f"the file must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, got {path.name!r}; "
            "choose one of these suffixes"
        )
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower(), {})
    outlines: dict[Any, Any] = {"svg.fonttype": "path"}  # looks the same with any installed fonts
    with theme(), matplotlib.rc_context(outlines), appearing(path) as draft:
        figure.savefig(draft, metadata=metadata, dpi=200, facecolor=PAPER)
