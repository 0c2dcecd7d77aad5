"""The record of an exported model, ``model.json``. Without torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from equipoise._reading import InputError, read_json
from equipoise._records import Record
from equipoise.tasks import Task
from equipoise.train.record import PreparationRecord

__all__ = ["ExportRecord", "ExportedModel", "ExportedResults", "FitRecord", "TrainingSummary"]

FORMAT, VERSION = "equipoise.model", 1
ADVICE = "export again"


@dataclass(frozen=True)
class ExportedModel(Record):
    """What builds the model: a name with options, or ``model.py:NAME`` beside the record."""

    name: str
    options: dict[str, Any]
    parameters: int
    num_classes: int
    input_shape: list[int] | None
    vocabulary: int | None
    method: str = "none"

    @property
    def is_user_code(self) -> bool:
        """Whether a Python file builds it."""
        return ".py" in self.name


@dataclass(frozen=True)
class FitRecord(Record):
    """A calibration or thresholds, as ``equipoise.calibration.save`` writes them."""

    format: str
    version: int
    kind: str
    fields: dict[str, Any]


@dataclass(frozen=True)
class ExportedResults(Record):
    """Metrics on test data, uncalibrated and after calibration; None without calibration."""

    overall: dict[str, float | None]
    calibrated: dict[str, float | None] | None


@dataclass(frozen=True)
class TrainingSummary(Record):
    """How the model was trained.

    Args:
        data: name of the data set.
        train_counts: training samples of each class, or pixels.
        samples: of each split.
        notes: notes on the data.
        loss: training loss.
        epochs: number of epochs.
        checkpoint: ``"best"`` or ``"last"``.
        chosen_epoch: epoch of the weights, from 1.
    """

    data: str
    train_counts: list[float]
    samples: dict[str, int]
    notes: list[str]
    loss: str
    epochs: int
    checkpoint: str
    chosen_epoch: int


@dataclass(frozen=True, kw_only=True)
class ExportRecord(Record):
    """An exported model without its weights.

    Args:
        format: name of the file format.
        version: version of the format.
        equipoise: version of equipoise that wrote it.
        task: task of the model.
        class_names: in the order of the logits.
        ignore_index: label to ignore.
        model: how to build the model.
        preparation: maps raw inputs to those of the model.
        calibration: fitted on validation data; None if the fit failed.
        thresholds: of multi-label decisions; None means probability 1/2.
        results: on test data.
        training: how the model was trained.
    """

    format: str = FORMAT
    version: int = VERSION
    equipoise: str
    task: Task
    class_names: list[str]
    ignore_index: int | None
    model: ExportedModel
    preparation: PreparationRecord
    calibration: FitRecord | None
    thresholds: FitRecord | None
    results: ExportedResults
    training: TrainingSummary

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a record; raises ``InputError`` if it is another kind of file, newer, or damaged."""
        content = read_json(path, problem="the file must be as equipoise export wrote it", advice=ADVICE)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise InputError(f"{path}: the file must have format {FORMAT!r}, found none; check the path")
        version = content.get("version")
        if type(version) is not int or version > VERSION:
            raise InputError(f"{path}: the version must be at most {VERSION}, found {version!r}; upgrade equipoise")
        return cls.from_json(content, where=path, advice=ADVICE)
