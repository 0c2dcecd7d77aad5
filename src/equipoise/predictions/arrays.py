"""Predictions as arrays: an ``.npz``, or a folder of ``.npy`` files that are memory-mapped."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from equipoise._reading import map_array, read_arrays
from equipoise.predictions.source import Array, Chunk, InputError, Predictions, no_targets, resolve_task
from equipoise.tasks import Task

__all__ = ["hold_arrays", "open_arrays", "open_folder"]

SCORES = ("logits", "probs")
NAMES = (*SCORES, "targets", "train_counts", "class_names")
"""Names of the arrays that are read; others are ignored."""


def hold_arrays(
    given: Mapping[str, Any], task: Task | None, ignore_index: int, unlabelled: Task | None = None, targets: bool = True
) -> Predictions:
    """Predictions of arrays, tensors or lists in memory, by their names in an ``.npz``."""
    unknown = next((name for name in given if name not in NAMES), None)
    if unknown is not None:
        raise InputError(f"arrays: names must be among {', '.join(NAMES)}, got {unknown!r}; rename it or omit it")
    arrays = {
        name: np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
        for name, values in given.items()
        if values is not None and (targets or name != "targets")
    }
    return _predictions(Path("arrays"), arrays, list(arrays), task, ignore_index, unlabelled)


def open_arrays(
    path: Path, task: Task | None, ignore_index: int, unlabelled: Task | None = None, targets: bool = True
) -> Predictions:
    """Predictions of an ``.npz``, held in memory; ``targets``: whether to read the targets."""
    wanted = [name for name in NAMES if targets or name != "targets"]
    return _predictions(path, *read_arrays(path, wanted), task, ignore_index, unlabelled)


def open_folder(
    path: Path, task: Task | None, ignore_index: int, unlabelled: Task | None = None, targets: bool = True
) -> Predictions:
    """Predictions of a folder; only the current chunk is in memory."""
    names = sorted(file.stem for file in path.glob("*.npy"))
    wanted = [name for name in NAMES if name in names and (targets or name != "targets")]
    arrays = {name: map_array(path / f"{name}.npy") for name in wanted}
    return _predictions(path, arrays, names, task, ignore_index, unlabelled)


def _predictions(
    path: Path,
    arrays: Mapping[str, Array],
    names: Sequence[str],
    task: Task | None,
    ignore_index: int,
    unlabelled: Task | None,
) -> Predictions:
    kind = _kind_of_scores(path, arrays, names, unlabelled is None)
    scores, targets = arrays[kind], arrays.get("targets")
    if targets is None:
        actual_task = Task.SEGMENTATION if scores.ndim > 2 else Task.MULTICLASS
        if unlabelled is not None and unlabelled.multilabel:
            actual_task = Task.MULTILABEL
        resolve_task(
            path,
            scores.shape,
            scores.shape if actual_task.multilabel else (scores.shape[0], *scores.shape[2:]),
            actual_task,
        )
    else:
        actual_task = resolve_task(path, scores.shape, targets.shape, task)
        _check_type(path, targets, actual_task)
    classes = scores.shape[1]
    if not actual_task.multilabel and classes < 2:
        raise InputError(
            f"{path}: there must be at least two classes, found {kind} {scores.shape}; one binary label "
            "goes with targets of the same shape (N, 1) and --task multilabel"
        )

    def read(size: int) -> Iterator[Chunk]:
        for start in range(0, len(scores), size):
            part = slice(start, start + size)
            some = _plain(np.asarray(scores[part]))
            own = (
                no_targets(some, actual_task, ignore_index)
                if targets is None
                else _signed(np.asarray(targets[part]), actual_task)
            )
            yield Chunk(some, own)

    return Predictions(
        path,
        actual_task,
        kind == "logits",
        classes,
        len(scores),
        read,
        _names(path, arrays.get("class_names"), classes),
        _counts(path, arrays.get("train_counts")),
        ignore_index,
        math.prod(scores.shape[2:]),
        targets is not None,
    )


def _kind_of_scores(path: Path, arrays: Mapping[str, Array], names: Sequence[str], labelled: bool) -> str:
    """``"logits"`` or ``"probs"``; raise unless exactly one exists and is valid, with targets if ``labelled``."""
    given = [name for name in SCORES if name in arrays]
    if len(given) != 1 or ("targets" not in arrays and labelled):
        raise InputError(
            f"{path}: there must be either logits or probs, and targets, found {', '.join(names) or 'nothing'}; save "
            "for example numpy.savez(path, logits=logits, targets=targets)"
        )
    scores = arrays[given[0]]
    if not np.issubdtype(scores.dtype, np.floating):
        raise InputError(f"{path}: {given[0]} must be floating point numbers, found {scores.dtype}; save raw scores")
    if scores.ndim > 1 and 0 in scores.shape:
        raise InputError(f"{path}: there must be at least one sample and one class, found {given[0]} {scores.shape}")
    return given[0]


def _check_type(path: Path, targets: Array, task: Task) -> None:
    if targets.dtype.kind not in "biuf":
        raise InputError(f"{path}: targets must be numbers, found {targets.dtype}; save class indices")
    if not task.multilabel and targets.dtype.kind == "f":
        values = np.asarray(targets)
        wrong = values[~np.isfinite(values) | (values != np.round(values))]
        if len(wrong):
            raise InputError(
                f"{path}: targets must be class indices, integers from 0, found {wrong[0]}; number the classes, and "
                "drop samples without a label or mark them with --ignore-index"
            )
    elif not task.multilabel and targets.dtype.kind not in "iu":
        raise InputError(f"{path}: targets must be integer class indices, found {targets.dtype}; save them as int64")


def _signed(targets: Array, task: Task) -> Array:
    """Targets as signed integers, so that they compare with negative values such as ``ignore_index``; 1.0 as 1."""
    kinds = "bu" if task.multilabel else "buf"
    return targets.astype(np.int64) if targets.dtype.kind in kinds else _plain(targets)


def _plain(values: Array) -> Array:
    """Numbers in a type that torch supports: native byte order, at most 64 bits."""
    native = values.dtype.newbyteorder("=")
    return values.astype(np.float64 if native.itemsize > 8 else native, copy=False)


def _names(path: Path, names: Array | None, classes: int) -> tuple[str, ...]:
    if names is None:
        return tuple(str(number) for number in range(classes))
    if names.dtype.kind not in "US" or names.shape != (classes,):
        raise InputError(
            f"{path}: class_names must be {classes} strings, found shape {names.shape} of {names.dtype}; save them as "
            "numpy.array([...]) of str"
        )
    return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names.tolist())


def _counts(path: Path, counts: Array | None) -> tuple[float, ...] | None:
    if counts is None:
        return None
    if counts.dtype.kind not in "iuf" or counts.ndim != 1:
        raise InputError(
            f"{path}: train_counts must be a vector of numbers, found shape {counts.shape} of {counts.dtype}"
        )
    return tuple(float(count) for count in counts)
