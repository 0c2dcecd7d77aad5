"""The folder of a run: its files, and the rename that marks it as finished.

Does not import torch: reports and tables are made from folders alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equipoise._reading import parse_json, read_record, reading
from equipoise._writing import move, write_text
from equipoise.train.record import EpochRecord, RunRecord, RunResults

__all__ = ["AGAIN", "RunFolder", "plain", "write_json"]

UNFINISHED = ".unfinished"
AGAIN = "delete its folder and train again; equipoise compare does both"
"""Advice about a run with a damaged file."""


@dataclass(frozen=True)
class RunFolder:
    """A run, finished or not.

    Args:
        path: the folder of the finished run; until then its files are in ``path.unfinished``.
    """

    path: Path

    @property
    def finished(self) -> bool:
        """Whether the run is finished."""
        return (self.path / "run.json").is_file()

    @property
    def draft(self) -> Path:
        """The folder while the run is unfinished."""
        return self.path.with_name(self.path.name + UNFINISHED)

    @property
    def where(self) -> Path:
        """The folder that exists now."""
        return self.path if self.finished else self.draft

    @property
    def record(self) -> RunRecord:
        """Settings, data, model, environment; raises ``InputError`` if ``run.json`` is damaged."""
        file = self.where / "run.json"
        return RunRecord.from_json(read_record(file, advice=AGAIN), where=file, advice=AGAIN)

    @property
    def results(self) -> RunResults:
        """The evaluations on validation and test data; raises ``InputError`` if ``results.json`` is damaged."""
        file = self.where / "results.json"
        return RunResults.from_json(read_record(file, advice=AGAIN), where=file, advice=AGAIN)

    def history(self) -> Iterator[EpochRecord]:
        """One row per epoch; an incomplete last row of a killed run is ignored."""
        file = self.where / "history.jsonl"
        if not file.is_file():
            return
        with reading(file, "the file must have a row of JSON for each epoch", AGAIN):
            for line in file.read_text(encoding="utf-8").split("\n")[:-1]:
                yield EpochRecord.from_json(parse_json(line), where=file, advice=AGAIN)

    def predictions(self, split: str) -> Path:
        """Logits and targets of ``"val"``, ``"test"`` or ``"open"``, whose targets are ignored."""
        return self.where / "predictions" / f"{split}.npz"

    @property
    def checkpoint(self) -> Path:
        """The selected weights."""
        return self.where / "checkpoint.ckpt"

    @property
    def resume_point(self) -> Path:
        """The checkpoint to resume from."""
        return self.draft / "resume.ckpt"

    def finish(self) -> None:
        """Mark the run as finished by a rename, then delete the checkpoint to resume from."""
        move(self.draft, self.path)
        (self.path / self.resume_point.name).unlink(missing_ok=True)


def plain(value: Any) -> Any:  # noqa: ANN401
    """A value for JSON: non-finite numbers become None, tuples lists, paths strings."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def write_json(path: Path, value: object) -> None:
    """Write JSON atomically."""
    write_text(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")
