"""Numbers that would take all memory or no end of time are refused with what came and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.comparison.spec import CompareSpec
from equipoise.data import DataError, open_data
from equipoise.data import tables as data_tables
from equipoise.evaluation import evaluate
from equipoise.predictions import InputError, open_predictions
from equipoise.train.rows import expand_rows
from equipoise.train.spec import RunSpec, SpecError

HUGE = 10**15
LONG = "9" * 5000
"""More digits than Python reads as a number."""


def one_line(error: pytest.ExceptionInfo[Exception], *parts: str) -> None:
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 500
    assert all(part in message for part in parts), message


def features(labels: Any) -> dict[str, Any]:
    return {"features": np.zeros((len(labels), 2), np.float32), "labels": labels}


@pytest.mark.parametrize(
    "arrays",
    [
        features(np.array([0, 1, HUGE])),
        features(np.array([0, 1, 2**64 - 1], np.uint64)),
        {"images": np.zeros((2, 3, 3, 1), np.uint8), "labels": np.full((2, 3, 3), HUGE)},
        {"images": np.zeros((2, 3, 3, 1), np.uint8), "labels": np.full((2, 3, 3), 70_000, np.int32)},
    ],
)
def test_class_numbers_of_arrays(tmp_path: Path, arrays: dict[str, Any]) -> None:
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(DataError) as error:
        open_data(tmp_path / "data.npz")
    highest = min(int(arrays["labels"].max()), 2**63 - 1)
    one_line(error, "data.npz", str(highest), "return_inverse")


@pytest.mark.parametrize("number", [str(HUGE), "9" * 25, LONG])
def test_class_numbers_of_lists(tmp_path: Path, number: str) -> None:
    (tmp_path / "a.png").touch()
    (tmp_path / "list.txt").write_text(f"a.png 0\na.png {number}\n")
    with pytest.raises(DataError) as error:
        open_data(tmp_path / "list.txt")
    one_line(error, "list.txt", number[:10])


def test_long_numbers_are_names_in_tables(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("f,label\n" + "".join(f"{k},{(LONG, '3')[k % 2]}\n" for k in range(40)))
    assert set(open_data(tmp_path / "t.csv").class_names) == {LONG, "3"}


def test_masks(tmp_path: Path) -> None:
    from PIL import Image

    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    for k in range(2):
        Image.new("RGB", (4, 4)).save(tmp_path / "images" / f"{k}.png")
        Image.fromarray(np.full((4, 4), 60_000, np.uint16)).save(tmp_path / "masks" / f"{k}.png")
    with pytest.raises(DataError) as error:
        open_data(tmp_path)
    one_line(error, "60000")


def test_rows_times_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_tables, "MOST_CELLS", 1000)
    (tmp_path / "t.csv").write_text("text,label\n" + "".join(f"words,a{k};b{k}\n" for k in range(40)))
    with pytest.raises(DataError) as error:
        open_data(tmp_path / "t.csv")
    one_line(error, "3,200", "80 different labels", "'label'")


@pytest.mark.parametrize(
    "seeds", [3_000_000, "3000000", LONG, 10**30, tuple(range(1001)), ",".join(map(str, range(1001)))]
)
def test_seeds(seeds: Any) -> None:
    with pytest.raises(SpecError) as error:
        CompareSpec.check({"data": "digits-lt", "seeds": seeds}, quick=True)
    (mistake,) = error.value.mistakes
    assert "1,000" in mistake
    assert len(mistake) < 200


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 10**10),
        ("epochs", LONG),
        ("batch_size", 10**10),
        ("image_size", 10**6),
        ("image_size", "100x1000000"),
        ("workers", 10**6),
        ("nodes", 10**9),
        ("seed", 2**32),
        ("data_seed", 2**64),
        ("lr", "inf"),
        ("lr", float("nan")),
        ("weight_decay", "inf"),
        ("clip", "inf"),
        ("augment", "crop:1e9"),
        ("augment", "crop:inf"),
        ("augment", "randaugment:1e9"),
    ],
)
def test_settings(name: str, value: Any) -> None:
    with pytest.raises(SpecError) as error:
        RunSpec.check({"data": "digits-lt", name: value})
    assert all(mistake.startswith(name) and len(mistake) < 250 for mistake in error.value.mistakes)


def test_combinations() -> None:
    values = ",".join(str(k / 100) for k in range(40))
    with pytest.raises(ValueError, match=r"1,000.*1,600") as error:
        expand_rows(f"focal:gamma={values}:label_smoothing={values}")
    one_line(error)
    with pytest.raises(ValueError, match=r"1,000.*1,600"):
        expand_rows(f"tau-norm:tau={values}:loss={','.join(f'(focal:gamma={k})' for k in range(40))}")


@pytest.mark.parametrize("option", ["bins", "bootstrap"])
def test_evaluation(option: str) -> None:
    predictions = {"logits": np.zeros((6, 2)), "targets": np.arange(6) % 2}
    with pytest.raises(ValueError, match=option) as error:
        evaluate(predictions, **{option: 10**12})
    one_line(error, str(10**12))


@pytest.mark.parametrize("option", ["ignore_index", "open_label"])
def test_marks_of_targets(option: str) -> None:
    predictions = {"logits": np.zeros((6, 2)), "targets": np.arange(6) % 2}
    with pytest.raises(InputError) as error:
        open_predictions(predictions, **{option: 10**30})
    one_line(error, option, str(10**30))


@pytest.mark.parametrize("target", ["9" * 25, LONG])
def test_targets_of_tables(tmp_path: Path, target: str) -> None:
    (tmp_path / "p.csv").write_text(f"logit_a,logit_b,target\n1,2,a\n1,2,{target}\n")
    with pytest.raises(InputError) as error:
        list(open_predictions(tmp_path / "p.csv").chunks())
    one_line(error, target[:10])
