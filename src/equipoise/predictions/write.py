"""Writes predictions, some samples at a time; nothing is left where it fails."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.predictions.source import Array, Chunk, InputError, Predictions

__all__ = ["appearing", "check_place", "write_predictions"]


def write_predictions(path: Path, like: Predictions, chunks: Iterator[Chunk]) -> None:
    """Write scores of the kind of ``like`` and targets in ``chunks``, with its names and counts, targets if it has any.

    The suffix says the kind: ``.npz``, ``.csv``, ``.parquet``, or none for a folder of ``.npy`` files, which never
    needs more memory than a chunk.
    """
    if path.suffix not in ("", ".npz", ".csv", ".parquet"):
        raise InputError(f"{path}: predictions are written as .npz, .csv, .parquet or a folder, got {path.suffix!r}")
    if path.suffix in (".csv", ".parquet") and like.task == "segmentation":
        raise InputError(f"{path}: a table has one row a sample and holds no label maps; write .npz or a folder")
    if path.suffix in (".csv", ".parquet") and len(set(like.class_names)) < like.num_classes:
        raise InputError(f"{path}: classes with the same name cannot be columns of a table; write .npz or a folder")
    with appearing(path) as draft:
        if path.suffix == ".npz":
            _write_npz(draft, like, chunks)
        elif path.suffix == "":
            _write_folder(draft, like, chunks)
        else:
            _write_table(draft, like, chunks, parquet=path.suffix == ".parquet")


def check_place(path: Path) -> None:
    """Raise where no file can be written."""
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {str(path.parent)!r} must exist, found none; create it first")
    if path.is_dir():
        raise InputError(f"{path}: there is a folder of that name; remove it or choose another name")


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """A name beside ``path`` that becomes it when all is written, and vanishes when that fails."""
    check_place(path)
    draft = path.with_name(f".{path.name}.draft{path.suffix}")
    try:
        yield draft
        draft.replace(path)
    finally:
        if draft.is_dir():
            shutil.rmtree(draft)
        draft.unlink(missing_ok=True)


def _kind(like: Predictions) -> str:
    return "logits" if like.from_logits else "probs"


def _extras(like: Predictions) -> dict[str, Array]:
    extras: dict[str, Array] = {"class_names": np.array(like.class_names)}
    if like.train_counts is not None:
        extras["train_counts"] = np.array(like.train_counts)
    return extras


def _write_npz(path: Path, like: Predictions, chunks: Iterator[Chunk]) -> None:
    scores, targets = zip(*chunks, strict=True)
    arrays: dict[str, Any] = {_kind(like): np.concatenate(scores)} | _extras(like)
    if like.labelled:
        arrays["targets"] = np.concatenate(targets)
    with path.open("wb") as file:
        np.savez(file, **arrays)


def _write_folder(path: Path, like: Predictions, chunks: Iterator[Chunk]) -> None:
    path.mkdir()
    samples = like.samples or sum(len(chunk.scores) for chunk in like.chunks())
    files: dict[str, Array] = {}
    start = 0
    for chunk in chunks:
        for name, part in ((_kind(like), chunk.scores), ("targets", chunk.targets))[: 2 if like.labelled else 1]:
            if name not in files:
                shape = (samples, *part.shape[1:])
                files[name] = np.lib.format.open_memmap(path / f"{name}.npy", "w+", part.dtype, shape)
            files[name][start : start + len(part)] = part
        start += len(chunk.scores)
    for name, extra in _extras(like).items():
        np.save(path / f"{name}.npy", extra, allow_pickle=False)


def _write_table(path: Path, like: Predictions, chunks: Iterator[Chunk], parquet: bool) -> None:
    from equipoise.predictions.tables import _arrow

    arrow = _arrow()
    writer = None
    try:
        for scores, targets in chunks:
            columns: dict[str, Array | list[str]] = {
                f"{_kind(like)[:-1]}_{name}": scores[:, k] for k, name in enumerate(like.class_names)
            }
            if like.labelled and like.task == "multi":
                columns |= {f"target_{name}": targets[:, k] for k, name in enumerate(like.class_names)}
            elif like.labelled:
                columns["target"] = _words(targets, like.class_names)
            table = arrow.table(columns)
            if writer is None:
                kind = arrow.parquet.ParquetWriter if parquet else arrow.csv.CSVWriter
                writer = kind(path, table.schema)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def _words(targets: Array, names: Sequence[str]) -> Array | list[str]:
    """Targets by name; numbers where those are the names, and where one is ignored."""
    if list(names) == [str(number) for number in range(len(names))]:
        return targets
    return [names[target] if 0 <= target < len(names) else str(target) for target in targets.tolist()]
