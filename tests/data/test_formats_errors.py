"""Errors about unusable data name the file, what was expected, what came and what to do."""

import json
import pickle
import re
import sys

import numpy as np
import pytest
from PIL import Image

from equipoise.data import DataError, FileImages, open_data
from tests.data.making import CORNER, class_folders, coco, mask, picture


def refused(words, *arguments, **options):
    """The message of the error, which must have all its parts and these words."""
    with pytest.raises(DataError) as caught:
        open_data(*arguments, **options)
    message = str(caught.value)
    assert re.search(r".+: .+, found .+; .+", message, flags=re.DOTALL), message
    for word in [words] if isinstance(words, str) else words:
        assert word in message
    return message


# Images


@pytest.mark.parametrize("content", [b"", b"<html>404</html>", "half"])
def test_corrupt_image(tmp_path, content):
    class_folders(tmp_path, 4, "jpg")
    whole = (tmp_path / "cat" / "00.jpg").read_bytes()
    for file in tmp_path.rglob("*.jpg"):
        file.write_bytes(whole[: len(whole) // 2] if content == "half" else content)
    data = open_data(tmp_path, image_size=8, check_images=False)  # nothing is decoded yet
    for read in (lambda: data.train.load(0), data.train.as_arrays):
        with pytest.raises(DataError, match=r"\.jpg: the file must be an image that can be decoded, found .*; replace"):
            read()


def test_the_error_leaves_a_worker_process(tmp_path):
    """Processes send it as a pickle, and torch creates an error of the same class from its message."""
    path = tmp_path / "a.png"
    path.write_bytes(b"nothing")
    with pytest.raises(DataError) as caught:
        FileImages(np.array([str(path)]), np.array([0])).load(0)
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is type(caught.value)
    assert str(again) == str(type(again)(str(caught.value)))
    assert "np.str_" not in str(again)


def test_image_gone_after_opening(tmp_path):
    class_folders(tmp_path, 4)
    data = open_data(tmp_path)
    for file in tmp_path.rglob("*.png"):
        file.unlink()
    with pytest.raises(DataError, match="no such file"):
        data.train.load(0)


def test_images_of_several_sizes_need_one(tmp_path):
    class_folders(tmp_path, 4)
    picture(tmp_path / "cat" / "00.png", size=(30, 20))
    data = open_data(tmp_path)
    where = next(split for split in (data.train, data.val, data.test) if any("cat/00" in path for path in split.paths))
    joined = FileImages(np.concatenate([where.paths, data.train.paths]), np.zeros(len(where) + len(data.train)))
    with pytest.raises(DataError, match=r"images must have one size.*choose image_size"):
        joined.as_arrays()


def test_sizes_are_those_of_upright_images_that_can_be_read(tmp_path):
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.new("RGB", (12, 10)).save(tmp_path / "0.jpg", exif=turned)
    picture(tmp_path / "1.png", size=(12, 10))
    (tmp_path / "2.png").write_bytes(b"no image")
    picture(tmp_path / "3.png", size=(30, 20))
    paths = np.array([str(tmp_path / name) for name in ("0.jpg", "1.png", "2.png", "3.png")])
    images = FileImages(paths, np.zeros(4, np.int64))
    assert images.sizes(4) == [images.load(0)[0].shape[1:], (10, 12), (20, 30)]
    assert images.sizes(4)[0] == (12, 10)
    assert images.sizes(2) == [(12, 10), (20, 30)]


def test_invalid_colour_depth(tmp_path):
    path = tmp_path / "a.tif"
    Image.new("F", (4, 4), 0.5).save(path)
    with pytest.raises(DataError, match="8 or 16 bits per channel, found mode F"):
        FileImages(np.array([str(path)]), np.array([0])).load(0)


def test_without_pillow(tmp_path, monkeypatch):
    path = picture(tmp_path / "a.png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ModuleNotFoundError, match=r"equipoise\[train\]"):
        FileImages(np.array([str(path)]), np.array([0])).load(0)


# Where to look


def test_missing_path(tmp_path):
    refused(("no-such", "check the path"), tmp_path / "no-such")
    refused("did you mean 'digits-lt'?", "digit-lt")


def test_missing_path_suggests_a_neighbour(tmp_path, monkeypatch):
    class_folders(tmp_path / "photos", 1)
    refused(f"did you mean '{tmp_path}/photos'?", tmp_path / "fotos")
    refused("check the path", tmp_path / "nothing-like-it")
    refused("check the path", tmp_path / "nowhere" / "photos")
    monkeypatch.chdir(tmp_path)
    refused("did you mean 'photos'?", "phtos")
    refused("did you mean 'digits-lt'?", "digit-lt")
    refused("known are digits-lt", "zzz")


def test_unknown_layout_lists_known_layouts(tmp_path):
    refused(("an empty folder", "train.npz", "Cityscapes", "VOC", "COCO", "train.csv", "CLASS/picture.jpg"), tmp_path)
    (tmp_path / "stuff.bin").write_bytes(b"1")
    refused("stuff.bin", tmp_path)
    refused((".parquet", "found .bin"), tmp_path / "stuff.bin")
    (tmp_path / "cat").mkdir()
    refused("found cat/, stuff.bin, without a picture below", tmp_path)


def test_empty_folders(tmp_path):
    (tmp_path / "train" / "cat").mkdir(parents=True)
    class_folders(tmp_path / "val", 1)
    refused(("train", "one folder of images per class", "no image in cat"), tmp_path)


def test_a_split_under_two_names(tmp_path):
    for split in ("train", "val", "valid"):
        class_folders(tmp_path / split, 1)
    refused("one val split, found val, valid", tmp_path)


def test_too_little_to_split(tmp_path):
    np.savez(tmp_path / "train.npz", features=np.zeros((2, 1)), labels=[0, 1])
    refused("enough samples to draw a val split, found 2 in all", tmp_path)


def test_another_task_than_asked_for(tmp_path):
    class_folders(tmp_path, 4)
    refused(("task 'multilabel'", "pass task='multiclass'"), tmp_path, task="multilabel")
    refused("data for 'multiclass'", "digits-lt", task="segmentation")


def test_options_that_would_be_ignored(tmp_path):
    class_folders(tmp_path, 4)
    refused("label_column does not apply to these data", tmp_path, label_column="label")
    refused("image_root does not apply to these data", "digits-lt", image_root=tmp_path)


def test_features_have_no_size(tmp_path):
    np.savez(tmp_path / "train.npz", features=np.zeros((40, 1)), labels=np.arange(40) % 2)
    assert any("image_size was ignored" in note for note in open_data(tmp_path, image_size=8).notes)


# Classes


def test_folder_in_no_class(tmp_path):
    class_folders(tmp_path, 4)
    refused(("'emu'", "did you mean 'emus'?"), tmp_path, class_names=["cat", "dog", "emus"])


def test_embedded_with_too_few_names():
    refused("each of the 10 classes", "digits-lt", class_names=["a", "b"])


# Arrays

IMAGES = np.zeros((6, 4, 4, 3), np.uint8)
LABELS = np.arange(6) % 2


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"images": IMAGES, "labels": np.array(["a", "b"] * 3)}, "labels must be integers"),
        ({"images": IMAGES, "labels": LABELS + 0.5}, "found 0.5 among"),
        ({"images": IMAGES, "labels": LABELS[:5]}, "labels must equal that of the images, found 5 and 6"),
        ({"images": IMAGES, "labels": LABELS - 1}, "class indices from 0, or the ignored -100, found -1"),
        ({"images": IMAGES, "labels": np.full((6, 2), 3)}, "0, 1 or -1 (unknown), found 3 in row 0"),
        ({"images": IMAGES, "labels": np.zeros((6, 1, 2, 2), int)}, "shape (6, 1, 2, 2)"),
        ({"images": IMAGES, "labels": np.zeros((6, 3, 4), int)}, "label maps must have the size of the images"),
        ({"images": IMAGES.astype(np.float32), "labels": LABELS}, "images must be uint8"),
        ({"images": IMAGES[..., 0], "labels": LABELS}, "images[..., None]"),
        ({"images": np.zeros((6, 3, 32, 32), np.uint8), "labels": LABELS}, 'store layout="nchw"'),
        ({"images": IMAGES, "labels": LABELS, "layout": "hwc"}, 'layout must be "nhwc" or "nchw", found'),
        ({"image": IMAGES, "labels": LABELS}, "did you mean 'images'?"),
        ({"images": IMAGES, "features": np.zeros((6, 2)), "labels": LABELS}, "one of them"),
        ({"features": np.zeros((6, 2, 2)), "labels": LABELS}, "features must be numeric (N, D)"),
        ({"features": np.full((6, 2), np.nan), "labels": LABELS}, "features must be finite"),
        ({"features": np.zeros((0, 2)), "labels": LABELS[:0]}, "at least one sample"),
        ({"images": IMAGES, "labels": LABELS, "class_names": np.array(["a"])}, "classes from 0 to 0"),
        ({"images": IMAGES, "labels": LABELS, "class_names": np.array([1, 2])}, "a vector of strings"),
        ({"images": IMAGES, "labels": np.zeros((6, 3), int), "class_names": np.array(["a"])}, "each of the 3 labels"),
        (
            {"images": IMAGES, "labels": np.array([0, {}] * 3, dtype=object)},
            "an array of numbers or strings",
        ),
    ],
)
def test_arrays(tmp_path, entries, words):
    np.savez(tmp_path / "train.npz", **entries)
    refused(("train.npz", words), tmp_path)


