"""Tiny-ImageNet as distributed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from equipoise._suggestions import shortened
from equipoise.data.errors import refuse
from equipoise.data.files import path_array
from equipoise.data.source import Options, Source, agree, check_files, image_files, settle_names
from equipoise.tasks import Task

__all__ = ["is_tiny_imagenet", "read_tiny_imagenet"]

ANNOTATIONS = Path("val") / "val_annotations.txt"


def is_tiny_imagenet(folder: Path) -> bool:
    """Whether a folder is ``tiny-imagenet-200``."""
    return (folder / "wnids.txt").is_file() and (folder / "train").is_dir()


def read_tiny_imagenet(path: Path, options: Options) -> Source:
    """``wnids.txt``, ``train/WNID/images/*.JPEG``, ``val/images/*.JPEG`` with ``val/val_annotations.txt``.

    The classes are in the order of ``wnids.txt``. The test images have no public labels.
    """
    agree(path, Task.MULTICLASS, options.task)
    wnids = (path / "wnids.txt").read_text(encoding="utf-8").split()
    names = settle_names(path / "wnids.txt", wnids, options.class_names)
    number = {name: index for index, name in enumerate(names)}
    train = [(image, number[wnid]) for wnid in wnids for image in image_files(path / "train" / wnid)]
    if not train:
        raise refuse(path / "train", "there must be images in WNID/images", "none", "unpack the archive again")
    labelled = {"train": train}
    if (path / ANNOTATIONS).is_file():
        labelled["val"] = _validation(path / ANNOTATIONS, number)
    splits = {}
    for split, pairs in labelled.items():
        paths = path_array(image for image, _ in pairs)
        if split == "val":
            check_files(path / ANNOTATIONS, paths)
        splits[split] = options.images(paths, np.array([label for _, label in pairs], np.int64))
    notes = ("The test images have no public labels and were skipped.",) if (path / "test").is_dir() else ()
    return Source(Task.MULTICLASS, names, splits, notes=notes)


def _validation(file: Path, number: dict[str, int]) -> list[tuple[Path, int]]:
    pairs = []
    for row, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        image, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if wnid not in number:
            raise refuse(
                f"{file}, line {row}",
                "a line must be an image and one of the classes of wnids.txt, separated by a tab",
                shortened(repr(line)),
                "unpack the archive again",
            )
        pairs.append((file.parent / "images" / image, number[wnid]))
    if not pairs:
        raise refuse(file, "there must be at least one line", "an empty file", "unpack the archive again")
    return pairs
