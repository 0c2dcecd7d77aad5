"""Label maps of test images side by side: the image, the true classes and the predictions of each loss."""

from __future__ import annotations

import base64
import colorsys
import io
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from equipoise._reading import read_arrays, reading
from equipoise.report.page import Grid, Key, Photo
from equipoise.report.runs import ComparedLoss
from equipoise.train.folder import AGAIN

__all__ = ["class_colours", "examples", "stored_array"]

SHOWN = 6
"""Maximum number of images."""
WIDEST = 256
"""Maximum side length in pixels; larger images are subsampled."""
KEYS = 24
"""Maximum number of classes in the legend, the most common ones."""
NEUTRAL = (122, 130, 138)
HUES = ("#e6550d", "#0072b2", "#e6c200", "#009e73", "#cc4fa0", "#56b4e9", "#7b4fb5", "#8c6d31", "#9acd32", "#d62728")
Colours = NDArray[np.uint8]


def class_colours(counts: Sequence[float]) -> Colours:
    """One colour per class, (C, 3): grey for the most common one, which is usually the background."""
    known = [tuple(int(text[k : k + 2], 16) for k in (1, 3, 5)) for text in HUES]
    while len(known) < len(counts):  # steps of the golden angle never repeat a hue
        hue = (len(known) * 0.618034) % 1.0
        known.append(tuple(round(255 * part) for part in colorsys.hls_to_rgb(hue, 0.42 + 0.2 * (len(known) % 2), 0.7)))
    colours = known[: len(counts)]
    if len(counts):
        colours.insert(int(np.argmax(counts)), NEUTRAL)
    return np.array(colours[: len(counts)], dtype=np.uint8).reshape(-1, 3)


def examples(
    losses: Sequence[ComparedLoss], names: Sequence[str], counts: Sequence[float]
) -> tuple[Grid, list[Key]] | None:
    """One row of label maps per image, and the legend of colours; None if predictions are missing."""
    files = [loss.runs[0].predictions("test") for loss in losses]
    if not all(file.is_file() for file in files):
        return None
    truth = stored_array(files[0], "targets")
    scores = [stored_array(file, "logits") for file in files]
    if any(len(one) != len(truth) for one in scores):
        return None
    images, indices = _images(losses[0].runs[0].where / "examples.npz", len(truth))
    colours = class_colours(counts)
    rows, ignored = [], False
    for number, index in enumerate(indices):
        right = np.asarray(truth[index])
        counted = right >= 0
        ignored = ignored or not counted.all()
        row = [] if images is None else [Photo(_photo(images[number]), f"test image {index}")]
        row.append(Photo(_map(right, colours), f"true classes of test image {index}"))
        for loss, one in zip(losses, scores, strict=True):
            predicted = np.where(counted, np.asarray(one[index]).argmax(0), -1)
            percentage = 100 * (predicted == right)[counted].mean() if counted.any() else 0.0
            words = f"classes predicted by {loss.name} in test image {index}"
            row.append(Photo(_map(predicted, colours), words, f"{percentage:.1f} % right"))
        rows.append(row)
    head = [*([] if images is None else ["image"]), "truth", *(loss.name for loss in losses)]
    common = sorted(range(len(names)), key=lambda k: -counts[k])[:KEYS]
    keys = [Key(names[k], "#" + bytes(colours[k]).hex(), area=True) for k in common]
    return Grid(head, rows), [*keys, *([Key("ignored", "#000000", area=True)] if ignored else [])]


def stored_array(path: Path, name: str) -> NDArray[np.generic]:
    """An array of an ``.npz``, memory-mapped if it is not compressed, so that only the used part is read."""
    with reading(path, f"{name} cannot be read", AGAIN), zipfile.ZipFile(path) as archive:
        member = archive.getinfo(f"{name}.npy")
        if member.compress_type == zipfile.ZIP_STORED:
            with path.open("rb") as file:
                file.seek(member.header_offset + 26)
                file.seek(sum(struct.unpack("<HH", file.read(4))), io.SEEK_CUR)
                major, _ = np.lib.format.read_magic(file)
                read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
                shape, fortran, kind = read(file)
                if not kind.hasobject:
                    order = "F" if fortran else "C"
                    return np.memmap(path, kind, "r", file.tell(), shape, order)  # type: ignore[call-overload, no-any-return]
    return read_arrays(path, [name])[0][name]


def _images(path: Path, count: int) -> tuple[NDArray[np.generic] | None, list[int]]:
    """Images stored by a run and their indices among the predictions; without images, evenly spaced indices."""
    if path.is_file():
        kept, _ = read_arrays(path, ("indices", "images"))
        with reading(path, "the file must contain images and indices", AGAIN):
            indices = [int(index) for index in kept["indices"][:SHOWN]]
            if all(0 <= index < count for index in indices):
                return kept["images"], indices
    return None, sorted({round(place) for place in np.linspace(0, count - 1, min(SHOWN, count)).tolist()})


def _photo(image: NDArray[np.generic]) -> str:
    """An image (c, H, W) as a PNG, with values in [0, 255] or [0, 1], grey or with three channels."""
    shown = np.asarray(image)
    if shown.dtype != np.uint8:
        low, high = float(shown.min()), float(shown.max())
        shown = ((shown - low) / (high - low or 1.0) * 255).astype(np.uint8)
    shown = shown[:3] if len(shown) >= 3 else shown[:1]
    every = max(1, -(-max(shown.shape[1:]) // WIDEST))
    shown = shown[:, ::every, ::every]
    return _png(Image.fromarray(shown[0] if len(shown) == 1 else np.ascontiguousarray(shown.transpose(1, 2, 0))))


def _map(labels: NDArray[np.generic], colours: Colours) -> str:
    """A label map (H, W) as a PNG; ignored labels, below 0, are black."""
    every = max(1, -(-max(labels.shape) // WIDEST))
    labels_shown = np.asarray(labels)[::every, ::every].astype(np.int64)
    if len(colours) < 256:
        picture = Image.fromarray((labels_shown + 1).clip(0).astype(np.uint8), mode="P")
        picture.putpalette(np.concatenate([np.zeros((1, 3), np.uint8), colours]).tobytes())
        return _png(picture)
    drawn = np.where((labels_shown >= 0)[..., None], colours[labels_shown.clip(0)], 0)
    return _png(Image.fromarray(drawn.astype(np.uint8)))


def _png(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
