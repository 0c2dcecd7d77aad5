"""Open sets: samples of unknown classes, to test whether a model rejects them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise._suggestions import nearest, some
from equipoise.data.arrays import Arrays, DataSet, Split
from equipoise.data.errors import refuse
from equipoise.data.files import FileImages, path_array
from equipoise.data.npz import read_inputs
from equipoise.data.opening import resized
from equipoise.data.source import image_files

__all__ = ["hold_out", "open_samples"]


def hold_out(data: DataSet, classes: Sequence[str | int] | str) -> tuple[DataSet, Split]:
    """Remove classes from the data and return their test samples as the open set.

    The remaining classes are renumbered in order. Samples of the open set have the label to ignore. Training and
    validation samples of held-out classes are not used.

    Args:
        data: single-label data.
        classes: names or indices of the classes to hold out, comma-separated in a string. Names take precedence.

    Returns:
        The remaining data, and the open set.

    Raises:
        DataError: a class does not exist, too few classes remain, or a held-out class has no test samples.

    >>> from equipoise.data import digits_lt
    >>> known, unknown = hold_out(digits_lt(), "8, 9")
    >>> len(known.class_names), len(known.test), len(unknown)
    (8, 320, 80)
    """
    if not data.task.multiclass:
        raise refuse(
            data.name, "holding out classes requires single-label data", f"task {data.task!r}", "hold out none"
        )
    out = _held_out(data, classes)
    kept = [c for c in range(len(data.class_names)) if c not in out]
    if len(kept) < 2:
        raise refuse(
            data.name,
            "at least two classes must remain",
            f"{len(kept)} of {len(data.class_names)}",
            "hold out fewer",
        )
    number = np.full(len(data.class_names), -1, np.int64)  # the new index of each class
    number[kept] = np.arange(len(kept))
    inside = 0 <= data.ignore_index < len(number)
    ignored = int(number[data.ignore_index]) if inside else data.ignore_index
    train, val, test = (_without(data, split, out, number, ignored) for split in ("train", "val", "test"))
    names = [data.class_names[c] for c in sorted(out)]
    chosen = np.flatnonzero(np.isin(data.test.labels, list(out)))
    if not len(chosen):
        raise refuse(data.name, f"there must be test samples of {some(names)}", "none", "hold out other classes")
    unknown = data.test.take(chosen)
    note = (
        f"Held out as unknown: {some(names)}, with {len(chosen)} test samples; {len(data.train) - len(train)} training "
        f"and {len(data.val) - len(val)} validation samples of them are not used."
    )
    known = replace(
        data,
        class_names=tuple(data.class_names[c] for c in kept),
        train=train,
        val=val,
        test=test,
        ignore_index=ignored,
        notes=(*data.notes, note),
    )
    return known, replace(unknown, labels=np.full(len(chosen), ignored, np.int64))


def _without(data: DataSet, name: str, out: frozenset[int], number: NDArray[np.int64], ignored: int) -> Split:
    """A split without the held-out classes.

    Args:
        data: with all classes.
        name: of the split.
        out: the held-out classes.
        number: (C,) the new index of each class.
        ignored: the new label to ignore.
    """
    split: Split = getattr(data, name)
    own = np.flatnonzero(~np.isin(split.labels, list(out)))
    counted = split.labels[own] != data.ignore_index
    if not counted.any():
        raise refuse(data.name, f"there must be {name} samples of the remaining classes", "none", "hold out others")
    there = split.take(own)
    old = np.where(counted, there.labels, 0)
    return replace(there, labels=np.where(counted, number[old], ignored))


def _held_out(data: DataSet, classes: Sequence[str | int] | str) -> frozenset[int]:
    """Indices of the classes to hold out."""
    if not isinstance(classes, Iterable):
        raise refuse(
            data.name,
            "classes to hold out must be a list of names or indices, or a comma-separated string",
            f"{type(classes).__name__} {classes!r}",
            "pass e.g. [0, 1]",
        )
    asked = [word.strip() for word in classes.split(",")] if isinstance(classes, str) else list(classes)
    if not [word for word in asked if word != ""]:
        raise refuse(data.name, "there must be a class to hold out", "none", f"name some of {some(data.class_names)}")
    names, numbers = list(data.class_names), []
    for word in asked:
        text = str(word)
        if isinstance(word, str) and word in names:
            number = names.index(word)
        elif text.isdecimal() and int(text) < len(names):
            number = int(text)
        else:
            raise refuse(
                data.name,
                f"a class to hold out must be a name or an index from 0 to {len(names) - 1}",
                repr(word),
                nearest(text, names),
            )
        if number in numbers:
            raise refuse(data.name, "every class can be held out only once", f"{names[number]!r} twice", "name it once")
        numbers.append(number)
    if data.ignore_index in numbers:
        raise refuse(data.name, "the ignored label cannot be held out", names[data.ignore_index], "omit it")
    return frozenset(numbers)


def open_samples(path: str | Path, data: DataSet) -> Split:
    """Samples of unknown classes from a separate file or folder, preprocessed like ``data``.

    Args:
        path: an ``.npz`` with ``images`` or ``features`` (labels are ignored), or a folder of images, including
            sub-folders. Images are resized to the size of those of ``data``.
        data: single-label data that the model is trained on.

    Raises:
        DataError: the samples are unusable; the message says what to do.
    """
    path = Path(path)
    if not data.task.multiclass:
        raise refuse(
            path,
            "an open set requires single-label data",
            f"task {data.task!r}",
            "omit the open set",
        )
    if not path.exists():
        raise refuse(path, "there must be an .npz or a folder of images", "nothing", "check the path")
    if path.is_dir():
        return _folder(path, data)
    if path.suffix.lower() != ".npz":
        raise refuse(
            path,
            "an open set must be an .npz with images or features, or a folder of images",
            path.suffix or "a file without a suffix",
            "store it as one of these, or hold out classes of the data",
        )
    return _arrays(path, data)


def _folder(path: Path, data: DataSet) -> FileImages:
    files = image_files(path)
    if not files:
        raise refuse(path, "there must be images in the folder of the open set", "none", "check the path")
    images = FileImages(path_array(files), _no_labels(len(files), data))
    train = data.train
    if isinstance(train, FileImages):
        return replace(images, size=train.size, fit=train.fit)
    if isinstance(train, Arrays) and train.inputs.ndim == 4 and train.inputs.shape[1] == 3:
        return replace(images, size=train.inputs.shape[2:])
    raise refuse(
        path,
        f"the open set must be of the kind of {data.name}, {_kind(train)}",
        "image files, which are read in colour",
        "store it as an .npz of that kind, or hold out classes of the data",
    )


def _arrays(path: Path, data: DataSet) -> Arrays:
    inputs, train = read_inputs(path), data.train
    arrays = Arrays(inputs, _no_labels(len(inputs), data))
    images = inputs.ndim == 4
    if isinstance(train, FileImages) and images and inputs.shape[1] == 3:
        return arrays if train.size is None else resized(arrays, train.size, train.fit)
    if isinstance(train, Arrays) and inputs.ndim == train.inputs.ndim and inputs.shape[1] == train.inputs.shape[1]:
        return resized(arrays, train.inputs.shape[2:], "stretch") if images else arrays
    raise refuse(
        path,
        f"the open set must be of the kind of {data.name}, {_kind(train)}",
        f"{'images' if images else 'features'} {inputs.shape}",
        "store samples of the same kind, or hold out classes of the data",
    )


def _kind(split: Split) -> str:
    if isinstance(split, FileImages):
        return "images of three channels"
    if not isinstance(split, Arrays):
        return "texts"
    if split.inputs.ndim == 4:
        channels, height, width = split.inputs.shape[1:]
        return f"images of {channels} channel{'s' * (channels > 1)}, {height} x {width}"
    return f"{split.inputs.shape[1]} features"


def _no_labels(count: int, data: DataSet) -> NDArray[Any]:
    return np.full(count, data.ignore_index, np.int64)
