"""The folder of a comparison: its files, and how they are read.

::

    compare.json            the plan: settings, losses with their candidates, the baseline, the run of each seed
    runs/NAME/              finished runs; runs/NAME.unfinished/ while one is trained
    failures/NAME.json      why a run failed, with its log beside it; the next attempt tries again
    verdict.json            the verdict
    report.html             the report
    compare.log             the messages

Does not import torch: reports and tables only need the folder.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import equipoise
from equipoise._reading import InputError, read_record
from equipoise._records import Record
from equipoise._writing import write_text
from equipoise.metric_registry import metric_info
from equipoise.train.folder import RunFolder, write_json

__all__ = ["ComparisonFolder", "ComparisonPlan", "Failure", "PlanEntry", "PlannedRun"]

FORMAT = 1


@dataclass(frozen=True)
class PlanEntry(Record):
    """A row of the table.

    Args:
        text: the loss or method as passed, such as ``"focal(gamma=[1, 2, 3])"``.
        candidates: the expanded losses or methods; one is selected on validation data.
    """

    text: str
    candidates: tuple[str, ...]


@dataclass(frozen=True)
class PlannedRun:
    """A loss, or method, with a seed.

    Args:
        loss: a candidate.
        seed: random seed of the run.
        folder: folder of the run.
        stage_one: the run that a method with two stages starts from; several may share one.
    """

    loss: str
    seed: int
    folder: RunFolder
    stage_one: RunFolder | None = None

    @property
    def name(self) -> str:
        """Name of the run in this comparison."""
        return self.folder.path.name


@dataclass(frozen=True)
class Failure(Record):
    """A run that failed.

    Args:
        loss: a candidate.
        seed: random seed of the run.
        error: error message in one line.
        log: file with the messages of the run, relative to the comparison.
    """

    loss: str
    seed: int
    error: str
    log: str = ""


@dataclass(frozen=True)
class StoredRun(Record):
    """A :class:`PlannedRun` with its folders relative to the comparison."""

    loss: str
    seed: int
    folder: str
    stage_one: str | None = field(default_factory=lambda: None)  # with a plain default None would not be written


@dataclass(frozen=True, kw_only=True)
class ComparisonPlan(Record):
    """The plan of a comparison, ``compare.json``.

    Args:
        format: format of the file.
        equipoise: version that wrote it.
        spec: all settings.
        entries: rows of the table, in the order of the settings.
        baseline: text of the entry that the others are compared with.
        runs: every candidate with every seed.
    """

    format: int = FORMAT
    equipoise: str = ""
    spec: dict[str, Any]
    entries: list[PlanEntry]
    baseline: str
    runs: list[StoredRun]


@dataclass(frozen=True)
class ComparisonFolder:
    """A comparison of losses on one data set, finished or not.

    Args:
        path: the folder.
    """

    path: Path

    @property
    def plan(self) -> Path:
        """File of the plan; a folder with this file is a comparison."""
        return self.path / "compare.json"

    @property
    def verdict(self) -> Path:
        """File of the verdict."""
        return self.path / "verdict.json"

    @property
    def report(self) -> Path:
        """File of the report."""
        return self.path / "report.html"

    @property
    def log(self) -> Path:
        """File of the messages."""
        return self.path / "compare.log"

    @property
    def exists(self) -> bool:
        """Whether there is a comparison."""
        return self.plan.is_file()

    def read_plan(self) -> ComparisonPlan:
        """The plan; raises ``InputError`` if the file is damaged."""
        advice = "delete the folder and compare again"
        plan = ComparisonPlan.from_json(read_record(self.plan, advice=advice), where=self.plan, advice=advice)
        places = [place for run in plan.runs for place in (run.folder, run.stage_one) if place is not None]
        outside = next((place for place in places if not re.fullmatch(r"runs/(?!\.\.?$)[^/]+", place)), None)
        if outside is not None:
            raise InputError(f"{self.plan}: runs must lie in the folder runs, found {outside!r}; {advice}")
        return plan

    @property
    def spec(self) -> dict[str, Any]:
        """All settings."""
        return self.read_plan().spec

    @property
    def entries(self) -> list[PlanEntry]:
        """The rows of the table, in the order of the settings."""
        return self.read_plan().entries

    @property
    def baseline(self) -> str:
        """The text of the entry that all others are compared with."""
        return self.read_plan().baseline

    @property
    def runs(self) -> list[PlannedRun]:
        """Every run of the plan, finished or not."""

        def folder(place: str) -> RunFolder:
            return RunFolder(self.path / place)

        return [
            PlannedRun(run.loss, run.seed, folder(run.folder), None if run.stage_one is None else folder(run.stage_one))
            for run in self.read_plan().runs
        ]

    @property
    def finished(self) -> list[PlannedRun]:
        """The finished runs."""
        return [run for run in self.runs if run.folder.finished]

    @property
    def failures(self) -> list[Failure]:
        """The failed runs that have not been finished since."""
        files = [self.failure(run.name) for run in self.runs if not run.folder.finished]
        advice = "delete it; the run is tried again"
        return [
            Failure.from_json(read_record(file, advice=advice), where=file, advice=advice)
            for file in files
            if file.is_file()
        ]

    @property
    def best(self) -> PlannedRun | None:
        """The best seed of the loss with the best mean on validation data."""
        return self.best_of({loss for entry in self.entries for loss in entry.candidates})

    def best_of(self, losses: Collection[str]) -> PlannedRun | None:
        """The best of some candidates on validation data; None if none of them has a metric."""
        records = {run: run.folder.record for run in self.finished if run.loss in losses}
        values = {
            run: record.monitor_value if metric_info(record.monitor).higher_is_better else -record.monitor_value
            for run, record in records.items()
            if record.monitor_value is not None
        }

        def rank(run: PlannedRun) -> tuple[int, float, float]:
            own = [value for other, value in values.items() if other.loss == run.loss]
            return len(own), math.fsum(own) / len(own), values[run]

        return max(values, key=rank, default=None)

    def failure(self, name: str) -> Path:
        """File of the failure of a run."""
        return self.path / "failures" / f"{name}.json"

    def write_plan(
        self, spec: Mapping[str, Any], entries: Sequence[PlanEntry], baseline: str, runs: Sequence[PlannedRun]
    ) -> None:
        """Create the folder and write the plan."""
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / "runs").mkdir(exist_ok=True)

        def place(run: RunFolder) -> str:
            return run.path.relative_to(self.path).as_posix()

        stored = [
            StoredRun(run.loss, run.seed, place(run.folder), None if run.stage_one is None else place(run.stage_one))
            for run in runs
        ]
        plan = ComparisonPlan(
            equipoise=equipoise.__version__, spec={**spec}, entries=[*entries], baseline=baseline, runs=stored
        )
        write_json(self.plan, plan.to_json())

    def write_failure(self, run: PlannedRun, error: str, log: str) -> Failure:
        """Record the error and the messages of a failed run."""
        place = self.failure(run.name)
        place.parent.mkdir(exist_ok=True)
        file = place.with_suffix(".log")
        write_text(file, log)
        failure = Failure(run.loss, run.seed, error, file.relative_to(self.path).as_posix())
        write_json(place, failure.to_json())
        return failure
