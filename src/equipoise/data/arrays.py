"""In-memory data, and the three splits of a task."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from equipoise.tasks import Task

if TYPE_CHECKING:
    from equipoise.data.files import FileImages
    from equipoise.data.text import Texts

__all__ = ["Arrays", "DataSet", "Split", "Task"]

Split: TypeAlias = "Arrays | FileImages | Texts"
"""Samples in memory, image files, or texts; each has ``labels``, a length and ``take(indices)``."""


@dataclass(frozen=True, eq=False)
class Arrays:
    """One split.

    Args:
        inputs: images (N, channels, height, width) as uint8, or features (N, D) as float32.
        labels: (N,) class indices, (N, C) of 0, 1 and -1 (unknown), or label maps (N, height, width).
    """

    inputs: NDArray[Any]
    labels: NDArray[Any]

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.labels):
            raise ValueError(
                f"inputs and labels must hold as many samples, got {len(self.inputs)} and {len(self.labels)}; "
                "check how they were created"
            )

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, indices: NDArray[np.int64]) -> Arrays:
        """Select samples."""
        return Arrays(self.inputs[indices], self.labels[indices])


@dataclass(frozen=True, eq=False)
class DataSet:
    """Three splits of one task.

    Args:
        name: name of the data set.
        task: ``"multiclass"``, ``"multilabel"`` or ``"segmentation"``.
        class_names: one name per class.
        train: training data.
        val: data for model selection.
        test: data for the final report.
        ignore_index: label to ignore.
        notes: messages for the user: splits that were drawn, classes without samples.
    """

    name: str
    task: Task
    class_names: tuple[str, ...]
    train: Split
    val: Split
    test: Split
    ignore_index: int = -100
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "task", Task(self.task))

    @property
    def train_counts(self) -> NDArray[np.int64]:
        """Training samples per class, (C,): for multi-label data the positives, for segmentation the pixels."""
        return class_counts(self.train, self.task, len(self.class_names), self.ignore_index)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the samples of each split and their order, from labels and file names."""
        digest = hashlib.sha256()
        for split in (self.train, self.val, self.test):
            names = [Path(path).name for path in getattr(split, "paths", ())]
            digest.update(f"{split.labels.shape} {names}".encode())
            digest.update(np.ascontiguousarray(split.labels).tobytes())
        return digest.hexdigest()[:16]


def class_counts(split: Split, task: Task, classes: int, ignore_index: int) -> NDArray[np.int64]:
    """Samples per class, (C,): for multi-label data the positives, for segmentation the pixels."""
    masks = getattr(split, "masks", None)
    if masks is not None:
        pixels: NDArray[np.int64] = masks.pixels.sum(0)
        return pixels
    labels = split.labels
    if task.multilabel:
        counts: NDArray[np.int64] = (labels == 1).sum(0).astype(np.int64)
        return counts
    valid = labels[labels != ignore_index]
    return np.bincount(valid.ravel(), minlength=classes).astype(np.int64)
