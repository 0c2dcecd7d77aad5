"""SYNTHIA: label maps as PNG files of 16 bits, whose first channel is the class and whose second the instance."""

from __future__ import annotations

from pathlib import Path

from equipoise.data.segmentation import masked_source, pairs_by_stem
from equipoise.data.source import Options, Source

__all__ = ["is_synthia", "read_synthia"]

LABELS = Path("GT") / "LABELS"
SHARED = {
    "sky": 1,
    "building": 2,
    "road": 3,
    "sidewalk": 4,
    "fence": 5,
    "vegetation": 6,
    "pole": 7,
    "car": 8,
    "traffic sign": 9,
    "pedestrian": 10,
    "bicycle": 11,
}
RAND_CITYSCAPES = SHARED | {
    "motorcycle": 12,
    "parking slot": 13,
    "road work": 14,
    "traffic light": 15,
    "terrain": 16,
    "rider": 17,
    "truck": 18,
    "bus": 19,
    "train": 20,
    "wall": 21,
    "lane marking": 22,
}
SEQUENCES = SHARED | {"lane marking": 12, "traffic light": 15}
"""Classes with the values in the files; 0, and the reserved 13 and 14 of sequences, are void."""


def is_synthia(folder: Path) -> bool:
    """Whether a folder has images in ``RGB`` and label maps in ``GT/LABELS``."""
    return (folder / "RGB").is_dir() and (folder / LABELS).is_dir()


def read_synthia(path: Path, options: Options) -> Source:
    """``RGB/*.png`` with ``GT/LABELS/*.png`` (RAND-CITYSCAPES), in sequences below ``Stereo_*/Omni_*``.

    Void is ignored. There are no splits: validation and test data are drawn.
    """
    notes: list[str] = []
    pairs = {"train": pairs_by_stem(path / "RGB", path / LABELS, notes)}
    in_sequences = any(folder.name.startswith("Stereo_") for folder in (path / "RGB").iterdir())
    classes = SEQUENCES if in_sequences else RAND_CITYSCAPES
    values, names = tuple(classes.values()), options.class_names or tuple(classes)
    return masked_source(path, pairs, options, names, values=values, notes=notes)
