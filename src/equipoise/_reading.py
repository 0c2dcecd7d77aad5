"""Safe file reading: any problem becomes a one-line error that names the file. Does not import torch.

A damaged file can raise nearly anything: errors of zip, zlib, LZMA, tokenize, struct, arrow, a missing key, excessive
nesting, a header that asks for a petabyte. Each kind of file is opened by one function here; sizes are checked
before memory is allocated.
"""

from __future__ import annotations

import json
import math
import os
import sys
import warnings
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from equipoise._extras import MissingPackageError
from equipoise._visible import visible

__all__ = [
    "InputError",
    "check_memory",
    "map_array",
    "parse_json",
    "parse_yaml",
    "read_arrays",
    "read_checkpoint",
    "read_json",
    "read_record",
    "read_yaml",
    "reading",
]

Array = NDArray[Any]

EXPANDS = 100
"""Maximum expansion factor of a compressed array,"""
LARGE = 2**30
"""for arrays above this number of bytes: more is a zip bomb, or better saved uncompressed."""
MOST_DIGITS = 20
"""Digits of an integer in JSON, with the sign; 64 bits need no more."""
YAML_BYTES, YAML_VALUES = 2**20, 100_000
"""Maximum size of a settings file, and of its expanded aliases."""
SHOWN = 200
"""Maximum number of characters of another library's message to show."""


class InputError(ValueError):
    """An unusable file; the message says what was expected, what was found and what to do."""


@contextmanager
def reading(
    where: str | Path,
    problem: str = "the file cannot be read",
    advice: str = "write it again",
    error: type[ValueError] = InputError,
) -> Iterator[None]:
    """Convert any exception while a file is read into one ``error`` that names it.

    Args:
        where: the file.
        problem: description of the problem.
        advice: what to do.
        error: the class to raise; errors of this class are re-raised unchanged, because they name the file.
    """
    try:
        yield
    except (error, InputError, MissingPackageError, FileNotFoundError):
        raise
    except MemoryError as cause:
        raise error(f"{where}: the file does not fit into memory; {advice}") from cause
    except Exception as cause:
        raise error(f"{where}: {problem}, found {_line(cause)}; {advice}") from cause


def read_json(
    path: Path,
    *,
    where: str | Path | None = None,
    problem: str = "the file is not valid JSON",
    advice: str = "write it again",
    error: type[ValueError] = InputError,
) -> Any:  # noqa: ANN401
    """Content of a JSON file; numbers must be finite. The arguments are those of :func:`reading`."""
    with reading(where or path, problem, advice, error):
        return parse_json(path.read_text(encoding="utf-8-sig"))


def parse_json(text: str) -> Any:  # noqa: ANN401
    """Parse JSON; numbers must be finite."""
    return json.loads(text, parse_constant=_no_constant, parse_float=_finite_float, parse_int=_bounded_int)


def read_record(path: Path, *, advice: str, error: type[ValueError] = InputError) -> dict[str, Any]:
    """Content of a JSON file with an object."""
    content = read_json(path, advice=advice, error=error)
    if not isinstance(content, dict):
        raise error(f"{path}: the file must hold a JSON object, found {type(content).__name__}; {advice}")
    return content


def read_yaml(path: Path) -> Any:  # noqa: ANN401
    """Parse a settings file; raises as :func:`parse_yaml`."""
    size = path.stat().st_size
    if size > YAML_BYTES:
        raise ValueError(f"{size:,} bytes, where settings have {YAML_BYTES:,} at most")
    return parse_yaml(path.read_text(encoding="utf-8-sig"))


def parse_yaml(text: str) -> Any:  # noqa: ANN401
    """Parse YAML, without aliases that expand excessively.

    Raises:
        yaml.YAMLError, ValueError, RecursionError ...: the text is not valid YAML.
    """
    import yaml

    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _expanded(node, {}) > YAML_VALUES:
            raise ValueError(f"aliases that expand to more than {YAML_VALUES:,} values")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def read_arrays(
    path: Path, wanted: Collection[str], *, error: type[ValueError] = InputError
) -> tuple[dict[str, Array], list[str]]:
    """The requested arrays of an ``.npz``, and the names of all arrays; pickled objects are refused."""
    advice = "write it again with numpy.savez"
    with reading(path, "the file cannot be read as .npz", advice, error):
        if not zipfile.is_zipfile(path):
            raise error(f"{path}: the file must be an .npz archive, found {_kind(path)}; {advice}")
        with zipfile.ZipFile(path) as archive:
            members = {one.filename.removesuffix(".npy"): one for one in archive.infolist()}
            arrays = {
                name: _read_member(path, archive, members[name], name, error) for name in wanted if name in members
            }
    return arrays, list(members)


