"""Open sets from held-out classes and from other data."""

from dataclasses import replace

import numpy as np
import pytest

from equipoise.data import (
    Arrays,
    DataError,
    DataSet,
    FileImages,
    Texts,
    digit_maps,
    digit_scenes,
    digits_lt,
    hold_out,
    open_data,
    open_samples,
)
from tests.data.making import class_folders, picture

NAMES = ("ant", "bee", "cat", "dog")


def features(labels, **options):
    labels = np.asarray(labels)
    inputs = np.arange(len(labels), dtype=np.float32)[:, None]
    split = Arrays(inputs, labels)
    return DataSet("pets", "multiclass", NAMES, split, split, split, **options)


# Classes held out -----------------------------------------------------------------------------------------------------


def test_classes_are_numbered_again_and_samples_stay_with_their_class():
    data = features([3, 0, 1, 2, 3, 1, -100])
    known, unknown = hold_out(data, ["bee"])
    assert known.class_names == ("ant", "cat", "dog")
    for split in (known.train, known.val, known.test):
        assert split.labels.tolist() == [2, 0, 1, 2, -100]
        assert split.inputs[:, 0].tolist() == [0, 1, 3, 4, 6]
    assert known.train_counts.tolist() == [1, 1, 2]
    assert unknown.inputs[:, 0].tolist() == [2, 5]
    assert unknown.labels.tolist() == [-100, -100]
    assert data.train.labels.tolist() == [3, 0, 1, 2, 3, 1, -100]  # as it was
    assert "Held out as unknown: bee, with 2 test samples; 2 training and 2 validation samples" in known.notes[-1]


@pytest.mark.parametrize("seed", range(5))
def test_like_a_slow_plain_version(seed):
    draw = np.random.default_rng(seed)
    data = features(draw.integers(0, 4, 200))
    out = draw.choice(4, 2, replace=False)
    known, unknown = hold_out(data, [int(c) for c in out])
    kept = [c for c in range(4) if c not in out]
    expected = [(i, kept.index(c)) for i, c in enumerate(data.test.labels) if c in kept]
    assert list(zip(known.test.inputs[:, 0].astype(int).tolist(), known.test.labels.tolist(), strict=True)) == expected
    assert unknown.inputs[:, 0].tolist() == [i for i, c in enumerate(data.test.labels) if c in out]
    assert known.class_names == tuple(NAMES[c] for c in kept)


@pytest.mark.parametrize("classes", ["bee,dog", " bee , 3", ["bee", "dog"], [1, 3], ["1", 3], ("dog", "bee")])
def test_names_and_numbers(classes):
    known, _ = hold_out(features([0, 1, 2, 3]), classes)
    assert known.class_names == ("ant", "cat")


def test_names_take_precedence_over_numbers():
    data = replace(features([0, 1, 2, 3]), class_names=("3", "2", "1", "0"))
    assert hold_out(data, "3")[0].class_names == ("2", "1", "0")
    assert hold_out(data, [3])[0].class_names == ("3", "2", "1")


def test_ignored_class_stays_ignored():
    data = features([0, 1, 2, 3, 2], ignore_index=2)
    known, unknown = hold_out(data, [0])
    assert known.ignore_index == 1
    assert known.test.labels.tolist() == [0, 1, 2, 1]
    assert known.train_counts.tolist() == [1, 0, 1]
    assert unknown.labels.tolist() == [1]


def test_images_in_files_and_texts(tmp_path):
    class_folders(tmp_path, 20)
    data = open_data(tmp_path)
    known, unknown = hold_out(data, "dog")
    assert isinstance(unknown, FileImages)
    assert all("dog" in path for path in unknown.paths)
    assert not any("dog" in path for path in known.train.paths)
    assert known.class_names == ("cat", "emu")
    split = Texts(("a", "b", "c"), np.array([0, 1, 2]))
    words = DataSet("words", "multiclass", NAMES[:3], split, split, split)
    known, unknown = hold_out(words, [0])
    assert (known.test.texts, known.test.labels.tolist()) == (("b", "c"), [0, 1])
    assert unknown.texts == ("a",)


def test_the_embedded_digits():
    known, unknown = hold_out(digits_lt(), [0, 5])
    assert (len(known.test), len(unknown), len(known.class_names)) == (320, 80, 8)
    assert set(np.unique(known.train.labels)) == set(range(8))


BAD = {
    "no class": (lambda: hold_out(features([0, 1, 2, 3]), []), "there must be a class to hold out", "ant, bee"),
    "an empty text": (lambda: hold_out(features([0, 1, 2, 3]), " "), "there must be a class to hold out", "pets"),
    "one number alone": (lambda: hold_out(features([0, 1, 2, 3]), 42), "a list of names or indices", "found int 42"),
    "a misspelt name": (lambda: hold_out(features([0, 1, 2, 3]), "bea"), "found 'bea'", "did you mean 'bee'?"),
    "a number too large": (lambda: hold_out(features([0, 1, 2, 3]), [4]), "an index from 0 to 3, found 4", "ant"),
    "a number below 0": (lambda: hold_out(features([0, 1, 2, 3]), "-1"), "found '-1'", "from 0 to 3"),
    "twice": (lambda: hold_out(features([0, 1, 2, 3]), "bee,1"), "'bee' twice", "once"),
    "one class left": (lambda: hold_out(features([0, 1, 2, 3]), [0, 1, 2]), "at least two classes", "1 of 4"),
    "no test sample": (lambda: hold_out(features([0, 1, 2]), "dog"), "there must be test samples of dog", "none"),
    "nothing left": (
        lambda: hold_out(features([3, 3]), "dog"),
        "there must be train samples of the remaining classes",
        "none",
    ),
    "the ignored": (
        lambda: hold_out(features([0, 1, 2], ignore_index=2), [2]),
        "the ignored label cannot be held out",
        "found cat",
    ),
    "several labels": (
        lambda: hold_out(digit_scenes(), [0]),
        "single-label data, found task 'multilabel'",
        "hold out none",
    ),
    "segmentation": (lambda: hold_out(digit_maps(), [1]), "found task 'segmentation'", "hold out none"),
}


