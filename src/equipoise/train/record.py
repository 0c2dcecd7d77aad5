"""Records of a run: ``run.json``, ``results.json`` and ``history.jsonl``. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from equipoise._records import Record
from equipoise.evaluation.results import Evaluation, OpenSetEvaluation
from equipoise.tasks import Task

__all__ = [
    "FORMAT",
    "DataRecord",
    "Environment",
    "EpochRecord",
    "MethodSettings",
    "ModelRecord",
    "PreparationRecord",
    "RunRecord",
    "RunResults",
    "Statistic",
]

FORMAT = 1

Statistic = float | Sequence[float | None] | None
"""A number, or one per class; None if undefined."""


@dataclass(frozen=True)
class DataRecord(Record):
    """The data of a run.

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
    """A model: its name, its number of parameters, and the settings that build it."""

    name: str
    parameters: int
    options: dict[str, Any] = field(default_factory=dict)
    num_classes: int | None = None
    input_shape: list[int] | None = None
    vocabulary: int | None = None


@dataclass(frozen=True)
class PreparationRecord(Record):
    """How raw inputs become those of the model, as :class:`equipoise.train.preparation.Preparation` applies it.

    Args:
        kind: of the inputs.
        input_shape: of one sample: (channels, height, width), or None if image sizes vary; (D,) features; (length,)
            tokens.
        mean: of each channel in [0, 1], or of each feature; empty for tokens.
        std: likewise; 1 for constant values.
        words: the vocabulary, as in :class:`equipoise.data.Vocabulary`.
        resize: how image files are resized, ``"stretch"`` or ``"crop"``.
        upright: whether photographs are rotated by their EXIF orientation.
    """

    kind: Literal["images", "features", "tokens"]
    input_shape: tuple[int, ...] | None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    words: tuple[str, ...] = ()
    resize: Literal["stretch", "crop"] = "stretch"
    upright: bool = True


@dataclass(frozen=True)
class MethodSettings(Record):
    """Settings that a method chose; None if it does not have them.

    Args:
        tau: of tau-normalisation.
        classifier_batch_size: of a re-trained classifier.
        classifier_lr: of a re-trained classifier.
    """

    tau: float | None = None
    classifier_batch_size: int | None = None
    classifier_lr: float | None = None


@dataclass(frozen=True, kw_only=True)
class Environment(Record):
    """Versions and hardware of a run; None if not recorded."""

    python: str | None = None
    platform: str | None = None
    torch: str | None = None
    pytorch_lightning: str | None = None
    numpy: str | None = None
    device: str | None = None
    processes: int | None = None
    cores: int | None = None
    threads: int | None = None


@dataclass(frozen=True, kw_only=True)
class RunRecord(Record):
    """A finished run.

    Args:
        data: its data.
        model: its model.
        spec: all settings.
        loss: its ``repr``.
        loss_in_python: the loss as a Python expression; None if there is none.
        preparation: how raw inputs become those of the model.
        monitor: validation metric that selected the epoch.
        monitor_value: its value in that epoch; None if undefined.
        best_epoch: the selected epoch, from 0.
        epochs: of the training.
        settled: settings that the method chose.
        started: time in ISO 8601.
        finished: likewise.
        seconds: time between them.
        seconds_per_step: of training; that of stage one if the method takes no steps.
        device: training device.
        environment: versions and hardware.
        equipoise: version of equipoise.
        format: version of the record.
    """

    data: DataRecord
    model: ModelRecord = field(default_factory=lambda: ModelRecord("", 0))
    spec: dict[str, Any] = field(default_factory=dict)
    loss: str = ""
    loss_in_python: str | None = None
    preparation: PreparationRecord | None = None
    monitor: str
    monitor_value: float | None
    best_epoch: int = -1
    epochs: int = 0
    settled: MethodSettings = field(default_factory=MethodSettings)
    started: str
    finished: str
    seconds: float | None = None
    seconds_per_step: float | None
    device: str = ""
    environment: Environment = field(default_factory=Environment)
    equipoise: str = ""
    format: int = FORMAT


@dataclass(frozen=True, kw_only=True)
class RunResults(Record):
    """The evaluations of a finished run, ``results.json``.

    Args:
        val: on validation data; None in runs of earlier versions.
        test: on test data.
        open: on test data and unknown classes; None without an open set.
    """

    val: Evaluation | None = None
    test: Evaluation
    open: OpenSetEvaluation | None = None


@dataclass(frozen=True)
class EpochRecord(Record):
    """A row of the history.

    Args:
        epoch: from 0.
        step: number of steps after the last batch.
        lr: learning rate of the last step.
        train: statistics of the training batches.
        val: metrics on validation data.
        seconds: time of the epoch.
        seconds_per_step: mean time of a step.
    """

    epoch: int
    step: int = 0
    lr: float | None = None
    train: dict[str, Statistic] = field(default_factory=dict)
    val: dict[str, float | None] = field(default_factory=dict)
    seconds: float | None = None
    seconds_per_step: float | None = None

    def split(self, name: str) -> Mapping[str, Statistic]:
        """The values of ``"train"`` or ``"val"``."""
        return self.train if name == "train" else self.val
