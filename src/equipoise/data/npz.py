"""Arrays in ``train.npz``, ``val.npz`` and ``test.npz``. Pickled objects are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise._reading import read_arrays
from equipoise._suggestions import nearest, some
from equipoise.data.arrays import Arrays
from equipoise.data.errors import DataError, refuse
from equipoise.data.source import (
    MOST_CLASSES,
    MOST_CLASSES_OF_MAPS,
    Options,
    Source,
    agree,
    need_train,
    numbered_names,
    split_paths,
)
from equipoise.tasks import Task

__all__ = ["read_inputs", "read_npz"]

ENTRIES = ("images", "features", "labels", "layout", "class_names")
TASK_OF: dict[int, Task] = {1: Task.MULTICLASS, 2: Task.MULTILABEL, 3: Task.SEGMENTATION}
"""The task by the number of dimensions of the labels."""


def read_npz(path: Path, options: Options) -> Source:
    """A folder with ``train.npz``, or a single file."""
    files = split_paths(path, ending=".npz") if path.is_dir() else {"train": path}
    need_train(path, files)
    splits: dict[str, Arrays] = {}
    names: dict[str, tuple[str, ...]] = {}
    for split, file in files.items():
        splits[split], note = _read(file)
        if note is not None:
            names[split] = note
    if len(set(names.values())) > 1:
        raise refuse(
            path, "class_names must be the same in all splits", some(files[s].name for s in names), "write them again"
        )
    train = splits["train"]
    task = agree(path, TASK_OF[train.labels.ndim], options.task)
    for split, arrays in splits.items():
        _check_alike(files[split], arrays, train)
    wanted = options.class_names or next(iter(names.values()), None)
    ignore_index = -100 if options.ignore_index is None else options.ignore_index
    if task.multilabel:
        class_names = _label_names(files["train"], train.labels.shape[1], wanted)
    else:
        class_names = ()
        for split, arrays in splits.items():
            valid = arrays.labels[arrays.labels != ignore_index]
            if len(valid) and valid.min() < 0:
                raise refuse(
                    files[split],
                    f"labels must be class indices from 0, or the ignored {ignore_index}",
                    str(valid.min()),
                    "correct the labels, or set ignore_index",
                )
            highest = int(valid.max()) if len(valid) else -1
            most = MOST_CLASSES_OF_MAPS if task.pixels else MOST_CLASSES
            numbered = numbered_names(files[split], highest, wanted, most)
            class_names = max(class_names, numbered, key=len)
    return Source(task, class_names, splits, ignore_index)


def read_inputs(file: Path) -> NDArray[Any]:
    """Images (N, c, H, W) as uint8 or features (N, D) as float32 of an ``.npz``, ignoring its labels."""
    values = _values(file, _entries(file, ENTRIES[:2]))
    if not len(values):
        raise refuse(file, "there must be at least one sample", "none", "fill it")
    return values


def _entries(file: Path, needed: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """The arrays by name; one kind of input is required."""
    given, names = read_arrays(file, (*needed, "layout", "class_names"), error=DataError)
    others = [name for name in names if name not in ENTRIES]
    inputs = [name for name in ("images", "features") if name in given]
    if len(inputs) != 1 or ("labels" in needed and "labels" not in given):
        hint = nearest(others[0], ENTRIES) if others else "add what is missing"
        raise refuse(
            file,
            "there must be an array images or features (one of them)" + " and an array labels" * ("labels" in needed),
            some([*given, *others]) or "nothing",
            hint,
        )
    return given


def _values(file: Path, given: dict[str, NDArray[Any]]) -> NDArray[Any]:
    if "images" in given:
        return _images(file, given["images"], given.get("layout"))
    return _features(file, given["features"])


def _read(file: Path) -> tuple[Arrays, tuple[str, ...] | None]:
    given = _entries(file, ENTRIES[:3])
    values = _values(file, given)
    labels = _labels(file, given["labels"])
    if len(values) != len(labels):
        raise refuse(
            file,
            f"the number of labels must equal that of the {'images' if 'images' in given else 'features'}",
            f"{len(labels)} and {len(values)}",
            "check what wrote the file",
        )
    if not len(labels):
        raise refuse(file, "there must be at least one sample", "none", "remove the file or fill it")
    if labels.ndim == 3 and (values.ndim != 4 or labels.shape[1:] != values.shape[2:]):
        raise refuse(
            file,
            f"label maps must have the size of the images, {values.shape[2:]}",
            f"{labels.shape[1:]}",
            "create the maps from the images, without scaling",
        )
    names = given.get("class_names")
    if names is not None and (names.ndim != 1 or names.dtype.kind != "U"):
        raise refuse(
            file,
            "class_names must be a vector of strings",
            f"{names.dtype} of shape {names.shape}",
            "store np.array(['cat', 'dog'])",
        )
    return Arrays(values, labels), None if names is None else tuple(map(str, names))


def _images(file: Path, images: NDArray[Any], layout: NDArray[Any] | None) -> NDArray[np.uint8]:
    """(N, c, H, W), by the entry ``layout``, nhwc by default."""
    order = "nhwc" if layout is None else str(layout).lower()
    if order not in ("nhwc", "nchw"):
        raise refuse(file, 'layout must be "nhwc" or "nchw"', repr(order), "correct it")
    if images.dtype != np.uint8 or images.ndim != 4:
        raise refuse(
            file,
            "images must be uint8 with four dimensions, (N, height, width, channels)",
            f"{images.dtype} of shape {images.shape}",
            "store values from 0 to 255 as uint8, grey images with one channel: images[..., None]",
        )
    if order == "nchw":
        return images
    if images.shape[3] > 4 >= images.shape[1]:
        raise refuse(
            file,
            "images must be (N, height, width, channels), the default layout",
            f"shape {images.shape}",
            'store layout="nchw" beside them if the channels come first',
        )
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))


def _features(file: Path, features: NDArray[Any]) -> NDArray[np.float32]:
    if features.ndim != 2 or features.dtype.kind not in "fiu":
        raise refuse(
            file,
            "features must be numeric (N, D)",
            f"{features.dtype} of shape {features.shape}",
            "store a float32 matrix",
        )
    values = features.astype(np.float32)
    if not np.isfinite(values).all():
        row = int(np.argwhere(~np.isfinite(values))[0][0])
        raise refuse(file, "features must be finite", f"{features[row].tolist()[:4]} in row {row}", "fill or drop it")
    return values


def _labels(file: Path, labels: NDArray[Any]) -> NDArray[Any]:
    if labels.dtype.kind == "f":
        wrong = ~np.isfinite(labels) | (labels != np.round(labels))
        if wrong.any():
            raise refuse(
                file,
                "labels must be classes: integers from 0, or 0, 1 and -1 (unknown) for multi-label data",
                f"{labels[wrong][0]} among {len(np.unique(labels)):,} different numbers",
                "convert measurements to classes first (np.digitize), and drop samples without a label",
            )
        labels = labels.astype(np.int64)
    if labels.dtype.kind not in "iub":
        raise refuse(
            file,
            "labels must be integers: class indices from 0",
            f"{labels.dtype}, e.g. {labels.ravel()[0] if labels.size else 'nothing'}",
            "number the classes and store their names as class_names",
        )
    if labels.ndim not in TASK_OF:
        raise refuse(
            file,
            "labels must be (N,) classes, (N, L) of 0 and 1 for multi-label data, or (N, H, W) for segmentation",
            f"shape {labels.shape}",
            "reshape them",
        )
    if labels.ndim == 1:
        return labels.clip(max=2**63 - 1).astype(np.int64)  # unsigned values would become negative
    if labels.ndim == 2:
        wrong = (labels != 0) & (labels != 1) & (labels.astype(np.int64) != -1)
        if wrong.any():
            raise refuse(
                file,
                "multi-label targets must be 0, 1 or -1 (unknown)",
                f"{labels[wrong][0]} in row {int(np.argwhere(wrong)[0][0])}",
                "store class indices as (N,)",
            )
        return labels.astype(np.int8)
    return labels  # maps keep their dtype: they are large


def _check_alike(file: Path, arrays: Arrays, train: Arrays) -> None:
    """Raise unless a split has the shapes of the training split."""
    pairs = [("inputs", arrays.inputs, train.inputs), ("labels", arrays.labels, train.labels)]
    for name, actual, expected in pairs:
        if actual.shape[1:] != expected.shape[1:]:
            raise refuse(
                file,
                f"{name} must have the shape of the training data, (N, {', '.join(map(str, expected.shape[1:]))})",
                f"{actual.shape}",
                "use the same shape in all splits",
            )


def _label_names(path: Path, count: int, wanted: tuple[str, ...] | None) -> tuple[str, ...]:
    if wanted is None:
        return tuple(map(str, range(count)))
    if len(wanted) != count:
        raise refuse(
            path,
            f"there must be a name for each of the {count} labels",
            f"{len(wanted)} class names",
            "name all of them",
        )
    return wanted
