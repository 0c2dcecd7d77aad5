"""Written predictions can be read, and a failure leaves no file."""

import numpy as np
import pytest

from equipoise.predictions import InputError, open_predictions, source, write_predictions
from tests.predictions.saved import CASES, TABLES, all_of, arrays_of, save

SUFFIX = {"npz": ".npz", "folder": "", "csv": ".csv", "parquet": ".parquet"}


@pytest.mark.parametrize(
    ("task", "form", "to"), [(*case, to) for case in CASES for task, to in CASES if task == case[0]]
)
def test_from_every_format_to_every_format(tmp_path, monkeypatch, task, form, to):
    monkeypatch.setattr(source, "CHUNK_ELEMENTS", 50 * 6)  # several chunks
    arrays = arrays_of(task)
    before = open_predictions(save(tmp_path, form, arrays))
    out = tmp_path / f"out{SUFFIX[to]}"
    write_predictions(out, before, before.chunks())
    after = open_predictions(out)
    assert (after.task, after.class_names) == (before.task, before.class_names)
    if to not in TABLES:
        assert after.train_counts == before.train_counts
    scores, targets = all_of(after)
    np.testing.assert_array_equal(scores, arrays["logits"])
    np.testing.assert_array_equal(targets, arrays["targets"])


@pytest.mark.parametrize("form", TABLES)
def test_names_that_are_numbers_stay_names(tmp_path, form):
    arrays = arrays_of("multiclass", classes=3) | {"class_names": np.array(["1", "2", "3"])}
    before = open_predictions(save(tmp_path, "npz", arrays | {"train_counts": np.ones(3)}))
    write_predictions(tmp_path / f"out.{form}", before, before.chunks())
    np.testing.assert_array_equal(all_of(open_predictions(tmp_path / f"out.{form}"))[1], arrays["targets"])


@pytest.mark.parametrize("name", ["out.npz", "out", "out.csv", "out.parquet"])
def test_failure_keeps_the_existing_file(tmp_path, name):
    before = open_predictions(save(tmp_path, "npz", arrays_of("multiclass")))
    out = tmp_path / name
    if out.suffix:
        out.write_bytes(b"as it was")

    def broken():
        yield next(before.chunks())
        raise InputError("half way")

    with pytest.raises(InputError, match="half way"):
        write_predictions(out, before, broken())
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted({"saved.npz"} | ({name} if out.suffix else set()))
    if out.suffix:
        assert out.read_bytes() == b"as it was"


@pytest.mark.parametrize(
    ("task", "name", "message"),
    [
        ("multiclass", "out.txt", "written as .npz, .csv, .parquet or a folder, got '.txt'"),
        ("segmentation", "out.csv", "holds no label maps"),
        ("multiclass", "missing/out.npz", "must exist, found none; create it first"),
        ("multiclass", "taken", "there is a folder of that name"),
    ],
)
def test_places_that_cannot_be_written(tmp_path, task, name, message):
    before = open_predictions(save(tmp_path, "npz", arrays_of(task)))
    (tmp_path / "taken").mkdir()
    with pytest.raises(InputError, match=message):
        write_predictions(tmp_path / name, before, before.chunks())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved.npz", "taken"]


def test_duplicate_class_names_cannot_be_columns(tmp_path):
    arrays = arrays_of("multiclass", classes=3) | {"class_names": np.array(["a", "a", "b"]), "train_counts": np.ones(3)}
    before = open_predictions(save(tmp_path, "npz", arrays))
    with pytest.raises(InputError, match="same name"):
        write_predictions(tmp_path / "out.csv", before, before.chunks())
    write_predictions(tmp_path / "out", before, before.chunks())
    assert open_predictions(tmp_path / "out").class_names == ("a", "a", "b")
