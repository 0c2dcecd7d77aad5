"""A self-contained page: text, tables and figures in one HTML file that loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources

from jinja2 import Environment, StrictUndefined

__all__ = ["Picture", "Section", "Table", "render"]


@dataclass(frozen=True)
class Table:
    """Cells as they are shown; ``folded`` hides the table behind these words."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    folded: str = ""


@dataclass(frozen=True)
class Picture:
    """An ``<svg>`` made by ``theme.as_svg``, which escapes what it shows."""

    svg: str
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    title: str
    text: str = ""
    tables: Sequence[Table] = ()
    figures: Sequence[Picture] = ()
    notes: Sequence[str] = field(default=())


def render(title: str, subtitle: str, sentences: Sequence[str], sections: Sequence[Section], footer: str) -> str:
    """The page as HTML; every text is escaped."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    source = resources.files("equipoise.report").joinpath("template.html").read_text(encoding="utf-8")
    return environment.from_string(source).render(
        title=title, subtitle=subtitle, sentences=sentences, sections=sections, footer=footer
    )
