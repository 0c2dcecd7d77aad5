"""Open Images as distributed: human-verified labels are positive or negative, all others are unknown."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from equipoise._reading import check_memory
from equipoise._suggestions import shortened, some
from equipoise.data.errors import DataError, refuse
from equipoise.data.files import path_array
from equipoise.data.source import SPLITS, Options, Source, agree, in_order, one_for_each_split, settle_names
from equipoise.tasks import Task

__all__ = ["open_images_files", "read_open_images"]

ENDING = "annotations-human-imagelabels.csv"
COLUMNS = ("ImageID", "LabelName", "Confidence")
UNKNOWN = -1


def open_images_files(folder: Path) -> dict[str, Path]:
    """The file of labels of each split: ``train-annotations-human-imagelabels.csv``, also with ``oidv6-`` before it."""
    named = {
        file: file.name.removesuffix(f"-{ENDING}").rpartition("-")[2] for file in sorted(folder.glob(f"*-{ENDING}"))
    }
    files = one_for_each_split(folder, named, "file of labels", "keep one")
    return files if "train" in files else {}


def read_open_images(path: Path, options: Options) -> Source:
    """``*train-annotations-human-imagelabels.csv``, ``*validation-...``, ``*test-...`` and images ``train/ID.jpg``.

    A confidence of 1 is a positive label, 0 a negative one; labels without verification are unknown (-1). Names come
    from ``*class-descriptions*.csv`` if it exists and they are unique. Images without a file are skipped, with a note.
    """
    agree(path, Task.MULTILABEL, options.task)
    files = open_images_files(path)
    images = {split: _images(path, split, options) for split in files}
    marks = {split: list(_marks(file)) for split, file in files.items()}
    described = _descriptions(path)
    identifiers = in_order(label for own in marks.values() for _, label, _ in own)
    called = [described.get(identifier, identifier) for identifier in identifiers]
    if len(set(called)) < len(called):
        called = list(identifiers)
    names = settle_names(path, called, options.class_names)
    column = {identifier: names.index(name) for identifier, name in zip(identifiers, called, strict=True)}
    splits, notes = {}, []
    for split, own in marks.items():
        listed = dict.fromkeys(image for image, _, _ in own)
        there = {image: row for row, image in enumerate(image for image in listed if image in images[split])}
        if not there:
            if split != "train":
                notes.append(f"No {split} image of {files[split].name} exists; the split was skipped.")
                continue
            raise refuse(
                files[split],
                "the listed images must exist",
                f"none in {(options.image_root or path) / 'train'}",
                "set image_root",
            )
        if len(there) < len(listed):
            notes.append(f"{len(listed) - len(there):,} of {len(listed):,} {split} images do not exist.")
        check_memory(files[split], "the labels", len(there) * len(names), DataError)
        labels = np.full((len(there), len(names)), UNKNOWN, np.int8)
        for image, label, positive in own:
            if image in there:
                labels[there[image], column[label]] = positive
        splits[split] = options.images(path_array(images[split][image] for image in there), labels)
    return Source(Task.MULTILABEL, names, splits, notes=tuple(notes))


def _images(path: Path, split: str, options: Options) -> dict[str, Path]:
    """Images of a split by their identifier."""
    root = options.image_root or path
    folders = [root / word for word in SPLITS[split] if (root / word).is_dir()]
    return {file.stem: file for folder in folders for file in folder.iterdir() if file.suffix.lower() == ".jpg"}


def _marks(file: Path) -> Iterator[tuple[str, str, int]]:
    """Image, label, and 1 or 0."""
    with file.open(encoding="utf-8", newline="") as lines:
        rows = csv.reader(lines)
        header = next(rows, [])
        missing = [name for name in COLUMNS if name not in header]
        if missing:
            raise refuse(
                file, f"there must be the columns {', '.join(COLUMNS)}", some(header) or "none", "download again"
            )
        image, label, confidence = (header.index(name) for name in COLUMNS)
        for number, row in enumerate(rows, start=2):
            if len(row) != len(header) or row[confidence] not in ("0", "1", "0.0", "1.0"):
                raise refuse(
                    f"{file}, line {number}",
                    "a line must have a confidence of 0 or 1",
                    shortened(repr(",".join(row))),
                    "use the human-verified labels",
                )
            yield row[image], row[label], int(row[confidence][0])


def _descriptions(path: Path) -> dict[str, str]:
    """Names of the labels by identifier (``/m/0cgh4``), from a file with or without a header."""
    file = next(iter(sorted(path.glob("*class-descriptions*.csv"))), None)
    if file is None:
        return {}
    with file.open(encoding="utf-8", newline="") as lines:
        return {row[0]: row[1] for row in csv.reader(lines) if len(row) > 1 and row[0] != "LabelName"}
