"""Write predictions in chunks; a failure leaves no file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from equipoise._writing import appearing
from equipoise.predictions.source import Array, Chunk, InputError, Predictions

__all__ = ["write_predictions"]


def write_predictions(path: Path, like: Predictions, chunks: Iterator[Chunk]) -> None:
    """Write ``chunks`` as scores of the kind of ``like``, with its names and counts, and targets if any.

    Decisions are written as ``decisions``, in a table as ``decision_<class>``; other columns of a table are unchanged.

    The suffix determines the format: ``.npz``, ``.csv``, ``.parquet``, or none for a folder of ``.npy`` files, which
    never needs more memory than a chunk.
    """
    if path.suffix not in ("", ".npz", ".csv", ".parquet"):
        raise InputError(f"{path}: predictions are written as .npz, .csv, .parquet or a folder, got {path.suffix!r}")
    if path.suffix in (".csv", ".parquet") and like.task.pixels:
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


def _kind(like: Predictions) -> str:
    return "logits" if like.from_logits else "probs"


def _arrays(like: Predictions, chunk: Chunk) -> dict[str, Array]:
    """Arrays with one entry per sample, by name."""
    arrays = {_kind(like): chunk.scores}
    if like.labelled:
        arrays["targets"] = chunk.targets
    if chunk.decisions is not None:
        arrays["decisions"] = chunk.decisions
    return arrays


def _extras(like: Predictions) -> dict[str, Array]:
    extras: dict[str, Array] = {"class_names": np.array(like.class_names)}
    if like.train_counts is not None:
        extras["train_counts"] = np.array(like.train_counts)
    return extras


def _write_npz(path: Path, like: Predictions, chunks: Iterator[Chunk]) -> None:
    parts: dict[str, list[Array]] = {}
    for chunk in chunks:
        for name, part in _arrays(like, chunk).items():
            parts.setdefault(name, []).append(part)
    arrays: dict[str, Any] = {name: np.concatenate(some) for name, some in parts.items()} | _extras(like)
    with path.open("wb") as file:
        np.savez(file, **arrays)


def _write_folder(path: Path, like: Predictions, chunks: Iterator[Chunk]) -> None:
    path.mkdir()
    samples = like.samples or sum(len(chunk.scores) for chunk in like.chunks())
    files: dict[str, Array] = {}
    start = 0
    for chunk in chunks:
        for name, part in _arrays(like, chunk).items():
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
        for chunk in chunks:
            columns: dict[str, Any] = (
                {} if chunk.others is None else dict(zip(chunk.others.schema.names, chunk.others.columns, strict=True))
            )
            columns |= _by_class(f"{_kind(like)[:-1]}_", chunk.scores, like)
            if like.labelled and like.task.multilabel:
                columns |= _by_class("target_", chunk.targets, like)
            elif like.labelled:
                columns["target"] = _words(chunk.targets, like.class_names)
            if chunk.decisions is not None:
                columns |= _by_class("decision_", chunk.decisions.astype(np.int8), like)
            table = arrow.table(columns)
            if writer is None:
                kind = arrow.parquet.ParquetWriter if parquet else arrow.csv.CSVWriter
                writer = kind(path, table.schema)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def _by_class(prefix: str, values: Array, like: Predictions) -> dict[str, Array]:
    return {f"{prefix}{name}": values[:, k] for k, name in enumerate(like.class_names)}


def _words(targets: Array, names: Sequence[str]) -> Array | list[str]:
    """Targets as class names; ignored targets as numbers."""
    if list(names) == [str(number) for number in range(len(names))]:
        return targets
    return [names[target] if 0 <= target < len(names) else str(target) for target in targets.tolist()]
