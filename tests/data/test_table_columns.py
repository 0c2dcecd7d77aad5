"""Tables of many columns: the work is linear in their number."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest

from equipoise.data import open_data, tables
from equipoise.predictions import open_predictions
from equipoise.predictions import tables as prediction_tables

ROWS = 12
FEW, MANY = 150, 1200


class Name(str):
    """A name whose comparisons are calls, so that they are counted: ``in`` and ``count`` of a list are no calls."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)


def write(folder: Path, ending: str, columns: dict[str, Any]) -> Path:
    file = folder / f"table{len(columns)}{ending}"
    table = pyarrow.table(columns)
    if ending == ".csv":
        pyarrow.csv.write_csv(table, file)
    else:
        pyarrow.parquet.write_table(table, file)
    return file


def features(number: int) -> dict[str, Any]:
    return {f"f{k}": np.arange(ROWS) + k for k in range(number)} | {"label": ["a", "b", "c"] * (ROWS // 3)}


def labels(number: int) -> dict[str, Any]:
    return {"text": ["words"] * ROWS} | {f"label_{k}": np.arange(ROWS) % 2 for k in range(number)}


def scores(number: int) -> dict[str, Any]:
    return {f"logit_{k}": np.arange(ROWS) / 7 for k in range(number)} | {"target": np.arange(ROWS)}


def label_scores(number: int) -> dict[str, Any]:
    single = scores(number)
    return {name: single[name] for name in single if name != "target"} | {
        f"target_{k}": np.arange(ROWS) % 2 for k in range(number)
    }


def others(number: int) -> dict[str, Any]:
    return scores(20) | {f"beside{k}": np.arange(ROWS) for k in range(number)}


def read_predictions(file: Path) -> int:
    return sum(len(chunk.scores) for chunk in open_predictions(file, others=True).chunks())


def calls(work: Callable[[], object]) -> int:
    """Functions, of Python and of C, that ``work`` calls."""
    count = 0

    def look(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
@pytest.mark.parametrize(
    ("made", "opened"),
    [
        (features, open_data),
        (labels, open_data),
        (scores, read_predictions),
        (label_scores, read_predictions),
        (others, read_predictions),
    ],
)
def test_work_grows_with_the_number_of_columns(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ending: str,
    made: Callable[[int], dict[str, Any]],
    opened: Callable[[Path], object],
) -> None:
    for module, name in ((tables, "_names"), (prediction_tables, "_schema")):
        plain = getattr(module, name)
        monkeypatch.setattr(module, name, lambda file, plain=plain: [Name(column) for column in plain(file)])
    files = [write(tmp_path, ending, made(number)) for number in (ROWS, FEW, MANY)]
    opened(files[0])  # imports
    few, many = (calls(lambda file=file: opened(file)) for file in files[1:])
    assert many < 1.5 * MANY / FEW * few


def test_header_and_rows_may_be_longer_than_a_block(tmp_path: Path) -> None:
    """By default pyarrow refuses rows longer than its block."""
    long = "x" * 200
    columns = {f"{long}{k}": [0.123456789, 1.0] * (ROWS // 2) for k in range(5000)}
    file = write(tmp_path, ".csv", columns | {"label": ["a", "b", "c"] * (ROWS // 3)})
    assert file.stat().st_size > 2**20
    assert open_data(file).train.inputs.shape[1] == 5000
