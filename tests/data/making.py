"""Files of the formats that ``open_data`` reads."""

import struct
import zlib

import numpy as np
from PIL import Image

SHADES = {"cat": 40, "dog": 120, "emu": 200}
CORNER = [[0, 0, 1], [0, 255, 2]]


def picture(path, shade=100, size=(12, 10), mode="L"):
    """An image of one shade; ``size`` is width and height."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, shade).save(path)
    return path


def mask(path, values, palette=False):
    """A mask with these rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(np.asarray(values, np.uint8))
    if palette:
        image.putpalette([shade for c in range(256) for shade in (c, 255 - c, 7)])
    image.save(path)
    return path


def class_folders(root, count, ending="png"):
    """Folders of three classes, which differ by their shade."""
    for name, shade in SHADES.items():
        for i in range(count):
            picture(root / name / f"{i:02}.{ending}", shade)


def rotten(path):
    """Write an image with correct checksums that cannot be decoded; return a function that restores the old one."""
    whole = path.read_bytes()

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", 12, 10, 8, 0, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", b"no stream") + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunks)
    return lambda: path.write_bytes(whole)


def coco(images, annotations, names=("bird", "ant")):
    """Annotations in the form of COCO: images by id, annotations as (image, category, crowd)."""
    return {
        "images": [{"id": number, "file_name": name} for number, name in images.items()],
        "annotations": [{"image_id": i, "category_id": c, "iscrowd": crowd} for i, c, crowd in annotations],
        "categories": [{"id": 10 * (i + 1), "name": name} for i, name in enumerate(names)][::-1],
    }
