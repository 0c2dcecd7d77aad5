"""COCO annotations as multi-label data: the categories in an image, including crowds."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from equipoise._reading import read_json
from equipoise._suggestions import some
from equipoise.data.errors import DataError, refuse
from equipoise.data.files import FileImages, Paths, path_array
from equipoise.data.source import Options, Source, agree, check_files, need_train, one_for_each_split, settle_names
from equipoise.tasks import Task

__all__ = ["Annotations", "annotation_files", "image_paths", "read_annotations", "read_coco"]

PREFIX = "instances_"


def annotation_files(folder: Path) -> dict[str, Path]:
    """``annotations/instances_train2017.json`` and similar files."""
    named = {
        file: file.stem.removeprefix(PREFIX).rstrip("0123456789-_").lower()
        for file in sorted((folder / "annotations").glob(f"{PREFIX}*.json"))
    }
    return one_for_each_split(folder, named, "file", "open one by its path")


def read_coco(path: Path, options: Options) -> Source:
    """One JSON file, or a folder with ``annotations/instances_*.json``. Classes are in the order of category ids."""
    agree(path, Task.MULTILABEL, options.task)
    files = annotation_files(path) if path.is_dir() else {"train": path}
    need_train(path, files)
    contents, names, column = read_annotations(path, files, options)
    splits = {split: _split(files[split], own, column, len(names), options) for split, own in contents.items()}
    notes = []
    for split, images in splits.items():
        without = int((images.labels == 0).all(1).sum())
        if without:
            notes.append(
                f"{without} of {len(images)} {split} images have no annotation: all their labels are negative."
            )
    return Source(Task.MULTILABEL, names, splits, notes=tuple(notes))


@dataclass(frozen=True)
class Annotations:
    """What is read of an annotation file.

    Args:
        images: file names by id.
        categories: names by id, in the order of the ids.
        pairs: ids of image and category of each annotation.
    """

    images: dict[Hashable, str]
    categories: dict[int, str]
    pairs: list[tuple[Hashable, Hashable]]

    @classmethod
    def read(cls, file: Path) -> Annotations:
        """Read and check a file."""
        content = read_json(file, error=DataError)
        needed = ("images", "annotations", "categories")
        if not isinstance(content, dict) or any(not isinstance(content.get(key), list) for key in needed):
            keys = some(content) if isinstance(content, dict) else type(content).__name__
            raise refuse(
                file,
                "there must be the lists images, annotations and categories",
                keys or "nothing",
                "use the COCO format",
            )
        listed_images, annotations, listed_categories = (content[key] for key in needed)
        try:
            categories = dict(sorted((int(entry["id"]), str(entry["name"])) for entry in listed_categories))
        except (KeyError, TypeError, ValueError) as error:
            raise refuse(file, "every category must have a number id and a name", repr(error), "correct it") from None
        if not categories or len(set(categories.values())) < len(listed_categories):
            raise refuse(
                file,
                "there must be categories, each with an id and a name of its own",
                some(categories.values()) or "none",
                "rename those that occur twice",
            )
        try:
            images = {entry["id"]: str(entry["file_name"]) for entry in listed_images}
            pairs = [(entry["image_id"], entry["category_id"]) for entry in annotations]
        except (KeyError, TypeError) as error:
            raise refuse(
                file,
                "images must have id and file_name, annotations image_id and category_id",
                f"{type(error).__name__}: {error}",
                "use the COCO format",
            ) from None
        if not images or len(images) < len(listed_images):
            problem = "one id twice" if images else "none"
            raise refuse(file, "there must be images, each with an id of its own", problem, "check what wrote the file")
        return cls(images, categories, pairs)


def _split(
    file: Path, annotations: Annotations, column: Mapping[Hashable, int], classes: int, options: Options
) -> FileImages:
    images = annotations.images
    row = {image: number for number, image in enumerate(images)}
    labels = np.zeros((len(images), classes), np.int8)
    for image, category in annotations.pairs:
        if image not in row:
            raise refuse(file, "every annotation must belong to an image of the list", f"image_id {image}", "add it")
        if category not in column:
            raise refuse(
                file,
                "every annotation must have one of the categories",
                f"category_id {category} in image {images[image]}",
                "add the category or remove the annotation",
            )
        labels[row[image], column[category]] = 1
    return options.images(image_paths(file, images, options), labels)


def image_paths(file: Path, images: Mapping[Hashable, str], options: Options) -> Paths:
    """Paths of the listed images, which must exist."""
    root = image_root_of(file, next(iter(images.values())), options.image_root)
    paths = path_array(root / name for name in images.values())
    check_files(file, paths)
    return paths


def read_annotations(
    path: Path, files: Mapping[str, Path], options: Options
) -> tuple[dict[str, Annotations], tuple[str, ...], dict[Hashable, int]]:
    """The files of all splits, which share their categories; the class names, and the class of each category id."""
    contents = {split: Annotations.read(file) for split, file in files.items()}
    categories = contents["train"].categories
    for split, content in contents.items():
        if content.categories != categories:
            raise refuse(
                files[split], f"categories must be those of {files['train']}", "others", "use one list of categories"
            )
    names = settle_names(path, tuple(categories.values()), options.class_names)
    return contents, names, {number: names.index(name) for number, name in categories.items()}


def image_root_of(file: Path, first: str, given: Path | None) -> Path:
    """The folder that file names are relative to: the first of the usual folders that contains the first image."""
    tail, above = file.stem.removeprefix(PREFIX), file.parent.parent
    usual = [file.parent, file.parent / "images", above / tail, above / "images", above / "images" / tail]
    candidates = usual if given is None else [given, given / tail]
    root = next((folder for folder in candidates if (folder / first).is_file()), None)
    if root is None:
        raise refuse(
            file,
            f"the image {first} must be in one of {some(candidates)}",
            "no such file",
            "set image_root to the folder that the names are relative to",
        )
    return root
