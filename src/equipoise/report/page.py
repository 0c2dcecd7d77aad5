"""A self-contained page: text, tables and figures in one HTML file that loads nothing."""

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
"""Sections from which on a page begins with a list of them."""


@dataclass(frozen=True)
class Head:
    """The heading of a column that says more than its text.

    Args:
        text: as it is shown.
        note: what it means, for those who ask.
        less: whether small numbers are good, which then come first when it is sorted.
    """

    text: str
    note: str = ""
    less: bool = False


@dataclass(frozen=True)
class Cell:
    """A cell that says more than its text.

    Args:
        text: as it is shown.
        below: smaller, under it.
        value: by which it is sorted; None comes last.
        mark: ``"better"`` or ``"worse"`` for an arrow and a colour.
        best: the best of its column.
        note: for those who ask.
    """

    text: str
    below: str = ""
    value: float | None = None
    mark: str = ""
    best: bool = False
    note: str = ""


@dataclass(frozen=True)
class Table:
    """Cells as they are shown.

    Args:
        head: of the columns.
        rows: of cells.
        folded: words behind which the table is hidden.
        groups: headings over the headings, each with the number of columns that it spans.
        sortable: whether a click on a heading sorts.
        marked: rows that stand out.
        words: whether cells are words, which begin where their column begins.
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
    """An ``<svg>`` made by ``inline_svg``, which escapes what it shows."""

    svg: str
    caption: str = ""


@dataclass(frozen=True)
class Photo:
    """A picture of pixels: its address, which holds it whole (``data:image/png;base64,...``), and what it shows."""

    source: str
    words: str
    caption: str = ""


@dataclass(frozen=True)
class Grid:
    """Photos in columns."""

    head: Sequence[str]
    rows: Sequence[Sequence[Photo]]


@dataclass(frozen=True)
class Key:
    """What a colour stands for.

    Args:
        name: what it is.
        colour: as CSS says it.
        dash: of a line, as SVG says it.
        area: whether it is a colour of areas, not of lines.
    """

    name: str
    colour: str
    dash: str = ""
    area: bool = False


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it, in this order; ``folded`` hides it behind the heading."""

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
        """For links to it."""
        return "-".join(re.findall(r"[a-z0-9]+", self.title.lower()))

    @property
    def sortable(self) -> bool:
        """Whether there is a table to be sorted."""
        return any(table.sortable for table in self.tables) or any(part.sortable for part in self.parts)


def breakable(name: str) -> Markup:
    """A name that is broken where its parts meet, not inside of words.

    >>> breakable("recall(momentum=0.1)")
    Markup('recall(<wbr>momentum=<wbr>0.1)')
    """
    return Markup("<wbr>").join(re.split(r"(?<=[:=+,*/(])(?=.)", name))


def render(title: str, subtitle: str, sentences: Sequence[str], sections: Sequence[Section], footer: str) -> str:
    """The page as HTML; every text is escaped, for HTML and for whoever looks at the file in a terminal."""
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
