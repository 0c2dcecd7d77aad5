"""Sections on the predictions of test data: reliability, classes, examples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from equipoise._formatting import capital, things
from equipoise.comparison.verdict import Verdict
from equipoise.report.class_figures import class_profile
from equipoise.report.examples import examples
from equipoise.report.figures import EVERY_LABEL, TOP_LABEL, reliability_diagram
from equipoise.report.page import Cell, Head, Key, Picture, Section, Table
from equipoise.report.runs import ComparedLoss
from equipoise.report.tables import kind_of_rows, label
from equipoise.report.theme import INK, SERIES, SOFT, Stroke, css

__all__ = ["classes_section", "examples_section", "reliability_section"]

SIZES = {"many": "more than 100", "medium": "20 to 100", "few": "fewer than 20"}
ROWS = 300
"""Classes of the table of classes at most."""


def reliability_section(losses: Sequence[ComparedLoss], verdict: Verdict) -> Section:
    """Reliability diagrams of each loss, of all samples and by how many training samples their classes have."""
    task = verdict.data.task
    words = EVERY_LABEL if task == "multi" else TOP_LABEL
    unit = "pixels" if task == "segmentation" else "samples"

    def diagrams(group: str) -> list[Picture]:
        curves = {loss.name: loss.reliability(group) for loss in losses}
        return [
            Picture(reliability_diagram(name, found, words, legend=False)) for name, found in curves.items() if found
        ]

    groups = {group: figures for group in SIZES if (figures := diagrams(group))}
    return Section(
        "Reliability",
        f"What came true against what was announced, all seeds together. Below the diagonal, {words.announced} was "
        "above what came true. The temperature was fitted on validation data.",
        keys=[
            Key("before temperature", css(SERIES[0])),
            Key("after", css(SERIES[1])),
            Key("perfect", css(INK), "3 3"),
        ],
        figures=diagrams("all"),
        parts=[
            Section(f"{things(task).capitalize()} with {SIZES[group]} training {unit}", figures=figures, folded=True)
            for group, figures in groups.items()
            if len(groups) > 1  # else it holds all of them
        ],
    )


def classes_section(losses: Sequence[ComparedLoss], verdict: Verdict) -> Section:
    """How well each class is found, from common to rare, against the baseline."""
    per_class = losses[0].tests[0]["per_class"]
    key = losses[0].tests[0]["main"]
    counts = verdict.data.train_counts
    order = np.argsort([-count for count in counts], kind="stable")
    names = [per_class[k]["name"] for k in order]
    kinds = things(verdict.data.task)
    values = {loss.name: loss.class_values(key)[order] for loss in losses}
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
                things=kinds,
            )
        )
        for loss in losses
    ]
    places = range(max(0, len(names) - ROWS), len(names))
    rows = [
        [
            names[place],
            Cell(f"{counts[order[place]]:,.0f}", value=counts[order[place]]),
            *(_share(values[loss.name][place]) for loss in losses),
        ]
        for place in places
    ]
    what = f"all {len(names)} {kinds} in numbers" if len(rows) == len(names) else f"the {ROWS} rarest in numbers"
    unit = "training pixels" if verdict.data.task == "segmentation" else "training samples"
    missing = [row["name"] for row in per_class if row["support"] == 0]
    notes = [f"Without test samples, and in no mean: {', '.join(missing[:10])}{' …' * (len(missing) > 10)}."]
    return Section(
        kinds.capitalize(),
        f"{capital(label(key))} of each on test data, mean over the seeds, "
        f"from the most common to the rarest. Lines: {verdict.baseline}.",
        figures=figures,
        tables=[
            Table([kinds, Head(unit), *(Head(loss.name) for loss in losses)], rows, folded=what, sortable=True),
        ],
        notes=notes if missing else [],
    )


def _share(value: float) -> Cell:
    return Cell("–") if np.isnan(value) else Cell(f"{100 * value:.1f}", value=float(value))


def examples_section(losses: Sequence[ComparedLoss], verdict: Verdict) -> Section | None:
    """Label maps side by side (Tian et al. 2021, fig. 3); None in other tasks."""
    if verdict.data.task != "segmentation":
        return None
    counts = verdict.data.train_counts
    shown = examples(losses, verdict.data.class_names, counts)
    if shown is None:
        return None
    grid, keys = shown
    return Section(
        "Examples",
        f"Some test images, evenly chosen, with what the first seed of each {kind_of_rows(verdict).one} finds in them.",
        keys=keys,
        grid=grid,
    )
