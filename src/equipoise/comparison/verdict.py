"""The verdict of a comparison: results of each loss, differences from the baseline, and what follows from them.

A verdict is a value; ``verdict.json`` is the same as JSON. Nothing here needs torch.
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
"""Version of ``verdict.json``: from 3 on it names the ``rule`` of its intervals, from 4 on it has the names below."""


@dataclass(frozen=True)
class Summary(Record):
    """A metric over the seeds.

    Args:
        mean: over the seeds that have a value; None where none has.
        std: standard deviation over these; None of fewer than two.
        per_seed: the value of each seed.
    """

    mean: float | None
    std: float | None
    per_seed: tuple[float | None, ...]


@dataclass(frozen=True)
class GroupSummary(Record):
    """Classes with many, medium or few training samples.

    Args:
        classes: how many there are.
        support: their test samples, positive ones of labels, or pixels.
        value: their main metric.
        ece: their calibration error.
    """

    classes: int
    support: int
    value: Summary
    ece: Summary


@dataclass(frozen=True)
class Candidate(Record):
    """One of the losses that a row stands for; validation data choose among them.

    Args:
        text: the loss.
        monitor_mean: mean of the monitored metric on validation data; None where no run has one.
        runs: finished ones.
    """

    text: str
    monitor_mean: float | None
    runs: int


@dataclass(frozen=True)
class LossResult(Record):
    """A row of the table.

    Args:
        loss: as it was given.
        chosen: the candidate that is compared; None where none has a finished run.
        monitor: metric on validation data that chose it.
        candidates: what there was to choose from.
        seeds: with a finished run.
        failed_seeds: those without.
        metrics: by name, on test data.
        groups: by name.
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
        """The mean of a metric; None where there is none."""
        summary = self.metrics.get(metric)
        return None if summary is None else summary.mean

    def std(self, metric: str) -> float | None:
        """The standard deviation of a metric; None where there is none."""
        summary = self.metrics.get(metric)
        return None if summary is None else summary.std


@dataclass(frozen=True)
class MetricDifference(Record):
    """A loss minus the baseline in one metric, on the seeds that both have.

    Args:
        loss: the row.
        metric: its name.
        mean: over the seeds.
        low: lower limit of the 95 % confidence interval; None with one seed.
        high: upper limit.
        p: p-value; None with one seed.
        p_adjusted: the same, Holm-adjusted for the losses of this metric.
        significant: whether that is below the level.
        seeds: how many.
        seeds_needed: to detect it with 80 % power; None where it is significant or no number is enough.
        limit: the bottleneck where it is not significant, ``"seeds"`` or ``"samples"``.
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
        name: of the class.
        support: its test samples.
    """

    name: str
    support: int


@dataclass(frozen=True)
class Verdict(Record):
    """All that can be said of the finished runs. None stands for what does not exist, such as an interval of one seed.

    Args:
        data: what the losses were compared on.
        baseline: the row that the others are compared with.
        seeds: of the comparison.
        main_metric: that of the task.
        metrics: columns of the table, in their order.
        rows: one for each loss.
        differences: from the baseline, by metric and loss.
        failures: runs that failed.
        test_samples: how many there are.
        rarest_class: of the test; None in verdicts of earlier versions.
        missing_classes: those without test samples.
        sentences: the verdict in words.
        equal_losses: losses without a row of their own, and the row with the same runs.
        equal_metrics: metrics that are no column, and the one with the same values on this test set.
        not_compared: why a metric of the table is not compared.
        rule: of the intervals.
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
        """Those of one metric."""
        return [one for one in self.differences if one.metric == metric]


ADVICE = "equipoise report makes it again"


def read_verdict(file: Path) -> Verdict:
    """The verdict of a file, of any version; raises ``InputError`` where it is damaged."""
    return as_verdict(read_record(file, advice=ADVICE), where=file)


def as_verdict(content: dict[str, Any], *, where: str | Path = "the verdict") -> Verdict:
    """A verdict from JSON of any version."""
    if content.get("format") in (1, 2, 3):
        with reading(where, "the verdict does not fit its format", ADVICE):
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