def test_arrays_of_different_splits(tmp_path):
    np.savez(tmp_path / "train.npz", images=IMAGES, labels=LABELS, class_names=np.array(["a", "b"]))
    np.savez(tmp_path / "val.npz", images=IMAGES[:, :3], labels=LABELS)
    refused(("val.npz", "shape of the training data, (N, 3, 4, 4)"), tmp_path)
    np.savez(tmp_path / "val.npz", images=IMAGES, labels=LABELS, class_names=np.array(["b", "a"]))
    refused("class_names must be the same in all splits", tmp_path)
    np.savez(tmp_path / "val.npz", images=IMAGES, labels=LABELS + 1)
    refused(("val.npz", "classes from 0 to 1"), tmp_path)
    (tmp_path / "val.npz").write_bytes(b"PK no")
    refused("must be an .npz archive", tmp_path)


# Tables


@pytest.mark.parametrize(
    ("table", "options", "words"),
    [
        ("path,label\na.png,x\nb.png,y", {}, "1 of 2 missing, e.g."),
        ("path,label\na.png,x\na.png,", {}, ("row 2", "must hold a class")),
        ("path,label\n,x", {}, ("row 1", "must name an image")),
        ("path,label\n", {}, "at least one row"),
        ("where,label\na.png,x", {}, "say path_column or text_column"),
        ("path,text,label\na.png,hi,x", {}, "found path, text"),
        ("path,kind\na.png,x", {}, "say label_column"),
        ("path,label\na.png,x", {"label_column": "lable"}, ("a column 'lable'", "did you mean 'label'?")),
        ("path,label\na.png,x", {"path_column": "paths"}, "did you mean 'path'?"),
        ("path,label\na.png,x", {"path_column": "path", "text_column": "label"}, "an image or a text"),
        ("path,a,b\na.png,1,maybe", {"label_column": ["a", "b"]}, ("row 1", "0, 1 or nothing, found 'maybe'")),
        ("path,a,b\na.png,1,0", {"label_column": ["a", "b"], "class_names": ["a", "b", "c"]}, "one column for each"),
        ("path,label\na.png,cta", {"class_names": ["cat", "dog"]}, ("'cta'", "did you mean 'cat'?")),
        ("path,label\na.png,2", {"class_names": ["cat", "dog"]}, "numbers from 0 to 1"),
        ("path,label\na.png,a;b|c", {}, "found both"),
        ("path,label\na.png,", {"task": "multilabel"}, "must hold a label somewhere"),
        ("path,label,split\na.png,x,trian", {}, ("row 1", "train, val or test, found 'trian'")),
        ("path,label,split\na.png,x,val", {}, "there must be a train split"),
        ("path,label,label\na.png,x,y", {}, "'label' twice"),
        ("path,label\na.png,x,too,many", {}, "the file must be a table"),
        ("", {}, "a table with a header"),
        (
            "age,city,label\n3,Ulm,x",
            {},
            ("row 1", "column 'city' must hold a finite number", "'Ulm'", "drop the column"),
        ),
        ("age,size,label\n3,1,x\n4,,y", {}, ("row 2", "column 'size'", "found nothing", "fill the gap")),
        ("age,label\n3,x\ninf,y", {}, ("row 2", "column 'age'", "found 'inf'")),
        ("id,label\n3,x", {}, "or numbers, found id, label"),
        ("age,kind\n3,x", {}, "say label_column"),
    ],
)
def test_tables(tmp_path, table, options, words):
    picture(tmp_path / "a.png")
    (tmp_path / "data.csv").write_text(table)
    message = refused(words, tmp_path / "data.csv", **options)
    assert "data.csv" in message


