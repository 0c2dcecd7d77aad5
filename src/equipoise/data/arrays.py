"""Data as arrays, in three splits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["Arrays", "DataSet", "Task"]

Task = Literal["single", "multi", "segmentation"]


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
                "check what they were made of"
            )

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True, eq=False)
class DataSet:
    """Three splits of one task.

    Args:
        name: what people call it.
        task: ``"single"`` label, ``"multi"`` label, or ``"segmentation"``.
        class_names: one for each class.
        train: what losses see.
        val: what choices are made on.
        test: what is reported on.
        ignore_index: label that counts for nothing.
    """

    name: str
    task: Task
    class_names: tuple[str, ...]
    train: Arrays
    val: Arrays
    test: Arrays
    ignore_index: int = -100

    @property
    def train_counts(self) -> NDArray[np.int64]:
        """Training samples of each class, (C,): of several labels the positives, in segmentation the pixels."""
        labels, classes = self.train.labels, len(self.class_names)
        if self.task == "multi":
            counts: NDArray[np.int64] = (labels == 1).sum(0).astype(np.int64)
            return counts
        valid = labels[labels != self.ignore_index]
        return np.bincount(valid.ravel(), minlength=classes).astype(np.int64)
