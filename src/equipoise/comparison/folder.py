"""The folder of a comparison: where things lie in it, and how they are read.

::

    compare.json            what is compared: settings, losses with their candidates, the baseline, the run of each seed
    runs/NAME/              finished runs; runs/NAME.unfinished/ while one goes on
    failures/NAME.json      why a run failed, with its log beside it; the next attempt tries again
    verdict.json            what can be said of the differences
    report.html             the page
    compare.log             what was said to people

Nothing here needs torch: pages and tables are made from folders alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import equipoise
from equipoise._reading import InputError, Shape, check_shape, read_record
from equipoise._records import Record
from equipoise._writing import write_text
from equipoise.metric_registry import metric_info
from equipoise.train.folder import RunFolder, write_json

__all__ = ["ComparisonFolder", "Entry", "Failure", "PlannedRun"]

FORMAT = 1
PLAN: Shape = {
    "spec": dict,
    "entries": [{"text": str, "candidates": [str]}],
    "baseline": str,
    "runs": [{"loss": str, "seed": int, "folder": str, "stage_one?": (str, None)}],
}
"""What is read of ``compare.json``."""


@dataclass(frozen=True)
class Entry:
    """One row of the table.

    Args:
        text: the loss or method as it was given, ``"focal(gamma=[1, 2, 3])"``.
        candidates: the single ones that it stands for; validation data choose one.
    """

    text: str
    candidates: tuple[str, ...]


@dataclass(frozen=True)
class PlannedRun:
    """One loss, or method, with one seed.

    Args:
        loss: a candidate.
        seed: of the run.
        folder: where the run is, or will be.
        stage_one: the run that this one starts from, of a method with two stages; several may share one.
    """

    loss: str
    seed: int
    folder: RunFolder
    stage_one: RunFolder | None = None

    @property
    def name(self) -> str:
        """How the run is called in this comparison."""
        return self.folder.path.name


@dataclass(frozen=True)
class Failure(Record):
    """A run that did not come to its end.

    Args:
        loss: a candidate.
        seed: of the run.
        error: what went wrong, in one line.
        log: what the run said before, relative to the comparison.
    """

    loss: str
    seed: int
    error: str
    log: str = ""


@dataclass(frozen=True)
class ComparisonFolder:
    """Losses compared on one data set, finished or not.

    Args:
        path: the folder.
    """

    path: Path

    @property
    def plan(self) -> Path:
        """What is compared; a folder with this file is a comparison."""
        return self.path / "compare.json"

    @property
    def verdict(self) -> Path:
        """What can be said of the differences."""
        return self.path / "verdict.json"

    @property
    def report(self) -> Path:
        """The page."""
        return self.path / "report.html"

    @property
    def log(self) -> Path:
        """What was said to people."""
        return self.path / "compare.log"

    @property
    def exists(self) -> bool:
        """Whether there is a comparison."""
        return self.plan.is_file()

    @property
    def about(self) -> dict[str, Any]:
        """What is compared, as it was planned."""
        advice = "delete the folder and compare again"
        content = read_record(self.plan, advice=advice)
        check_shape(self.plan, content, PLAN, advice=advice)
        places = [run[key] for run in content["runs"] for key in ("folder", "stage_one") if run.get(key) is not None]
        outside = next((place for place in places if not re.fullmatch(r"runs/(?!\.\.?$)[^/]+", place)), None)
        if outside is not None:
            raise InputError(f"{self.plan}: runs must lie in the folder runs, found {outside!r}; {advice}")
        return content

    @property
    def spec(self) -> dict[str, Any]:
        """All settings."""
        found: dict[str, Any] = self.about["spec"]
        return found

    @property
    def entries(self) -> list[Entry]:
        """The rows of the table, in the order in which they were given."""
        return [Entry(one["text"], tuple(one["candidates"])) for one in self.about["entries"]]

    @property
    def baseline(self) -> str:
        """The text of the entry that all others are compared with."""
        found: str = self.about["baseline"]
        return found

    @property
    def runs(self) -> list[PlannedRun]:
        """Every run of the plan, whatever became of it."""
        found = []
        for one in self.about["runs"]:
            first = one.get("stage_one")
            stage_one = None if first is None else RunFolder(self.path / first)
            found.append(PlannedRun(one["loss"], one["seed"], RunFolder(self.path / one["folder"]), stage_one))
        return found

    @property
    def finished(self) -> list[PlannedRun]:
        """Those that came to their end."""
        return [run for run in self.runs if run.folder.finished]

    @property
    def failures(self) -> list[Failure]:
        """Those that failed and have not come to their end since."""
        places = [self.failure(run.name) for run in self.runs if not run.folder.finished]
        return [_failure(file) for file in places if file.is_file()]

    @property
    def best(self) -> PlannedRun | None:
        """That of the loss with the best mean on validation data, and of its seeds the best one."""
        return self.best_of({loss for entry in self.entries for loss in entry.candidates})

    def best_of(self, losses: Collection[str]) -> PlannedRun | None:
        """The best of some candidates on validation data; None where none of them has a number there."""
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
        """Where it says why the run of this name failed."""
        return self.path / "failures" / f"{name}.json"

    def write_plan(
        self, spec: Mapping[str, Any], entries: Sequence[Entry], baseline: str, runs: Sequence[PlannedRun]
    ) -> None:
        """Make the folder a comparison."""
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / "runs").mkdir(exist_ok=True)
        planned = [
            {
                "loss": run.loss,
                "seed": run.seed,
                "folder": self._name(run.folder),
                "stage_one": self._name(run.stage_one),
            }
            for run in runs
        ]
        write_json(
            self.plan,
            {
                "format": FORMAT,
                "equipoise": equipoise.__version__,
                "spec": spec,
                "entries": [asdict(entry) for entry in entries],
                "baseline": baseline,
                "runs": planned,
            },
        )

    def _name(self, run: RunFolder | None) -> str | None:
        return None if run is None else run.path.relative_to(self.path).as_posix()

    def write_failure(self, run: PlannedRun, error: str, log: str) -> Failure:
        """Note that a run failed: why, and what it said before."""
        place = self.failure(run.name)
        place.parent.mkdir(exist_ok=True)
        file = place.with_suffix(".log")
        write_text(file, log)
        failure = Failure(run.loss, run.seed, error, file.relative_to(self.path).as_posix())
        write_json(place, failure.to_json())
        return failure


def _failure(file: Path) -> Failure:
    """Why a run failed."""
    advice = "delete it; the run is tried again"
    return Failure.from_json(read_record(file, advice=advice), where=file, advice=advice)
