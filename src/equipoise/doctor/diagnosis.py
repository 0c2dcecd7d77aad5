"""A diagnosis: findings about counts, the setup and predictions, and losses to compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from equipoise.doctor.counts import look_at_counts
from equipoise.doctor.finding import Finding
from equipoise.doctor.predictions import look_at_predictions
from equipoise.doctor.setup import look_at_setup
from equipoise.doctor.suggest import Suggestion, suggest
from equipoise.evaluation.results import Evaluation
from equipoise.predictions import Predictions
from equipoise.tasks import Task

__all__ = ["LEVELS", "Diagnosis", "diagnose"]

LEVELS = ("problem", "warning", "note")
"""Of findings, the most severe first."""


@dataclass(frozen=True)
class Diagnosis:
    """Findings, the most severe first, and losses to compare."""

    findings: list[Finding]
    suggestions: list[Suggestion]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "findings": [asdict(finding) for finding in self.findings],
            "losses": [
                {"name": one.entry.name, "text": one.text, "why": one.why, "use": one.entry.use}
                for one in self.suggestions
            ],
        }


def diagnose(
    source: Predictions | None,
    counts: Sequence[float] | None,
    *,
    task: Task,
    loss: str | None = None,
    sampler: str = "none",
    weights: bool = False,
    progress: Callable[[int], None] = lambda samples: None,
) -> Diagnosis:
    """Find problems and suggest losses.

    Args:
        source: predictions, if there are any.
        counts: training samples of each class, if they are known.
        task: of the data.
        loss: the training loss.
        sampler: of the training data.
        weights: whether the loss has class weights.
        progress: called with the number of samples read since the last call.
    """
    findings = look_at_setup(loss=loss, sampler=sampler, weights=weights, counts=counts)
    if counts is not None:
        names = source.class_names if source is not None else [f"{task.one} {k}" for k in range(len(counts))]
        findings += look_at_counts(counts, names, task)
    evaluation = None
    if source is not None:
        evaluation, of_predictions = _evaluated(source, progress)
        findings += of_predictions
    findings.sort(key=lambda finding: LEVELS.index(finding.level))
    return Diagnosis(findings, suggest(task, counts, evaluation))


def _evaluated(source: Predictions, progress: Callable[[int], None]) -> tuple[Evaluation, list[Finding]]:
    """An evaluation with its findings."""
    from equipoise.doctor.corrections import try_corrections
    from equipoise.evaluation import evaluate

    evaluation = evaluate(source, progress=progress)
    corrections = try_corrections(source, progress=progress)
    f1 = _cross_fitted_f1(source, progress) if source.task.multilabel else None
    return evaluation, look_at_predictions(evaluation, cross_fitted_f1=f1, corrections=corrections)


def _cross_fitted_f1(source: Predictions, progress: Callable[[int], None]) -> float | None:
    """The mean F1 to expect from thresholds, of multi-label predictions."""
    from equipoise.calibration import fit_thresholds
    from equipoise.evaluation.split import FitSplit, try_fit

    (rows,) = FitSplit(source, 0, 1.0, progress).rows(True)
    fitted, _ = try_fit(fit_thresholds, rows)
    f1 = [] if fitted is None else [value for value in fitted.f1 if value is not None]
    return sum(f1) / len(f1) if f1 else None
