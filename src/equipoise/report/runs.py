"""What the runs of a comparison left, loss by loss: means over the seeds of what was measured and seen."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.comparison.folder import ComparisonFolder
from equipoise.comparison.verdict import Verdict
from equipoise.plotting.epochs import Series
from equipoise.plotting.theme import INK, Stroke, strokes
from equipoise.train.folder import RunFolder
from equipoise.train.record import EpochRecord, RunRecord

__all__ = ["ComparedLoss", "compared_losses"]

Array = NDArray[np.float64]
Curve = dict[str, list[float]]


@dataclass(frozen=True)
class ComparedLoss:
    """One row of the table with its finished runs.

    Args:
        name: the loss as it was given.
        chosen: the candidate that validation data chose.
        runs: one for each seed.
        baseline: whether the others are compared with it.
        stroke: how its lines look on the whole page.
    """

    name: str
    chosen: str
    runs: tuple[RunFolder, ...]
    baseline: bool
    stroke: Stroke

    @cached_property
    def record(self) -> RunRecord:
        """The record of the first run."""
        return self.runs[0].record

    @cached_property
    def tests(self) -> list[dict[str, Any]]:
        """What each run reached on test data."""
        return [run.results["test"] for run in self.runs]

    @cached_property
    def opens(self) -> list[dict[str, Any]]:
        """What each run made of an open set; none where there is none."""
        return [found for run in self.runs if (found := run.results.get("open")) is not None]

    @cached_property
    def histories(self) -> list[list[EpochRecord]]:
        """The rows of each run, one for each epoch."""
        return [list(run.history()) for run in self.runs]

    @property
    def loss(self) -> str:
        """The class of the loss."""
        return self.record.loss.partition("(")[0]

    def series(self, split: str, name: str) -> Series | None:
        """A number of ``"train"`` or ``"val"`` over the epochs; None where it was not recorded."""
        values = self._recorded(lambda row: np.atleast_1d(_number(row.split(split).get(name))))
        if values is None:
            return None
        values = values[:, :, 0]
        return Series(
            np.arange(1, values.shape[1] + 1, dtype=np.float64),
            _over(np.nanmean, values),
            _over(np.nanmin, values),
            _over(np.nanmax, values),
        )

    def by_class(self, split: str, name: str) -> Array | None:
        """(E, C) numbers of each class over the epochs, means over the seeds; None where they were not recorded."""
        values = self._recorded(lambda row: _numbers(row.split(split).get(name)))
        return None if values is None or values.shape[2] < 2 else _over(np.nanmean, values)

    def class_values(self, key: str) -> Array:
        """(C,) a number of each class on test data, mean over the seeds; NaN where it has none."""
        rows = [[_number(row[key]) for row in test["per_class"]] for test in self.tests]
        return _over(np.nanmean, np.array(rows))

    def reliability(self, group: str) -> dict[str, Curve]:
        """Reliability curves ``"before"`` and ``"after"`` temperature of a group, all seeds thrown together."""
        found: dict[str, Curve] = {}
        for moment in ("before", "after"):
            curves = [test["reliability"].get(group, {}).get(moment) for test in self.tests]
            if curves and all(curves):
                found[moment] = _pooled(curves)
        return found

    def _recorded(self, read: Callable[[EpochRecord], Array]) -> Array | None:
        """(S, E, K) what ``read`` finds in each row of each seed; None where it finds nothing."""
        rows = [[read(row) for row in history] for history in self.histories]
        epochs = max(map(len, rows), default=0)
        widths = {len(values) for history in rows for values in history if len(values)}
        if not epochs or len(widths) != 1:
            return None
        values = np.full((len(rows), epochs, widths.pop()), np.nan)
        for seed, history in enumerate(rows):
            for epoch, found in enumerate(history):
                if len(found):
                    values[seed, epoch] = found
        return None if np.isnan(values).all() else values


def compared_losses(folder: ComparisonFolder, verdict: Verdict) -> list[ComparedLoss]:
    """The rows of the verdict with the runs of what was chosen; those without a finished run are left out.

    The baseline is drawn in the colour of the text, the others in colours of their own.
    """
    finished = folder.finished
    others = [row.loss for row in verdict.rows if row.loss != verdict.baseline]
    looks = dict(zip(others, strokes(len(others)), strict=True)) | {verdict.baseline: Stroke(INK)}
    losses = []
    for row in verdict.rows:
        runs = tuple(run.folder for run in finished if run.loss == row.chosen and run.seed in row.seeds)
        if runs and row.chosen is not None:
            losses.append(ComparedLoss(row.loss, row.chosen, runs, row.loss == verdict.baseline, looks[row.loss]))
    return losses


def _number(value: float | None) -> float:
    return np.nan if value is None or isinstance(value, list) else float(value)


def _numbers(values: Sequence[float | None] | float | None) -> Array:
    return np.array([_number(value) for value in values] if isinstance(values, list) else [], dtype=np.float64)


def _over(what: Callable[..., Array], values: Array) -> Array:
    """A statistic over the seeds, NaN where none has a value."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # "Mean of empty slice"
        return np.asarray(what(values, axis=0), dtype=np.float64)


def _pooled(curves: Sequence[Mapping[str, Sequence[float | None]]]) -> Curve:
    """One reliability curve of several with the same bins."""
    count = np.array([curve["count"] for curve in curves], dtype=np.float64)
    total = count.sum(0)
    means = {}
    for name in ("confidence", "accuracy"):
        values = np.array([[_number(value) for value in curve[name]] for curve in curves])
        summed = np.where(count > 0, np.nan_to_num(values) * count, 0.0).sum(0)
        means[name] = (summed / np.maximum(total, 1.0)).tolist()
    return {"edges": [float(edge or 0.0) for edge in curves[0]["edges"]], "count": total.tolist(), **means}
