"""Charts of the README and of the documentation, written as SVG in a light and a dark version.

A chart is drawn from recorded numbers with fixed sizes, so equal numbers give equal files, which tests compare.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from equipoise.comparison.sentences import interval_text, signed
from equipoise.comparison.verdict import MetricDifference
from equipoise.plotting.theme import DARK, LIGHT

__all__ = ["PHONE", "SCHEMES", "WIDTH", "Bar", "Bars", "Forest", "bar_chart", "forest_plot"]

SCHEMES: dict[str, Mapping[str, str]] = {"light": LIGHT, "dark": DARK}
WIDTH, PHONE = 760, 390
"""Width of a chart on a screen and on a phone, in pixels."""
ROW, HEADING, LETTER = 25, 34, 7.4
"""Heights of a row and of a heading, and about the width of a letter of 13 px."""


@dataclass(frozen=True)
class Forest:
    """A group of differences with intervals.

    Args:
        title: heading of the group.
        rows: differences, from top to bottom.
    """

    title: str
    rows: Sequence[MetricDifference]


@dataclass(frozen=True)
class Bar:
    """A bar: its name, length, the text at its end, and whether it is ours."""

    name: str
    value: float
    text: str
    ours: bool


@dataclass(frozen=True)
class Bars:
    """A group of bars under a heading."""

    title: str
    rows: Sequence[Bar]


def _svg(size: tuple[int, float], description: str, colours: Mapping[str, str], parts: Iterator[str]) -> str:
    width, height = size
    style = (
        "text{font:13px system-ui,-apple-system,'Segoe UI',sans-serif}"
        f"text{{fill:{colours['ink']}}}.soft{{fill:{colours['soft']}}}.head{{font-weight:600}}"
        f".over{{paint-order:stroke;stroke:{colours['paper']};stroke-width:5px}}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" width="{width}" '
            f'height="{height:.0f}" role="img" aria-label="{escape(description)}">',
            f"<style>{style}</style>",
            f'<rect width="{width}" height="{height:.0f}" fill="{colours["paper"]}"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", kind: str = "") -> str:
    shown = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}"{shown}>{escape(text)}</text>'


def _line(start: tuple[float, float], end: tuple[float, float], colour: str, width: float = 1) -> str:
    (x1, y1), (x2, y2) = start, end
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{colour}" stroke-width="{width:g}"/>'


def _names_end(names: Sequence[str]) -> float:
    return 8 + LETTER * max(map(len, names))


def forest_plot(title: str, groups: Sequence[Forest], scheme: str, width: int = WIDTH) -> str:
    """Differences from a baseline in points, with 95 % confidence intervals, on one axis.

    Args:
        title: what differs from what; with the values also the text alternative.
        groups: the differences; fractions, drawn in percentage points.
        scheme: ``"light"`` or ``"dark"``.
        width: in pixels.
    """
    colours = SCHEMES[scheme]
    every = [row for group in groups for row in group.rows]
    ends = [100 * end for row in every for end in (row.interval or (row.mean,))]
    low, high = min(0.0, *ends), max(0.0, *ends)
    stacked = width < WIDTH  # name and value above the interval
    left, right = (16.0, width - 16) if stacked else (_names_end([row.loss for row in every]) + 12, width - 150)
    height = ROW + 16 if stacked else ROW
    steps = range(5 * int(low // 5 + 1), int(high) + 1, 5)
    bottom = HEADING + sum(HEADING + height * len(group.rows) for group in groups)

    def x(points: float) -> float:
        return left + (points - low) / (high - low) * (right - left)

    def parts() -> Iterator[str]:
        yield _text(8, 20, title, kind="head")
        top = float(HEADING)
        for group in groups:
            yield _text(8, top + 18, group.title, kind="soft")
            top += HEADING
            end = top + height * len(group.rows) - 4
            yield from (_line((x(at), top - 6), (x(at), end), colours["line" if at else "ink"]) for at in steps)
            for row in group.rows:
                yield from _difference(row, top + ROW / 2 - 4)
                top += height
        for at in steps:
            yield _text(x(at), bottom + 14, f"{at:+d}".replace("-", "−") if at else "0", anchor="middle")
        yield _text(8, bottom + 38, "● significant   ○ not significant", kind="soft")
        yield _text(width - 8, bottom + 38, "points, better →", anchor="end", kind="soft")

    def _difference(row: MetricDifference, y: float) -> Iterator[str]:
        colour = colours["soft" if not row.significant else "better" if row.mean > 0 else "worse"]
        yield _text(8, y + 4, row.loss) if stacked else _text(left - 12, y + 4, row.loss, anchor="end")
        place = y + 18 if stacked else y
        text = signed(row.metric, row.mean)
        if row.interval is not None:
            yield _line((x(100 * row.interval[0]), place), (x(100 * row.interval[1]), place), colour, 2)
            text += f" ({interval_text(row.metric, row.interval)})"
        fill = colour if row.significant else colours["paper"]
        yield (
            f'<circle cx="{x(100 * row.mean):.1f}" cy="{place:.1f}" r="4.5" fill="{fill}" '
            f'stroke="{colour}" stroke-width="2"/>'
        )
        yield _text(width - 8, y + 4, text, anchor="end")

    values = "; ".join(
        f"{group.title}: " + ", ".join(f"{row.loss} {signed(row.metric, row.mean)}" for row in group.rows)
        for group in groups
    )
    return _svg((width, bottom + 48), f"{title}. {values}.", colours, parts())


def bar_chart(title: str, groups: Sequence[Bars], scheme: str, width: int = WIDTH, *, longest: float) -> str:
    """Bars from zero; one that is longer than the axis ends with a gap in it, and its text has the value.

    Args:
        title: what the bars show; with the values also the text alternative.
        groups: the bars.
        scheme: ``"light"`` or ``"dark"``.
        width: in pixels.
        longest: end of the axis.
    """
    colours = SCHEMES[scheme]
    left, right = _names_end([bar.name for group in groups for bar in group.rows]) + 12, width - 60
    bottom = HEADING + sum(HEADING + ROW * len(group.rows) for group in groups)

    def x(value: float) -> float:
        return left + min(value, longest) / longest * (right - left)

    def parts() -> Iterator[str]:
        yield _text(8, 20, title, kind="head")
        top = float(HEADING)
        for group in groups:
            yield _text(8, top + 18, group.title, kind="soft")
            top += HEADING
            end = top + ROW * len(group.rows) - 3
            yield _line((x(1), top - 4), (x(1), end), colours["ink"])
            for bar in group.rows:
                y = top + ROW / 2 - 2
                colour = colours["series-1" if bar.ours else "edge"]
                yield _text(left - 12, y + 4, bar.name, anchor="end", kind="" if bar.ours else "soft")
                yield (
                    f'<rect x="{left:.1f}" y="{y - 7:.1f}" width="{x(bar.value) - left:.1f}" height="14" '
                    f'fill="{colour}"/>'
                )
                if bar.value > longest:
                    yield _line((right - 22, y + 9), (right - 14, y - 9), colours["paper"], 4)
                yield _text(x(bar.value) + 8, y + 4, bar.text, kind="over")
                top += ROW

    values = "; ".join(
        f"{group.title}: " + ", ".join(f"{bar.name} {bar.text}" for bar in group.rows) for group in groups
    )
    return _svg((width, bottom + 12), f"{title}. {values}.", colours, parts())
