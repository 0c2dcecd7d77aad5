"""Predictions as arrays: an ``.npz``, or a folder of ``.npy`` files that are mapped into memory."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from equipoise.predictions.source import Array, Chunk, InputError, Predictions, Task, told_task

__all__ = ["open_arrays", "open_folder"]

SCORES = ("logits", "probs")


def open_arrays(path: Path, task: Task | None, ignore_index: int) -> Predictions:
    """Predictions of an ``.npz``, held in memory."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: _loaded(path, name, lambda name=name: archive[name]) for name in archive.files}  # type: ignore[misc]
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise InputError(f"{path}: the file must be an .npz archive, found something else ({error})") from None
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: the file must be an .npz archive, found something else ({error})") from None
    return _predictions(path, arrays, task, ignore_index)


def open_folder(path: Path, task: Task | None, ignore_index: int) -> Predictions:
    """Predictions of a folder; what is read of them at a time is all that is in memory."""
    arrays = {
        file.stem: _loaded(path, file.name, lambda file=file: np.load(file, mmap_mode="r", allow_pickle=False))  # type: ignore[misc]
        for file in sorted(path.glob("*.npy"))
    }
    return _predictions(path, arrays, task, ignore_index)


def _loaded(path: Path, name: str, load: Callable[[], Array]) -> Array:
    try:
        return load()
    except (ValueError, EOFError, OSError) as error:
        if "pickle" in str(error).lower():
            raise InputError(
                f"{path}: {name} must be an array of numbers or strings, found pickled Python objects, which are not "
                "loaded because they can run code; save it again with a numeric or string dtype"
            ) from None
        raise InputError(f"{path}: {name} cannot be read ({error}); write it again with numpy") from None


def _predictions(path: Path, arrays: Mapping[str, Array], task: Task | None, ignore_index: int) -> Predictions:
    found = ", ".join(arrays) or "nothing"
    given = [name for name in SCORES if name in arrays]
    if len(given) != 1 or "targets" not in arrays:
        raise InputError(
            f"{path}: there must be either logits or probs, and targets, found {found}; save for example "
            "numpy.savez(path, logits=logits, targets=targets)"
        )
    scores, targets = arrays[given[0]], arrays["targets"]
    if not np.issubdtype(scores.dtype, np.floating):
        raise InputError(f"{path}: {given[0]} must be floating point numbers, found {scores.dtype}; save raw scores")
    if scores.ndim > 1 and 0 in scores.shape:
        raise InputError(f"{path}: there must be at least one sample and one class, found {given[0]} {scores.shape}")
    told = told_task(path, scores.shape, targets.shape, task)
    if targets.dtype.kind not in "biuf":
        raise InputError(f"{path}: targets must be numbers, found {targets.dtype}; save class indices")
    if told != "multi" and targets.dtype.kind not in "iu":
        raise InputError(f"{path}: targets must be integer class indices, found {targets.dtype}; save them as int64")
    classes = scores.shape[1]
    if told != "multi" and classes < 2:
        raise InputError(
            f"{path}: there must be at least two classes, found {given[0]} {scores.shape}; one binary label "
            "goes with targets of the same shape (N, 1) and --task multi"
        )

    def read(size: int) -> Iterator[Chunk]:
        for start in range(0, len(scores), size):
            part = slice(start, start + size)
            yield Chunk(np.asarray(scores[part]), _signed(np.asarray(targets[part])))

    return Predictions(
        path,
        told,
        given[0] == "logits",
        classes,
        len(scores),
        read,
        _names(path, arrays.get("class_names"), classes),
        _counts(path, arrays.get("train_counts")),
        ignore_index,
        math.prod(scores.shape[2:]),
    )


def _signed(targets: Array) -> Array:
    """Unsigned and boolean targets as signed ones, so that they compare with negative marks."""
    return targets.astype(np.int64) if targets.dtype.kind in "bu" else targets


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
