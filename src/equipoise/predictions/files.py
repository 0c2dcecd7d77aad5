"""Open a file or folder by its type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from equipoise._reading import reading
from equipoise.predictions.arrays import hold_arrays, open_arrays, open_folder
from equipoise.predictions.open_set import check_open_label
from equipoise.predictions.source import InputError, Predictions
from equipoise.predictions.tables import open_table
from equipoise.tasks import Task, check_binary

__all__ = ["FORMATS", "open_predictions"]

FORMATS = (
    ".npz with logits or probs, targets, and optionally train_counts and class_names; a folder with the same as .npy "
    "files, which may be larger than memory; .csv or .parquet with columns logit_<class> or prob_<class> and target, "
    "or target_<class> for multi-label data"
)


def open_predictions(
    path: Path | str | Mapping[str, Any],
    *,
    task: str | None = None,
    train_counts: Sequence[float] | None = None,
    ignore_index: int = -100,
    unlabelled: str | None = None,
    targets: bool = True,
    open_label: int | None = None,
    others: bool = False,
) -> Predictions:
    """Open saved predictions; shapes and names are checked immediately, values during reading.

    Args:
        path: an ``.npz``, a folder of ``.npy`` files, a ``.csv`` or a ``.parquet`` (see ``FORMATS``); or arrays or
            tensors in memory by their names in an ``.npz``, such as ``{"logits": logits, "targets": targets}``.
        task: ``"multiclass"``, ``"multilabel"`` or ``"segmentation"``, inferred from the shapes by default; or
            ``"binary"``, multiclass with two classes.
        train_counts: training samples per class; overrides those of the file.
        ignore_index: target to ignore.
        unlabelled: task of a file without targets, ``"multiclass"`` or ``"multilabel"``; None: there must be targets.
        targets: False to ignore targets, as if the file were unlabelled.
        open_label: target of samples that belong to no class; ``split_open`` separates them.
        others: whether chunks of a table also hold columns that are neither scores nor targets.

    Raises:
        InputError: the file is missing, of another kind, or inconsistent.
    """
    wanted, without = _task(task), _task(unlabelled)
    for name, mark in (("ignore_index", ignore_index), ("open_label", open_label)):
        if mark is not None and not -(2**63) <= mark < 2**63:
            raise InputError(f"{name} must be a number of 64 bits, got {mark}; targets cannot be larger")
    if not targets and without is None:
        without = wanted or Task.MULTICLASS
    if isinstance(path, Mapping):
        predictions = hold_arrays(path, wanted, ignore_index, without, targets)
        return _completed(predictions, task, train_counts, open_label)
    if not isinstance(path, (str, Path)):
        raise TypeError(
            f"predictions must be a path, or arrays by name, got {type(path).__name__}; pass "
            '{"logits": logits, "targets": targets}, or probs in place of logits'
        )
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path}: there is no such file or folder; check the path")
    with reading(path):
        if path.is_dir():
            predictions = open_folder(path, wanted, ignore_index, without, targets)
        elif path.stat().st_size == 0:
            raise InputError(f"{path}: the file must hold predictions, found it empty; check what wrote it")
        elif path.suffix == ".npz":
            predictions = open_arrays(path, wanted, ignore_index, without, targets)
        elif path.suffix in (".csv", ".parquet"):
            predictions = open_table(path, wanted, ignore_index, without, targets, open_label, others)
        else:
            raise InputError(f"{path}: the file must be {FORMATS}; found the suffix {path.suffix!r}")
    return _completed(predictions, task, train_counts, open_label)


def _task(name: str | None) -> Task | None:
    """The task with this name."""
    try:
        return None if name is None else Task(name)
    except ValueError as error:
        raise InputError(str(error)) from None


def _completed(
    predictions: Predictions, task: str | None, train_counts: Sequence[float] | None, open_label: int | None
) -> Predictions:
    """The predictions with the given training counts and open label, checked."""
    path = predictions.path
    check_binary(task, predictions.num_classes, InputError, f"{path}: ")
    counts = predictions.train_counts if train_counts is None else tuple(float(count) for count in train_counts)
    if counts is not None:
        if len(counts) != predictions.num_classes:
            raise InputError(
                f"{path}: train_counts must have one number for each of the {predictions.num_classes} classes, got "
                f"{len(counts)}; count the training labels of every class, 0 for a class without any"
            )
        if not all(0 <= count < float("inf") for count in counts):
            raise InputError(f"{path}: train_counts must be finite and not negative, got {list(counts)}; recount them")
    if open_label is not None:
        check_open_label(predictions, open_label)
    return replace(predictions, train_counts=counts, open_label=open_label)
