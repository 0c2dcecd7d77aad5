"""iNaturalist 2018: a JSON file in the form of COCO, with one category per image."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from pathlib import Path

import numpy as np

from equipoise.data.coco import Annotations, image_paths, read_annotations
from equipoise.data.errors import refuse
from equipoise.data.files import FileImages
from equipoise.data.source import Options, Source, agree, need_train, one_for_each_split
from equipoise.tasks import Task

__all__ = ["inaturalist_files", "read_inaturalist"]

NAMED = re.compile(r"(train|val)\d{4}")


def inaturalist_files(path: Path) -> dict[str, Path]:
    """``train2018.json`` and ``val2018.json`` of a folder, or next to one of them; the test file has no labels."""
    if path.is_file() and not NAMED.fullmatch(path.stem):
        return {}
    folder = path if path.is_dir() else path.parent
    named = {file: match[1] for file in sorted(folder.glob("*.json")) if (match := NAMED.fullmatch(file.stem))}
    return one_for_each_split(folder, named, "file", "open one by its path")


def read_inaturalist(path: Path, options: Options) -> Source:
    """``train2018.json`` and ``val2018.json``; ``file_name`` starts in their folder. Classes in the order of ids."""
    agree(path, Task.MULTICLASS, options.task)
    files = inaturalist_files(path) or {"train": path}
    need_train(path, files)
    contents, names, number = read_annotations(path, files, options)
    splits = {split: _split(files[split], content, number, options) for split, content in contents.items()}
    return Source(Task.MULTICLASS, names, splits)


def _split(file: Path, content: Annotations, number: Mapping[Hashable, int], options: Options) -> FileImages:
    images, pairs = content.images, content.pairs
    labels = dict(pairs)
    odd = next((image for image in images if image not in labels), None)
    if len(labels) != len(pairs) or odd is not None:
        actual = "several for one" if len(labels) != len(pairs) else f"none for {odd}"
        raise refuse(
            file, "every image must have one category", actual, "pass task='multilabel' and the file, not its folder"
        )
    unknown = next((category for category in labels.values() if category not in number), None)
    if unknown is not None:
        raise refuse(file, "every annotation must have one of the categories", f"category_id {unknown}", "add it")
    return options.images(
        image_paths(file, images, options), np.array([number[labels[image]] for image in images], np.int64)
    )