def test_a_table_of_another_split_without_the_column(tmp_path):
    (tmp_path / "train.csv").write_text("text,label\nhi,x\n")
    (tmp_path / "val.csv").write_text("text,labels\nhi,x\n")
    refused(("val.csv", "a column 'label'", "did you mean 'labels'?"), tmp_path)


# COCO


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"annotations": [{"image_id": 1, "category_id": 99}]}, "category_id 99 in image a.png"),
        ({"annotations": [{"image_id": 7, "category_id": 10}]}, "image_id 7"),
        ({"annotations": [{"category_id": 10}]}, "annotations image_id and category_id"),
        ({"images": [{"id": 1, "file_name": "gone.png"}]}, "image_root"),
        ({"images": [{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": "b.png"}]}, "1 of 2 missing"),
        ({"images": [{"id": 1, "file_name": "a.png"}, {"id": 1, "file_name": "b.png"}]}, "one id twice"),
        ({"images": []}, "an id of its own, found none"),
        ({"categories": [{"id": 10, "name": "a"}, {"id": 20, "name": "a"}]}, "a name of its own"),
        ({"categories": [{"id": 10}]}, "a number id and a name"),
        ({"categories": None}, "the lists images, annotations and categories"),
    ],
)
def test_coco(tmp_path, change, words):
    picture(tmp_path / "a.png")
    content = coco({1: "a.png"}, [(1, 10, 0)]) | change
    (tmp_path / "data.json").write_text(json.dumps(content))
    refused(("data.json", words), tmp_path / "data.json")


def test_coco_with_invalid_json(tmp_path):
    (tmp_path / "data.json").write_text("{")
    refused("is not valid JSON", tmp_path / "data.json")
    (tmp_path / "data.json").write_text("[1]")
    refused("found list", tmp_path / "data.json")


def test_coco_with_other_categories_in_validation(tmp_path):
    (tmp_path / "annotations").mkdir()
    for split, names in (("train", ("a", "b")), ("val", ("b", "a"))):
        picture(tmp_path / split / "a.png")
        content = coco({1: "a.png"}, [(1, 10, 0)], names)
        (tmp_path / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))
    refused(("instances_val.json", "categories must be those of"), tmp_path)


# Masks


@pytest.fixture
def scenes(tmp_path):
    for i in range(4):
        picture(tmp_path / "images" / f"{i}.jpg", size=(3, 2))
        mask(tmp_path / "masks" / f"{i}.png", CORNER)
    return tmp_path


def test_mask_of_another_size(scenes):
    mask(scenes / "masks" / "1.png", np.zeros((3, 2)))
    refused(("1.png", "the size of its image", "3 x 2", "found 2 x 3"), scenes)


def test_mask_value_out_of_range(scenes):
    refused(("masks", "classes from 0 to 1 or the ignored 255", "found 2"), scenes, class_names=["a", "b"])
    assert open_data(scenes, class_names=["a", "b", "c"], val_share=0.3, test_share=0.3).train_counts[2] > 0


def test_masks_of_one_class(scenes):
    for i in range(4):
        mask(scenes / "masks" / f"{i}.png", [[0, 255, 255], [0, 0, 0]])
    refused(("at least two classes", "ignore_index"), scenes)


def test_mask_of_colours(scenes):
    picture(scenes / "masks" / "1.png", (1, 2, 3), size=(3, 2), mode="RGB")
    refused(("1.png", "mode RGB", "class index"), scenes)


def test_corrupt_mask(scenes):
    (scenes / "masks" / "1.png").write_bytes(b"nothing")
    refused(("1.png", "can be decoded"), scenes)


def test_image_without_mask(scenes):
    (scenes / "masks" / "2.png").unlink()
    refused("none for 2", scenes)


def test_duplicate_stems(scenes):
    picture(scenes / "images" / "1.png", size=(3, 2))
    refused(("images", "1.jpg and 1.png"), scenes)


def test_cityscapes_and_voc_with_missing_files(tmp_path):
    picture(tmp_path / "city" / "leftImg8bit" / "train" / "ulm" / "ulm_0_leftImg8bit.png")
    (tmp_path / "city" / "gtFine").mkdir()
    refused(("ulm_0_gtFine_labelIds.png", "no such file"), tmp_path / "city")
    sets = tmp_path / "voc" / "ImageSets" / "Segmentation"
    for folder in (sets, tmp_path / "voc" / "JPEGImages", tmp_path / "voc" / "SegmentationClass"):
        folder.mkdir(parents=True)
    refused("there must be a train split", tmp_path / "voc")
    (sets / "train.txt").write_text("a\n")
    refused(("a.jpg", "no such file"), tmp_path / "voc")
    (sets / "train.txt").write_text("")
    refused("images in the train split", tmp_path / "voc")


# Lists


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("a.png 0\na.png cat\n", ("line 2", "'a.png cat'")),
        ("a.png\n", ("line 1", "a path, a space and a class index")),
        ("a.png -1\n", "line 1"),
        ("b.png 0\n", "image_root"),
        ("\n", "an empty file"),
    ],
)
def test_lists(tmp_path, lines, words):
    picture(tmp_path / "a.png")
    (tmp_path / "Some_LT_train.txt").write_text(lines)
    assert "Some_LT_train.txt" in refused(words, tmp_path)


