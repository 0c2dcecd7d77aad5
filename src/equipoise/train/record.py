"""The record of a finished run, ``run.json``, and of its epochs, ``history.jsonl``. Without torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from equipoise._records import Record
from equipoise.tasks import Task

__all__ = ["FORMAT", "DataRecord", "EpochRecord", "ModelRecord", "RunRecord"]

FORMAT = 1


@dataclass(frozen=True)
class DataRecord(Record):
    """What a run was trained and tested on.

    Args:
        name: of the data set.
        task: ``"multiclass"``, ``"multilabel"`` or ``"segmentation"``.
        class_names: C names.
        train_counts: training samples of each class, or pixels.
        samples: of each split.
        fingerprint: digest of the samples; None in runs of earlier versions.
        ignore_index: label to ignore.
        notes: what to know about the data.
    """

    name: str
    task: Task
    class_names: list[str]
    train_counts: list[float]
    samples: dict[str, int]
    fingerprint: str | None = None
    ignore_index: int | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ModelRecord(Record):
    """A model: its name, its number of weights, and what builds it again."""

    name: str
    parameters: int
    options: dict[str, Any] = field(default_factory=dict)
    num_classes: int | None = None
    input_shape: list[int] | None = None
    vocabulary: int | None = None


@dataclass(frozen=True, kw_only=True)
class RunRecord(Record):
    """A finished run.

    Args:
        data: what it was trained and tested on.
        model: its model.
        spec: all settings.
        loss: as Python shows it.
        loss_in_python: the expression for a training loop; None where the loss is more than an expression.
        preparation: from raw inputs to those of the model.
        monitor: metric on validation data that chose the epoch.
        monitor_value: its value in that epoch; None where it does not exist.
        best_epoch: the chosen epoch, from 0.
        epochs: of the training.
        settled: settings that the method chose itself.
        started: time as ISO 8601.
        finished: likewise.
        seconds: in between.
        seconds_per_step: of training; that of stage one where a method takes no steps.
        device: that it was trained on.
        environment: versions and hardware.
        equipoise: version.
        format: of the record.
    """

    data: DataRecord
    model: ModelRecord = field(default_factory=lambda: ModelRecord("", 0))
    spec: dict[str, Any] = field(default_factory=dict)
    loss: str = ""
    loss_in_python: str | None = None
    preparation: dict[str, Any] = field(default_factory=dict)
    monitor: str
    monitor_value: float | None
    best_epoch: int = -1
    epochs: int = 0
    settled: dict[str, float] = field(default_factory=dict)
    started: str
    finished: str
    seconds: float | None = None
    seconds_per_step: float | None
    device: str = ""
    environment: dict[str, Any] = field(default_factory=dict)
    equipoise: str = ""
    format: int = FORMAT


@dataclass(frozen=True)
class EpochRecord(Record):
    """A row of the history.

    Args:
        epoch: from 0.
        step: after the last batch.
        lr: the learning rate then.
        train: statistics of the training batches, numbers or lists of a number for each class.
        val: metrics on validation data.
        seconds: of the epoch.
        seconds_per_step: mean over its steps.
    """

    epoch: int | None = None
    step: int | None = None
    lr: float | None = None
    train: dict[str, Any] = field(default_factory=dict)
    val: dict[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    seconds_per_step: float | None = None

    def split(self, name: str) -> dict[str, Any]:
        """The numbers of ``"train"`` or ``"val"``."""
        return {"train": self.train, "val": self.val}[name]
