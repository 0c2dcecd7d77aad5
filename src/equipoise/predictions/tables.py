"""Predictions as a table: ``.csv`` or ``.parquet``, one row per sample, read in blocks.

Columns ``logit_<class>`` or ``prob_<class>`` are the scores, in the order of the classes. ``target`` is the name of a
class, or its index from 0 if no name is a number; for multi-label data ``target_<class>`` is 0 or 1, or empty for an
unknown label. Other columns are ignored, or passed on if requested, except ``decision_<class>``, which belongs to the
scores.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from equipoise._extras import missing
from equipoise._reading import reading
from equipoise._suggestions import nearest, repeated, shortened
from equipoise._text_files import SAVE_AS_UTF8, header_of, no_text, read_options
from equipoise.predictions.source import UNKNOWN, Array, Chunk, InputError, Predictions, no_targets, resolve_task
from equipoise.tasks import Task

__all__ = ["Columns", "batches", "columns_of", "open_table"]


LIKE_TARGET = ("targets", "label", "labels", "y", "y_true", "class", "truth", "true", "category")
"""Common names of the column of true labels, for advice."""


@dataclass(frozen=True)
class Columns:
    """The columns of scores and targets."""

    scores: tuple[str, ...]
    targets: tuple[str, ...]
    classes: tuple[str, ...]
    from_logits: bool
    multi: bool

    @property
    def taken(self) -> set[str]:
        """Names of columns with a meaning: scores, targets and decisions."""
        return {*self.scores, *self.targets, *(f"decision_{name}" for name in self.classes)}


def open_table(
    path: Path,
    task: Task | None,
    ignore_index: int,
    unlabelled: Task | None = None,
    targets: bool = True,
    open_label: int | None = None,
    others: bool = False,
) -> Predictions:
    """Predictions of a table; ``targets``: whether to read targets; ``others``: whether chunks hold other columns."""
    names = [name for name in _schema(path) if targets or not name.startswith("target")]
    columns = columns_of(path, names, unlabelled is not None)
    if not columns.targets:
        columns = replace(columns, multi=unlabelled is not None and unlabelled.multilabel)
    classes = len(columns.classes)
    actual_task = resolve_task(path, (-1, classes), (-1, classes) if columns.multi else (-1,), task)
    if actual_task.multiclass and classes < 2:
        only, name = columns.scores[0], columns.classes[0]
        raise InputError(
            f"{path}: there must be scores of at least two classes, found {only!r} alone; add the other class "
            f"({only.removesuffix(name)}0 beside {only.removesuffix(name)}1), or for one label that is 0 or 1 name the "
            f"target target_{name}"
        )

    taken = columns.taken
    beside = [name for name in names if name not in taken] if others else []
    marks = (ignore_index,) if open_label is None else (ignore_index, open_label)

    def read(size: int) -> Iterator[Chunk]:
        for batch in batches(path, columns, size, beside):
            scores = np.stack([_numbers(path, batch, name) for name in columns.scores], axis=1)
            if not columns.targets:
                labels = no_targets(scores, actual_task, ignore_index)
            elif columns.multi:
                labels = np.stack([_numbers(path, batch, name, missing=UNKNOWN) for name in columns.targets], axis=1)
            else:
                labels = _labels(path, batch.column("target"), columns.classes, marks)
            yield Chunk(scores, labels, others=batch.select(beside) if beside else None)

    return Predictions(
        path,
        actual_task,
        columns.from_logits,
        classes,
        _rows(path),
        read,
        columns.classes,
        ignore_index=ignore_index,
        labelled=bool(columns.targets),
    )


def columns_of(path: Path, names: Sequence[str], unlabelled: bool = False) -> Columns:
    """Identify the columns of a table; ``unlabelled``: columns of targets may be missing."""
    scores = {prefix: [name for name in names if name.startswith(prefix)] for prefix in ("logit_", "prob_")}
    given = [prefix for prefix, columns in scores.items() if columns]
    shown = ", ".join(names[:12]) + (" ..." if len(names) > 12 else "")
    if len(given) != 1:
        raise InputError(
            f"{path}: there must be columns logit_<class> or prob_<class> (one kind), found {shown}; rename the "
            "columns, for one label that is 0 or 1 prob_1 (or logit_1) and target_1"
        )
    twice = repeated(names)
    if twice is not None:
        raise InputError(f"{path}: every column must have a name of its own, found {twice!r} twice; rename one")
    prefix = given[0]
    classes = tuple(name.removeprefix(prefix) for name in scores[prefix])
    numbered = sorted(classes, key=int) if all(name.isdecimal() for name in classes) else None
    if numbered == [str(number) for number in range(len(classes))]:
        classes = tuple(numbered)  # class numbers: in numeric order, in whatever order the columns are
    targets = tuple(f"target_{name}" for name in classes)
    known = set(names)
    present = [name for name in targets if name in known]
    if present and len(present) < len(targets):
        absent = next(name for name in targets if name not in known)
        raise InputError(f"{path}: there must be a target column for each label, found none called {absent!r}; add it")
    labelled = bool(present) or "target" in known
    if not labelled and not unlabelled:
        raise InputError(
            f"{path}: there must be a column target (class name or number), or target_<class> of 0 and 1 for several "
            f"labels, found {shown}; {_target_advice(names)}"
        )
    multi = bool(present)
    own = targets if multi else ("target",) if labelled else ()
    return Columns(tuple(prefix + name for name in classes), own, classes, prefix == "logit_", multi)


def _target_advice(names: Sequence[str]) -> str:
    like = next((name for name in names if name.lower() in LIKE_TARGET or name.lower() == "target"), None)
    return "add the true labels" if like is None else f"rename {like!r} to target"


def _arrow() -> Any:  # noqa: ANN401  (pyarrow has no types)
    try:
        import pyarrow
        import pyarrow.csv
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise missing("reading .csv and .parquet", "pyarrow") from None
    return pyarrow


def _check_separator(path: Path) -> None:
    """Raise for a table whose columns are not separated by commas."""
    head = header_of(path)
    for separator, name in ((";", "';'"), ("\t", "a tab")):
        parts = [part.strip('" \n').startswith(("logit_", "prob_", "target")) for part in head.split(separator)]
        if sum(parts) > 1:
            raise InputError(
                f"{path}: columns must be separated by commas, found a separator that looks like {name}; write it "
                "again with commas, and with points in numbers"
            )


def _schema(path: Path) -> list[str]:
    arrow = _arrow()
    if path.suffix == ".csv":
        _check_separator(path)
    with _readable(path, f"the file cannot be read as {path.suffix}", "write it again"):
        if path.suffix == ".parquet":
            return list(arrow.parquet.read_schema(path).names)
        with arrow.csv.open_csv(path, read_options=_encoded(path)) as reader:
            return list(reader.schema.names)


def _encoded(path: Path) -> Any:  # noqa: ANN401
    return read_options(_arrow(), path, header_of(path))


@contextmanager
def _readable(path: Path, problem: str, advice: str) -> Iterator[None]:
    """One-line error for an unreadable table; most often it is not in UTF-8."""
    with reading(path, problem, advice):
        try:
            yield
        except Exception:
            invalid = None if path.suffix == ".parquet" or not path.is_file() else no_text(path)
            if invalid is None:
                raise
            raise InputError(
                f"{path}: a table must be in UTF-8, or in UTF-16 with its mark, found {invalid}; {SAVE_AS_UTF8}"
            ) from None


def _rows(path: Path) -> int | None:
    return int(_arrow().parquet.read_metadata(path).num_rows) if path.suffix == ".parquet" else None


def batches(path: Path, columns: Columns, size: int, others: Sequence[str] = ()) -> Iterator[Any]:
    """Record batches of at most ``size`` rows, with the columns that are needed and ``others``, of a CSV as text."""
    arrow = _arrow()
    wanted = [*columns.scores, *columns.targets, *others]
    with _readable(path, "the table cannot be read", "check that row, or write it again"):
        if path.suffix == ".parquet":
            with arrow.parquet.ParquetFile(path) as file:
                yield from file.iter_batches(size, columns=wanted)
        else:  # explicit types, since types inferred from the first rows may be wrong for the others
            words = {"target", *others}
            types = {name: arrow.string() if name in words else arrow.float64() for name in wanted}
            options = arrow.csv.ConvertOptions(column_types=types, include_columns=wanted)
            with arrow.csv.open_csv(path, read_options=_encoded(path), convert_options=options) as reader:
                for batch in reader:
                    for start in range(0, batch.num_rows, size):
                        yield batch.slice(start, size)


def _numbers(path: Path, batch: Any, name: str, missing: float = np.nan) -> Array:  # noqa: ANN401
    """A column as float64, ``missing`` for empty cells."""
    try:
        column = batch.column(name).cast("float64")
    except _arrow().lib.ArrowException as error:
        raise InputError(f"{path}: column {name!r} must hold numbers ({error}); check the file") from None
    numbers: Array = column.to_numpy(zero_copy_only=False)
    return np.where(np.isnan(numbers), missing, numbers)


def _labels(path: Path, column: Any, classes: tuple[str, ...], marks: tuple[int, ...]) -> Array:  # noqa: ANN401
    """Class indices of a column of names or indices; names take precedence. ``marks`` are other allowed numbers."""
    numbers = {name: number for number, name in enumerate(classes)} | {str(mark): mark for mark in marks}
    words = [re.sub(r"^(-?\d{1,18})\.0*$", r"\1", str(value).strip()) for value in column.to_pylist()]  # 1.0 is 1
    empty = sum(word in ("", "None", "nan") and word not in numbers for word in words)
    if empty:
        raise InputError(
            f"{path}: target must be the name or number of a class, found nothing in {empty:,} rows; fill them, or "
            f"write {marks[0]} where a row is to be ignored"
        )
    if classes == ("0", "1"):
        numbers |= {"False": 0, "false": 0, "True": 1, "true": 1}
    if not any(name.isdecimal() for name in classes):
        numbers |= {word: int(word) for word in set(words) - numbers.keys() if re.fullmatch(r"-?\d{1,18}", word)}
    try:
        return np.array([numbers[word] for word in words], dtype=np.int64)
    except KeyError as error:
        unknown = str(error.args[0])
        raise InputError(
            f"{path}: target must be the name or number of a class that has a score column, found "
            f"{shortened(repr(unknown))}; {nearest(unknown, classes)}"
        ) from None
