"""The column of labels, and valid labels: in training tables, in arrays and in predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from equipoise.data import DataError, open_data
from equipoise.predictions import InputError, open_predictions

ROWS = 60


def table(file: Path, labels: Any, name: str = "label") -> Path:
    columns = {"age": np.arange(ROWS), "height": np.arange(ROWS) / 7, name: labels}
    if file.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.table(columns), file)
    else:
        rows = zip(*([str(value) for value in column] for column in columns.values()), strict=True)
        file.write_text("\n".join([",".join(columns), *(",".join(row) for row in rows)]) + "\n")
    return file


def refused(file: Path, *words: str, **options: Any) -> None:
    with pytest.raises(DataError) as error:
        open_data(file, **options)
    message = str(error.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


@pytest.mark.parametrize("name", ["label", "y", "target", "class"])
def test_usual_names(tmp_path: Path, name: str) -> None:
    data = open_data(table(tmp_path / "t.csv", ["cat", "dog"] * (ROWS // 2), name))
    assert data.class_names == ("cat", "dog")
    assert data.train.inputs.shape[1] == 2


@pytest.mark.parametrize("name", ["Label", "lable", "Target", "y_label"])
def test_nearly_usual_names_are_proposed(tmp_path: Path, name: str) -> None:
    file = table(tmp_path / "t.csv", ["cat", "dog"] * (ROWS // 2), name)
    refused(file, f"did you mean {name!r}?", f"--label-column {name}")
    assert open_data(file, label_column=name).class_names == ("cat", "dog")


def test_no_name_is_near(tmp_path: Path) -> None:
    refused(table(tmp_path / "t.csv", ["cat", "dog"] * (ROWS // 2), "zebra"), "--label-column NAME", "zebra")


def test_two_usual_names(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("age,y,label\n" + "1,a,b\n" * ROWS)
    refused(tmp_path / "t.csv", "'y' or 'label'", "--label-column y")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_whole_floats_are_integers(tmp_path: Path, ending: str) -> None:
    data = open_data(table(tmp_path / f"t.{ending}", np.array([1.0, 2.0, 10.0] * (ROWS // 3))))
    assert data.class_names == ("1", "2", "10")


def test_integers_stay_the_names_they_are(tmp_path: Path) -> None:
    assert open_data(table(tmp_path / "t.csv", ["007", "1"] * (ROWS // 2))).class_names == ("1", "007")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (np.array([1.0, 2.0, 1.5] * (ROWS // 3)), ["3 different numbers", "e.g. 1.5"]),
        (np.random.default_rng(0).normal(size=ROWS), [f"{ROWS} different numbers in {ROWS} rows", "pandas.cut"]),
        (np.arange(ROWS) * 1000, [f"{ROWS} different numbers", "pandas.cut"]),
        (np.array([1.0, np.nan, 2.0] * (ROWS // 3)), []),
    ],
)
def test_measurements_and_missing_values_are_not_classes(
    tmp_path: Path, ending: str, labels: Any, words: list[str]
) -> None:
    refused(table(tmp_path / f"t.{ending}", labels), "'label'", *words)


def test_words_may_be_names_however_many_numbers_are_among_them(tmp_path: Path) -> None:
    assert open_data(table(tmp_path / "t.csv", ["1.5", "nan", "unknown"] * (ROWS // 3))).class_names == (
        "1.5",
        "nan",
        "unknown",
    )


def test_booleans_are_classes(tmp_path: Path) -> None:
    assert open_data(table(tmp_path / "t.parquet", np.arange(ROWS) % 2 == 0)).class_names == ("False", "True")


def test_arrays(tmp_path: Path) -> None:
    features = np.zeros((ROWS, 2), np.float32)
    np.savez(tmp_path / "a.npz", features=features, labels=np.arange(ROWS) % 3 * 1.0)
    assert open_data(tmp_path / "a.npz").train.labels.dtype == np.int64
    for wrong, shown in ((0.5, "0.5"), (np.nan, "nan")):
        np.savez(tmp_path / "a.npz", features=features, labels=np.where(np.arange(ROWS) == 7, wrong, 1.0))
        refused(tmp_path / "a.npz", f"found {shown} among", "np.digitize")


def predictions(tmp_path: Path, targets: list[str], name: str = "target") -> Path:
    file = tmp_path / "p.csv"
    file.write_text(f"logit_0,logit_1,{name}\n" + "".join(f"1,2,{target}\n" for target in targets))
    return file


def read(source: Any) -> list[int]:
    return [int(target) for chunk in open_predictions(source).chunks() for target in chunk.targets]


def test_targets_of_tables(tmp_path: Path) -> None:
    assert read(predictions(tmp_path, ["1.0", "0.0", "1", "-100.0"])) == [1, 0, 1, -100]
    for targets, words in (
        (["1", "1.5"], "'1.5'"),
        (["1", "nan", ""], "nothing in 2 rows"),
        (["1", ""], "nothing in 1"),
    ):
        with pytest.raises(InputError, match=words):
            read(predictions(tmp_path, list(targets)))


@pytest.mark.parametrize("name", ["label", "y", "Target", "y_true"])
def test_target_columns_of_other_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=f"rename '{name}' to target"):
        read(predictions(tmp_path, ["1"], name))


def test_targets_of_arrays() -> None:
    logits = np.zeros((3, 2))
    assert read({"logits": logits, "targets": np.array([1.0, 0.0, 1.0])}) == [1, 0, 1]
    for wrong in (0.5, np.nan, np.inf):
        with pytest.raises(InputError, match=f"integers from 0, found {wrong}"):
            read({"logits": logits, "targets": np.array([1.0, 0.0, wrong])})


def test_blanks_around_column_names_are_removed(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    rows = [f"{row}, {row / 7}, {('cat', 'dog')[row % 2]}" for row in range(ROWS)]
    file.write_text("\n".join(["age, height, label", *rows]) + "\n")
    data = open_data(file)
    assert data.class_names == ("cat", "dog")
    assert data.train.inputs.shape[1] == 2


@pytest.mark.parametrize(
    ("words", "classes"),
    [
        (("1_0", "10", "2_5"), ("10", "1_0", "2_5")),
        (("1e2", "100", "7"), ("100", "1e2", "7")),
        (("9007199254740993.0", "9007199254740992"), ("9007199254740992", "9007199254740993")),
        (("1.0", "2.", "-1.00"), ("-1", "1", "2")),
    ],
)
def test_different_labels_stay_different_classes(
    tmp_path: Path, words: tuple[str, ...], classes: tuple[str, ...]
) -> None:
    data = open_data(table(tmp_path / "t.csv", [words[row % len(words)] for row in range(ROWS)]))
    assert data.class_names == classes
