"""CIFAR-10 and CIFAR-100 as distributed: the binary version, and the python version without running its pickles."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from equipoise._reading import check_memory, reading
from equipoise._suggestions import shortened
from equipoise.data.arrays import Arrays
from equipoise.data.errors import DataError, refuse
from equipoise.data.source import Options, Source, agree, settle_names
from equipoise.tasks import Task

__all__ = ["cifar_files", "read_cifar"]

PIXELS = (3, 32, 32)
BYTES = 3 * 32 * 32
BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
LAYOUTS: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "batches.meta.txt": (
        "binary",
        {"train": tuple(f"{batch}.bin" for batch in BATCHES), "test": ("test_batch.bin",)},
    ),
    "fine_label_names.txt": ("binary", {"train": ("train.bin",), "test": ("test.bin",)}),
    "batches.meta": ("python", {"train": BATCHES, "test": ("test_batch",)}),
    "meta": ("python", {"train": ("train",), "test": ("test",)}),
}
"""By the file with the names of the classes: the version, and the files of each split."""


def cifar_files(folder: Path) -> str | None:
    """The file of class names, which identifies the layout; None if this is not CIFAR."""
    for names, (_, files) in LAYOUTS.items():
        if (folder / names).is_file() and (folder / files["train"][0]).is_file():
            return names
    return None


def read_cifar(path: Path, options: Options) -> Source:
    """``cifar-10-batches-bin``, ``cifar-100-binary``, ``cifar-10-batches-py`` or ``cifar-100-python``; fine labels."""
    agree(path, Task.MULTICLASS, options.task)
    key = cifar_files(path)
    assert key is not None
    version, files = LAYOUTS[key]
    hundred = key in ("fine_label_names.txt", "meta")
    stored_names = _names_of_text(path / key) if version == "binary" else _names_of_pickle(path / key)
    names = settle_names(path / key, stored_names, options.class_names)
    number = np.array([names.index(name) for name in stored_names], np.int64)
    read_file = _binary if version == "binary" else _python
    splits = {}
    for split, parts in files.items():
        missing = [part for part in parts if not (path / part).is_file()]
        if split == "test" and len(missing) == len(parts):
            continue
        if missing:
            raise refuse(path / missing[0], "all batches must be there", "no such file", "unpack the archive again")
        read = [read_file(path / part, hundred=hundred, classes=len(stored_names)) for part in parts]
        labels = number[np.concatenate([own for _, own in read])]
        splits[split] = Arrays(np.concatenate([images for images, _ in read]), labels)
    return Source(Task.MULTICLASS, names, splits)


def _names_of_text(file: Path) -> tuple[str, ...]:
    return tuple(file.read_text(encoding="utf-8").split())


def _names_of_pickle(file: Path) -> tuple[str, ...]:
    content = read_pickle(file)
    names = content.get(b"label_names", content.get(b"fine_label_names"))
    if not isinstance(names, list) or not names or not all(isinstance(name, bytes) for name in names):
        raise refuse(file, "there must be the names of the classes", shortened(repr(names)), "unpack the archive again")
    return tuple(name.decode("utf-8", "replace") for name in names)


def _binary(file: Path, *, hundred: bool, classes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Records of a label (CIFAR-100: coarse, then fine) and the pixels of an image."""
    labels = 2 if hundred else 1
    size = file.stat().st_size
    if not size or size % (labels + BYTES):
        raise refuse(
            file, f"a file must hold records of {labels + BYTES:,} bytes", f"{size:,} bytes", "unpack the archive again"
        )
    check_memory(file, "the file", size, DataError)
    records = np.fromfile(file, np.uint8).reshape(-1, labels + BYTES)
    return records[:, labels:].reshape(-1, *PIXELS), _checked(file, records[:, labels - 1].astype(np.int64), classes)


def _python(file: Path, *, hundred: bool, classes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    content = read_pickle(file)
    images, labels = content.get(b"data"), content.get(b"fine_labels" if hundred else b"labels")
    if not isinstance(images, _Array) or not isinstance(labels, list) or not all(type(one) is int for one in labels):
        raise refuse(
            file, "there must be an array 'data' and a list of labels", shortened(repr(list(content))), "download again"
        )
    pixels = images.values()
    if pixels.shape != (len(labels), BYTES):
        raise refuse(
            file, f"'data' must be ({len(labels)}, {BYTES}), a row for each label", str(pixels.shape), "download again"
        )
    return pixels.reshape(-1, *PIXELS), _checked(file, np.array(labels, np.int64), classes)


def _checked(file: Path, labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
        wrong = labels[(labels < 0) | (labels >= classes)][0]
        raise refuse(file, f"labels must be from 0 to {classes - 1}", str(wrong), "unpack the archive again")
    return labels


# ---------------------------------------------------------------------------------------------------------------------
# A pickle of dicts, lists, numbers, bytes and arrays of uint8
# ---------------------------------------------------------------------------------------------------------------------


def read_pickle(file: Path) -> dict[Any, Any]:
    """The dict in a pickle of Python 2, with bytes as keys; anything that would run code is refused.

    Not even NumPy's own functions are called: arrays become :class:`_Array`, which keeps their bytes.
    """
    with reading(file, "the file must be a batch of CIFAR in its python version", "download it again", DataError):
        check_memory(file, "the file", file.stat().st_size, DataError)
        content = _Unpickler(io.BytesIO(file.read_bytes()), encoding="bytes").load()
        if not isinstance(content, dict):
            raise refuse(file, "the file must hold a dict", type(content).__name__, "download it again")
        return content


class _Array:
    """The parts of a pickled array."""

    def __init__(self) -> None:
        self.state: tuple[Any, ...] = ()

    def __setstate__(self, state: Any) -> None:  # noqa: ANN401
        if not isinstance(state, tuple) or len(state) != 5:
            raise pickle.UnpicklingError("an array in an unknown form")
        self.state = state

    def values(self) -> NDArray[np.uint8]:
        """The array, of uint8."""
        _, shape, dtype, fortran, content = self.state or (0, (), None, False, b"")
        fits = isinstance(shape, tuple) and all(type(side) is int and side >= 0 for side in shape)
        if (
            not fits
            or not isinstance(dtype, _Dtype)
            or dtype.name not in ("u1", b"u1")
            or not isinstance(content, bytes)
        ):
            raise ValueError("an array that does not hold uint8")
        values = np.frombuffer(content, np.uint8)
        return values.reshape(shape, order="F" if fortran else "C")


class _Dtype:
    """The name of a pickled dtype."""

    def __init__(self, name: object, *_: object) -> None:
        self.name = name

    def __setstate__(self, state: object) -> None:
        """Byte order and fields, which uint8 does not have."""


class _Reconstruct:
    """Creates an array; it has no attributes that a pickle could set."""

    __slots__ = ()

    def __call__(self, *_: object) -> _Array:
        return _Array()


class _Encode:
    """Creates bytes, which Python 3 writes this way in old protocols; it has no attributes that a pickle could set."""

    __slots__ = ()

    def __call__(self, text: object, encoding: object = "latin1") -> bytes:
        if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
            raise pickle.UnpicklingError("bytes in an unknown form")
        return text.encode("latin1")


ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _Reconstruct(),
    ("numpy._core.multiarray", "_reconstruct"): _Reconstruct(),
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _Encode(),
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401
        """Substitutes for the few names that a batch needs."""
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name}, which is not data and is not run")
        return ALLOWED[module, name]

    def persistent_load(self, pid: Any) -> NoReturn:  # noqa: ANN401
        """Refuse objects outside of the file."""
        raise pickle.UnpicklingError("a reference to something outside of the file")
