"""Every format that ``open_data`` reads, with files made here."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from PIL import Image
from torch.utils.data import DataLoader

from equipoise.data import Arrays, FileImages, Texts, Vocabulary, open_data
from tests.data.making import CORNER, SHADES, class_folders, coco, mask, picture


def splits(data):
    return data.train, data.val, data.test


def sizes(data):
    return [len(split) for split in splits(data)]


# Embedded


@pytest.mark.parametrize(("name", "task"), [("digits-lt", "multiclass"), ("digit-scenes", "multilabel")])
def test_embedded(name, task):
    data = open_data(name, seed=3)
    assert (data.name, data.task, data.notes) == (name, task, ())
    assert not np.array_equal(data.train.inputs, open_data(name).train.inputs[: len(data.train)])


def test_embedded_in_another_size():
    data = open_data("digit-maps", image_size=(16, 24))
    assert data.train.inputs.shape == (1500, 1, 16, 24)
    assert data.val.labels.shape == (500, 16, 24)
    small, large = open_data("digit-maps"), open_data("digit-maps", image_size=64)
    assert np.array_equal(large.test.labels[:, 1::2, ::2], small.test.labels)
    assert np.array_equal(
        open_data("digit-maps", image_size=(32, 16), fit="crop").test.labels, small.test.labels[..., 8:24]
    )


def test_a_class_of_embedded_data_can_be_ignored():
    data = open_data("digit-maps", ignore_index=0)
    assert data.train_counts[0] == 0
    assert len(data.class_names) == 11  # the numbers of the others stay
    assert data.notes == ()


def test_an_ignored_class_at_the_end_is_no_class(tmp_path):
    data = open_data("digit-maps", ignore_index=10)
    assert (data.class_names[-1], len(data.train_counts)) == ("8", 10)
    assert data.notes == ("9 is the ignored label 10 and not a class: 10 classes remain.",)
    for i in range(6):
        picture(tmp_path / "images" / f"{i}.jpg", size=(3, 2))
        mask(tmp_path / "masks" / f"{i}.png", [[0, 1, 1], [0, 1, 2]])
    data = open_data(tmp_path, class_names=["road", "car", "void"], ignore_index=2)
    assert data.class_names == ("road", "car")
    assert data.train.masks.pixels[0].tolist() == [2, 3]
    assert data.train.load(0)[1].tolist() == [[0, 1, 1], [0, 1, 2]]
    assert data.notes[0].startswith("void is the ignored label 2")


# Arrays


def test_arrays_of_images_are_channels_last_unless_the_file_says_otherwise(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (30, 5, 4, 3), dtype=np.uint8)
    labels = np.arange(30) % 3
    np.savez(tmp_path / "train.npz", images=images, labels=labels, class_names=np.array(["a", "b", "c"]))
    channels_first = images.transpose(0, 3, 1, 2)
    np.savez(tmp_path / "val.npz", images=channels_first, labels=labels.astype(np.uint8), layout="nchw")
    np.savez(tmp_path / "test.npz", images=images[:3], labels=labels[:3])
    data = open_data(tmp_path)
    assert (data.task, data.class_names, data.notes, sizes(data)) == ("multiclass", ("a", "b", "c"), (), [30, 30, 3])
    assert np.array_equal(data.train.inputs, channels_first)
    assert np.array_equal(data.val.inputs, channels_first)
    assert data.val.labels.dtype == np.int64


def test_features_in_one_file(tmp_path):
    draw = np.random.default_rng(0)
    features, labels = draw.normal(size=(100, 4)), (draw.random((100, 3)) < 0.4).astype(int)
    labels[0, 0] = -1
    np.savez(tmp_path / "mine.npz", features=features, labels=labels)
    data = open_data(tmp_path / "mine.npz", val_share=0.2, test_share=0.1, class_names=["x", "y", "z"])
    assert (data.name, data.task, data.class_names) == ("mine", "multilabel", ("x", "y", "z"))
    assert sizes(data) == pytest.approx([70, 20, 10], abs=1)
    assert data.train.inputs.dtype == np.float32
    joined = np.concatenate([split.inputs for split in splits(data)])
    assert sorted(map(tuple, joined)) == sorted(map(tuple, features.astype(np.float32)))
    assert "Drawn from the 100 training samples" in data.notes[0]


def test_label_maps_in_arrays(tmp_path):
    images = np.zeros((20, 6, 6, 1), np.uint8)
    maps = np.zeros((20, 6, 6), np.uint8)
    maps[::2, 0, 0], maps[:, 5, 5] = 1, 255
    np.savez(tmp_path / "train.npz", images=images, labels=maps)
    data = open_data(tmp_path, ignore_index=255, val_share=0.25, test_share=0.25)
    assert (data.task, data.class_names, data.ignore_index) == ("segmentation", ("0", "1"), 255)
    assert data.train_counts.tolist() == [10 * 35 - 5, 5]
    assert [(split.labels == 1).sum() for split in splits(data)] == pytest.approx([5, 2.5, 2.5], abs=0.5)


# Image folders


def test_folders_of_classes_are_split_by_class(tmp_path):
    class_folders(tmp_path, 10)
    (tmp_path / "dog" / "notes.txt").write_text("not an image")
    picture(tmp_path / "emu" / "more" / "deep.png", SHADES["emu"])
    data = open_data(tmp_path, image_size=8, val_share=0.2, test_share=0.2)
    assert (data.task, data.class_names, sizes(data)) == ("multiclass", ("cat", "dog", "emu"), [19, 6, 6])
    assert isinstance(data.train, FileImages)
    assert np.bincount(data.val.labels).tolist() == [2, 2, 2]
    for split in splits(data):
        for i in range(len(split)):
            image, label = split[i]
            assert image.shape == (3, 8, 8)
            assert image.dtype == np.uint8
            assert (image == list(SHADES.values())[label]).all()
    paths = [path for split in splits(data) for path in split.paths]
    assert len(set(paths)) == 31
    assert data.train_counts.tolist() == [6, 6, 7]


def test_folders_of_splits_share_their_classes(tmp_path):
    class_folders(tmp_path / "train", 3, "jpg")
    class_folders(tmp_path / "test", 1, "jpg")
    for i in range(2):
        picture(tmp_path / "validation" / "ant" / f"{i}.jpg")
    data = open_data(tmp_path)
    assert (data.class_names, sizes(data)) == (("ant", "cat", "dog", "emu"), [9, 2, 3])
    assert "Classes without a training sample: ant." in data.notes
    assert "The validation set has one class only: ant." in data.notes


def test_the_seed_sets_the_splits(tmp_path):
    class_folders(tmp_path, 12)
    first, again, other = (open_data(tmp_path, seed=seed).val.paths.tolist() for seed in (0, 0, 1))
    assert first == again != other


def test_class_names_set_the_order(tmp_path):
    class_folders(tmp_path, 4)
    data = open_data(tmp_path, class_names=["emu", "yak", "dog", "cat"])
    assert data.class_names == ("emu", "yak", "dog", "cat")
    assert [label for label, path in zip(data.train.labels, data.train.paths, strict=True) if "/dog/" in path] == [2, 2]
    assert "Classes without a training sample: yak." in data.notes


def test_numbers_are_ordered_as_numbers(tmp_path):
    for name in ("10", "9", "1"):
        for i in range(4):
            picture(tmp_path / name / f"{i}.png")
    assert open_data(tmp_path).class_names == ("1", "9", "10")


def test_a_scarce_class_stays_in_training(tmp_path):
    class_folders(tmp_path, 10)
    for i in range(2):
        picture(tmp_path / "yak" / f"{i}.png")
    data = open_data(tmp_path)
    assert data.train_counts[3] == 2
    assert "Classes with fewer than 3 samples stay in training: yak." in data.notes
    assert "Classes without a test sample: yak." in data.notes


def test_decoded_into_arrays_with_progress(tmp_path):
    class_folders(tmp_path, 4)
    train = open_data(tmp_path, image_size=(6, 5)).train
    seen = []
    arrays = train.as_arrays(progress=lambda done, of: seen.append((done, of)))
    assert isinstance(arrays, Arrays)
    assert arrays.inputs.shape == (len(train), 3, 6, 5)
    assert arrays.inputs.nbytes == train.decoded_bytes
    assert np.array_equal(arrays.inputs[3], train.load(3)[0])
    assert np.array_equal(arrays.labels, train.labels)
    assert seen == [(i + 1, len(train)) for i in range(len(train))]
    assert train.take(np.empty(0, np.int64)).as_arrays().inputs.shape == (0, 3, 6, 5)


def test_batches_of_a_loader(tmp_path):
    class_folders(tmp_path, 4)
    train = open_data(tmp_path, image_size=8).train
    images, labels = next(iter(DataLoader(train, batch_size=5)))
    assert images.shape == (5, 3, 8, 8)
    assert labels.tolist() == train.labels[:5].tolist()


# What images are


@pytest.mark.parametrize(
    ("mode", "shade", "expected"),
    [
        ("L", 77, (77, 77, 77)),
        ("RGB", (1, 2, 3), (1, 2, 3)),
        ("RGBA", (9, 9, 9, 0), (255, 255, 255)),
        ("LA", (9, 255), (9, 9, 9)),
        ("I;16", 77 * 256 + 5, (77, 77, 77)),
        ("1", 1, (255, 255, 255)),
        ("P", 0, (0, 0, 0)),
    ],
)
def test_every_kind_of_image_becomes_rgb(tmp_path, mode, shade, expected):
    path = picture(tmp_path / "a.png", shade, mode=mode)
    image, label = FileImages(np.array([str(path)]), np.array([4])).load(0)
    assert image.shape == (3, 10, 12)
    assert [tuple(pixel) for pixel in image.reshape(3, -1).T[:2]] == [expected] * 2
    assert label == 4


def test_resizing_does_not_alias_and_crops_the_middle(tmp_path):
    stripes = np.tile(np.array([0, 255], np.uint8), (8, 16))  # (8, 32): one pixel black, one white
    path = tmp_path / "a.png"
    Image.fromarray(stripes).save(path)
    images = FileImages(np.array([str(path)]), np.array([0]), (8, 8))
    assert np.abs(images.load(0)[0].astype(int) - 127).max() < 25
    Image.fromarray(np.repeat(np.repeat([[0, 90, 90, 200]], 16, axis=1), 32, axis=0).astype(np.uint8)).save(path)
    stretched, cropped = (FileImages(np.array([str(path)]), np.array([0]), (4, 4), fit) for fit in ("stretch", "crop"))
    assert stretched.load(0)[0][0, 0].tolist() == pytest.approx([0, 90, 90, 200], abs=25)
    assert cropped.load(0)[0][0, 0].tolist() == pytest.approx([90, 90, 90, 90], abs=25)


def test_photographs_are_rotated_by_exif(tmp_path):
    path = tmp_path / "a.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (16, 8)).save(path, exif=exif)
    assert FileImages(np.array([str(path)]), np.array([0])).load(0)[0].shape == (3, 16, 8)


# Tables


def test_csv_of_paths(tmp_path):
    lines = ["path,label,extra"]
    for i in range(12):
        picture(tmp_path / "pictures" / f"{i}.png", SHADES["dog"] if i % 2 else SHADES["cat"])
        lines.append(f"pictures/{i}.png,{'dog' if i % 2 else 'cat'},7")
    (tmp_path / "all.csv").write_text("\n".join(lines))
    data = open_data(tmp_path / "all.csv")
    assert (data.name, data.task, data.class_names, sum(sizes(data))) == ("all", "multiclass", ("cat", "dog"), 12)
    for i in range(len(data.train)):
        image, label = data.train[i]
        assert (image == [40, 120][label]).all()


def test_csv_with_a_column_of_splits_and_another_root(tmp_path):
    for i in range(6):
        picture(tmp_path / "elsewhere" / f"{i}.png")
    rows = [f"{i}.png,{i % 2},{['train', 'train', 'train', 'val', 'dev', 'test'][i]}" for i in range(6)]
    (tmp_path / "all.csv").write_text("\n".join(["file,kind,split", *rows]))
    data = open_data(
        tmp_path / "all.csv", label_column="kind", image_root=tmp_path / "elsewhere", class_names=["even", "odd"]
    )
    assert sizes(data) == [3, 2, 1]
    assert data.class_names == ("even", "odd")
    assert data.train.labels.tolist() == [0, 1, 0]


def text_table(folder, ending, labels):
    columns = {"text": ["good day", "bad; day", "", "Good good"], **labels}
    for split in ("train", "val", "test"):
        if ending == "csv":
            pa.csv.write_csv(pa.table(columns), folder / f"{split}.csv")
        else:
            pa.parquet.write_table(pa.table(columns), folder / f"{split}.parquet")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("labels", "names", "expected"),
    [
        ({"label": ["b", "a", "b", "c"]}, ("a", "b", "c"), [1, 0, 1, 2]),
        ({"label": [2, 0, 2, 10]}, ("0", "2", "10"), [1, 0, 1, 2]),
        ({"label": ["b;a", "a", "", "c"]}, ("a", "b", "c"), [[1, 1, 0], [1, 0, 0], [0, 0, 0], [0, 0, 1]]),
        ({"label": ["b | a", "a", "", "c"]}, ("a", "b", "c"), [[1, 1, 0], [1, 0, 0], [0, 0, 0], [0, 0, 1]]),
        ({"label_y": [1, 0, 0, None], "label_x": [0, 1, 1, 1]}, ("y", "x"), [[1, 0], [0, 1], [0, 1], [-1, 1]]),
    ],
)
def test_tables_of_texts(tmp_path, ending, labels, names, expected):
    text_table(tmp_path, ending, labels)
    data = open_data(tmp_path)
    assert isinstance(data.train, Texts)
    assert data.train.texts == ("good day", "bad; day", "", "Good good")
    assert data.class_names == names
    assert data.val.labels.tolist() == expected
    assert data.task == ("multilabel" if isinstance(expected[0], list) else "multiclass")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_tables_of_numbers(tmp_path, ending):
    columns = {
        "id": range(8),
        "age": [30, 41, 52, 63, 74, 85, 96, 17],
        "kind": ["b", "a"] * 4,
        "size": [0.5, -1.5] * 4,
        "split": ["train"] * 4 + ["val"] * 2 + ["test"] * 2,
    }
    if ending == "csv":
        rows = [", ".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
        (tmp_path / "all.csv").write_text("\n".join([",".join(columns), *rows]))
    else:
        pa.parquet.write_table(
            pa.table({name: list(cells) for name, cells in columns.items()}), tmp_path / "all.parquet"
        )
    data = open_data(tmp_path / f"all.{ending}", label_column="kind")
    assert (data.task, data.class_names) == ("multiclass", ("a", "b"))
    assert data.train.inputs.dtype == np.float32
    assert data.train.inputs.tolist() == [[30, 0.5], [41, -1.5], [52, 0.5], [63, -1.5]]
    assert data.train.labels.tolist() == [1, 0, 1, 0]
    assert data.test.inputs.tolist() == [[96, 0.5], [17, -1.5]]
    assert "The features are 2 columns of numbers: age, size. Ignored: 'id'." in data.notes


def test_numbers_with_several_labels(tmp_path):
    (tmp_path / "train.csv").write_text("x,label_red,label_big\n" + "1e-1,1,\n2,0,1\n" * 6)
    data = open_data(tmp_path)
    assert (data.task, data.class_names) == ("multilabel", ("red", "big"))
    assert data.train.inputs.shape == (len(data.train), 1)
    assert set(data.train.inputs.ravel().tolist()) == {np.float32(0.1).item(), 2.0}


@pytest.mark.parametrize("mark", [";", "\t"])
def test_csv_of_a_spreadsheet(tmp_path, mark):
    """Other separators, and a byte order mark."""
    rows = [["text", "label"], *[["zwölf, Boxkämpfer", "Bär"], ['"a; b"', "Möwe"]] * 10]
    (tmp_path / "all.csv").write_text("\n".join(mark.join(row) for row in rows), encoding="utf-8-sig")
    data = open_data(tmp_path / "all.csv")
    assert (data.task, data.class_names) == ("multiclass", ("Bär", "Möwe"))
    assert set(data.train.texts) == {"zwölf, Boxkämpfer", "a; b"}


def test_names_that_look_like_missing_values(tmp_path):
    (tmp_path / "train.csv").write_text("text,label\n" + "null,NA\nnan,None\n" * 5)
    data = open_data(tmp_path)
    assert data.class_names == ("NA", "None")
    assert set(data.train.texts) == {"null", "nan"}


def test_lists_in_parquet_are_several_labels(tmp_path):
    text_table(tmp_path, "parquet", {"label": [["b", "a"], [], ["c"], ["a"]]})
    assert open_data(tmp_path).train.labels.tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 1], [1, 0, 0]]


def test_separators_are_given_or_noted(tmp_path):
    text_table(tmp_path, "csv", {"label": ["b;a", "a", "a", "c"]})
    assert "separated by ';'" in open_data(tmp_path).notes[0]
    assert open_data(tmp_path, task="multiclass").class_names == ("a", "b;a", "c")
    assert open_data(tmp_path, separator="+", task="multilabel").class_names == ("a", "b;a", "c")


def test_vocabulary_knows_training_words_only(tmp_path):
    text_table(tmp_path, "csv", {"label": ["b", "a", "b", "c"]})
    data = open_data(tmp_path)
    known = Vocabulary.fit(data.train.texts, min_count=1)
    assert known.words == ("good", "day", "bad")
    assert len(known) == 5
    assert known.encode(["DAY of good, good", ""]).tolist() == [[3, 1, 2, 2], [0, 0, 0, 0]]
    assert known.encode(["good day bad"], length=2).tolist() == [[2, 3]]
    assert Vocabulary.fit(data.train.texts, min_count=2, max_size=3).words == ("good",)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_encodings_with_a_byte_order_mark(tmp_path, encoding, separator):
    lines = [("text", "label"), *((f"Käse {i}", ("müde", "gut")[i % 2]) for i in range(20))]
    text = "\n".join(separator.join(line) for line in lines)
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    (tmp_path / "all.csv").write_bytes((mark + text).encode(encoding))
    data = open_data(tmp_path / "all.csv")
    assert data.class_names == ("gut", "müde")
    assert sorted(sum((split.texts for split in splits(data)), ())) == sorted(f"Käse {i}" for i in range(20))


def test_list_with_a_byte_order_mark(tmp_path):
    for name in ("a.png", "b.png"):
        picture(tmp_path / name)
    (tmp_path / "train.txt").write_text("a.png 0\nb.png 1\n" * 9, encoding="utf-8-sig")
    assert sum(sizes(open_data(tmp_path))) == 18


# COCO


def test_coco_folder(tmp_path):
    (tmp_path / "annotations").mkdir()
    for split, count in (("train2017", 4), ("val2017", 2)):
        images = {100 + i: f"{i}.jpg" for i in range(count)}
        for name in images.values():
            picture(tmp_path / split / name)
        content = coco(images, [(100, 20, 0), (100, 20, 0), (100, 10, 0), (101, 10, 1)])
        (tmp_path / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))
    data = open_data(tmp_path, test_share=0.25)
    assert (data.task, data.class_names) == ("multilabel", ("bird", "ant"))  # in the order of ids
    assert data.val.labels.tolist() == [[1, 1], [1, 0]]  # a crowd counts
    assert any("2 of 4 train images have no annotation" in note for note in data.notes)
    alone = open_data(tmp_path / "annotations" / "instances_train2017.json", val_share=0.3, test_share=0.3)
    assert sum(sizes(alone)) == 4
    assert sum(split.labels.sum() for split in splits(alone)) == 3


# Masks


def test_folders_of_images_and_masks(tmp_path):
    for i in range(10):
        picture(tmp_path / "images" / f"{i}.jpg", size=(3, 2))
        mask(tmp_path / "masks" / f"{i}.png", CORNER if i % 2 else np.zeros((2, 3)))
    mask(tmp_path / "masks" / "lone.png", CORNER)
    data = open_data(tmp_path, val_share=0.2, test_share=0.2)
    assert (data.task, data.class_names, data.ignore_index) == ("segmentation", ("0", "1", "2"), 255)
    assert sizes(data) == [6, 2, 2]
    assert [split.labels[:, 1].sum() for split in splits(data)] == [3, 1, 1]
    assert data.train_counts.tolist() == [3 * 6 + 3 * 3, 3, 3]
    i = int(np.flatnonzero(data.train.labels[:, 1])[0])
    image, labels = data.train.load(i)
    assert image.shape == (3, 2, 3)
    assert labels.tolist() == CORNER
    arrays = data.train.as_arrays()
    assert arrays.labels.dtype == np.uint8
    assert np.array_equal(arrays.labels[i], labels)
    assert arrays.inputs.nbytes + arrays.labels.nbytes == data.train.decoded_bytes
    assert any("lone" in note for note in data.notes)
    larger = open_data(tmp_path, image_size=(4, 6), val_share=0.2, test_share=0.2).train.load(i)[1]
    assert np.array_equal(larger, np.repeat(np.repeat(CORNER, 2, axis=0), 2, axis=1))


@pytest.mark.parametrize("inside", [True, False])
def test_masks_with_splits(tmp_path, inside):
    for number, split in enumerate(("train", "val", "test")):
        for i in range(number + 1):
            images, masks = (f"{kind}/{split}" if inside else f"{split}/{kind}" for kind in ("images", "masks"))
            picture(tmp_path / images / f"{i}.png", size=(3, 2))
            mask(tmp_path / masks / f"{i}.png", CORNER, palette=True)
    data = open_data(tmp_path, class_names=["a", "b", "c", "d"])
    assert sizes(data) == [1, 2, 3]
    assert data.test.load(2)[1].tolist() == CORNER
    assert "Classes without a training sample: d." in data.notes


@pytest.mark.parametrize("kind", ["labelTrainIds", "labelIds"])
def test_cityscapes(tmp_path, kind):
    values = [[0, 2, 255], [18, 18, 0]] if kind == "labelTrainIds" else [[7, 11, 4], [33, 33, 7]]
    for split, count in (("train", 6), ("val", 2), ("test", 1)):
        for i in range(count):
            picture(tmp_path / "leftImg8bit" / split / "ulm" / f"ulm_{i}_leftImg8bit.png", size=(3, 2))
            mask(tmp_path / "gtFine" / split / "ulm" / f"ulm_{i}_gtFine_{kind}.png", values)
    data = open_data(tmp_path, test_share=0.34)
    assert len(data.class_names) == 19
    assert (data.class_names[2], data.class_names[18]) == ("building", "bicycle")
    assert sizes(data) == [4, 2, 2]
    assert data.val.load(0)[1].tolist() == [[0, 2, 255], [18, 18, 0]]
    assert data.train_counts[[0, 2, 18]].tolist() == [8, 4, 8]
    assert any("test split of Cityscapes" in note for note in data.notes)


def test_voc(tmp_path):
    sets = tmp_path / "ImageSets" / "Segmentation"
    sets.mkdir(parents=True)
    for split, names in (("train", "abcdef"), ("val", "gh"), ("test", "xy")):
        (sets / f"{split}.txt").write_text("\n".join(names))
        for name in names:
            picture(tmp_path / "JPEGImages" / f"{name}.jpg", size=(3, 2))
            if split != "test":
                mask(tmp_path / "SegmentationClass" / f"{name}.png", [[0, 15, 255], [0, 0, 20]], palette=True)
    data = open_data(tmp_path)
    assert (len(data.class_names), data.class_names[15], data.ignore_index) == (21, "person", 255)
    assert len(data.val) == 2
    assert data.val.load(1)[1].tolist() == [[0, 15, 255], [0, 0, 20]]
    assert any("has no masks" in note for note in data.notes)


# Lists


def test_long_tail_lists(tmp_path):
    for i in range(6):
        picture(tmp_path / "photos" / f"a {i}.jpg")
    for split, rows in (("train", [(0, 0), (1, 0), (2, 3)]), ("val", [(3, 1)]), ("test", [(4, 0), (5, 2)])):
        lines = [f"photos/a {i}.jpg {label}\n" for i, label in rows]
        (tmp_path / f"Some_LT_{split}.txt").write_text("".join(lines))
    for where in (tmp_path, tmp_path / "Some_LT_train.txt"):
        data = open_data(where, image_root=tmp_path)
        assert (data.class_names, sizes(data)) == (("0", "1", "2", "3"), [3, 1, 2])
        assert data.train.labels.tolist() == [0, 0, 3]
        assert data.test.load(1)[0].shape == (3, 10, 12)
        assert "Classes without a training sample: 1, 2." in data.notes


# Long tails on request


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("exponential:10", [40, 12, 4]), ("step:10", [40, 4, 4]), ("pareto:10", [40, 11, 4])],
)
def test_long_tails_thin_out_training_alone(tmp_path, rule, expected):
    labels = np.repeat([0, 1, 2], 40)
    for split in ("train", "val", "test"):
        np.savez(tmp_path / f"{split}.npz", features=np.arange(120.0)[:, None], labels=labels)
    data = open_data(tmp_path, longtail=rule)
    assert data.train_counts.tolist() == expected
    assert sizes(data)[1:] == [120, 120]
    assert f"Long tail {rule}" in data.notes[0]
    first, again, other = (open_data(tmp_path, longtail=rule, seed=s).train.inputs.tolist() for s in (0, 0, 1))
    assert first == again != other


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("balanced", [400] * 10),
        ("5/3", [490, 470, 450, 430, 410, 390, 370, 350, 330, 310]),
        ("6/2", [580, 540, 500, 460, 420, 380, 340, 300, 260, 220]),
    ],
)
def test_4000_samples_train_and_other_splits_come_from_the_rest(tmp_path, variant, expected):
    labels = np.arange(6000) % 10
    np.savez(tmp_path / "train.npz", features=np.arange(6000.0)[:, None], labels=labels)
    data = open_data(tmp_path, longtail=f"first-4000:{variant}", val_share=0.2, test_share=0.1, seed=3)
    assert data.train_counts.tolist() == expected
    train, val, test = (set(split.inputs[:, 0].astype(int).tolist()) for split in (data.train, data.val, data.test))
    assert train == {10 * i + c for c in range(10) for i in range(expected[c])}  # the first of each class
    assert len(train | val | test) == len(train) + len(val) + len(test)
    assert (len(val), len(test)) == (400, 200)
    assert any(note.startswith(f"Long tail first-4000:{variant}: 4000 training samples") for note in data.notes)
    again = open_data(tmp_path, longtail=f"first-4000:{variant}", seed=4)
    assert again.train.inputs.tolist() == data.train.inputs.tolist()


def test_4000_samples_leave_given_splits_alone(tmp_path):
    for split in ("train", "val", "test"):
        np.savez(tmp_path / f"{split}.npz", features=np.zeros((4000, 1)), labels=np.arange(4000) % 10)
    assert sizes(open_data(tmp_path, longtail="first-4000:balanced")) == [4000, 4000, 4000]


def test_a_long_tail_is_as_long_as_the_classes_allow(tmp_path):
    np.savez(tmp_path / "train.npz", features=np.zeros((39, 1)), labels=np.repeat([0, 1, 2], [30, 5, 4]))
    np.savez(tmp_path / "val.npz", features=np.zeros((3, 1)), labels=[0, 1, 2])
    np.savez(tmp_path / "test.npz", features=np.zeros((3, 1)), labels=[0, 1, 2])
    assert open_data(tmp_path, longtail="exponential:4").train_counts.tolist() == [11, 5, 2]