def test_list_label_in_no_class(tmp_path):
    picture(tmp_path / "a.png")
    (tmp_path / "train.txt").write_text("a.png 0\na.png 5\n")
    refused(("train.txt", "classes from 0 to 1", "found 5"), tmp_path, class_names=["a", "b"])


def test_two_training_lists(tmp_path):
    for name in ("a_train.txt", "b_train.txt"):
        (tmp_path / name).write_text("x 0\n")
    refused("a_train.txt, b_train.txt", tmp_path)


# Encodings


@pytest.mark.parametrize(
    ("encoding", "words"),
    [
        ("latin-1", ("UTF-8", "the byte 0xe4 in line 2, as in Latin-1 or Windows-1252", "save it as UTF-8")),
        ("cp1252", "the byte 0xe4 in line 2"),
        ("utf-16-le", ("a zero byte in line 1", "UTF-16 without a byte order mark")),
    ],
)
def test_encodings(tmp_path, encoding, words):
    (tmp_path / "all.csv").write_bytes("text,label\nKäse,ä\nBrot,b\n".encode(encoding))
    assert "all.csv" in refused(words, tmp_path / "all.csv")


def test_encoding_of_a_list(tmp_path):
    (tmp_path / "train.txt").write_bytes("ä.png 0\n".encode("latin-1"))
    refused(("train.txt", "the byte 0xe4 in line 1"), tmp_path)


