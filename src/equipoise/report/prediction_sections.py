"""Report sections on test predictions: reliability, classes, examples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from equipoise._formatting import capital
from equipoise.comparison.verdict import Verdict
from equipoise.plotting.classes import class_profile
from equipoise.plotting.reliability import EVERY_LABEL, TOP_LABEL, reliability_diagram
from equipoise.plotting.theme import INK, SERIES, SOFT, Stroke, css
from equipoise.report.examples import examples
from equipoise.report.page import Cell, Head, Key, Picture, Section, Table
from equipoise.report.runs import ComparedLoss
from equipoise.report.tables import kind_of_rows, label
from equipoise.tasks import GROUP_SIZES, GROUPS

__all__ = ["classes_section", "examples_section", "reliability_section"]

ROWS = 300
"""Maximum number of classes in the table of classes."""


def reliability_section(losses: Sequence[ComparedLoss], verdict: Verdict) -> Section:
    """Reliability diagrams of each loss, for all samples and by the number of training samples of the class."""
    task = verdict.data.task
    words = EVERY_LABEL if task.multilabel else TOP_LABEL

    def diagrams(group: str) -> list[Picture]:
        curves = {loss.name: loss.reliability(group) for loss in losses}
        return [
            Picture(reliability_diagram(name, both, words, legend=False))
            for name, both in curves.items()
            if both is not None
        ]

    groups = {group: figures for group in GROUPS if (figures := diagrams(group))}
    return Section(
        "Reliability",
        f"{capital(words.observed)} over {words.predicted}, pooled over the seeds; below the diagonal a model is "
        "overconfident. The temperature is fitted on validation data.",
        keys=[
            Key("uncalibrated", css(SERIES[0])),
            Key("after temperature scaling", css(SERIES[1])),
            Key("perfect", css(INK), "3 3"),
        ],
        figures=diagrams("all"),
        parts=[
            Section(
                f"{task.many.capitalize()} with {GROUP_SIZES[group]} training {task.unit}s",
                figures=figures,
                folded=True,
            )
            for group, figures in groups.items()
            if len(groups) > 1  # otherwise the group contains all classes
        ],
    )


def classes_section(losses: Sequence[ComparedLoss], verdict: Verdict) -> Section:
    """The main metric of each class from common to rare, compared with the baseline."""
    test = losses[0].tests[0]
    counts = verdict.data.train_counts
    order = np.argsort([-count for count in counts], kind="stable")
    names = [test.per_class[k].name for k in order]
    task = verdict.data.task
    values = {loss.name: loss.class_values(test.main)[order] for loss in losses}
    baseline = next((values[loss.name] for loss in losses if loss.baseline), np.full(len(names), np.nan))
    figures = [
        Picture(
            class_profile(
                loss.name,
                values[loss.name],
                baseline,
                names,
                Stroke(SOFT) if loss.baseline else loss.stroke,
                compared=verdict.baseline,
                things=task.many,
            )
        )
        for loss in losses
    ]
    places = range(max(0, len(names) - ROWS), len(names))
    rows = [
        [
            names[place],
            Cell(f"{counts[order[place]]:,.0f}", value=counts[order[place]]),
            *(_fraction(values[loss.name][place]) for loss in losses),
        ]
        for place in places
    ]
    what = f"all {len(names)} {task.many} as a table" if len(rows) == len(names) else f"the {ROWS} rarest as a table"
    missing = [row.name for row in test.per_class if row.support == 0]
    notes = [f"Without test samples, excluded from means: {', '.join(missing[:10])}{' …' * (len(missing) > 10)}."]
    return Section(
        task.many.capitalize(),
        f"{capital(label(test.main))} of each on test data, mean over the seeds, "
        f"from the most common to the rarest. Lines: {verdict.baseline}.",
        figures=figures,
        tables=[
            Table(
                [task.many, Head(f"training {task.unit}s"), *(Head(loss.name) for loss in losses)],
                rows,
                folded=what,
                sortable=True,
            ),
        ],
        notes=notes if missing else [],
    )


def _fraction(value: float) -> Cell:
    return Cell("–") if np.isnan(value) else Cell(f"{100 * value:.1f}", value=float(value))


def examples_section(losses: Sequence[ComparedLoss], verdict: Verdict) -> Section | None:
    """Label maps side by side (Tian et al. 2021, fig. 3); None in other tasks."""
    if not verdict.data.task.pixels:
        return None
    counts = verdict.data.train_counts
    shown = examples(losses, verdict.data.class_names, counts)
    if shown is None:
        return None
    grid, keys = shown
    return Section(
        "Examples",
        f"Evenly spaced test images with the predictions of the first seed of each {kind_of_rows(verdict).one}.",
        keys=keys,
        grid=grid,
    )
