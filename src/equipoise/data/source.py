"""Input and output of the readers of all formats."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise._suggestions import nearest, shortened, some
from equipoise.data.arrays import Split
from equipoise.data.errors import refuse
from equipoise.data.files import IMAGE_ENDINGS, FileImages, Fit, Paths, Progress, Size, path_array
from equipoise.tasks import Task

__all__ = ["SPLITS", "Options", "Source"]

SPLITS: Mapping[str, tuple[str, ...]] = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}
"""The splits and the names of their files and folders."""
MOST_CLASSES = 1_000_000
MOST_CLASSES_OF_MAPS = 10_000
"""Maximum number of classes given as indices: the largest index determines it, and the memory."""


@dataclass(frozen=True)
class Options:
    """Settings by the user; None for the default."""

    task: Task | None = None
    image_size: Size | None = None
    fit: Fit = "stretch"
    class_names: tuple[str, ...] | None = None
    ignore_index: int | None = None
    label_column: str | tuple[str, ...] | None = None
    path_column: str | None = None
    text_column: str | None = None
    split_column: str | None = None
    separator: str | None = None
    image_root: Path | None = None
    progress: Progress | None = None
    skip_bad_images: bool = False
    check_images: bool = True

    def images(self, paths: Iterable[str | Path] | Paths, labels: NDArray[Any]) -> FileImages:
        """A split of image files."""
        array = paths if isinstance(paths, np.ndarray) else path_array(paths)
        return FileImages(array, labels, self.image_size, self.fit)


@dataclass(frozen=True)
class Source:
    """The data on disk: the existing splits, ``train`` always among them."""

    task: Task
    class_names: tuple[str, ...]
    splits: Mapping[str, Split]
    ignore_index: int = -100
    notes: tuple[str, ...] = ()


def agree(where: Path, declared: Task, wanted: Task | None) -> Task:
    """The task of the data; raise if another was requested."""
    if wanted is not None and wanted != declared:
        raise refuse(
            where, f"data for task {wanted!r} were requested", f"data for {declared!r}", f"pass task={declared!r}"
        )
    return declared


def note_of_bad_images(where: Path, files: Sequence[str | Path], images: int, skip: bool) -> str:
    """A note on skipped image files, which cannot be decoded; raise where they are not to be skipped."""
    paths = [Path(file) for file in files]
    names = some(file.relative_to(where) if file.is_relative_to(where) else file for file in paths)
    counted = f"{len(paths):,} of {images:,}"
    if not skip:
        raise refuse(
            where,
            "every image must be one that can be decoded",
            f"{counted} that cannot be: {names}",
            "replace or remove them, or skip them with skip_bad_images (--skip-bad-images)",
        )
    return f"Skipped {counted} images, which cannot be decoded: {names}."


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Unique class names: sorted numerically if all are integers, otherwise alphabetically.

    >>> in_order(["10", "9", "10"]), in_order(["b", "a", "10", "9"])
    (('9', '10'), ('10', '9', 'a', 'b'))
    """
    unique = set(names)
    numbers = all(re.fullmatch(r"-?\d{1,1000}", name) for name in unique)  # Python refuses to read longer ones
    return tuple(sorted(unique, key=lambda name: (int(name), name)) if numbers else sorted(unique))


def settle_names(where: Path, actual: Sequence[str], wanted: tuple[str, ...] | None) -> tuple[str, ...]:
    """The classes: those in the data, or the requested ones in order, which must include them all."""
    if wanted is None:
        return tuple(actual)
    for name in actual:
        if name not in wanted:
            raise refuse(
                where,
                f"every class must be among class_names ({some(wanted)})",
                repr(name),
                f"add it or remove its samples; {nearest(name, wanted)}",
            )
    return wanted


def numbered_names(
    where: Path, highest: int, wanted: tuple[str, ...] | None, most: int = MOST_CLASSES
) -> tuple[str, ...]:
    """Names of classes given as indices: the requested names, or the indices, at most ``most``."""
    if wanted is None:
        if highest >= most:
            raise refuse(
                where,
                f"labels must be class indices from 0 to at most {most - 1}",
                shortened(str(highest)),
                "number the classes without gaps: np.unique(labels, return_inverse=True)",
            )
        return tuple(str(number) for number in range(highest + 1))
    if highest >= len(wanted):
        raise refuse(
            where,
            f"labels must be classes from 0 to {len(wanted) - 1}, since there are {len(wanted)} class names",
            shortened(str(highest)),
            "name all classes or correct the label",
        )
    return wanted


def without_ignored(names: tuple[str, ...], ignore_index: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Class names without the ignored one, if it is the last and no index changes; and a note."""
    if len(names) < 2 or ignore_index != len(names) - 1:
        return names, ()
    return names[:-1], (
        f"{names[-1]} is the ignored label {ignore_index} and not a class: {len(names) - 1} classes remain.",
    )


def split_paths(folder: Path, *, ending: str = "") -> dict[str, Path]:
    """Files or sub-folders named after splits."""
    paths: dict[str, Path] = {}
    for split, words in SPLITS.items():
        there = [path for word in words if (path := folder / f"{word}{ending}").exists()]
        if len(there) > 1:
            raise refuse(folder, f"there must be one {split} split", some(p.name for p in there), "remove one of them")
        if there:
            paths[split] = there[0]
    return paths


def one_for_each_split(folder: Path, named: Mapping[Path, str], what: str, advice: str) -> dict[str, Path]:
    """The file of each split by its name; raise if there are several."""
    paths: dict[str, Path] = {}
    for split, words in SPLITS.items():
        there = [file for file, word in named.items() if word in words]
        if len(there) > 1:
            names = some(file.name for file in there)
            raise refuse(folder, f"there must be one {what} of the {split} split", names, advice)
        if there:
            paths[split] = there[0]
    return paths


def need_train(where: Path, splits: Mapping[str, Any]) -> None:
    """Raise unless there is a training split."""
    if "train" not in splits:
        raise refuse(where, "there must be a train split", some(splits) or "none", "call the training data train")


def image_files(folder: Path) -> list[Path]:
    """Image files below a folder by suffix, sorted by name."""
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in IMAGE_ENDINGS and not path.name.startswith(".") and path.is_file()
    )


def check_files(where: Path, paths: Paths) -> None:
    """Raise unless all files exist."""
    missing = [str(path) for path in paths if not Path(path).is_file()]
    if missing:
        raise refuse(
            where,
            "every listed file must exist",
            f"{len(missing)} of {len(paths)} missing, e.g. {missing[0]}",
            "check the paths, or set image_root to the folder they are relative to",
        )