def test_utf_16_that_breaks_off(tmp_path):
    (tmp_path / "all.csv").write_bytes("text,label\na,b\n".encode("utf-16")[:-1])
    refused(("all.csv", "truncated"), tmp_path / "all.csv")


# Long tails and arguments


def test_long_tails_need_one_label_and_samples(tmp_path):
    refused("single-label data, found task 'multilabel'", "digit-scenes", longtail="step:10")
    for split in ("train", "val", "test"):
        np.savez(tmp_path / f"{split}.npz", features=np.zeros((3, 1)), labels=[0, 2, 2])
    refused("none of 1", tmp_path, longtail="step:2")


def test_first_4000_need_enough_samples(tmp_path):
    refused("single-label data, found task 'multilabel'", "digit-scenes", longtail="first-4000:5/3")
    refused(("4000 training samples", "found 276"), "digits-lt", longtail="first-4000:balanced")
    refused(("class 0 must have 580 training samples", "found 100"), "digits-lt", longtail="first-4000:6/2")
    np.savez(tmp_path / "train.npz", features=np.zeros((4000, 1)), labels=np.arange(4000) % 20)
    refused(("10 or 100 classes", "found 20"), tmp_path, longtail="first-4000:5/3")
    refused(("enough samples to draw a val split", "found 0"), tmp_path, longtail="first-4000:balanced")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"longtail": "first-4000:4/4"}, "'first-4000:6/2', got 'first-4000:4/4'"),
        ({"longtail": "first-4000"}, "'first-4000:6/2', got 'first-4000'"),
        ({"longtail": "exp:100"}, "longtail must be one of"),
        ({"longtail": "step"}, "RULE:RATIO, got 'step'"),
        ({"longtail": "step:0.5"}, "ratio"),
        ({"task": "both"}, "task"),
        ({"fit": "pad"}, "fit"),
        ({"val_share": 0.0}, "val_share"),
        ({"val_share": 0.6, "test_share": 0.5}, "leave samples for training"),
        ({"image_size": 0}, "image_size"),
        ({"image_size": (1, 2, 3)}, "height and width"),
        ({"class_names": ["a", "a"]}, "class_names must be different"),
        ({"class_names": []}, "class_names"),
    ],
)
def test_arguments(options, words):
    with pytest.raises(ValueError, match=words):
        open_data("digits-lt", **options)


def test_class_names_must_not_be_a_string():
    with pytest.raises(TypeError, match="pass a list"):
        open_data("digits-lt", class_names="abc")
