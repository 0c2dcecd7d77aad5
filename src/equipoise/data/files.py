"""Image files, decoded on access."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from equipoise._extras import missing
from equipoise.data.arrays import Arrays
from equipoise.data.errors import DataError, UndecodableError, refuse

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["Colours", "FileImages", "Fit", "Masks", "Paths", "Progress", "Size", "path_array"]

Fit = Literal["stretch", "crop"]
Size: TypeAlias = tuple[int, int]
"""Height and width."""
Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of finished files and the total."""
Paths: TypeAlias = NDArray[np.str_]

IMAGE_ENDINGS = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp"})

ORIENTATION = 0x0112
"""EXIF orientation; from 5 on height and width are swapped."""


def path_array(paths: Iterable[str | Path]) -> Paths:
    """Paths as one array, whose memory worker processes share; reference counts would copy a list."""
    return np.array([str(path) for path in paths], dtype=np.str_)


@dataclass(frozen=True, eq=False)
class Colours:
    """The values that RGB colours of masks stand for.

    Args:
        rgb: (K, 3) colours.
        values: (K,) values from 0 to 255.
    """

    rgb: NDArray[np.int64]
    values: NDArray[np.uint8]

    def decode(self, path: str | Path, mask: Image.Image) -> Image.Image:
        """A mask of values; raises for a colour that is not listed."""
        known, pixels = (_colour_codes(colours) for colours in (self.rgb, np.asarray(_rgb(path, mask), np.int64)))
        order = known.argsort()
        place = order[np.searchsorted(known, pixels, sorter=order).clip(max=len(known) - 1)]
        strange = known[place] != pixels
        if strange.any():
            code = int(pixels[strange][0])
            raise refuse(
                path,
                "every colour of a mask must be in the list of colours",
                f"red {code >> 16}, green {code >> 8 & 255}, blue {code & 255}",
                "store masks as PNG, which keeps colours, or complete the list",
            )
        return pillow().fromarray(self.values[place])  # type: ignore[no-any-return]


def _colour_codes(rgb: NDArray[np.int64]) -> NDArray[np.int64]:
    codes: NDArray[np.int64] = rgb @ np.array([1 << 16, 1 << 8, 1])
    return codes


@dataclass(frozen=True, eq=False)
class Masks:
    """Label maps in files.

    Args:
        paths: (N,), one per image.
        pixels: (N, C) pixels per class and file.
        ignore_index: value to ignore.
        table: (256,) class of each value in the files, None if the values are the classes.
        colours: values of the colours in RGB masks, None if masks hold values.
    """

    paths: Paths
    pixels: NDArray[np.int64]
    ignore_index: int
    table: NDArray[np.int64] | None = None
    colours: Colours | None = None

    def take(self, indices: NDArray[np.int64]) -> Masks:
        """Select masks."""
        return replace(self, paths=self.paths[indices], pixels=self.pixels[indices])

    @property
    def dtype(self) -> np.dtype[Any]:
        """uint8 if it can hold the classes and the ignored value, otherwise int32."""
        small = self.pixels.shape[1] <= 256 and 0 <= self.ignore_index < 256
        return np.dtype(np.uint8 if small else np.int32)


