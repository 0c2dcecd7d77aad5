"""Image folders with one sub-folder per class, and list files with a path and a class index per line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from equipoise._suggestions import shortened, some
from equipoise._text_files import SAVE_AS_UTF8, encoding_of, no_text
from equipoise.data.errors import refuse
from equipoise.data.files import IMAGE_ENDINGS, Paths, path_array
from equipoise.data.source import (
    SPLITS,
    Options,
    Source,
    agree,
    check_files,
    image_files,
    in_order,
    need_train,
    numbered_names,
    one_for_each_split,
    settle_names,
    split_paths,
)
from equipoise.tasks import Task

__all__ = ["class_folders", "list_files", "read_image_folders", "read_lists"]


LONGEST_NUMBER = 18
"""Maximum digits of a class index, which an int64 can hold."""


def class_folders(folder: Path) -> list[Path]:
    """Sub-folders that can be classes."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith((".", "__")))


def read_image_folders(path: Path, options: Options) -> Source:
    """``root/<class>/*`` or ``root/{train,val,test}/<class>/*``; the classes of all splits together."""
    agree(path, Task.MULTICLASS, options.task)
    folders = split_paths(path)
    if "train" not in folders:
        folders = {"train": path}
    files = {split: [(own.name, image_files(own)) for own in class_folders(at)] for split, at in folders.items()}
    if not any(images for _, images in files["train"]):
        raise refuse(
            folders["train"],
            "there must be one folder of images per class",
            f"no image in {some(own.name for own in class_folders(folders['train'])) or 'the folder'}",
            "use the layout CLASS/picture.jpg",
        )
    names = settle_names(path, in_order(name for own in files.values() for name, _ in own), options.class_names)
    number = {name: index for index, name in enumerate(names)}
    splits, notes = {}, []
    for split, own in files.items():
        labels = np.array([number[name] for name, images in own for _ in images], np.int64)
        splits[split] = options.images((image for _, images in own for image in images), labels)
        loose = sum(file.suffix.lower() in IMAGE_ENDINGS for file in folders[split].iterdir() if file.is_file())
        if loose:
            notes.append(
                f"{loose} images beside the class folders of {folders[split]} belong to no class and are ignored."
            )
    return Source(Task.MULTICLASS, names, {name: own for name, own in splits.items() if len(own)}, notes=tuple(notes))


def list_files(folder: Path) -> dict[str, Path]:
    """``train.txt`` or ``NAME_train.txt`` and similar files."""
    named = {file: file.stem.lower().split("_")[-1] for file in sorted(folder.glob("*.txt"))}
    return one_for_each_split(folder, named, "list", "name one file alone")


def read_lists(path: Path, options: Options) -> Source:
    """Lines ``path label``; ``NAME_train.txt`` includes ``NAME_val.txt`` and ``NAME_test.txt``."""
    agree(path, Task.MULTICLASS, options.task)
    files = list_files(path) if path.is_dir() else _siblings(path)
    need_train(path, files)
    root = options.image_root or (path if path.is_dir() else path.parent)
    read = {split: _read_list(file, root) for split, file in files.items()}
    highest = {split: int(labels.max()) for split, (_, labels) in read.items()}
    names: tuple[str, ...] = ()
    for split, number in highest.items():
        names = max(names, numbered_names(files[split], number, options.class_names), key=len)
    return Source(Task.MULTICLASS, names, {split: options.images(*pair) for split, pair in read.items()})


def _siblings(file: Path) -> dict[str, Path]:
    start, _, word = file.stem.rpartition("_")
    if word.lower() not in SPLITS["train"]:
        return {"train": file}
    known = list_files(file.parent) if not start else {}
    for split, words in SPLITS.items() if start else ():
        for other in words:
            if (candidate := file.with_name(f"{start}_{other}{file.suffix}")).is_file():
                known.setdefault(split, candidate)
    return {**known, "train": file}


def _read_list(file: Path, root: Path) -> tuple[Paths, NDArray[np.int64]]:
    paths, labels = [], []
    try:
        lines = file.read_text(encoding=encoding_of(file)).splitlines()
    except UnicodeDecodeError:
        expected = "a list must be in UTF-8, or in UTF-16 with a byte order mark"
        raise refuse(file, expected, no_text(file) or "something else", SAVE_AS_UTF8) from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        path, _, label = line.strip().rpartition(" ")
        if not path or not label.isdecimal() or len(label) > LONGEST_NUMBER:
            raise refuse(
                f"{file}, line {number}",
                "a line must be a path, a space and a class index from 0",
                shortened(repr(line.strip())),
                "correct the line; class names need a CSV file",
            )
        paths.append(root / path.strip())
        labels.append(int(label))
    if not paths:
        raise refuse(file, "there must be at least one line", "an empty file", "fill it or remove it")
    array = path_array(paths)
    check_files(file, array)
    return array, np.array(labels, np.int64)
