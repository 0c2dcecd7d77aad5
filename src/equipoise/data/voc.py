"""Image-level labels of PASCAL VOC: positive, negative, or unknown if all objects of the class are difficult."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from equipoise._suggestions import nearest, shortened
from equipoise.data.errors import refuse
from equipoise.data.files import path_array
from equipoise.data.segmentation import VOC_CLASSES
from equipoise.data.source import Options, Source, agree, check_files, need_train, settle_names, split_paths
from equipoise.tasks import Task

__all__ = ["read_voc_labels"]

CLASSES = VOC_CLASSES[1:]
UNKNOWN = -1


def read_voc_labels(path: Path, options: Options) -> Source:
    """``ImageSets/Main/CLASS_train.txt`` with lines of image and -1, 0 or 1, or ``Annotations/IMAGE.xml``.

    1 is a positive label, -1 a negative one and 0 (all objects of the class are difficult) unknown. The splits are
    those of ``ImageSets/Main``; without lists of classes, labels come from the annotations.
    """
    agree(path, Task.MULTILABEL, options.task)
    main = path / "ImageSets" / "Main"
    lists = split_paths(main, ending=".txt")
    need_train(main, lists)
    names = settle_names(path, CLASSES, options.class_names)
    splits, notes = {}, []
    for split, file in lists.items():
        stems = [line.split()[0] for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        labels = _labels(path, file.stem, stems)
        if labels is None and split == "test":  # published for 2007 alone
            notes.append(f"{file} has no labels and was skipped.")
            continue
        if labels is None or not stems:
            expected = f"there must be {main / f'aeroplane_{file.stem}.txt'} or annotations of the images"
            raise refuse(file, expected, "neither" if stems else "an empty list", "unpack the archive again")
        images = path_array(path / "JPEGImages" / f"{stem}.jpg" for stem in stems)
        check_files(file, images)
        ordered = np.zeros((len(stems), len(names)), np.int8)
        ordered[:, [names.index(name) for name in CLASSES]] = labels
        splits[split] = options.images(images, ordered)
    return Source(Task.MULTILABEL, names, splits, notes=tuple(notes))


def _labels(path: Path, word: str, stems: list[str]) -> NDArray[np.int8] | None:
    """(N, 20), or None without lists of classes and annotations."""
    files = [path / "ImageSets" / "Main" / f"{name}_{word}.txt" for name in CLASSES]
    if all(file.is_file() for file in files):
        columns = [_column(file, stems) for file in files]
        return np.stack(columns, axis=1)
    annotations = [path / "Annotations" / f"{stem}.xml" for stem in stems]
    if not any(file.is_file() for file in annotations):
        return None
    return np.stack([_objects(file) for file in annotations])


def _column(file: Path, stems: list[str]) -> NDArray[np.int8]:
    states = {"1": 1, "-1": 0, "0": UNKNOWN}
    state_of = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        fields = line.split()
        if not fields:
            continue
        if len(fields) != 2 or fields[1] not in states:
            raise refuse(
                f"{file}, line {number}",
                "a line must be an image and -1, 0 or 1",
                shortened(repr(line)),
                "unpack the archive again",
            )
        state_of[fields[0]] = states[fields[1]]
    missing = next((stem for stem in stems if stem not in state_of), None)
    if missing is not None:
        raise refuse(file, "there must be a line for every image", f"none for {missing}", "unpack the archive again")
    return np.array([state_of[stem] for stem in stems], np.int8)


def _objects(file: Path) -> NDArray[np.int8]:
    """Labels of one image from its objects."""
    text = file.read_text(encoding="utf-8")
    if "<!DOCTYPE" in text or "<!ENTITY" in text:  # entities can expand without limit
        raise refuse(file, "an annotation must be plain XML", "a document type", "use the annotations of VOC")
    labels = np.zeros(len(CLASSES), np.int8)
    for entry in ElementTree.fromstring(text).iter("object"):
        name, difficult = entry.findtext("name", "").strip(), entry.findtext("difficult", "0").strip()
        if name not in CLASSES:
            raise refuse(file, "every object must be of one of the 20 classes", repr(name), nearest(name, CLASSES))
        column = CLASSES.index(name)
        if difficult != "1":
            labels[column] = 1
        elif labels[column] == 0:
            labels[column] = UNKNOWN
    return labels