@dataclass(frozen=True, eq=False)
class FileImages:
    """One split of image files, decoded on access.

    Every image is converted to RGB: grey is repeated, transparency is blended with white, 16 bits are reduced to 8.
    Without masks, photographs are rotated by their EXIF orientation.

    Args:
        paths: (N,) of strings.
        labels: (N,) class indices, or (N, C) of 0, 1 and -1 (unknown); with masks the classes that occur, (N, C).
        size: height and width returned by ``load``, None for the size of the file.
        fit: ``"stretch"`` to that size, or ``"crop"`` the centre after resizing the shorter side.
        masks: label maps, for segmentation.
    """

    paths: Paths
    labels: NDArray[Any]
    size: Size | None = None
    fit: Fit = "stretch"
    masks: Masks | None = None

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> tuple[NDArray[np.uint8], NDArray[Any]]:
        return self.load(i)

    def take(self, indices: NDArray[np.int64]) -> FileImages:
        """Select samples."""
        masks = None if self.masks is None else self.masks.take(indices)
        return replace(self, paths=self.paths[indices], labels=self.labels[indices], masks=masks)

    def load(self, i: int) -> tuple[NDArray[np.uint8], NDArray[Any]]:
        """Image i, (3, height, width), and its label: a class (), labels (C,) or a map (height, width)."""
        if self.masks is None:
            return read_image(self.paths[i], self.size, self.fit), np.asarray(self.labels[i])
        image = read_image(self.paths[i], self.size, self.fit, upright=False)
        return image, self._load_mask(i)

    def as_arrays(self, *, progress: Progress | None = None, threads: int | None = None) -> Arrays:
        """All samples decoded, as uint8; label maps too if it can hold the classes, otherwise as int32.

        Args:
            progress: called with the number of finished images and the total.
            threads: number of decoding threads; None for one per core, at most 8.
        """
        if not len(self):
            return Arrays(np.empty((0, 3, *(self.size or (0, 0))), np.uint8), self._no_labels())
        first, label = self.load(0)
        images = np.empty((len(self), *first.shape), np.uint8)
        maps = None if self.masks is None else np.empty((len(self), *label.shape), label.dtype)

        def decode(i: int) -> None:
            image, label = self.load(i)
            if image.shape != first.shape:
                raise refuse(
                    self.paths[i],
                    f"images must have one size, that of {self.paths[0]} is {first.shape[1]} x {first.shape[2]}",
                    f"{image.shape[1]} x {image.shape[2]} (height x width)",
                    "choose image_size",
                )
            images[i] = image
            if maps is not None:
                maps[i] = label

        in_threads(decode, len(self), progress, threads)
        return Arrays(images, self.labels if maps is None else maps)

    @property
    def decoded_bytes(self) -> int:
        """Memory needed by ``as_arrays`` if all images have the size of the first."""
        if not len(self):
            return 0
        if self.size is None:
            with opened(self.paths[0]) as image:
                width, height = image.size
        else:
            height, width = self.size
        return len(self) * height * width * (3 if self.masks is None else 3 + self.masks.dtype.itemsize)

    def undecodable(self, progress: Progress | None = None) -> NDArray[np.int64]:
        """Files that cannot be decoded as images, checked in a fraction of the time of decoding."""

        def look(number: int) -> bool:
            try:
                check_image(self.paths[number])
            except DataError:
                return True
            return False

        return np.flatnonzero(in_threads(look, len(self), progress))

    def sizes(self, most: int) -> list[Size]:
        """Height and width of at most ``most`` evenly spread files; unreadable ones are skipped."""

        def look(number: int) -> Size | None:
            try:
                with opened(self.paths[chosen[number]]) as image:
                    turned = self.masks is None and image.getexif().get(ORIENTATION, 1) >= 5
                    width, height = image.size
            except DataError:  # reported when it is decoded
                return None
            return (width, height) if turned else (height, width)

        chosen = np.unique(np.linspace(0, len(self) - 1, min(most, len(self))).round().astype(np.int64))
        return [size for size in in_threads(look, len(chosen)) if size is not None]

    def _load_mask(self, i: int) -> NDArray[Any]:
        assert self.masks is not None
        values = read_mask(self.masks.paths[i], self.size, self.fit, self.masks.colours)
        if self.masks.table is not None:
            values = self.masks.table[np.minimum(values, 255)]
        return values.astype(self.masks.dtype)

    def _no_labels(self) -> NDArray[Any]:
        return self.labels if self.masks is None else np.empty((0, *(self.size or (0, 0))), self.masks.dtype)


def in_threads(
    work: Callable[[int], Any], count: int, progress: Progress | None = None, threads: int | None = None
) -> list[Any]:
    """Results of ``work`` for 0 to count - 1. Decoding releases the GIL, so threads are sufficient."""
    results = []
    with ThreadPoolExecutor(max_workers=threads or min(8, os.cpu_count() or 1)) as pool:
        try:
            for done, result in enumerate(pool.map(work, range(count)), start=1):
                results.append(result)
                if progress is not None:
                    progress(done, count)
        except BaseException:
            pool.shutdown(cancel_futures=True)  # stop at the first failure
            raise
    return results


