"""iNaturalist 2018: a JSON file in the form of COCO, with one category for each image."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.data.coco import categories_of, image_root_of, load_annotations
from equipoise.data.errors import refuse
from equipoise.data.files import FileImages, path_array
from equipoise.data.source import Options, Source, agree, check_files, need_train, one_for_each_split, settle_names

__all__ = ["inaturalist_files", "read_inaturalist"]

NAMED = re.compile(r"(train|val)\d{4}")


def inaturalist_files(path: Path) -> dict[str, Path]:
    """``train2018.json`` and ``val2018.json`` of a folder, or beside one of them; the test file has no labels."""
    if path.is_file() and not NAMED.fullmatch(path.stem):
        return {}
    folder = path if path.is_dir() else path.parent
    named = {file: match[1] for file in sorted(folder.glob("*.json")) if (match := NAMED.fullmatch(file.stem))}
    return one_for_each_split(folder, named, "file", "open one by its path")


def read_inaturalist(path: Path, options: Options) -> Source:
    """``train2018.json`` and ``val2018.json``; ``file_name`` starts in their folder. Classes in the order of ids."""
    agree(path, "single", options.task)
    files = inaturalist_files(path) or {"train": path}
    need_train(path, files)
    read = {split: load_annotations(file) for split, file in files.items()}
    categories = categories_of(files["train"], read["train"])
    for split, content in read.items():
        if categories_of(files[split], content) != categories:
            raise refuse(
                files[split], f"categories must be those of {files['train']}", "others", "use one list of them"
            )
    names = settle_names(path, tuple(categories.values()), options.class_names)
    number = {identifier: names.index(name) for identifier, name in categories.items()}
    return Source(
        "single", names, {split: _split(files[split], content, number, options) for split, content in read.items()}
    )


def _split(file: Path, content: dict[str, Any], number: dict[int, int], options: Options) -> FileImages:
    try:
        images = {entry["id"]: str(entry["file_name"]) for entry in content["images"]}
        marks = [(entry["image_id"], entry["category_id"]) for entry in content["annotations"]]
    except (KeyError, TypeError) as error:
        expected = "images must have id and file_name, annotations image_id and category_id"
        raise refuse(file, expected, f"{type(error).__name__}: {error}", "download it again") from None
    labels = dict(marks)
    odd = next((image for image in images if image not in labels), None)
    if len(labels) != len(marks) or odd is not None or not images:
        found = "several for one" if len(labels) != len(marks) else f"none for {odd}" if images else "no image"
        raise refuse(file, "every image must have one category", found, "pass task='multi' for several labels an image")
    unknown = next((category for category in labels.values() if category not in number), None)
    if unknown is not None:
        raise refuse(file, "every annotation must have one of the categories", f"category_id {unknown}", "add it")
    root = image_root_of(file, next(iter(images.values())), options.image_root)
    paths = path_array(root / name for name in images.values())
    check_files(file, paths)
    return options.images(paths, np.array([number[labels[image]] for image in images], np.int64))
