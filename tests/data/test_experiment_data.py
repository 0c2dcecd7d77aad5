"""The arrays of the recorded comparisons are built from files in the layout of their authors."""

import numpy as np
import pytest
import yaml

from equipoise.data import open_data
from experiments import data as experiment
from tests.data.making import mask, picture
from tests.data.test_dataset_layouts import cifar_binary, cifar_python
from tests.pages import ROOT


def test_every_comparison_on_downloaded_data_has_a_builder():
    specs = [yaml.safe_load(file.read_text("utf-8")) for file in (ROOT / "experiments" / "specs").glob("*.yaml")]
    downloaded = {spec["data"] for spec in specs} - {"digits-lt"}
    assert downloaded == set(experiment.NAMES)
    page = (ROOT / "docs" / "experiments.md").read_text("utf-8")
    for name in experiment.NAMES:
        assert f"| `{name}` |" in page


@pytest.mark.parametrize("make", [cifar_binary, cifar_python])
def test_cifar10_lt100(tmp_path, capsys, make):
    raw, test, classes = make(tmp_path / "raw")
    experiment.main(["cifar10_lt100", str(tmp_path / "raw"), str(tmp_path / "out")])
    assert "train.npz: images (15, 32, 32, 3)" in capsys.readouterr().out
    data = open_data(tmp_path / "out")
    assert data.class_names == tuple(classes)
    assert data.train_counts.tolist() == [5, 2, 1, 1, 1, 1, 1, 1, 1, 1]  # int(5 * 0.01^(c / 9)), at least 1
    np.testing.assert_array_equal(data.test.inputs, test[0].reshape(-1, 3, 32, 32))
    images = np.concatenate([own for own, _ in raw])
    labels = np.concatenate([own for _, own in raw])
    index = {row.tobytes(): i for i, row in enumerate(images)}
    chosen = [index[image.tobytes()] for image in data.train.inputs]
    assert chosen == sorted(chosen)
    np.random.seed(0)
    for c, count in enumerate(data.train_counts):
        of_class = np.where(labels == c)[0]
        np.random.shuffle(of_class)
        assert sorted(of_class[:count]) == [i for i in chosen if labels[i] == c]
    validation = [index[image.tobytes()] for image in data.val.inputs]
    assert validation == [i for i in range(50 * 5_861 // 50_000) if i not in chosen]


def test_camvid(tmp_path):
    for part in ("train", "val", "test"):
        picture(tmp_path / "raw" / part / "a.png", mode="RGB", shade=(10, 100, 200), size=(480, 360))
        values = np.zeros((360, 480), np.uint8)
        values[:, 240:] = 8
        values[180:] = 11
        mask(tmp_path / "raw" / f"{part}annot" / "a.png", values)
    experiment.main(["camvid", str(tmp_path / "raw"), str(tmp_path / "out")])
    data = open_data(tmp_path / "out", ignore_index=11)
    assert data.train.inputs.shape == (1, 3, 180, 240)
    assert np.abs(data.train.inputs[0, :, 5, 5].astype(int) - [10, 100, 200]).max() <= 3
    assert data.train.labels[0, 0, :120].tolist() == [0] * 120
    assert data.train.labels[0, 0, 120:].tolist() == [8] * 120
    assert (data.train.labels[0, 90:] == 11).all()
    assert len(data.class_names) == 11


def test_coco18(tmp_path, monkeypatch):
    lines = ["ImageID,Labels,Caption", '0.jpg,1,A woman, "smiling".', "1.jpg,1 19,A horse", "2.jpg,13 3,A sign"]
    for i in range(3):
        picture(tmp_path / "raw" / "data" / f"{i}.jpg", mode="RGB", shade=(10, 100, 200), size=(320, 240))
    (tmp_path / "raw" / "train.csv").write_text("\n".join(lines))
    monkeypatch.setattr(experiment, "COCO18_TRAIN", 2)
    experiment.main(["coco18", str(tmp_path / "raw"), str(tmp_path / "out")])
    train, test = (np.load(tmp_path / "out" / f"{split}.npz") for split in ("train", "test"))
    assert train["images"].shape == (2, 64, 64, 3)
    names = train["class_names"]
    assert [[str(names[c]) for c in np.flatnonzero(row)] for row in (*train["labels"], *test["labels"])] == [
        ["person"],
        ["person", "horse"],
        ["car", "stop sign"],
    ]
    (tmp_path / "raw" / "train.csv").write_text("ImageID,Labels,Caption\n0.jpg,12,A street sign\n")
    with pytest.raises(SystemExit, match=r"train.csv: a line must be an image, categories and a caption"):
        experiment.main(["coco18", str(tmp_path / "raw"), str(tmp_path / "out")])


def test_a_folder_without_the_data(tmp_path):
    for name in experiment.NAMES:
        with pytest.raises(SystemExit, match=str(tmp_path)):
            experiment.main([name, str(tmp_path), str(tmp_path / "out")])