@pytest.mark.parametrize("case", BAD)
def test_classes_that_cannot_be_held_out(case):
    attempt, *words = BAD[case]
    with pytest.raises(DataError) as caught:
        attempt()
    for word in words:
        assert word in str(caught.value)


# Other data -----------------------------------------------------------------------------------------------------------


def test_arrays_of_another_file(tmp_path):
    np.savez(tmp_path / "open.npz", features=np.array([[7.0], [8.0]]), labels=np.array(["not", "looked at"]))
    samples = open_samples(tmp_path / "open.npz", features([0, 1, 2, 3]))
    assert samples.inputs.tolist() == [[7.0], [8.0]]
    assert samples.inputs.dtype == np.float32
    assert samples.labels.tolist() == [-100, -100]
    images = np.full((3, 16, 12, 1), 9, np.uint8)
    np.savez(tmp_path / "images.npz", images=images)
    samples = open_samples(tmp_path / "images.npz", digits_lt())
    assert samples.inputs.shape == (3, 1, 8, 8)  # the size of the digits
    assert (samples.inputs == 9).all()


def test_a_folder_of_images(tmp_path):
    class_folders(tmp_path / "data", 8)
    for number in range(3):
        picture(tmp_path / "open" / "deep" / f"{number}.png", 10 * number, size=(20, 30))
    data = open_data(tmp_path / "data", image_size=(6, 5), fit="crop")
    samples = open_samples(tmp_path / "open", data)
    assert (len(samples), samples.size, samples.fit, samples.labels.tolist()) == (3, (6, 5), "crop", [-100] * 3)
    assert samples.as_arrays().inputs.shape == (3, 3, 6, 5)
    colour = Arrays(np.zeros((4, 3, 7, 9), np.uint8), np.arange(4))
    data = DataSet("colours", "multiclass", NAMES, colour, colour, colour)
    assert open_samples(tmp_path / "open", data).as_arrays().inputs.shape == (3, 3, 7, 9)
    np.savez(tmp_path / "open.npz", images=np.zeros((2, 20, 30, 3), np.uint8))
    assert open_samples(tmp_path / "open.npz", open_data(tmp_path / "data", image_size=4)).inputs.shape == (2, 3, 4, 4)


def test_samples_that_a_model_of_the_data_cannot_take(tmp_path):
    data = features([0, 1, 2, 3])
    np.savez(tmp_path / "wide.npz", features=np.zeros((2, 5)))
    np.savez(tmp_path / "images.npz", images=np.zeros((2, 8, 8, 3), np.uint8))
    np.savez(tmp_path / "none.npz", features=np.zeros((0, 1)))
    np.savez(tmp_path / "named.npz", feature=np.zeros((2, 1)))
    np.savez(tmp_path / "grey.npz", images=np.zeros((2, 8, 8, 1), np.uint8))
    (tmp_path / "table.csv").write_text("a,b\n")
    (tmp_path / "broken.npz").write_text("hello")
    picture(tmp_path / "pictures" / "a.png")
    (tmp_path / "empty").mkdir()
    texts = Texts(("a", "b"), np.array([0, 1]))
    words = DataSet("words", "multiclass", NAMES[:2], texts, texts, texts)
    for name, others, *output in (
        ("wide.npz", data, "of the kind of pets, 1 features, found features (2, 5)", "hold out classes"),
        ("images.npz", data, "1 features, found images (2, 3, 8, 8)"),
        ("images.npz", digits_lt(), "images of 1 channel, 8 x 8, found images (2, 3, 8, 8)"),
        ("none.npz", data, "at least one sample"),
        ("named.npz", data, "images or features (one of them), found feature;", "did you mean 'features'?"),
        ("broken.npz", data, "must be an .npz archive"),
        ("table.csv", data, "must be an .npz with images or features, or a folder of images, found .csv"),
        ("pictures", data, "1 features, found image files"),
        ("pictures", digits_lt(), "images of 1 channel, 8 x 8, found image files, which are read in colour"),
        ("pictures", words, "texts, found image files"),
        ("empty", data, "there must be images in the folder"),
        ("missing", data, "found nothing; check the path"),
        ("wide.npz", digit_maps(), "single-label data, found task 'segmentation'"),
    ):
        with pytest.raises(DataError) as caught:
            open_samples(tmp_path / name, others)
        for word in (name, *output):
            assert word in str(caught.value)
