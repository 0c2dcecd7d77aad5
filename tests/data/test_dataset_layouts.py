"""Public data sets in the layout in which they are distributed, from tiny files made here."""

import io
import json
import os
import pickle
import pickletools
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from equipoise.data import Arrays, DataError, FileImages, Texts, open_data
from equipoise.data.camvid import CLASSES as CAMVID
from equipoise.data.cifar import ALLOWED, read_pickle
from equipoise.data.synthia import RAND_CITYSCAPES, SEQUENCES
from equipoise.data.voc import CLASSES as VOC
from tests.data.making import mask, picture

DRAW = np.random.default_rng(0)
HALF = {"val_share": 0.3, "test_share": 0.3}


def stems(split):
    """Names of the files of a split without their ending, in order."""
    return [Path(path).stem for path in split.paths]


def by_stem(data, *splits):
    """Labels by the stem of the image, over these splits."""
    labels = {}
    for name in splits or ("train", "val", "test"):
        split = getattr(data, name)
        labels.update(zip(stems(split), split.labels.tolist(), strict=True))
    return labels


# ---------------------------------------------------------------------------------------------------------------------
# CIFAR
# ---------------------------------------------------------------------------------------------------------------------

COUNT = 10  # images in a batch


def batches(classes):
    """Five training batches and one for the test: images (COUNT, 3072) and labels."""
    made = [
        (DRAW.integers(0, 256, (COUNT, 3072), dtype=np.uint8), [int(i % classes) for i in range(COUNT)])
        for _ in range(6)
    ]
    return made[:5], made[5]


