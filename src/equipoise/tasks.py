"""What differs between the tasks, in one place and without torch: targets, words, metrics and defaults.

Elsewhere code asks a task, ``data.task.multilabel``, and does not compare names.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Literal, Self

__all__ = ["GROUPS", "GROUP_SIZES", "Task", "check_binary", "is_same_task", "task_name"]

GROUP_SIZES = {"many": "more than 100", "medium": "20 to 100", "few": "fewer than 20"}
"""Groups of classes, and the training samples of a class in each, see ``metrics.shot_groups``."""
GROUPS = tuple(GROUP_SIZES)
OTHER_NAMES = {"single": "multiclass", "multi": "multilabel", "binary": "multiclass"}
"""Names of version 0.1, and two classes, a case of several."""


class Task(StrEnum):
    """A kind of problem; a string that is its name, as torchmetrics has it.

    ``Task(name)`` accepts ``"single"`` and ``"multi"`` of version 0.1 too, and ``"binary"``, which is multiclass with
    two classes.

    >>> Task("multi"), Task("single") == "multiclass", Task.SEGMENTATION.main
    ('multilabel', True, 'iou')

    Attributes:
        label: in text.
        one: what scores are for, ``"class"`` or ``"label"``.
        many: the same in the plural.
        unit: what is predicted, ``"sample"`` or ``"pixel"``.
        decisions: what calibration metrics count.
        support: what the support of a class counts.
        link: from scores to probabilities, ``"softmax"`` or ``"sigmoid"``.
        losses: the links of losses that fit, see the catalogue.
        default_loss: the plain loss.
        largest_batch: largest default batch size.
        main: the metric that classes and groups of classes are judged by.
        monitor: the validation metric that chooses the checkpoint.
        group_metric: the mean of ``main`` over a group of classes, in text.
        metrics: numbers of the predicted classes that are shown after each epoch, and offered to ``monitor``.
        calibration: the method that evaluations and runs fit, a name of ``calibration.METHODS``.
    """

    label: str
    one: str
    many: str
    unit: Literal["sample", "pixel"]
    decisions: str
    support: str
    link: Literal["softmax", "sigmoid"]
    losses: tuple[Literal["softmax", "sigmoid", "region"], ...]
    default_loss: str
    largest_batch: int
    main: str
    monitor: str
    group_metric: str
    metrics: tuple[str, ...]
    calibration: str

    def __new__(cls, name: str, attributes: Mapping[str, Any] = MappingProxyType({})) -> Self:
        """A member, with its attributes; ``Task(name)`` gives none, it looks the member up."""
        task = str.__new__(cls, name)
        task._value_ = name
        task.__dict__.update(attributes)
        return task

    MULTICLASS = (
        "multiclass",
        {
            "label": "multiclass",
            "one": "class",
            "many": "classes",
            "unit": "sample",
            "decisions": "samples",
            "support": "sample",
            "link": "softmax",
            "losses": ("softmax",),
            "default_loss": "ce",
            "largest_batch": 128,
            "main": "accuracy",
            "monitor": "mean_class_accuracy",
            "group_metric": "accuracy",
            "metrics": ("accuracy", "mean_class_accuracy", "macro_f1"),
            "calibration": "temperature",
        },
    )
    MULTILABEL = (
        "multilabel",
        {
            "label": "multi-label",
            "one": "label",
            "many": "labels",
            "unit": "sample",
            "decisions": "labels of samples",
            "support": "positive sample",
            "link": "sigmoid",
            "losses": ("sigmoid",),
            "default_loss": "bce",
            "largest_batch": 128,
            "main": "average_precision",
            "monitor": "mean_average_precision",
            "group_metric": "mAP",
            "metrics": ("mean_average_precision", "CF1", "OF1"),
            "calibration": "label-temperatures",
        },
    )
    SEGMENTATION = (
        "segmentation",
        {
            "label": "segmentation",
            "one": "class",
            "many": "classes",
            "unit": "pixel",
            "decisions": "pixels",
            "support": "pixel",
            "link": "softmax",
            "losses": ("softmax", "region"),
            "default_loss": "ce",
            "largest_batch": 8,
            "main": "iou",
            "monitor": "mean_iou",
            "group_metric": "mean IoU",
            "metrics": ("mean_iou", "mean_accuracy", "pixel_accuracy"),
            "calibration": "temperature",
        },
    )

    @classmethod
    def _missing_(cls, value: object) -> Task:
        if isinstance(value, str) and value in OTHER_NAMES:
            return cls(OTHER_NAMES[value])
        names = ", ".join(map(repr, cls))
        raise ValueError(f"task must be one of {names}, got {value!r}; choose one of these names")

    __repr__ = str.__repr__

    @property
    def multiclass(self) -> bool:
        """Whether every sample has one class."""
        return self is Task.MULTICLASS

    @property
    def multilabel(self) -> bool:
        """Whether a sample has any number of labels."""
        return self is Task.MULTILABEL

    @property
    def pixels(self) -> bool:
        """Whether every pixel has one class."""
        return self is Task.SEGMENTATION

    def loss_named(self, text: str) -> str:
        """The loss that a setting means: ``"auto"`` is the default loss."""
        return self.default_loss if text == "auto" else text

    @property
    def fitted(self) -> Task:
        """The task of calibrators: pixels are calibrated as samples are."""
        return Task.MULTILABEL if self.multilabel else Task.MULTICLASS


def task_name(name: str) -> str:
    """The name for settings, where ``"binary"`` stays: the number of classes is checked against the data.

    >>> task_name("single"), task_name("binary")
    ('multiclass', 'binary')
    """
    return name if name == "binary" else Task(name).value


def is_same_task(one: str, other: str) -> bool:
    """Whether two names mean the same task.

    >>> is_same_task("single", "multiclass"), is_same_task("multi", "multiclass")
    (True, False)
    """
    return OTHER_NAMES.get(one, one) == OTHER_NAMES.get(other, other)


def check_binary(name: str | None, classes: int, error: type[ValueError] = ValueError, where: str = "") -> None:
    """Raise where ``"binary"`` was requested and there are not two classes."""
    if name == "binary" and classes != 2:
        raise error(f"{where}task 'binary' must have two classes, got {classes}; use task 'multiclass'")
