"""CSV or parquet tables with a path, a text or numeric features per row and one or more labels."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise._extras import missing
from equipoise._reading import check_memory, reading
from equipoise._suggestions import nearest, repeated, shortened, some
from equipoise._text_files import SAVE_AS_UTF8, header_of, no_text, read_options
from equipoise.data.arrays import Arrays, Split
from equipoise.data.errors import DataError, refuse
from equipoise.data.files import path_array
from equipoise.data.source import (
    SPLITS,
    Options,
    Source,
    agree,
    check_files,
    in_order,
    need_train,
    settle_names,
    split_paths,
)
from equipoise.data.text import Texts
from equipoise.tasks import Task

__all__ = ["ENDINGS", "read_tables", "table_files"]

ENDINGS = (".csv", ".parquet")
PATH_NAMES = ("path", "image", "image_path", "file", "filename", "file_name")
TEXT_NAMES = ("text", "sentence", "comment", "review")
LABEL_NAMES = ("label", "labels", "class", "target", "category", "y")
SEPARATORS = (";", "|")
NUMBERS_OF_ROWS = ("", "id", "index", "Unnamed: 0")
"""Index columns, the first and the last as written by pandas: not features."""

MOST_NUMBERS = 20
"""Number of distinct numeric labels that are always accepted as classes."""
MOST_CELLS = 2**34
"""Maximum of rows times labels of multi-label data, one byte each."""

Table = dict[str, list[Any]]


def table_files(folder: Path) -> dict[str, Path]:
    """``train.csv`` or ``train.parquet`` and similar files."""
    return next((files for ending in ENDINGS if "train" in (files := split_paths(folder, ending=ending))), {})


def read_tables(path: Path, options: Options) -> Source:
    """One table, with or without a column of splits, or ``train.csv``, ``val.csv``, ``test.csv`` in a folder."""
    files = table_files(path) if path.is_dir() else {"train": path}
    columns = _Columns(path, files["train"], options)
    read = {split: _read(file, [*columns.needed, *columns.features]) for split, file in files.items()}
    tables = {split: {name: own.column(name).to_pylist() for name in columns.needed} for split, own in read.items()}
    for split, table in tables.items():
        if not next(iter(table.values())):
            raise refuse(files[split], "there must be at least one row", "none", "fill the table or remove it")
    task, names, labels, notes = _all_labels(files, tables, columns.labels, options)
    splits: dict[str, Split] = {}
    for split, table in tables.items():
        if columns.input is None:
            splits[split] = Arrays(_features(files[split], read[split], columns.features), labels[split])
            continue
        column = table[columns.input]
        empty = next((row for row, value in enumerate(column) if value in (None, "")), None)
        if empty is not None and not columns.is_text:
            raise refuse(
                f"{files[split]}, {_row(empty)}", f"column {columns.input!r} must name an image", "nothing", "fill it"
            )
        if columns.is_text:
            splits[split] = Texts(tuple(value or "" for value in column), labels[split])
        else:
            root = options.image_root or files[split].parent
            paths = path_array(root / value for value in column)
            check_files(files[split], paths)
            splits[split] = options.images(paths, labels[split])
    if columns.split is not None:
        whole, rows = splits["train"], _rows_by_split(path, columns.split, tables["train"][columns.split])
        splits = {split: whole.take(own) for split, own in rows.items()}
    return Source(task, names, splits, notes=notes + columns.notes)


def _known_columns(file: Path, options: Options) -> list[str]:
    """The columns of a table; raise unless those that were asked for are among them."""
    known = _names(file)
    twice = repeated(known)
    if twice is not None:
        raise refuse(file, "every column must have a unique name", f"{twice!r} twice", "rename one")
    labels = options.label_column
    asked = [options.path_column, options.text_column, options.split_column]
    for name in [*asked, *([labels] if isinstance(labels, str) else labels or ())]:
        if name is not None and name not in known:
            raise refuse(file, f"there must be a column {name!r}", some(known), nearest(name, known))
    if options.path_column and options.text_column:
        raise refuse(file, "rows must contain an image or a text", "path_column and text_column", "name one of them")
    return known


def _usual_labels(file: Path, known: list[str], options: Options) -> str | tuple[str, ...]:
    """The column of labels, or the columns ``label_CLASS``."""
    asked = (options.path_column, options.text_column, options.split_column)
    usual = [name for name in known if name in LABEL_NAMES and name not in asked]
    several = tuple(name for name in known if name.startswith("label_"))
    if len(usual) != 1 and not (several and not usual):
        raise refuse(
            file,
            f"there must be one column of labels ({some(LABEL_NAMES)}) or columns label_CLASS of 0 and 1",
            some(usual or known),
            _label_advice(usual, known),
        )
    return usual[0] if usual else several


class _Columns:
    """The role of each column: set by the user, or by its usual name."""

    def __init__(self, path: Path, file: Path, options: Options) -> None:
        known = _known_columns(file, options)
        given = options.label_column
        self.labels = _usual_labels(file, known, options) if given is None else given
        self.split = options.split_column or ("split" if path.is_file() and "split" in known else None)
        self.input = options.path_column or options.text_column
        self.is_text = options.text_column is not None
        self.features: list[str] = []
        self.notes: tuple[str, ...] = ()
        if self.input is not None:
            return
        own = set(self.needed)
        usual = [name for name in known if name in PATH_NAMES + TEXT_NAMES and name not in own]
        if len(usual) == 1:
            self.input, self.is_text = usual[0], usual[0] in TEXT_NAMES
            return
        self.features = [name for name in known if name not in own and name not in NUMBERS_OF_ROWS]
        if usual or not self.features:
            raise refuse(
                file,
                f"there must be one column of paths ({some(PATH_NAMES)}) or of texts ({some(TEXT_NAMES)}), or numbers",
                some(usual or known),
                "set path_column or text_column",
            )
        left = [name for name in known if name in NUMBERS_OF_ROWS and name not in own]
        self.notes = (
            f"The features are {len(self.features)} columns of numbers: {some(self.features)}."
            + (f" Ignored: {some(map(repr, left))}." if left else ""),
        )

    @property
    def needed(self) -> list[str]:
        """All columns that are read as strings."""
        labels = [self.labels] if isinstance(self.labels, str) else list(self.labels)
        return [*dict.fromkeys(name for name in (self.input, *labels, self.split) if name is not None)]


def _all_labels(
    files: dict[str, Path], tables: dict[str, Table], column: str | Sequence[str], options: Options
) -> tuple[Task, tuple[str, ...], dict[str, NDArray[Any]], tuple[str, ...]]:
    """Task, class names, labels of each split, and notes."""
    where = files["train"]
    if not isinstance(column, str):
        agree(where, Task.MULTILABEL, options.task)
        prefix = "label_" if all(name.startswith("label_") for name in column) else ""
        names = tuple(name.removeprefix(prefix) for name in column)
        if options.class_names is not None:
            names = settle_names(where, names, options.class_names)
            if len(names) != len(column):
                raise refuse(
                    where, "there must be one column for each of class_names", some(column), "name the columns' classes"
                )
        ordered = [prefix + name for name in names]
        labels = {
            split: np.stack([_flags(files[split], name, table[name]) for name in ordered], axis=1)
            for split, table in tables.items()
        }
        return Task.MULTILABEL, names, labels, ()
    values = {split: table[column] for split, table in tables.items()}
    separator, notes = _separator(where, column, [value for own in values.values() for value in own], options)
    if separator is None:
        single = {split: _words(files[split], column, own) for split, own in values.items()}
        if options.class_names is None:
            single = _classes(where, column, single)
        names, numbers = _numbering(where, [word for own in single.values() for word in own], options.class_names)
        class_numbers = {split: np.array([numbers[word] for word in own], np.int64) for split, own in single.items()}
        return agree(where, Task.MULTICLASS, options.task), names, class_numbers, notes
    rows = {split: [_several(value, separator) for value in own] for split, own in values.items()}
    words = [word for own in rows.values() for row in own for word in row]
    if not words:
        raise refuse(where, f"column {column!r} must hold a label somewhere", "none", "check the column")
    names, numbers = _numbering(where, words, options.class_names)
    cells = sum(map(len, rows.values())) * len(names)
    if cells > MOST_CELLS:
        raise refuse(
            where,
            f"multi-label data must fit into memory, at most {MOST_CELLS:,} rows times labels",
            f"{cells:,}, with {len(names):,} different labels in column {column!r}",
            "check the column, or remove very rare labels",
        )
    labels = {}
    for split, own in rows.items():
        labels[split] = np.zeros((len(own), len(names)), np.int8)
        for i, row in enumerate(own):
            labels[split][i, [numbers[word] for word in row]] = 1
    return agree(where, Task.MULTILABEL, options.task), names, labels, notes


def _separator(where: Path, column: str, values: list[Any], options: Options) -> tuple[str | None, tuple[str, ...]]:
    """Separator of multi-label data, None for single-label data; empty for lists in parquet."""
    if any(isinstance(value, list) for value in values):
        return "", ()
    if options.separator is not None:
        return options.separator, ()
    if options.task is not None and options.task.multiclass:
        return None, ()
    used = [mark for mark in SEPARATORS if any(mark in str(value) for value in values)]
    if len(used) > 1:
        raise refuse(
            where, f"labels of column {column!r} must be separated by one of ; and |", "both", "set separator or task"
        )
    if options.task is not None and options.task.multilabel:
        return (used or [SEPARATORS[0]])[0], ()
    if used:
        note = (
            f"Column {column!r} holds several labels separated by {used[0]!r}; task='multiclass' would treat them as "
            "names."
        )
        return used[0], (note,)
    return None, ()


def _several(value: Any, separator: str) -> list[str]:  # noqa: ANN401
    """The labels of a cell; an empty cell has none."""
    if value is None:
        return []
    parts = value if isinstance(value, list) else str(value).split(separator)
    return [word for part in parts if (word := str(part).strip())]


def _words(file: Path, column: str, values: list[Any]) -> list[str]:
    words = ["" if value is None or value != value else str(value).strip() for value in values]
    if "" in words:
        raise refuse(
            f"{file}, {_row(words.index(''))}",
            f"column {column!r} must hold a class",
            "nothing",
            "fill or drop the row",
        )
    return words


def _classes(where: Path, column: str, words: dict[str, list[str]]) -> dict[str, list[str]]:
    """The labels, with 1.0 and 2.0 as 1 and 2; raise for measurements that are not classes."""
    different = {word for own in words.values() for word in own}
    if not all(map(_is_float, different)):
        return words
    rows = sum(map(len, words.values()))
    digits = {word for word in different if re.fullmatch(r"-?\d+", word)}  # of any length, unlike a float
    fraction = next((word for word in sorted(different - digits) if not float(word).is_integer()), None)
    if fraction is not None or len(different) > max(MOST_NUMBERS, rows / 2):
        raise refuse(
            where,
            f"column {column!r} must hold classes: names or integers",
            f"{len(different):,} different numbers in {rows:,} rows, e.g. {shortened(fraction or min(different))}",
            "make classes of measurements first (pandas.cut), drop rows without a label, or name the column of labels: "
            "label_column (--label-column)",
        )
    # 1e2 and 100 stay two names; nothing goes through a float, which would merge large numbers
    return {split: [re.sub(r"\A(-?\d+)\.0*\Z", r"\1", word) for word in own] for split, own in words.items()}


def _is_float(word: str) -> bool:
    """Whether a word is a number; ``1_0`` is one to Python, but an identifier in data."""
    try:
        float(word)
    except ValueError:
        return False
    return "_" not in word


def _is_like_labels(name: str) -> bool:
    import difflib  # not at the top: rarely needed

    parts = re.split(r"[\W_]+", name)
    return any(part in LABEL_NAMES for part in parts) or bool(difflib.get_close_matches(name, LABEL_NAMES, 1, 0.75))


def _label_advice(usual: list[str], known: list[str]) -> str:
    """Advice on setting the label column, with similar names first."""
    near = usual or [name for name in known[:1000] if _is_like_labels(name.lower())]
    which = f"did you mean {' or '.join(map(repr, near[:3]))}? " if near else ""
    return f"{which}say label_column (--label-column {shlex.quote(near[0]) if near else 'NAME'})"


def _numbering(where: Path, words: list[str], wanted: tuple[str, ...] | None) -> tuple[tuple[str, ...], dict[str, int]]:
    """Class names and the index of each label; labels may be indices if ``class_names`` are not numeric."""
    ordered = in_order(words)
    if wanted is not None and not any(name.isdecimal() for name in wanted) and all(w.isdecimal() for w in ordered):
        outside = next((word for word in ordered if int(word) >= len(wanted)), None)
        if outside is not None:
            raise refuse(
                where,
                f"labels must be numbers from 0 to {len(wanted) - 1}, since there are {len(wanted)} class names",
                outside,
                "name all classes or correct the label",
            )
        return wanted, {word: int(word) for word in ordered}
    names = settle_names(where, ordered, wanted)
    return names, {name: number for number, name in enumerate(names)}


def _flags(file: Path, column: str, values: list[Any]) -> NDArray[np.int8]:
    """0, 1, and -1 for empty cells."""
    known = {"": -1, "none": -1, "nan": -1, "0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1, "-1": -1}
    flags = np.empty(len(values), np.int8)
    for row, value in enumerate(values):
        word = str(value).strip().lower()
        if word not in known:
            raise refuse(
                f"{file}, {_row(row)}", f"column {column!r} must hold 0, 1 or nothing", repr(value), "correct the row"
            )
        flags[row] = known[word]
    return flags


def _features(file: Path, table: Any, columns: list[str]) -> NDArray[np.float32]:  # noqa: ANN401
    """(N, D), one feature per column."""
    compute = _arrow(file).compute
    features = np.empty((table.num_rows, len(columns)), np.float32)
    for number, name in enumerate(columns):
        cells = table.column(name)
        if "string" in str(cells.type):
            cells = compute.utf8_trim_whitespace(cells)
        try:
            features[:, number] = cells.cast("float64").to_numpy()
            wrong = np.flatnonzero(~np.isfinite(features[:, number]))
        except _arrow(file).lib.ArrowException:
            wrong = np.flatnonzero([not _is_number(value) for value in cells.to_pylist()])
        if len(wrong):
            value = cells[int(wrong[0])].as_py()
            raise refuse(
                f"{file}, {_row(int(wrong[0]))}",
                f"column {name!r} must hold a finite number, because a table without paths or texts has features only",
                repr(value) if value not in (None, "") else "nothing",
                "make numbers of its words or drop the column, fill the gap or drop the row, or say path_column or "
                "text_column",
            )
    return features


def _is_number(value: Any) -> bool:  # noqa: ANN401
    try:
        return bool(np.isfinite(float(value)))
    except (TypeError, ValueError):
        return False


def _rows_by_split(path: Path, column: str, values: list[Any]) -> dict[str, NDArray[np.int64]]:
    meaning = {word: split for split, words in SPLITS.items() for word in words}
    words = [str(value).strip().lower() for value in values]
    unknown = next((row for row, word in enumerate(words) if word not in meaning), None)
    if unknown is not None:
        raise refuse(
            f"{path}, {_row(unknown)}",
            f"column {column!r} must hold train, val or test",
            repr(values[unknown]),
            "correct it",
        )
    given = np.array([meaning[word] for word in words])
    rows = {split: np.flatnonzero(given == split) for split in SPLITS if split in given}
    need_train(path, rows)
    return rows


def _row(index: int) -> str:
    return f"row {index + 1}"


def _arrow(path: Path) -> Any:  # noqa: ANN401  (pyarrow has no types)
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.csv
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise missing(f"{path}: reading tables", "pyarrow") from None
    return pyarrow


def _dialect(arrow: Any, file: Path) -> dict[str, Any]:  # noqa: ANN401
    """Detect the separator from the header: a comma, or the semicolon or tab of spreadsheets."""
    header = header_of(file)
    mark = max(",;\t", key=header.count)  # the first in a tie
    return {
        "read_options": read_options(arrow, file, header, mark),
        "parse_options": arrow.csv.ParseOptions(delimiter=mark, newlines_in_values=True),
    }


@contextmanager
def _readable(file: Path, problem: str, advice: str) -> Iterator[None]:
    """One-line error for an unreadable table; most often it is not UTF-8."""
    with reading(file, problem, advice, DataError):
        try:
            yield
        except Exception:
            invalid = None if file.suffix.lower() == ".parquet" or not file.is_file() else no_text(file)
            if invalid is None:
                raise
            raise refuse(
                file, "a table must be in UTF-8, or in UTF-16 with a byte order mark", invalid, SAVE_AS_UTF8
            ) from None


def _names(file: Path) -> list[str]:
    arrow = _arrow(file)
    with _readable(file, "the file must be a table with a header", "write it again"):
        if file.suffix.lower() == ".parquet":
            return list(arrow.parquet.read_schema(file).names)
        with arrow.csv.open_csv(file, **_dialect(arrow, file)) as reader:
            return list(reader.schema.names)


def _read(file: Path, columns: list[str]) -> Any:  # noqa: ANN401  (pyarrow has no types)
    """Read columns; of a CSV file as strings."""
    arrow = _arrow(file)
    known = dict.fromkeys(_names(file))
    absent = next((name for name in columns if name not in known), None)
    if absent is not None:
        raise refuse(file, f"there must be a column {absent!r}", some(known), nearest(absent, known))
    with _readable(file, "the table cannot be read", "check that row, or write it again"):
        if file.suffix.lower() == ".parquet":
            rows = arrow.parquet.read_metadata(file).num_rows
            check_memory(file, f"the table of {rows:,} rows", 8 * rows * len(columns), DataError)
            return arrow.parquet.read_table(file, columns=columns)
        convert = arrow.csv.ConvertOptions(  # as strings: 007 remains a name
            column_types=dict.fromkeys(columns, arrow.string()), include_columns=columns, strings_can_be_null=False
        )
        return arrow.csv.read_csv(file, convert_options=convert, **_dialect(arrow, file))
