"""The verdict of a comparison: results of each loss, differences from the baseline, and conclusions.

``verdict.json`` is its JSON form. Does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from equipoise._reading import read_record, reading
from equipoise._records import Record
from equipoise.comparison.folder import Failure
from equipoise.metric_registry import metric_info
from equipoise.train.record import DataRecord

__all__ = [
    "FORMAT",
    "Candidate",
    "GroupSummary",
    "LossResult",
    "MetricDifference",
    "RareClass",
    "Summary",
    "Verdict",
    "as_verdict",
    "read_verdict",
]

FORMAT = 4
"""Version of ``verdict.json``: since 3 it has the ``rule`` of its intervals, since 4 the names below."""


@dataclass(frozen=True)
class Summary(Record):
    """A metric over the seeds.

    Args:
        mean: over the seeds with a value; None without any.
        std: standard deviation over these; None for fewer than two.
        per_seed: value of each seed.
    """

    mean: float | None
    std: float | None
    per_seed: tuple[float | None, ...]


@dataclass(frozen=True)
class GroupSummary(Record):
    """Classes with many, medium or few training samples.

    Args:
        classes: number of classes.
        support: number of their test samples, positives of labels, or pixels.
        value: main metric of these classes.
        ece: calibration error of these classes.
    """

    classes: int
    support: int
    value: Summary
    ece: Summary


@dataclass(frozen=True)
class Candidate(Record):
    """One of the losses of a row, which validation data choose from.

    Args:
        text: the loss.
        monitor_mean: mean of the monitored metric on validation data; None if no run has one.
        runs: number of finished runs.
    """

    text: str
    monitor_mean: float | None
    runs: int


@dataclass(frozen=True)
class LossResult(Record):
    """A row of the table.

    Args:
        loss: text of the loss as passed.
        chosen: the candidate that is compared; None if none has a finished run.
        monitor: validation metric that selected it.
        candidates: all candidates.
        seeds: seeds with a finished run.
        failed_seeds: seeds without one.
        metrics: test metrics by name.
        groups: groups of classes by name.
    """

    loss: str
    chosen: str | None
    monitor: str | None
    candidates: tuple[Candidate, ...]
    seeds: tuple[int, ...]
    failed_seeds: tuple[int, ...]
    metrics: dict[str, Summary]
    groups: dict[str, GroupSummary]

    def mean(self, metric: str) -> float | None:
        """The mean of a metric; None if it does not exist."""
        summary = self.metrics.get(metric)
        return None if summary is None else summary.mean

    def std(self, metric: str) -> float | None:
        """The standard deviation of a metric; None if it does not exist."""
        summary = self.metrics.get(metric)
        return None if summary is None else summary.std


@dataclass(frozen=True)
class MetricDifference(Record):
    """Difference of a loss from the baseline in one metric, on their common seeds.

    Args:
        loss: the row.
        metric: name of the metric.
        mean: mean difference over the seeds.
        low: lower limit of the 95 % confidence interval; None with one seed.
        high: upper limit.
        p: p-value; None with one seed.
        p_adjusted: p-value, Holm-adjusted over the losses of this metric.
        significant: whether the adjusted p-value is below the significance level.
        seeds: number of seeds.
        seeds_needed: number to detect it with 80 % power; None if it is significant or seeds do not help.
        limit: the bottleneck if it is not significant, ``"seeds"`` or ``"samples"``.
        usable: whether the interval is narrow enough to be of use.
    """

    loss: str
    metric: str
    mean: float
    low: float | None
    high: float | None
    p: float | None
    p_adjusted: float | None
    significant: bool
    seeds: int
    seeds_needed: int | None
    limit: Literal["seeds", "samples"] | None
    usable: bool = True

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both limits; None with one seed."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def is_gain(self) -> bool:
        """Whether the loss has the better mean."""
        return self.mean != 0 and (self.mean > 0) == metric_info(self.metric).higher_is_better


@dataclass(frozen=True)
class RareClass(Record):
    """The class with the fewest test samples.

    Args:
        name: name of the class.
        support: number of its test samples.
    """

    name: str
    support: int


@dataclass(frozen=True)
class Verdict(Record):
    """Results and conclusions of the finished runs. None marks missing values, such as an interval of one seed.

    Args:
        data: the data set.
        baseline: the row that the others are compared with.
        seeds: seeds of the comparison.
        main_metric: main metric of the task.
        metrics: columns of the table, in order.
        rows: one per loss.
        differences: from the baseline, by metric and loss.
        failures: failed runs.
        test_samples: number of test samples.
        rarest_class: class with the fewest test samples; None in verdicts of earlier versions.
        missing_classes: classes without test samples.
        sentences: the conclusions as text.
        equal_losses: losses without a row, with the row that has the same runs.
        equal_metrics: metrics without a column, with the metric that has the same values on this test set.
        not_compared: reasons for metrics that are not compared.
        rule: name of the rule of the intervals.
        inputs: digest of the plan and the runs.
        format: version of the JSON.
    """

    data: DataRecord
    baseline: str
    seeds: tuple[int, ...]
    main_metric: str
    metrics: tuple[str, ...]
    rows: tuple[LossResult, ...]
    differences: tuple[MetricDifference, ...]
    failures: tuple[Failure, ...]
    test_samples: int
    rarest_class: RareClass | None
    missing_classes: tuple[str, ...]
    sentences: tuple[str, ...] = ()
    equal_losses: dict[str, str] = field(default_factory=dict)
    equal_metrics: dict[str, str] = field(default_factory=dict)
    not_compared: dict[str, str] = field(default_factory=dict)
    rule: str = "Student's t"
    inputs: str | None = None
    format: int = FORMAT

    def differences_in(self, metric: str) -> list[MetricDifference]:
        """Differences in one metric."""
        return [one for one in self.differences if one.metric == metric]


ADVICE = "run equipoise report to compute it again"


def read_verdict(file: Path) -> Verdict:
    """Read a verdict of any version; raises ``InputError`` if it is damaged."""
    return as_verdict(read_record(file, advice=ADVICE), where=file)


def as_verdict(content: dict[str, Any], *, where: str | Path = "the verdict") -> Verdict:
    """A verdict from JSON of any version."""
    if content.get("format") in (1, 2, 3):
        with reading(where, "the verdict does not match its format", ADVICE):
            content = _renamed(content)
    return Verdict.from_json(content, where=where, advice=ADVICE)


def _renamed(content: dict[str, Any]) -> dict[str, Any]:
    """JSON of format 1 to 3 with the names of format 4."""
    known = {
        new: content[old]
        for old, new in (
            ("main", "main_metric"),
            ("tested", "test_samples"),
            ("missing", "missing_classes"),
            ("equal", "equal_losses"),
            ("same", "equal_metrics"),
            ("unjudged", "not_compared"),
        )
        if old in content
    }
    rows = [row | {"metrics": row["values"], "failed_seeds": row["failed"]} for row in content["rows"]]
    differences = [
        one | {"significant": one["real"], "p_adjusted": one["p_corrected"]} for one in content["differences"]
    ]
    return {
        **content,
        **known,
        "rows": rows,
        "differences": differences,
        "rarest_class": content.get("rarest"),
    }
