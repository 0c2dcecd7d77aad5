"""A self-contained report: text, tables and figures in one HTML file without external resources."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from equipoise._visible import visible
from equipoise.plotting.theme import css_variables

__all__ = ["Cell", "Grid", "Head", "Key", "Photo", "Picture", "Section", "Table", "render"]

LONG = 6
"""Minimum number of sections for a table of contents."""


@dataclass(frozen=True)
class Head:
    """A column heading with metadata.

    Args:
        text: displayed text.
        note: explanation, shown as a tooltip.
        less: whether smaller is better, which sorts ascending first.
    """

    text: str
    note: str = ""
    less: bool = False


@dataclass(frozen=True)
class Cell:
    """A cell with metadata.

    Args:
        text: displayed text.
        below: smaller text below it.
        value: sort key; None comes last.
        mark: ``"better"`` or ``"worse"`` for an arrow and a colour.
        best: whether it is the best of its column.
        note: explanation, shown as a tooltip.
    """

    text: str
    below: str = ""
    value: float | None = None
    mark: str = ""
    best: bool = False
    note: str = ""


@dataclass(frozen=True)
class Table:
    """A table.

    Args:
        head: column headings.
        rows: rows of cells.
        folded: text of a disclosure that hides the table.
        groups: group headings above the headings, each with the number of columns that it spans.
        sortable: whether a click on a heading sorts.
        marked: highlighted rows.
        words: whether cells contain text, which is left-aligned.
    """

    head: Sequence[str | Head]
    rows: Sequence[Sequence[str | Cell]]
    folded: str = ""
    groups: Sequence[tuple[str, int]] = ()
    sortable: bool = False
    marked: Sequence[int] = ()
    words: bool = False


@dataclass(frozen=True)
class Picture:
    """An ``<svg>`` created by ``inline_svg``, which escapes its text."""

    svg: str
    caption: str = ""


@dataclass(frozen=True)
class Photo:
    """A raster image: its data URL (``data:image/png;base64,...``) and its description."""

    source: str
    words: str
    caption: str = ""


@dataclass(frozen=True)
class Grid:
    """Images in columns."""

    head: Sequence[str]
    rows: Sequence[Sequence[Photo]]


@dataclass(frozen=True)
class Key:
    """An entry of a legend.

    Args:
        name: its label.
        colour: CSS colour.
        dash: SVG dash pattern of a line.
        area: whether it is the colour of areas, not of lines.
    """

    name: str
    colour: str
    dash: str = ""
    area: bool = False


@dataclass(frozen=True)
class Section:
    """A heading with its content, in this order; ``folded`` collapses it."""

    title: str
    text: str = ""
    tables: Sequence[Table] = ()
    keys: Sequence[Key] = ()
    figures: Sequence[Picture] = ()
    grid: Grid | None = None
    code: str = ""
    notes: Sequence[str] = ()
    parts: Sequence[Section] = ()
    folded: bool = False

    @property
    def name(self) -> str:
        """Anchor of the section."""
        return "-".join(re.findall(r"[a-z0-9]+", self.title.lower()))

    @property
    def sortable(self) -> bool:
        """Whether it contains a sortable table."""
        return any(table.sortable for table in self.tables) or any(part.sortable for part in self.parts)


def breakable(name: str) -> Markup:
    """A name with line breaks allowed between its parts, not inside words.

    >>> breakable("recall(momentum=0.1)")
    Markup('recall(<wbr>momentum=<wbr>0.1)')
    """
    return Markup("<wbr>").join(re.split(r"(?<=[:=+,*/(])(?=.)", name))


def render(title: str, subtitle: str, sentences: Sequence[str], sections: Sequence[Section], footer: str) -> str:
    """The report as HTML; all text is escaped for HTML, and for display of the file in a terminal."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["breakable"] = breakable
    files = resources.files("equipoise.report")
    script = files.joinpath("sort.js").read_text(encoding="utf-8") if any(one.sortable for one in sections) else ""
    page = environment.from_string(files.joinpath("template.html").read_text(encoding="utf-8")).render(
        title=title,
        subtitle=subtitle,
        sentences=sentences,
        sections=sections,
        linked=len(sections) >= LONG,
        footer=footer,
        script=script,
        colours=css_variables(),
    )
    return visible(page)
