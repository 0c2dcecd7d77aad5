"""Every format gives the same predictions, in chunks."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

from equipoise.predictions import InputError, open_predictions, source
from tests.predictions.saved import CASES, FORMATS, TABLES, all_of, arrays_of, save


@pytest.mark.parametrize("probs", [False, True])
@pytest.mark.parametrize(("task", "form"), CASES)
def test_every_format_gives_what_was_saved(tmp_path, task, form, probs):
    arrays = arrays_of(task, probs=probs)
    predictions = open_predictions(save(tmp_path, form, arrays))
    assert (predictions.task, predictions.num_classes, predictions.from_logits) == (task, 6, not probs)
    assert predictions.class_names == tuple(arrays["class_names"])
    assert predictions.samples == (None if form == "csv" else 240)
    assert predictions.train_counts == (None if form in TABLES else tuple(arrays["train_counts"]))
    scores, targets = all_of(predictions)
    np.testing.assert_array_equal(scores, arrays["probs" if probs else "logits"])
    np.testing.assert_array_equal(targets, arrays["targets"])


@pytest.mark.parametrize("elements", [1, 7 * 6, 100 * 6, 10**6])
@pytest.mark.parametrize("form", FORMATS)
def test_chunk_sizes(tmp_path, monkeypatch, form, elements):
    arrays = arrays_of("multiclass")
    predictions = open_predictions(save(tmp_path, form, arrays))
    monkeypatch.setattr(source, "CHUNK_ELEMENTS", elements)
    sizes = [len(chunk.scores) for chunk in predictions.chunks()]
    assert max(sizes) == max(1, min(elements // 6, 240))
    assert sum(sizes) == 240
    np.testing.assert_array_equal(all_of(predictions)[0], arrays["logits"])


def test_places_count_in_the_size_of_a_chunk(tmp_path, monkeypatch):
    predictions = open_predictions(save(tmp_path, "folder", arrays_of("segmentation")))
    monkeypatch.setattr(source, "CHUNK_ELEMENTS", 3 * 6 * 4 * 5)
    assert {len(chunk.scores) for chunk in predictions.chunks()} == {3}


def test_row_groups_of_parquet_are_read_one_after_the_other(tmp_path, monkeypatch):
    arrays = arrays_of("multiclass")
    path = save(tmp_path, "parquet", arrays, row_group_size=50)
    assert pa.parquet.ParquetFile(path).num_row_groups == 5
    monkeypatch.setattr(source, "CHUNK_ELEMENTS", 30 * 6)
    predictions = open_predictions(path)
    assert max(len(chunk.scores) for chunk in predictions.chunks()) <= 30
    np.testing.assert_array_equal(all_of(predictions)[0], arrays["logits"])
    np.testing.assert_array_equal(all_of(predictions)[1], arrays["targets"])


def test_a_folder_is_mapped_not_loaded(tmp_path):
    path = save(tmp_path, "folder", arrays_of("multiclass"))
    predictions = open_predictions(path)
    np.load(path / "logits.npy", mmap_mode="r+")[0, 0] = 12.5  # after it was opened
    assert next(predictions.chunks()).scores[0, 0] == 12.5


# Arrays ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["npz", "folder"])
def test_other_arrays_are_ignored_even_pickled_ones(tmp_path, form):
    arrays = arrays_of("multiclass") | {
        "paths": np.array([{"a": 1}, None], dtype=object),
        "embeddings": np.zeros((3, 2)),
    }
    assert open_predictions(save(tmp_path, form, arrays)).samples == 240


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint64", ">i4"])
def test_targets_of_any_integer_type(tmp_path, dtype):
    arrays = arrays_of("multiclass")
    arrays["targets"] = np.abs(arrays["targets"] % 6).astype(dtype)
    _, targets = all_of(open_predictions(save(tmp_path, "npz", arrays)))
    np.testing.assert_array_equal(targets.astype(np.int64), arrays["targets"].astype(np.int64))


def test_255_of_unsigned_maps_can_be_ignored(tmp_path):
    arrays = arrays_of("segmentation")
    arrays["targets"] = np.where(arrays["targets"] < 0, 255, arrays["targets"]).astype(np.uint8)
    path = save(tmp_path, "npz", arrays)
    assert (all_of(open_predictions(path, ignore_index=255))[1] == 255).any()
    with pytest.raises(InputError, match=r"found 255 at sample .*--ignore-index"):
        all_of(open_predictions(path))


@pytest.mark.parametrize("dtype", ["bool", "float32", "int8"])
def test_targets_of_several_labels_of_any_type(tmp_path, dtype):
    arrays = arrays_of("multilabel")
    arrays["targets"] = (arrays["targets"] == 1).astype(dtype)
    predictions = open_predictions(save(tmp_path, "npz", arrays))
    assert predictions.task == "multilabel"
    assert all_of(predictions)[1].sum() == arrays["targets"].sum()


def test_given_counts_override_those_of_the_file(tmp_path):
    path = save(tmp_path, "npz", arrays_of("multiclass"))
    assert open_predictions(path, train_counts=range(6)).train_counts == (0, 1, 2, 3, 4, 5)


def test_names_of_bytes(tmp_path):
    arrays = arrays_of("multiclass") | {"class_names": np.array([b"a", b"b", b"c", b"d", b"e", b"f"])}
    assert open_predictions(save(tmp_path, "npz", arrays)).class_names == tuple("abcdef")


# Tables ---------------------------------------------------------------------------------------------------------------


def csv(tmp_path, text):
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_column_that_begins_with_integers(tmp_path):
    rows = [f"{k % 3},{k % 2}.0,{k % 2}" for k in range(200_000)]  # more than the block that types are guessed from
    rows += ["0.25,-0.5,1"]
    predictions = open_predictions(csv(tmp_path, "logit_0,logit_1,target\n" + "\n".join(rows) + "\n"))
    scores, targets = all_of(predictions)
    assert scores[-1].tolist() == [0.25, -0.5]
    assert len(targets) == 200_001


def test_columns_in_any_order_with_others_between(tmp_path):
    text = "path,prob_2,target,prob_0,note,prob_1\na.png,0.2,0,0.7,x,0.1\nb.png,0.5,2,0.3,,0.2\n"
    predictions = open_predictions(csv(tmp_path, text))
    scores, targets = all_of(predictions)
    assert scores.tolist() == [[0.7, 0.1, 0.2], [0.3, 0.2, 0.5]]
    assert targets.tolist() == [0, 2]


def test_names_that_are_numbers_are_names(tmp_path):
    predictions = open_predictions(csv(tmp_path, "logit_1,logit_2,logit_3,target\n9,0,0,1\n0,0,9,3\n0,0,1,-100\n"))
    assert all_of(predictions)[1].tolist() == [0, 2, -100]
    with pytest.raises(InputError, match="found '0'; known are 1, 2, 3"):
        all_of(open_predictions(csv(tmp_path, "logit_1,logit_2,logit_3,target\n9,0,0,0\n")))


@pytest.mark.parametrize("names", [("true", "false"), ("NA", "x"), ("007", "7"), ("2020-01-01", "nan"), ("é", "日本")])
def test_names_that_look_like_something_else(tmp_path, names):
    a, b = names
    predictions = open_predictions(csv(tmp_path, f"prob_{a},prob_{b},target\n0.9,0.1,{a}\n0.1,0.9,{b}\n"))
    assert predictions.class_names == names
    assert all_of(predictions)[1].tolist() == [0, 1]


@pytest.mark.parametrize("form", TABLES)
def test_targets_may_be_numbers_where_names_are_words(tmp_path, form):
    table = pa.table({"logit_cat": [1.0, 0.0], "logit_dog": [0.0, 1.0], "target": [0, 1]})
    path = tmp_path / f"t.{form}"
    (pa.csv.write_csv if form == "csv" else pa.parquet.write_table)(table, path)
    assert all_of(open_predictions(path))[1].tolist() == [0, 1]


def test_empty_labels_are_unknown(tmp_path):
    text = "logit_a,logit_b,target_a,target_b\n1,2,1,\n0,1,,0\n"
    predictions = open_predictions(csv(tmp_path, text))
    assert predictions.task == "multilabel"
    assert all_of(predictions)[1].tolist() == [[1, -1], [-1, 0]]


def test_blanks_around_names_and_labels_are_removed(tmp_path):
    predictions = open_predictions(csv(tmp_path, "target, prob_cat , prob_dog\n dog, 0.25, 0.75\ncat , 1.0, 0.0\n"))
    scores, targets = all_of(predictions)
    assert predictions.class_names == ("cat", "dog")
    assert scores.tolist() == [[0.25, 0.75], [1.0, 0.0]]
    assert targets.tolist() == [1, 0]


@pytest.mark.parametrize("form", TABLES)
def test_booleans_are_the_classes_0_and_1(tmp_path, form):
    table = pa.table({"prob_0": [0.2, 0.6], "prob_1": [0.8, 0.4], "target": [True, False]})
    path = tmp_path / f"t.{form}"
    (pa.csv.write_csv if form == "csv" else pa.parquet.write_table)(table, path)
    assert all_of(open_predictions(path))[1].tolist() == [1, 0]


def test_categories_of_parquet(tmp_path):
    target = pa.array(["dog", "cat"]).dictionary_encode()
    pa.parquet.write_table(
        pa.table({"logit_cat": [1.0, 0.0], "logit_dog": [0.0, 1.0], "target": target}), tmp_path / "t.parquet"
    )
    assert all_of(open_predictions(tmp_path / "t.parquet"))[1].tolist() == [1, 0]


TABLE = "logit_Käse,logit_Brot,target\n1,0,Käse\n0,1,Brot\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings_with_a_byte_order_mark(tmp_path, encoding):
    path = tmp_path / "t.csv"
    path.write_bytes(TABLE.encode(encoding))
    predictions = open_predictions(path)
    assert predictions.class_names == ("Käse", "Brot")
    assert all_of(predictions)[1].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("encoding", "words"),
    [("latin-1", "found the byte 0xe4 in line 1, as in Latin-1"), ("utf-16-le", "found a zero byte in line 1")],
)
def test_encodings_without_a_byte_order_mark(tmp_path, encoding, words):
    path = tmp_path / "t.csv"
    path.write_bytes(TABLE.encode(encoding))
    with pytest.raises(InputError, match=rf"t\.csv: a table must be in UTF-8.*{words}.*; save it as UTF-8"):
        open_predictions(path)


def test_a_foreign_byte_below_the_header(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(TABLE.replace("logit_Käse", "logit_Kase").encode("latin-1"))
    with pytest.raises(InputError, match="found the byte 0xe4 in line 2"):
        all_of(open_predictions(path))


# One binary label -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["prob,target", "prob_1,target"])
def test_one_column_of_scores_gives_advice_on_both_tasks(tmp_path, head):
    path = csv(tmp_path, f"{head}\n0.2,0\n0.9,1\n")
    with pytest.raises(InputError, match="target_1"):
        open_predictions(path)


def test_one_label(tmp_path):
    predictions = open_predictions(csv(tmp_path, "prob_1,target_1\n0.2,0\n0.9,1\n"))
    assert (predictions.task, predictions.num_classes) == ("multilabel", 1)


# In memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_given", [np.asarray, torch.from_numpy, np.ndarray.tolist])
def test_arrays_in_memory(as_given):
    arrays = arrays_of("multiclass")
    given = {name: as_given(arrays[name]) for name in ("logits", "targets", "train_counts")}
    predictions = open_predictions(given)
    assert (predictions.task, predictions.samples, predictions.train_counts) == (
        "multiclass",
        240,
        tuple(arrays["train_counts"]),
    )
    scores, targets = all_of(predictions)
    np.testing.assert_array_equal(scores, arrays["logits"])
    np.testing.assert_array_equal(targets, arrays["targets"])


@pytest.mark.parametrize("given", [(np.zeros((3, 2)), np.zeros(3)), np.zeros((3, 2)), 7])
def test_predictions_of_an_invalid_type(given):
    with pytest.raises(TypeError, match=r'a path, or arrays by name, got .*"logits": logits'):
        open_predictions(given)


def test_arrays_under_other_names():
    with pytest.raises(InputError, match=r"names must be among logits, probs, targets.*got 'labels'"):
        open_predictions({"logits": np.zeros((3, 2)), "labels": np.zeros(3, int)})


def test_unknown_task():
    arrays = {"logits": np.zeros((4, 3)), "targets": np.zeros(4, np.int64)}
    with pytest.raises(InputError, match=r"task must be one of 'multiclass', .*, got 'foo'; choose"):
        open_predictions(arrays, task="foo")
