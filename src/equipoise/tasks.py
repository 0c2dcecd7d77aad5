"""What differs between the tasks, in one place and without torch: names, words, link and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["MULTICLASS", "MULTILABEL", "SEGMENTATION", "TASKS", "Task", "find_task"]


@dataclass(frozen=True)
class Task:
    """A kind of problem.

    Args:
        name: in files and options, as in torchmetrics.
        title: in text.
        one: what scores are for, ``"class"`` or ``"label"``.
        many: the same in the plural.
        unit: what is predicted, ``"sample"`` or ``"pixel"``.
        decisions: what calibration metrics count.
        support: what the support of a class counts.
        link: from scores to probabilities, ``"softmax"`` or ``"sigmoid"``.
        main: the metric that classes and groups of classes are judged by.
        monitor: the validation metric that chooses the checkpoint.
        resampled: the metrics that ``evaluate(bootstrap=...)`` gives intervals for.
    """

    name: str
    title: str
    one: str
    many: str
    unit: str
    decisions: str
    support: str
    link: Literal["softmax", "sigmoid"]
    main: str
    monitor: str
    resampled: tuple[str, ...]

    @property
    def multilabel(self) -> bool:
        """Whether a sample has any number of labels."""
        return self.link == "sigmoid"


MULTICLASS = Task(
    name="multiclass",
    title="multiclass",
    one="class",
    many="classes",
    unit="sample",
    decisions="samples",
    support="sample",
    link="softmax",
    main="accuracy",
    monitor="mean_class_accuracy",
    resampled=("accuracy", "mean_class_accuracy", "nll", "ece"),
)
MULTILABEL = Task(
    name="multilabel",
    title="multi-label",
    one="label",
    many="labels",
    unit="sample",
    decisions="labels of samples",
    support="positive sample",
    link="sigmoid",
    main="average_precision",
    monitor="mean_average_precision",
    resampled=("mean_average_precision", "OF1", "nll", "ece"),
)
SEGMENTATION = Task(
    name="segmentation",
    title="segmentation",
    one="class",
    many="classes",
    unit="pixel",
    decisions="pixels",
    support="pixel",
    link="softmax",
    main="iou",
    monitor="mean_iou",
    resampled=("mean_iou", "mean_accuracy", "pixel_accuracy", "nll", "ece"),
)
TASKS: Mapping[str, Task] = {task.name: task for task in (MULTICLASS, MULTILABEL, SEGMENTATION)}
OTHER_NAMES = {"binary": MULTICLASS, "single": MULTICLASS, "multi": MULTILABEL}
"""Two classes are a case of several; the others are names of version 0.1."""


def find_task(name: str) -> Task:
    """The task of a name; ``"binary"`` is multiclass with two classes, ``"single"`` and ``"multi"`` are old names.

    >>> find_task("multi") is MULTILABEL, find_task("segmentation").main
    (True, 'iou')
    """
    task = {**TASKS, **OTHER_NAMES}.get(name)
    if task is None:
        raise ValueError(f"task must be one of {', '.join(TASKS)}, got {name!r}; see equipoise evaluate --help")
    return task
