"""Images with masks: plain folders, the Cityscapes layout and the VOC layout.

Masks are read once when the data are opened, to check their values and count their pixels, which are used for splits
and class weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from equipoise._suggestions import some
from equipoise.data.errors import UndecodableError, refuse
from equipoise.data.files import Colours, FileImages, Masks, in_threads, mask_histogram, path_array
from equipoise.data.source import (
    MOST_CLASSES_OF_MAPS,
    Options,
    Source,
    agree,
    image_files,
    need_train,
    note_of_bad_images,
    numbered_names,
    split_paths,
    without_ignored,
)
from equipoise.tasks import Task

__all__ = ["mask_folders", "masked_source", "pairs_by_stem", "read_cityscapes", "read_mask_folders", "read_voc"]

IGNORED = 255
"""Default value of pixels without a class."""

VOC_CLASSES = (
    "background",
    "aeroplane",
    "bicycle",
    "bird",
    "boat",
    "bottle",
    "bus",
    "car",
    "cat",
    "chair",
    "cow",
    "diningtable",
    "dog",
    "horse",
    "motorbike",
    "person",
    "pottedplant",
    "sheep",
    "sofa",
    "train",
    "tvmonitor",
)
CITYSCAPES = {
    "road": 7,
    "sidewalk": 8,
    "building": 11,
    "wall": 12,
    "fence": 13,
    "pole": 17,
    "traffic light": 19,
    "traffic sign": 20,
    "vegetation": 21,
    "terrain": 22,
    "sky": 23,
    "person": 24,
    "rider": 25,
    "car": 26,
    "truck": 27,
    "bus": 28,
    "train": 31,
    "motorcycle": 32,
    "bicycle": 33,
}
"""The 19 classes that are evaluated, in the order of their train ids, with the ids of ``labelIds`` files."""

Pairs = list[tuple[Path, Path]]
Histogram = tuple[NDArray[np.int64], NDArray[np.int64]]


def mask_folders(path: Path) -> dict[str, tuple[Path, Path]]:
    """Folders of images and of masks: ``images`` and ``masks``, split inside them, outside them or not at all."""
    images, masks = path / "images", path / "masks"
    if images.is_dir() and masks.is_dir():
        inside = split_paths(images)
        if "train" not in inside:
            return {"train": (images, masks)}
        return {split: (folder, masks / folder.name) for split, folder in inside.items()}
    outside = {split: (folder / "images", folder / "masks") for split, folder in split_paths(path).items()}
    return {split: pair for split, pair in outside.items() if pair[0].is_dir() and pair[1].is_dir()}


def read_mask_folders(path: Path, options: Options) -> Source:
    """``images/*`` and ``masks/*`` with the same stems."""
    folders = mask_folders(path)
    need_train(path, folders)
    notes: list[str] = []
    pairs = {split: pairs_by_stem(*pair, notes) for split, pair in folders.items()}
    return masked_source(path, pairs, options, None, notes=notes)


def read_voc(path: Path, options: Options) -> Source:
    """``JPEGImages``, ``SegmentationClass`` and ``ImageSets/Segmentation/{train,val,test}.txt``."""
    lists = split_paths(path / "ImageSets" / "Segmentation", ending=".txt")
    need_train(path / "ImageSets" / "Segmentation", lists)
    notes: list[str] = []
    pairs: dict[str, Pairs] = {}
    for split, file in lists.items():
        stems = file.read_text(encoding="utf-8").split()
        own = [(path / "JPEGImages" / f"{stem}.jpg", path / "SegmentationClass" / f"{stem}.png") for stem in stems]
        if split == "test" and own and not any(mask.is_file() for _, mask in own):
            notes.append(f"{file} has no masks and was skipped.")
            continue
        pairs[split] = own
    return masked_source(path, pairs, options, options.class_names or VOC_CLASSES, notes=notes)


def read_cityscapes(path: Path, options: Options) -> Source:
    """``leftImg8bit/SPLIT/CITY/*_leftImg8bit.png`` with ``gtFine/SPLIT/CITY/*_gtFine_labelTrainIds.png``.

    Without such masks, ``labelIds`` are mapped to the 19 classes. The test masks of Cityscapes are empty, so the test
    split is skipped.
    """
    folders = split_paths(path / "leftImg8bit")
    need_train(path / "leftImg8bit", folders)
    notes = ["The test split of Cityscapes has no public masks and was skipped."] if folders.pop("test", None) else []
    files = {split: image_files(folder) for split, folder in folders.items()}
    kind = "labelTrainIds" if next((path / "gtFine").rglob("*_gtFine_labelTrainIds.png"), None) else "labelIds"

    def mask_of(image: Path) -> Path:
        city = path / "gtFine" / image.relative_to(path / "leftImg8bit").parent
        return city / f"{image.stem.removesuffix('_leftImg8bit')}_gtFine_{kind}.png"

    pairs = {split: [(image, mask_of(image)) for image in own] for split, own in files.items()}
    values = tuple(CITYSCAPES.values()) if kind == "labelIds" else None
    return masked_source(path, pairs, options, options.class_names or tuple(CITYSCAPES), values=values, notes=notes)


def pairs_by_stem(images: Path, masks: Path, notes: list[str]) -> Pairs:
    """Images and masks with the same path except for the suffix."""

    def stems(folder: Path) -> dict[str, Path]:
        files: dict[str, Path] = {}
        for file in image_files(folder):
            stem = str(file.relative_to(folder).with_suffix(""))
            if stem in files:
                raise refuse(
                    folder,
                    "stems must be different",
                    f"{files[stem].name} and {file.name}",
                    "rename or remove one of them",
                )
            files[stem] = file
        return files

    pictures, maps = stems(images), stems(masks)
    without = [stem for stem in pictures if stem not in maps]
    if without:
        raise refuse(
            images,
            f"every image must have a mask of the same stem in {masks}",
            f"none for {some(without, 3)}",
            "add the masks or remove the images",
        )
    lone = [stem for stem in maps if stem not in pictures]
    if lone:
        notes.append(f"{len(lone)} masks in {masks} have no image and were ignored, e.g. {lone[0]}.")
    return [(picture, maps[stem]) for stem, picture in pictures.items()]


def masked_source(
    path: Path,
    pairs: Mapping[str, Pairs],
    options: Options,
    names: tuple[str, ...] | None,
    *,
    values: Sequence[int] | None = None,
    colours: Colours | None = None,
    ignored: int = IGNORED,
    notes: list[str],
) -> Source:
    """The data given the images and masks of each split.

    Args:
        path: for messages.
        pairs: image and mask of each sample.
        options: settings by the user.
        names: the classes, None for the values in the masks.
        values: value of each class in the masks, all others are ignored; None if the values are the classes.
        colours: values of the colours in RGB masks; None if masks hold values.
        ignored: value to ignore unless the user says which.
        notes: messages for the user, to which this adds its own.
    """
    agree(path, Task.SEGMENTATION, options.task)
    ignored = ignored if options.ignore_index is None else options.ignore_index
    table = None
    if values is not None:
        table = np.full(256, ignored, np.int64)
        table[list(values)] = np.arange(len(values))
    for split, own in pairs.items():
        if not own:
            raise refuse(path, f"there must be images in the {split} split", "none", "fill it or remove it")
        missing = next((file for pair in own for file in pair if not file.is_file()), None)
        if missing is not None:
            raise refuse(missing, "every image must have its file and its mask", "no such file", "add or remove both")
    pairs, histograms = _histograms(path, pairs, options, colours, notes)
    files = [mask for own in pairs.values() for _, mask in own]
    wanted = options.class_names if names is None else names
    if wanted is not None:  # before pixels are counted, one column per class
        wanted, ignored_notes = without_ignored(wanted, ignored)
        notes.extend(ignored_notes)
    class_names, pixels = _class_pixels(path, files, histograms, wanted, ignored, table)
    splits: dict[str, FileImages] = {}
    start = 0
    for split, own in pairs.items():
        counts = pixels[start : start + len(own)]
        start += len(own)
        masks = Masks(path_array(mask for _, mask in own), counts, ignored, table, colours)
        images = path_array(image for image, _ in own)
        splits[split] = FileImages(images, (counts > 0).astype(np.int8), options.image_size, options.fit, masks)
    return Source(Task.SEGMENTATION, class_names, splits, ignored, tuple(notes))


def _class_pixels(
    path: Path,
    files: Sequence[Path],
    histograms: Sequence[Histogram],
    wanted: tuple[str, ...] | None,
    ignored: int,
    table: NDArray[np.int64] | None,
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Names of the classes, and pixels of each class in each mask (N, C), without those to ignore."""
    counted = []
    for file, (values, counts) in zip(files, histograms, strict=True):
        if table is not None:
            values = table[np.minimum(values, 255)]
        kept = values != ignored
        counted.append((values[kept], counts[kept]))
        top = int(values[kept].max(initial=-1))
        if wanted is not None and top >= len(wanted):
            raise refuse(
                file,
                f"values must be classes from 0 to {len(wanted) - 1} or the ignored {ignored}",
                str(top),
                "check the mask, class_names or ignore_index",
            )
    highest = max((int(values.max(initial=-1)) for values, _ in counted), default=-1)
    if wanted is None and highest < 1:
        raise refuse(
            path,
            "masks must hold at least two classes",
            f"class 0 and the ignored {ignored} alone" if highest == 0 else "no class at all",
            "number the classes from 0, or set the value to ignore with ignore_index",
        )
    class_names = numbered_names(path, highest, wanted, MOST_CLASSES_OF_MAPS)
    pixels = np.zeros((len(files), len(class_names)), np.int64)
    for row, (values, counts) in zip(pixels, counted, strict=True):
        np.add.at(row, values, counts)
    return class_names, pixels


def _histograms(
    path: Path, pairs: Mapping[str, Pairs], options: Options, colours: Colours | None, notes: list[str]
) -> tuple[Mapping[str, Pairs], list[Histogram]]:
    """Images and masks that can be decoded, and the histograms of these masks."""
    flat = [pair for own in pairs.values() for pair in own]

    def read(number: int) -> Histogram | UndecodableError:
        image, mask = flat[number]
        try:
            return mask_histogram(mask, image, colours)
        except UndecodableError as error:
            if not (options.check_images or options.skip_bad_images):
                raise
            return error

    read_masks = dict(zip(flat, in_threads(read, len(flat), options.progress), strict=True))
    if any(isinstance(histogram, UndecodableError) for histogram in read_masks.values()):
        images = FileImages(path_array(image for image, _ in flat), np.zeros(len(flat)))
        bad = {flat[i]: flat[i][0] for i in images.undecodable(options.progress)}
        for pair, histogram in read_masks.items():
            if isinstance(histogram, UndecodableError):
                bad.setdefault(pair, pair[1])
        notes.append(note_of_bad_images(path, [*bad.values()], len(flat), options.skip_bad_images))
        pairs = {split: [pair for pair in own if pair not in bad] for split, own in pairs.items()}
        empty = next((split for split, own in pairs.items() if not own), None)
        if empty is not None:
            raise refuse(path, f"there must be {empty} masks that can be decoded", "none", "replace them")
    return pairs, [read_masks[pair] for own in pairs.values() for pair in own]