def pillow() -> Any:  # noqa: ANN401  (a module)
    """``PIL.Image``."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise missing("reading image files", "PIL") from None
    return Image


@contextmanager
def opened(path: str | Path) -> Iterator[Image.Image]:
    """Open an image by its header; convert any decoding error."""
    module = pillow()
    try:
        with module.open(str(path)) as image:  # not of numpy, for the messages
            yield image
    except DataError:
        raise
    except FileNotFoundError:
        raise refuse(
            path, "there must be an image", "no such file", "check the path or remove it from the list"
        ) from None
    except (module.DecompressionBombError, MemoryError):
        raise refuse(path, "an image must fit into memory", "far too many pixels", "make it smaller first") from None
    except Exception as error:
        raise UndecodableError(
            f"{path}: the file must be an image that can be decoded, found {type(error).__name__}: {error}; replace or "
            "remove it"
        ) from error


def check_image(path: str | Path) -> None:
    """Raise if an image cannot be decoded: PNG by checksums, JPEG decoded at an eighth of its size."""
    with opened(path) as image:
        _check_bits(path, image)
        if image.format == "PNG":
            image.verify()
        else:
            image.draft("RGB", (1, 1))
            image.load()


def read_image(path: str | Path, size: Size | None, fit: Fit = "stretch", *, upright: bool = True) -> NDArray[np.uint8]:
    """(3, height, width) in RGB."""
    with opened(path) as image:
        if (
            size is not None
        ):  # a JPEG can be decoded at a half, a quarter or an eighth, never below twice the target size
            image.draft("RGB", (2 * max(size), 2 * max(size)))
        return pixels_of(image, size, fit, upright=upright, name=path)


def pixels_of(
    image: Image.Image, size: Size | None, fit: Fit = "stretch", *, upright: bool = True, name: str | Path = "image"
) -> NDArray[np.uint8]:
    """(3, height, width) in RGB of an open image; ``name`` is for messages."""
    pixels = _sized(_rgb(name, _upright(image) if upright else image), size, fit, pillow().Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(pixels, np.uint8).transpose(2, 0, 1))


def read_mask(
    path: str | Path, size: Size | None = None, fit: Fit = "stretch", colours: Colours | None = None
) -> NDArray[np.int64]:
    """Values of a mask, (height, width), resized by nearest neighbour."""
    with opened(path) as image:
        mask = _class_channel(path, image, colours)
        return np.asarray(_sized(mask, size, fit, pillow().Resampling.NEAREST)).astype(np.int64)


def mask_histogram(
    path: str | Path, image_path: str | Path, colours: Colours | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Values of a mask and their pixel counts; raises if its image has another size."""
    with opened(image_path) as image:
        expected = image.size
    with opened(path) as image:
        mask = _class_channel(path, image, colours)
        if mask.size != expected:
            raise refuse(
                path,
                f"a mask must have the size of its image {image_path}, {expected[0]} x {expected[1]}",
                f"{mask.size[0]} x {mask.size[1]} (width x height)",
                "create the mask from the image, without rotation or scaling",
            )
        if mask.mode in ("L", "P"):
            counts = np.array(mask.histogram()[:256], np.int64)
            values = np.flatnonzero(counts)
            return values, counts[values]
        values, counts = np.unique(np.asarray(mask), return_counts=True)
        return values.astype(np.int64), counts.astype(np.int64)


def _class_channel(path: str | Path, mask: Image.Image, colours: Colours | None) -> Image.Image:
    """The classes of an open mask: its only channel, or the first of three with 16 bits, as in SYNTHIA."""
    if colours is not None:
        return colours.decode(path, mask)
    if mask.mode in ("1", "L", "P", "I", "I;16", "I;16B", "I;16L"):
        return mask
    tiles = getattr(mask, "tile", [])  # the encoded data, and how to decode it
    if mask.mode == "RGB" and len(tiles) == 1 and tiles[0][3] == "RGB;16B":
        # Pillow keeps the higher byte of 16 bits, which is 0; read in the other order it keeps the lower one
        setattr(mask, "tile", [(*tiles[0][:3], "RGB;16L")])  # noqa: B010  (an attribute of files alone)
        return mask.getchannel(0)
    raise refuse(
        path,
        "a mask must hold one class index per pixel (a grey or palette PNG)",
        f"mode {mask.mode}",
        "convert its colours to class indices first",
    )


def _upright(image: Image.Image) -> Image.Image:
    from PIL import ImageOps

    return ImageOps.exif_transpose(image)


def _check_bits(path: str | Path, image: Image.Image) -> None:
    if image.mode in ("I", "F"):
        raise refuse(
            path, "an image must have 8 or 16 bits per channel", f"mode {image.mode}", "store it as PNG with 8 bits"
        )


def _rgb(path: str | Path, image: Image.Image) -> Image.Image:
    module = pillow()
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I;16"):  # Pillow would clip at 255
        return module.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")  # type: ignore[no-any-return]
    _check_bits(path, image)
    if image.has_transparency_data:
        clear = image.convert("RGBA")
        return module.alpha_composite(module.new("RGBA", clear.size, "white"), clear).convert("RGB")  # type: ignore[no-any-return]
    return image.convert("RGB")


def _sized(image: Image.Image, size: Size | None, fit: Fit, method: Any) -> Image.Image:  # noqa: ANN401
    """Resize; Pillow's bilinear filter is antialiased."""
    if size is None or image.size == (wanted := (size[1], size[0])):
        return image
    if fit == "stretch":
        return image.resize(wanted, method)
    from PIL import ImageOps

    return ImageOps.fit(image, wanted, method)