def cifar_binary(folder, hundred=False):
    classes = [f"class{i}" for i in range(20 if hundred else 10)]
    folder.mkdir()
    train, test = batches(len(classes))
    (folder / ("fine_label_names.txt" if hundred else "batches.meta.txt")).write_text("\n".join([*classes, ""]))
    if hundred:  # one file, with the coarse label before the fine one
        train = [(np.concatenate([images for images, _ in train]), [label for _, own in train for label in own])]
        (folder / "coarse_label_names.txt").write_text("coarse0\ncoarse1\n")
    for name, (images, labels) in zip(
        ["train", "test"] if hundred else [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"],
        [*train, test],
        strict=True,
    ):
        heads = [[label % 2, label] if hundred else [label] for label in labels]
        rows = [bytes(head) + row.tobytes() for head, row in zip(heads, images, strict=True)]
        (folder / f"{name}.bin").write_bytes(b"".join(rows))
    return train, test, classes


def python2(value):
    """A pickle of protocol 2 as Python 2 with NumPy 1 wrote it: strings are str, that is bytes."""

    def written(value):
        if isinstance(value, dict):
            return b"}(" + b"".join(written(key) + written(one) for key, one in value.items()) + b"u"
        if isinstance(value, list):
            return b"](" + b"".join(map(written, value)) + b"e"
        if isinstance(value, int):
            return b"J" + struct.pack("<i", value)
        if isinstance(value, bytes):
            return b"T" + struct.pack("<i", len(value)) + value
        rows, columns = value.shape
        dtype = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        shape = written(rows) + written(columns) + b"\x86"
        start = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
        return start + b"(K\x01" + shape + dtype + b"\x89" + written(value.tobytes()) + b"tb"

    made = b"\x80\x02" + written(value) + b"."
    pickletools.dis(made, out=io.StringIO())  # well-formed
    return made


def cifar_python(folder, hundred=False, dumped=python2):
    classes = [f"class{i}" for i in range(20 if hundred else 10)]
    folder.mkdir()
    train, test = batches(len(classes))
    key, names = (b"fine_labels", b"fine_label_names") if hundred else (b"labels", b"label_names")
    (folder / ("meta" if hundred else "batches.meta")).write_bytes(dumped({names: [name.encode() for name in classes]}))
    if hundred:
        train = [(np.concatenate([images for images, _ in train]), [label for _, own in train for label in own])]
    for name, (images, labels) in zip(
        ["train", "test"] if hundred else [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"],
        [*train, test],
        strict=True,
    ):
        content = {b"batch_label": b"some batch", key: labels, b"data": images}
        (folder / name).write_bytes(dumped(content))
    return train, test, classes


@pytest.mark.parametrize("hundred", [False, True])
@pytest.mark.parametrize("make", [cifar_binary, cifar_python])
def test_cifar(tmp_path, make, hundred):
    train, test, classes = make(tmp_path / "cifar", hundred)
    data = open_data(tmp_path / "cifar", val_share=0.1)
    assert data.task == "multiclass"
    assert data.class_names == tuple(classes)
    assert isinstance(data.test, Arrays)
    np.testing.assert_array_equal(data.test.inputs, test[0].reshape(-1, 3, 32, 32))
    assert data.test.labels.tolist() == test[1]
    assert len(data.train) + len(data.val) == 50
    expected = {images.tobytes(): label for own, labels in train for images, label in zip(own, labels, strict=True)}
    for split in (data.train, data.val):
        for image, label in zip(split.inputs, split.labels, strict=True):
            assert expected[image.tobytes()] == label


def test_cifar_pickled_by_python_3(tmp_path):
    """Copies that were written again, in old protocols too, which encode bytes as a call."""
    for protocol in (2, 4):
        folder = tmp_path / str(protocol)
        _, test, _ = cifar_python(folder, dumped=lambda value, protocol=protocol: pickle.dumps(value, protocol))
        data = open_data(folder)
        np.testing.assert_array_equal(data.test.inputs, test[0].reshape(-1, 3, 32, 32))


def test_names_of_cifar_in_another_order(tmp_path):
    _, test, classes = cifar_python(tmp_path / "cifar")
    data = open_data(tmp_path / "cifar", class_names=classes[::-1])
    assert data.test.labels.tolist() == [9 - label for label in test[1]]


class Runs:
    """A pickle that calls a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (Runs(os.system, "echo run > ran"), "system"),
        (Runs(eval, "open('ran', 'w')"), "eval"),
        (Runs(np.load, "ran"), "load"),
        ({b"data": Runs(os.mkdir, "ran")}, "mkdir"),
        ({b"data": Runs(getattr, "a", "upper")}, "getattr"),
        ({b"data": Runs(np.fromfile, "ran")}, "fromfile"),
        ({b"data": Runs(bytearray, 2**60)}, "bytearray"),
    ],
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_runs_code_is_refused(tmp_path, monkeypatch, content, named, protocol):
    monkeypatch.chdir(tmp_path)
    cifar_python(tmp_path / "cifar")
    (tmp_path / "cifar" / "data_batch_3").write_bytes(pickle.dumps(content, protocol))
    with pytest.raises(DataError, match=rf"data_batch_3: .*{named}, which is not data and is not run.*; download it"):
        open_data(tmp_path / "cifar")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no pickle at all",
        b"\x80\x02}.",
        b"\x80\x02Ppersistent\n.",
        b"\x80\x02\x82\x01.",  # a code of copyreg
        b"\x80\x02c_codecs\nencode\n(X\x01\x00\x00\x00aX\x05\x00\x00\x00utf16tR.",
        b"\x80\x02cnumpy\nndarray\n)\x81K\x05b.",
        pickle.dumps([1, 2]),
        pickle.dumps({b"data": [1], b"labels": [1]}),
        pickle.dumps({b"data": np.zeros((1, 3072)), b"labels": [1]}),
        pickle.dumps({b"data": np.zeros((1, 3072), object), b"labels": [1]}),
        pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}),
        pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [10]}),
        pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": ["cat"]}),
        pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [1]})[:-200],
    ],
)
def test_a_damaged_batch_is_named(tmp_path, content):
    cifar_python(tmp_path / "cifar")
    (tmp_path / "cifar" / "data_batch_2").write_bytes(content)
    with pytest.raises(DataError, match=r"cifar"):
        open_data(tmp_path / "cifar")


def test_a_shape_that_does_not_fit_takes_no_memory(tmp_path):
    """The array has the size of its bytes, whatever shape the pickle states."""
    huge = python2({b"data": np.zeros((1, 3072), np.uint8), b"labels": [1]}).replace(
        b"J" + struct.pack("<i", 1) + b"J" + struct.pack("<i", 3072),
        b"J" + struct.pack("<i", 2**30) * 1 + b"J" + struct.pack("<i", 2**30),
    )
    cifar_python(tmp_path / "cifar")
    (tmp_path / "cifar" / "data_batch_1").write_bytes(huge)
    with pytest.raises(DataError, match=r"cannot reshape"):
        open_data(tmp_path / "cifar")


@pytest.mark.parametrize(
    "name", [b"_codecs\nencode", b"numpy.core.multiarray\n_reconstruct", b"numpy\ndtype", b"numpy\nndarray"]
)
def test_pickle_sets_no_attributes_of_the_reader(tmp_path, name):
    file = tmp_path / "batch"
    file.write_bytes(b"\x80\x02c" + name + b"\nN}X\x07\x00\x00\x00__doc__K\x01s\x86b0}.")
    before = [value.__doc__ for value in ALLOWED.values()]
    with pytest.raises(DataError, match=r"batch: .*(AttributeError|TypeError)"):
        read_pickle(file)
    assert [value.__doc__ for value in ALLOWED.values()] == before


def test_pickles_of_cifar_hold_data_only(tmp_path):
    file = tmp_path / "batch"
    file.write_bytes(python2({b"labels": [3, -1], b"nested": {b"a": [b"b"]}}))
    assert read_pickle(file) == {b"labels": [3, -1], b"nested": {b"a": [b"b"]}}


@pytest.mark.parametrize(
    ("change", "message"), [(b"x", "records of 3,073 bytes"), (b"\x0a" + bytes(3072), "from 0 to 9")]
)
def test_a_damaged_binary_file(tmp_path, change, message):
    cifar_binary(tmp_path / "cifar")
    file = tmp_path / "cifar" / "data_batch_4.bin"
    file.write_bytes(file.read_bytes() + change)
    with pytest.raises(DataError, match=message):
        open_data(tmp_path / "cifar")
    file.unlink()
    with pytest.raises(DataError, match=r"data_batch_4.bin: all batches must be there"):
        open_data(tmp_path / "cifar")


# ---------------------------------------------------------------------------------------------------------------------
# Single labels
# ---------------------------------------------------------------------------------------------------------------------


def test_tiny_imagenet(tmp_path):
    wnids = ["n02124075", "n04067472", "n01443537"]  # not in alphabetical order
    (tmp_path / "wnids.txt").write_text("\n".join(wnids))
    (tmp_path / "words.txt").write_text("n02124075\tEgyptian cat\n")
    for wnid in wnids:
        for i in range(4):
            picture(tmp_path / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", mode="RGB", shade=(9, 9, 9))
        (tmp_path / "train" / wnid / f"{wnid}_boxes.txt").write_text("")
    lines = []
    for i, wnid in enumerate(["n01443537", "n02124075"]):
        picture(tmp_path / "val" / "images" / f"val_{i}.JPEG", mode="RGB", shade=(9, 9, 9))
        lines.append(f"val_{i}.JPEG\t{wnid}\t0\t32\t44\t62")
    (tmp_path / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    picture(tmp_path / "test" / "images" / "test_0.JPEG", mode="RGB", shade=(9, 9, 9))
    data = open_data(tmp_path, test_share=0.25)
    assert data.class_names == tuple(wnids)
    assert by_stem(data, "val") == {"val_0": 2, "val_1": 0}
    assert data.train_counts.tolist() == [3, 3, 3]
    assert all(wnids[label] == stem.split("_")[0] for stem, label in by_stem(data, "train", "test").items())
    assert "The test images have no public labels and were skipped." in data.notes
    (tmp_path / "val" / "val_annotations.txt").write_text("val_0.JPEG n01443537\n")
    with pytest.raises(DataError, match=r"val_annotations.txt, line 1: a line must be an image and one of the classes"):
        open_data(tmp_path)


def inaturalist(names, start):
    images = [
        {"id": start + i, "file_name": f"train_val2018/Aves/{name}/{start + i}.jpg"} for i, name in enumerate(names)
    ]
    categories = [
        {"id": i, "name": name, "supercategory": "Aves"} for i, name in enumerate(["Turdus merula", "Apus apus"])
    ]
    marks = [{"id": i, "image_id": start + i, "category_id": int(name)} for i, name in enumerate(names)]
    return {"info": {}, "images": images[::-1], "annotations": marks, "categories": categories[::-1], "licenses": []}


@pytest.mark.parametrize("opened", ["", "train2018.json"])
def test_inaturalist_2018(tmp_path, opened):
    contents = {"train2018": inaturalist("0010110010", 0), "val2018": inaturalist("01", 100)}
    for name, content in contents.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
        for entry in content["images"]:
            picture(tmp_path / entry["file_name"], mode="RGB", shade=(9, 9, 9))
    (tmp_path / "test2018.json").write_text(json.dumps({"images": []}))
    data = open_data(tmp_path / opened, test_share=0.2)
    assert data.task == "multiclass"
    assert data.class_names == ("Turdus merula", "Apus apus")
    assert by_stem(data, "val") == {"100": 0, "101": 1}
    assert by_stem(data, "train", "test") == {str(i): int(name) for i, name in enumerate("0010110010")}


def test_one_category_an_image(tmp_path):
    content = inaturalist("00110101", 0)
    for entry in content["images"]:
        picture(tmp_path / entry["file_name"], mode="RGB", shade=(9, 9, 9))
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(content))
    assert open_data(file, **HALF).task == "multilabel"
    assert open_data(file, task="multiclass", **HALF).task == "multiclass"
    content["annotations"].append({"id": 9, "image_id": 0, "category_id": 1})
    file.write_text(json.dumps(content))
    with pytest.raises(
        DataError, match=r"every image must have one category, found several for one; pass task='multilabel'"
    ):
        open_data(file, task="multiclass")
    content["annotations"] = content["annotations"][:7]
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"every image must have one category, found none for"):
        open_data(file, task="multiclass")


@pytest.mark.parametrize("by_date", [False, True])
def test_twenty_newsgroups(tmp_path, by_date):
    groups = ("sci.space", "alt.atheism")
    for part in ("20news-bydate-train", "20news-bydate-test") if by_date else ("",):
        for group in groups:
            for i in range(6):
                article = tmp_path / part / group / str(9998 + i)
                article.parent.mkdir(parents=True, exist_ok=True)
                text = f"Newsgroups: {group}\nSubject: orbit\n\nCaf\u00e9 {group[:3]} {i}\n\nbye\n"
                article.write_bytes(text.encode("latin-1"))
            (tmp_path / part / group / "index.html").write_text("no article")
    data = open_data(tmp_path, **({} if by_date else HALF))
    assert data.task == "multiclass"
    assert data.class_names == ("alt.atheism", "sci.space")
    assert isinstance(data.train, Texts)
    splits = (data.train, data.val, data.test)
    assert sum(map(len, splits)) == (24 if by_date else 12)
    assert not by_date or len(data.test) == 12
    for split in splits:
        for text, label in zip(split.texts, split.labels, strict=True):
            assert text.startswith(f"Caf\u00e9 {data.class_names[label][:3]} ")
            assert "Newsgroups" not in text
            assert text.endswith("bye\n")


# ---------------------------------------------------------------------------------------------------------------------
# Several labels
# ---------------------------------------------------------------------------------------------------------------------


def voc_images(tmp_path, states):
    """``states``: by image the state of aeroplane and bicycle, 1, -1 or 0; lists of train (first half) and val."""
    main = tmp_path / "ImageSets" / "Main"
    main.mkdir(parents=True)
    names = list(states)
    for part, own in {"train": names[: len(names) // 2], "val": names[len(names) // 2 :]}.items():
        (main / f"{part}.txt").write_text("\n".join(own) + "\n")
    for name in names:
        picture(tmp_path / "JPEGImages" / f"{name}.jpg", mode="RGB", shade=(9, 9, 9))
    return main


STATES = {
    f"00000{i}": pair for i, pair in enumerate([(1, -1), (0, 1), (-1, -1), (1, 1), (1, -1), (-1, 1), (0, 0), (1, 1)])
}
EXPECTED = {name: [{1: 1, -1: 0, 0: -1}[state] for state in pair] + [0] * 18 for name, pair in STATES.items()}


@pytest.mark.parametrize("kind", ["lists", "annotations"])
@pytest.mark.parametrize("masks", [False, True])
def test_labels_of_voc(tmp_path, kind, masks):
    main = voc_images(tmp_path, STATES)
    if kind == "lists":
        for part in ("train", "val"):
            for column, name in enumerate(VOC):
                rows = [
                    f"{stem} {STATES[stem][column] if column < 2 else -1:2d}"
                    for stem in (main / f"{part}.txt").read_text().split()
                ]
                (main / f"{name}_{part}.txt").write_text("\n".join(rows) + "\n")
    else:
        (tmp_path / "Annotations").mkdir()
        for stem, pair in STATES.items():
            objects = [
                f"<object><name>{name}</name><difficult>{int(state == 0)}</difficult><pose>Left</pose></object>"
                for name, state in zip(VOC, pair, strict=False)
                if state != -1
            ]
            objects += ["<object><name>aeroplane</name><difficult>1</difficult></object>"] * (pair[0] == 1)
            text = f"<annotation><filename>{stem}.jpg</filename>{''.join(objects)}</annotation>"
            (tmp_path / "Annotations" / f"{stem}.xml").write_text(text)
    if masks:
        (tmp_path / "SegmentationClass").mkdir()
    data = open_data(tmp_path, test_share=0.25, **({"task": "multilabel"} if masks else {}))
    assert data.task == "multilabel"
    assert data.class_names == VOC
    assert len(VOC) == 20
    assert by_stem(data) == EXPECTED
    assert sorted(by_stem(data, "val")) == sorted(list(STATES)[4:])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("<annotation><object><name>cow</name>", "ParseError"),
        ("<annotation><object><name>unicorn</name></object></annotation>", "one of the 20 classes, found 'unicorn'"),
        ('<!DOCTYPE x [<!ENTITY a "aaaa">]><annotation>&a;</annotation>', "plain XML, found a document type"),
    ],
)
def test_damaged_annotations_of_voc(tmp_path, content, message):
    voc_images(tmp_path, STATES)
    (tmp_path / "Annotations").mkdir()
    for stem in STATES:
        (tmp_path / "Annotations" / f"{stem}.xml").write_text(content)
    with pytest.raises(DataError, match=message):
        open_data(tmp_path)


def test_damaged_lists_of_voc(tmp_path):
    main = voc_images(tmp_path, STATES)
    with pytest.raises(DataError, match=r"aeroplane_train.txt or annotations of the images, found neither"):
        open_data(tmp_path)
    for part in ("train", "val"):
        for name in VOC:
            (main / f"{name}_{part}.txt").write_text("000000 2\n")
    with pytest.raises(DataError, match=r"aeroplane_train.txt, line 1: a line must be an image and -1, 0 or 1"):
        open_data(tmp_path)
    for part in ("train", "val"):
        for name in VOC:
            (main / f"{name}_{part}.txt").write_text("000000 1\n")
    with pytest.raises(DataError, match=r"there must be a line for every image, found none for 000001"):
        open_data(tmp_path)


def nus_wide(tmp_path):
    labels = {"Train": [(1, 0), (0, 1), (1, 1), (0, 0), (1, 0)], "Test": [(0, 1), (1, 0)]}
    truth = tmp_path / "Groundtruth" / "TrainTestLabels"
    truth.mkdir(parents=True)
    (tmp_path / "ImageList").mkdir()
    for part, rows in labels.items():
        lines = [f"actor\\{part.lower()}_{i}.jpg" for i in range(len(rows))]
        (tmp_path / "ImageList" / f"{part}Imagelist.txt").write_text("\r\n".join(lines) + "\r\n")
        for column, concept in enumerate(["airport", "sky"]):
            (truth / f"Labels_{concept}_{part}.txt").write_text("".join(f"{row[column]}\n" for row in rows))
        for line in lines:
            picture(tmp_path / "Flickr" / line.replace("\\", "/"), mode="RGB", shade=(9, 9, 9))
    return {f"{part.lower()}_{i}": list(row) for part, rows in labels.items() for i, row in enumerate(rows)}


def test_nus_wide(tmp_path):
    expected = nus_wide(tmp_path)
    data = open_data(tmp_path, val_share=0.3)
    assert data.task == "multilabel"
    assert data.class_names == ("airport", "sky")
    assert by_stem(data) == expected
    assert sorted(stems(data.test)) == ["test_0", "test_1"]
    (tmp_path / "Flickr" / "actor" / "train_3.jpg").unlink()
    data = open_data(tmp_path, val_share=0.3)
    assert by_stem(data) == {name: row for name, row in expected.items() if name != "train_3"}
    assert any("1 of 5 train images do not exist, e.g. " in note and "train_3.jpg" in note for note in data.notes)
    file = tmp_path / "Groundtruth" / "TrainTestLabels" / "Labels_sky_Train.txt"
    file.write_text("0\n1\n")
    with pytest.raises(
        DataError, match=r"Labels_sky_Train.txt: there must be a line for each of the 5 images, found 2"
    ):
        open_data(tmp_path)
    file.write_text("0\nyes\n")
    with pytest.raises(DataError, match=r"Labels_sky_Train.txt: every line must be 0 or 1, found yes"):
        open_data(tmp_path)


def open_images(tmp_path, prefix="oidv6-"):
    marks = {
        "train": [
            "a,verification,/m/1,1",
            "a,verification,/m/2,0",
            "b,crowdsource,/m/2,1",
            "c,verification,/m/1,0",
            "d,x,/m/1,1",
        ],
        "validation": ["e,verification,/m/2,1", "gone,verification,/m/1,1"],
        "test": ["f,verification,/m/1,1.0"],
    }
    for part, rows in marks.items():
        name = f"{prefix if part == 'train' else ''}{part}-annotations-human-imagelabels.csv"
        (tmp_path / name).write_text("\n".join(["ImageID,Source,LabelName,Confidence", *rows]) + "\n")
        for image in {row[0] for row in rows} - {"g"}:
            picture(tmp_path / part / f"{image}.jpg", mode="RGB", shade=(9, 9, 9))
    (tmp_path / "oidv7-class-descriptions.csv").write_text('LabelName,DisplayName\n/m/1,Tortoise\n/m/2,"Sea, open"\n')


def test_open_images_has_three_states(tmp_path):
    open_images(tmp_path)
    data = open_data(tmp_path)
    assert data.task == "multilabel"
    assert data.class_names == ("Tortoise", "Sea, open")
    assert by_stem(data, "train") == {"a": [1, 0], "b": [-1, 1], "c": [0, -1], "d": [1, -1]}
    assert by_stem(data, "val") == {"e": [-1, 1]}
    assert by_stem(data, "test") == {"f": [1, -1]}
    assert "1 of 2 val images do not exist." in data.notes
    (tmp_path / "oidv7-class-descriptions.csv").unlink()
    assert open_data(tmp_path).class_names == ("/m/1", "/m/2")


def test_damaged_open_images(tmp_path):
    open_images(tmp_path, prefix="")
    file = tmp_path / "train-annotations-human-imagelabels.csv"
    file.write_text("ImageID,Source,LabelName,Confidence\na,machine,/m/1,0.7\n")
    with pytest.raises(DataError, match=r"line 2: a line must have a confidence of 0 or 1, found 'a,machine,/m/1,0.7'"):
        open_data(tmp_path)
    file.write_text("id,label\na,1\n")
    with pytest.raises(DataError, match=r"there must be the columns ImageID, LabelName, Confidence, found id, label"):
        open_data(tmp_path)


# ---------------------------------------------------------------------------------------------------------------------
# Label maps
# ---------------------------------------------------------------------------------------------------------------------


def png16(path, classes, instances, filtered=0):
    """A PNG of three channels with 16 bits as in SYNTHIA: class, instance, 0; rows with one of the PNG filters."""
    height, width = np.shape(classes)
    values = np.stack([classes, instances, np.zeros_like(classes)], axis=2).astype(">u2")
    rows, before, content = values.tobytes(), bytes(6 * width), b""
    for y in range(height):
        row = rows[6 * width * y : 6 * width * (y + 1)]
        left = bytes(6) + row[:-6]
        minus = {0: bytes(len(row)), 1: left, 2: before}[filtered]
        content += bytes([filtered]) + bytes((a - b) % 256 for a, b in zip(row, minus, strict=True))
        before = row

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(content)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunks)


@pytest.mark.parametrize("filtered", [0, 1, 2])
@pytest.mark.parametrize(("below", "names"), [("", RAND_CITYSCAPES), ("Stereo_Left/Omni_F/", SEQUENCES)])
def test_synthia(tmp_path, below, names, filtered):
    """The class is in the lower byte of the first channel, which common readers drop; instances go beyond one byte."""
    maps = {}
    for i in range(8):
        values = DRAW.integers(0, 23 if not below else 16, (10, 12))
        maps[f"{i:07}"] = values
        png16(tmp_path / "GT" / "LABELS" / f"{below}{i:07}.png", values, DRAW.integers(0, 5000, (10, 12)), filtered)
        picture(tmp_path / "RGB" / f"{below}{i:07}.png", mode="RGB", shade=(9, 9, 9))
    data = open_data(tmp_path, **HALF)
    assert data.task == "segmentation"
    assert data.class_names == tuple(names)
    assert data.ignore_index == 255
    number = {value: index for index, value in enumerate(names.values())}
    assert names["sky"] == 1
    counts = np.zeros(len(names), np.int64)
    for split in (data.train, data.val, data.test):
        for i, stem in enumerate(stems(split)):
            expected = np.vectorize(lambda value: number.get(value, 255))(maps[stem])
            np.testing.assert_array_equal(split.load(i)[1], expected)
            if split is data.train:
                counts += np.bincount(expected[expected < 255], minlength=len(names))
    assert data.train_counts.tolist() == counts.tolist()


def test_masks_of_colours_are_still_refused(tmp_path):
    picture(tmp_path / "RGB" / "0.png", mode="RGB", shade=(9, 9, 9))
    picture(tmp_path / "GT" / "LABELS" / "0.png", mode="RGB", shade=(9, 9, 9))
    with pytest.raises(DataError, match=r"one class index per pixel .* found mode RGB"):
        open_data(tmp_path)


COLOURS = {"Animal": (64, 128, 64), "Archway": (192, 0, 128), "Void": (0, 0, 0), "Wall": (64, 192, 0)}


def colour_mask(path, names):
    """An RGB label map from rows of names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.array([[COLOURS[name] for name in row] for row in names], np.uint8)).save(path)


ROWS = [["Wall", "Animal", "Void"], ["Archway", "Wall", "Wall"]]
VALUES = [[2, 0, 255], [1, 2, 2]]


@pytest.mark.parametrize("below", ["", "LabeledApproved_full/"])
def test_camvid_with_colours_of_its_authors(tmp_path, below):
    for i in range(8):
        picture(tmp_path / "701_StillsRaw_full" / f"0001TP_00{i}.png", mode="RGB", shade=(9, 9, 9), size=(3, 2))
        colour_mask(tmp_path / "LabeledApproved_full" / f"0001TP_00{i}_L.png", ROWS)
    lines = [f"{r} {g} {b}\t\t{name}\r\n" for name, (r, g, b) in COLOURS.items()]
    (tmp_path / f"{below}label_colors.txt").write_text("".join(lines))
    data = open_data(tmp_path, **HALF)
    assert (data.task, data.class_names, data.ignore_index) == ("segmentation", ("Animal", "Archway", "Wall"), 255)
    assert sum(map(len, (data.train, data.val, data.test))) == 8
    assert data.train_counts.tolist() == [len(data.train), len(data.train), 3 * len(data.train)]
    assert data.train.load(0)[1].tolist() == VALUES
    assert data.train.as_arrays().labels[0].tolist() == VALUES


def test_camvid_with_colours_and_splits(tmp_path):
    for part, count in (("train", 3), ("val", 2), ("test", 2)):
        for i in range(count):
            picture(tmp_path / part / f"0001TP_{part}{i}.png", mode="RGB", shade=(9, 9, 9), size=(6, 4))
            colour_mask(
                tmp_path / f"{part}_labels" / f"0001TP_{part}{i}_L.png", np.array(ROWS).repeat(2, 0).repeat(2, 1)
            )
    table = "".join(f"{name},{r}, {g},{b}\n" for name, (r, g, b) in COLOURS.items())
    (tmp_path / "class_dict.csv").write_text(f"name,r,g,b\n{table}")
    data = open_data(tmp_path, image_size=(2, 3))
    assert [len(split) for split in (data.train, data.val, data.test)] == [3, 2, 2]
    assert data.train_counts.tolist() == [12, 12, 36]
    assert data.test.load(1)[1].tolist() == VALUES


def test_colours_that_are_not_listed(tmp_path):
    picture(tmp_path / "train" / "a.png", mode="RGB", shade=(9, 9, 9), size=(2, 1))
    path = tmp_path / "train_labels" / "a_L.png"
    path.parent.mkdir()
    Image.fromarray(np.array([[COLOURS["Wall"], (64, 192, 1)]], np.uint8)).save(path)
    file = tmp_path / "class_dict.csv"
    file.write_text("name,r,g,b\nWall,64,192,0\n")
    with pytest.raises(
        DataError, match=r"a_L.png: every colour .* found red 64, green 192, blue 1; store masks as PNG"
    ):
        open_data(tmp_path)
    file.write_text("name,r,g,b\nWall,64,high,0\n")
    with pytest.raises(DataError, match=r"class_dict.csv: a line must have a colour, three numbers, and a name"):
        open_data(tmp_path)


def test_camvid(tmp_path):
    for part, count in (("train", 3), ("val", 2), ("test", 2)):
        for i in range(count):
            picture(tmp_path / part / f"0001TP_{part}{i}.png", mode="RGB", shade=(9, 9, 9), size=(3, 2))
            mask(tmp_path / f"{part}annot" / f"0001TP_{part}{i}.png", [[0, 3, 11], [8, 10, 11]])
        (tmp_path / f"{part}.txt").write_text("/SegNet/CamVid/train/0001TP_006690.png /SegNet/CamVid/...\n")
    data = open_data(tmp_path)
    assert data.task == "segmentation"
    assert data.class_names == CAMVID
    assert len(CAMVID) == 11
    assert data.ignore_index == 11
    assert isinstance(data.train, FileImages)
    assert [len(split) for split in (data.train, data.val, data.test)] == [3, 2, 2]
    assert data.train_counts.tolist() == [3, 0, 0, 3, 0, 0, 0, 0, 3, 0, 3]
    assert data.test.load(0)[1].tolist() == [[0, 3, 11], [8, 10, 11]]
