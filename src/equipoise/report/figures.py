"""Figures of an evaluation: reliability, confidence, classes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from equipoise.report.theme import INK, MUTED, SERIES, as_svg, page_style, panel, titled

__all__ = ["EVERY_LABEL", "TOP_LABEL", "Words", "class_bars", "confidence_histogram", "reliability_diagram", "short"]

Curve = Mapping[str, Sequence[float]]
MOST_BARS = 40


@dataclass(frozen=True)
class Words:
    """What the axes are called: what is announced, what comes true, and the two sides of it."""

    announced: str
    true: str
    sides: tuple[str, str]


TOP_LABEL = Words("confidence", "accuracy", ("right", "wrong"))
EVERY_LABEL = Words("announced probability", "share present", ("present", "absent"))


def reliability_diagram(
    title: str, curves: Mapping[str, Curve], words: Words = TOP_LABEL, *, legend: bool = True
) -> str:
    """What came true against what was announced, before and after calibration, and how many samples.

    Args:
        title: of the figure.
        curves: name of a curve to ``edges``, ``count``, ``confidence`` and ``accuracy``.
        words: for the axes.
        legend: name the curves.
    """
    with page_style():
        above = 0.5 if legend else 0.3
        figure, top = panel(2.65, 3.1 + above, left=0.62, top=above, bottom=1.2)
        bottom = figure.add_axes(_below(top, 0.42 / (3.1 + above), 0.62 / (3.1 + above)), sharex=top)
        _reliability(top, curves)
        top.set_ylabel(words.true)
        top.tick_params(axis="x", labelbottom=False)
        titled(figure, title)
        if legend:
            place = (0.0, 1 - 0.2 / (3.1 + above))
            figure.legend(
                loc="upper left", bbox_to_anchor=place, ncols=3, columnspacing=1, handlelength=1.2, borderpad=0
            )
        _counts(bottom, curves)
        bottom.set(xlabel=words.announced, ylabel="share")
    return as_svg(figure, f"Reliability diagram: {title}")


def _below(axes: Axes, start: float, height: float) -> tuple[float, float, float, float]:
    box = axes.get_position()
    return box.x0, start, box.width, height


def _reliability(axes: Axes, curves: Mapping[str, Curve]) -> None:
    axes.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle=(0, (3, 3)), label="perfect")
    for number, (name, curve) in enumerate(curves.items()):
        seen = [
            (confidence, accuracy, count)
            for confidence, accuracy, count in zip(curve["confidence"], curve["accuracy"], curve["count"], strict=True)
            if count > 0
        ]
        if seen:
            x, y, counts = zip(*seen, strict=True)
            total = sum(counts)
            axes.plot(x, y, color=SERIES[number], linewidth=1.6, label=name)
            axes.scatter(
                x,
                y,
                s=[8 + 70 * math.sqrt(count / total) for count in counts],
                color=SERIES[number],
                zorder=3,
                clip_on=False,
            )
    ticks = (0, 0.2, 0.4, 0.6, 0.8, 1)
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=ticks, yticks=ticks)


def _counts(axes: Axes, curves: Mapping[str, Curve]) -> None:
    for number, curve in enumerate(curves.values()):
        total = max(sum(curve["count"]), 1)
        shares = [count / total for count in curve["count"]]
        axes.stairs(shares, curve["edges"], color=SERIES[number], fill=number == 0, alpha=0.45 if number == 0 else 1.0)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def confidence_histogram(curve: Curve, words: Words = TOP_LABEL) -> str:
    """How many predictions of each confidence are right and how many wrong."""
    edges, count = curve["edges"], curve["count"]
    total = max(sum(count), 1)
    right = [n * (a if n else 0.0) / total for n, a in zip(count, curve["accuracy"], strict=True)]
    wrong = [n / total - r for n, r in zip(count, right, strict=True)]
    width = [high - low for low, high in itertools.pairwise(edges)]
    with page_style():
        figure = Figure(figsize=(4.6, 2.6), layout="constrained")
        axes = figure.add_subplot()
        axes.bar(edges[:-1], right, width, align="edge", color=SERIES[0], label=words.sides[0], linewidth=0)
        axes.bar(
            edges[:-1], wrong, width, align="edge", bottom=right, color=SERIES[1], label=words.sides[1], linewidth=0
        )
        axes.set(xlim=(0, 1), xlabel=words.announced, ylabel="share of the predictions")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.grid(visible=False, axis="x")
        figure.legend(loc="outside upper right", ncols=2)
    return as_svg(figure, f"Histogram of the {words.announced}: {' and '.join(words.sides)}")


def class_bars(classes: Sequence[Mapping[str, Any]], key: str, title: str, things: str = "classes") -> str:
    """One bar a class, in the order given; where there are too many, those at either end of the order of ``key``.

    Args:
        classes: ``name``, ``group`` (or None) and ``key``, None where it is not defined.
        key: what the bars show, between 0 and 1.
        title: of the figure.
        things: what has a bar: ``"classes"`` or ``"labels"``.
    """
    shown = [item for item in classes if item[key] is not None]
    if len(shown) > MOST_BARS:
        ranked = sorted(shown, key=lambda item: item[key])
        chosen = {id(item) for item in (*ranked[: MOST_BARS // 2], *ranked[-MOST_BARS // 2 :])}
        title = f"{title}: the {MOST_BARS // 2} lowest and the {MOST_BARS // 2} highest of {len(shown)}"
        shown = [item for item in shown if id(item) in chosen]
    groups = list(dict.fromkeys(item["group"] for item in shown))
    with page_style():
        figure = Figure(figsize=(4.8, 0.75 + 0.2 * max(len(shown), 3)), layout="constrained")
        axes = figure.add_subplot()
        for group in groups:
            places = [place for place, item in enumerate(shown) if item["group"] == group]
            colour = SERIES[groups.index(group) % len(SERIES)]
            axes.barh(places, [shown[place][key] for place in places], 0.7, color=colour, label=group, linewidth=0)
        axes.set_yticks(range(len(shown)), [short(item["name"]) for item in shown])
        axes.set(xlim=(0, 1), ylim=(len(shown) - 0.4, -0.6), title=title)
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_color(MUTED)
        if len(groups) > 1:
            figure.legend(loc="outside upper right", ncols=len(groups))
    return as_svg(figure, f"{title}, one bar for each of {len(shown)} {things}")


def short(name: str, longest: int = 28) -> str:
    """A name in one line of so many letters."""
    line = " ".join(name.split())
    return line if len(line) <= longest else line[: longest - 1] + "…"
