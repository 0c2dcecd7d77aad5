"""The report of a comparison, from its folder and its verdict. Imports neither torch nor Lightning."""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.comparison.folder import ComparisonFolder
from equipoise.comparison.verdict import Verdict
from equipoise.expressions import is_method
from equipoise.report.open_set import compared_open_sets_section
from equipoise.report.page import render
from equipoise.report.prediction_sections import classes_section, examples_section, reliability_section
from equipoise.report.provenance import provenance_section
from equipoise.report.runs import ComparedLoss, compared_candidates, compared_losses
from equipoise.report.training_sections import (
    asymmetry_section,
    learning_section,
    right_and_wrong_section,
    sweeps_section,
    weights_section,
)
from equipoise.report.verdict_sections import differences_section, results_section, tradeoff_section

__all__ = ["comparison_page"]


def comparison_page(folder: ComparisonFolder, verdict: Verdict) -> str:
    """The report as HTML.

    Args:
        folder: folder of the comparison, with at least one finished run.
        verdict: verdict on its runs.
    """
    losses = compared_losses(folder, verdict)
    if not losses:
        raise ValueError(
            f"{folder.path}: at least one run must be finished, found none; run equipoise compare again to resume"
        )
    sections = [
        results_section(folder, verdict),
        differences_section(verdict),
        tradeoff_section(losses, verdict),
        reliability_section(losses, verdict),
        classes_section(losses, verdict),
        compared_open_sets_section(losses),
        examples_section(losses, verdict),
        learning_section(losses, verdict),
        sweeps_section(compared_candidates(folder, verdict), verdict),
        right_and_wrong_section(losses),
        weights_section(losses, verdict),
        asymmetry_section(losses),
        provenance_section(folder, losses),
    ]
    return render(
        f"{_compared(verdict)} compared on {verdict.data.name}",
        _described(losses, verdict),
        verdict.sentences,
        [section for section in sections if section is not None],
        f"Made by equipoise {losses[0].record.equipoise}.",
    )


def _compared(verdict: Verdict) -> str:
    """Number of losses and methods as text."""
    methods = sum(is_method(row.loss) for row in verdict.rows)
    kinds = [(len(verdict.rows) - methods, "loss", "losses"), (methods, "method", "methods")]
    return " and ".join(_count(*kind) for kind in kinds if kind[0])


def _described(losses: Sequence[ComparedLoss], verdict: Verdict) -> str:
    record = losses[0].record
    data, counts = record.data, record.data.train_counts
    task = data.task
    unit = "pixels" if task.pixels else "training samples"
    samples = data.samples.get("open")
    unknown = "" if samples is None else f" and {samples:,} of unknown classes"
    return (
        f"{task.label}; {len(counts)} {task.many} with {max(counts):,.0f} to {min(counts):,.0f} "
        f"{unit} each; {record.model.name}, {_count(record.epochs, 'epoch', 'epochs')}, "
        f"{_count(len(verdict.seeds), 'seed', 'seeds')}; judged on {data.samples['test']:,} test samples{unknown}"
    )


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"
