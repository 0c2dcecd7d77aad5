"""Writes predictions, some samples at a time; nothing is left where it fails."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from equipoise.predictions.source import Array, Chunk, InputError, Predictions

__all__ = ["appearing", "write_predictions"]


def write_predictions(path: Path, like: Predictions, chunks: Iterator[Chunk]) -> None:
    """Write logits and targets in ``chunks``, with names and counts of ``like``.

    The suffix says the kind: ``.npz``, ``.csv``, ``.parquet``, or none for a folder of ``.npy`` files, which never
    needs more memory than a chunk.
    """
    if path.suffix not in ("", ".npz", ".csv", ".parquet"):
        raise InputError(f"{path}: predictions are written as .npz, .csv, .parquet or a folder, got {path.suffix!r}")
    if path.suffix in (".csv", ".parquet") and like.task == "segmentation":
        raise InputError(f"{path}: a table has one row a sample and holds no label maps; write .npz or a folder")
    if path.is_dir():
        raise InputError(f"{path}: there is a folder already; remove it or choose another name")
    with appearing(path) as draft:
        if path.suffix == ".npz":
            _write_npz(draft, like, chunks)
        elif path.suffix == "":
            _write_folder(draft, like, chunks)
        else:
            _write_table(draft, like, chunks, parquet=path.suffix == ".parquet")


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """A name beside ``path`` that becomes it when all is written, and vanishes when that fails."""
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {str(path.parent)!r} must exist, found none; create it first")
    draft = path.with_name(f".{path.name}.draft{path.suffix}")
    try:
        yield draft
        draft.replace(path)
    finally:
        if draft.is_dir():
            shutil.rmtree(draft)
        draft.unlink(missing_ok=True)


def _extras(like: Predictions) -> dict[str, Array]:
    extras: dict[str, Array] = {"class_names": np.array(like.class_names)}
    if like.train_counts is not None:
        extras["train_counts"] = np.array(like.train_counts)
    return extras


def _write_npz(path: Path, like: Predictions, chunks: Iterator[Chunk]) -> None:
    scores, targets = zip(*chunks, strict=True)
    with path.open("wb") as file:
        np.savez(
            file, allow_pickle=False, logits=np.concatenate(scores), targets=np.concatenate(targets), **_extras(like)
        )


def _write_folder(path: Path, like: Predictions, chunks: Iterator[Chunk]) -> None:
    path.mkdir()
    files: dict[str, Array] = {}
    start = 0
    for chunk in chunks:
        for name, part in (("logits", chunk.scores), ("targets", chunk.targets)):
            if name not in files:
                shape = (like.samples or len(part), *part.shape[1:])
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
            columns: dict[str, Array] = {f"logit_{name}": scores[:, k] for k, name in enumerate(like.class_names)}
            if like.task == "multi":
                columns |= {f"target_{name}": targets[:, k] for k, name in enumerate(like.class_names)}
            else:
                columns["target"] = targets
            table = arrow.table(columns)
            if writer is None:
                kind = arrow.parquet.ParquetWriter if parquet else arrow.csv.CSVWriter
                writer = kind(path, table.schema)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()