def map_array(path: Path, *, error: type[ValueError] = InputError) -> Array:
    """The array of an ``.npy`` file, memory-mapped."""
    with reading(path.parent, f"{path.name} cannot be read", "write it again with numpy.save", error):
        with path.open("rb") as file:
            _check_header(path.parent, path.name, file, path.stat().st_size, error)
        mapped: Array = np.lib.format.open_memmap(path, mode="r")
        _check_letters(mapped)
        return mapped


def read_checkpoint(path: Path, *, advice: str, place: Any = "cpu") -> dict[str, Any]:  # noqa: ANN401
    """Tensors and plain values of a checkpoint; nothing in it is executed. ``place`` is the ``map_location``."""
    import torch

    with reading(path, "the file must be the checkpoint of a run", advice):
        content = torch.load(path, map_location=place, weights_only=True)
        if not isinstance(content, dict):
            raise InputError(f"{path}: it must be a checkpoint, found {type(content).__name__}; {advice}")
        return content


def check_memory(path: Path, name: str, size: int, error: type[ValueError] = InputError) -> None:
    """Raise if an array is larger than the memory of the machine."""
    if size > _memory():
        raise _too_large(path, name, size, error)


def _too_large(path: Path, name: str, size: int, error: type[ValueError]) -> ValueError:
    return error(
        f"{path}: {name} does not fit into memory, found {size / 2**30:,.1f} GiB; make it smaller, or save predictions "
        "as a folder of .npy files, which is read in chunks"
    )


def _read_member(
    path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str, error: type[ValueError]
) -> Array:
    """An array of an archive, with its size checked before memory is allocated."""
    with reading(path, f"{name} cannot be read", "write it again with numpy", error):
        if member.flag_bits & 1:
            raise error(f"{path}: {name} must be readable without a password, found it encrypted; save it without one")
        if member.file_size > max(LARGE, EXPANDS * member.compress_size):
            raise error(
                f"{path}: {name} must grow at most {EXPANDS} times when it is unpacked, found "
                f"{member.file_size / 2**30:,.1f} GiB in {member.compress_size / 2**20:,.1f} MiB; save it with "
                "numpy.savez, which does not compress"
            )
        with archive.open(member) as file:
            _check_header(path, name, file, member.file_size, error)
        check_memory(path, name, member.file_size, error)
        try:
            with archive.open(member) as file:
                array: Array = np.lib.format.read_array(file, allow_pickle=False)
        except MemoryError:
            raise _too_large(path, name, member.file_size, error) from None
        _check_letters(array)
        return array


def _check_header(path: Path, name: str, file: IO[bytes], size: int, error: type[ValueError]) -> None:
    """Raise unless the header of an array declares numbers or strings and matches the size of its data."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # syntax warnings of an invalid header
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, kind = read(file)
    if kind.hasobject:
        raise error(
            f"{path}: {name} must be an array of numbers or strings, found pickled Python objects, which are not "
            "loaded because they can run code; save it again with a numeric or string dtype"
        )
    needed, there = math.prod(shape) * kind.itemsize, size - file.tell()
    if needed > there or min(shape, default=0) < 0 or not kind.itemsize:
        raise error(
            f"{path}: {name} cannot be read, its header says {shape} of {kind} ({needed:,} bytes), found {there:,}; "
            "write it again"
        )


def _check_letters(array: Array) -> None:
    """Raise for text with invalid code points, which NumPy would return as broken strings."""
    if array.dtype.kind == "U":
        numbers = np.frombuffer(array.tobytes(), np.dtype("u4").newbyteorder(array.dtype.byteorder))
        if numbers.max(initial=0) > sys.maxunicode:
            raise ValueError("text with invalid code points")


def _kind(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(6)
    return "an .npy array: rename it to .npy" if start == b"\x93NUMPY" else "another or a truncated file"


def _expanded(node: Any, known: dict[int, float]) -> float:  # noqa: ANN401  (PyYAML has no types)
    """Number of values below a node with all aliases expanded; infinite if it contains itself."""
    if id(node) not in known:
        known[id(node)] = math.inf  # until computed: a node that is visited again before then contains itself
        inside = node.value if isinstance(node.value, list) else []
        parts = [part for pair in inside for part in pair] if node.id == "mapping" else inside
        known[id(node)] = 1.0 + sum(_expanded(part, known) for part in parts)
    return known[id(node)]


def _memory() -> float:
    """Memory of the machine in bytes."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        return math.inf


def _line(error: Exception) -> str:
    """An error as one line."""
    text = visible(" ".join(str(error).split()))
    text = text if len(text) <= SHOWN else f"{text[:SHOWN]} ..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} instead of a finite number")


def _bounded_int(text: str) -> int:
    if len(text) > MOST_DIGITS:  # a float or an array would overflow
        raise ValueError(f"integers must have at most {MOST_DIGITS} digits, found one with {len(text):,}")
    return int(text)


def _finite_float(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_constant(text)
