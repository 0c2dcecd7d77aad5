"""NUS-WIDE as distributed: lists of images, and one file of 0 and 1 for each concept."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from equipoise._suggestions import some
from equipoise.data.errors import refuse
from equipoise.data.files import path_array
from equipoise.data.source import Options, Source, agree, settle_names
from equipoise.tasks import Task

__all__ = ["is_nus_wide", "read_nus_wide"]

SPLITS = {"train": "Train", "test": "Test"}
TRUTH = Path("Groundtruth") / "TrainTestLabels"


def is_nus_wide(folder: Path) -> bool:
    """Whether a folder holds the lists and labels of NUS-WIDE."""
    return (folder / "ImageList").is_dir() and (folder / TRUTH).is_dir()


def read_nus_wide(path: Path, options: Options) -> Source:
    r"""``ImageList/TrainImagelist.txt`` and ``Groundtruth/TrainTestLabels/Labels_CONCEPT_Train.txt``, line by line.

    The paths (``actor\0001_2124494179.jpg``) start in ``Flickr``, ``images`` or the folder itself. Images without
    a file, which may no longer be available for download, are skipped with a note.
    """
    agree(path, Task.MULTILABEL, options.task)
    concepts = sorted(
        file.name.removeprefix("Labels_").removesuffix("_Train.txt")
        for file in (path / TRUTH).glob("Labels_*_Train.txt")
    )
    if not concepts:
        raise refuse(path / TRUTH, "there must be files Labels_CONCEPT_Train.txt", "none", "unpack Groundtruth.zip")
    names = settle_names(path / TRUTH, concepts, options.class_names)
    root = options.image_root or next(
        (folder for folder in (path / "Flickr", path / "images") if folder.is_dir()), path
    )
    splits, notes = {}, []
    for split, word in SPLITS.items():
        file = path / "ImageList" / f"{word}Imagelist.txt"
        if split == "test" and not file.is_file():
            continue
        paths = [root.joinpath(*line.strip().replace("\\", "/").split("/")) for line in _lines(file)]
        labels = np.zeros((len(paths), len(names)), np.int8)
        for concept in concepts:
            labels[:, names.index(concept)] = _column(path / TRUTH / f"Labels_{concept}_{word}.txt", len(paths))
        there = np.flatnonzero([image.is_file() for image in paths])
        if not len(there):
            raise refuse(
                file,
                "the listed images must exist",
                f"none, e.g. {paths[0] if paths else 'an empty list'}",
                "set image_root",
            )
        if len(there) < len(paths):
            lost = next(str(image) for image in paths if not image.is_file())
            notes.append(f"{len(paths) - len(there):,} of {len(paths):,} {split} images do not exist, e.g. {lost}.")
        splits[split] = options.images(path_array(paths[i] for i in there), labels[there])
    return Source(Task.MULTILABEL, names, splits, notes=tuple(notes))


def _lines(file: Path) -> list[str]:
    return [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def _column(file: Path, count: int) -> NDArray[np.int8]:
    values: Iterable[str] = [line.strip() for line in _lines(file)]
    wrong = sorted(set(values) - {"0", "1"})
    if wrong:
        raise refuse(file, "every line must be 0 or 1", some(wrong, 3), "unpack Groundtruth.zip again")
    column = np.array([value == "1" for value in values], np.int8)
    if len(column) != count:
        raise refuse(file, f"there must be a line for each of the {count} images", str(len(column)), "unpack it again")
    return column
