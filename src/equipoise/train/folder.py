"""The folder of a run: where things lie in it, and the one rename that makes it finished.

Nothing here needs torch: pages and tables are made from folders alone.
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
AGAIN = "delete the folder it lies in and train again; equipoise compare does both"
"""What to do about a run with a damaged file."""


@dataclass(frozen=True)
class RunFolder:
    """A run, finished or not.

    Args:
        path: the folder of the finished run; until then all lies in ``path`` with the ending ``.unfinished``.
    """

    path: Path

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return (self.path / "run.json").is_file()

    @property
    def draft(self) -> Path:
        """Where an unfinished run lies."""
        return self.path.with_name(self.path.name + UNFINISHED)

    @property
    def where(self) -> Path:
        """The folder as it is now."""
        return self.path if self.finished else self.draft

    @property
    def record(self) -> RunRecord:
        """Settings, data, model, environment; raises ``InputError`` where ``run.json`` is damaged."""
        file = self.where / "run.json"
        return RunRecord.from_json(read_record(file, advice=AGAIN), where=file, advice=AGAIN)

    @property
    def results(self) -> RunResults:
        """The evaluations on validation and test data; raises ``InputError`` where ``results.json`` is damaged."""
        file = self.where / "results.json"
        return RunResults.from_json(read_record(file, advice=AGAIN), where=file, advice=AGAIN)

    def history(self) -> Iterator[EpochRecord]:
        """One row for each epoch; the half of a row that a killed run left is none."""
        file = self.where / "history.jsonl"
        if not file.is_file():
            return
        with reading(file, "the file must have a row of JSON for each epoch", AGAIN):
            for line in file.read_text(encoding="utf-8").split("\n")[:-1]:
                yield EpochRecord.from_json(parse_json(line), where=file, advice=AGAIN)

    def predictions(self, split: str) -> Path:
        """Logits and targets of ``"val"`` or ``"test"``; of ``"open"`` the targets count for nothing."""
        return self.where / "predictions" / f"{split}.npz"

    @property
    def checkpoint(self) -> Path:
        """The weights that were chosen."""
        return self.where / "checkpoint.ckpt"

    @property
    def resume_point(self) -> Path:
        """All that is needed to go on after the last epoch that was finished."""
        return self.draft / "resume.ckpt"

    def finish(self) -> None:
        """Show the run as finished: one rename. What is only for going on goes last, or a kill would cost the run."""
        move(self.draft, self.path)
        (self.path / self.resume_point.name).unlink(missing_ok=True)


def plain(value: Any) -> Any:  # noqa: ANN401
    """A value for JSON: numbers that JSON does not know become None, tuples lists, paths words."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def write_json(path: Path, value: object) -> None:
    """Write JSON so that a reader sees the old file or the new one, never half of it."""
    write_text(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")
