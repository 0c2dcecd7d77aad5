"""A run on every format, with generated files whose content determines the labels: each run must learn them."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
import yaml
from PIL import Image

from equipoise.train.folder import RunFolder
from tests.data.making import SHADES, class_folders, coco, picture
from tests.e2e.commands import predictions
from tests.e2e.scenes import MODEL, scene

NAMES = tuple(SHADES)
QUICK = {"model": "mlp", "model_options": "hidden=[16]", "epochs": 12, "lr": 0.03}
HALVES = {"val_share": 0.25, "test_share": 0.25}


def shaded(labels, size=(6, 5)):
    """Grey images (N, H, W, 1) with the shades of their classes, and noise."""
    draw = np.random.default_rng(0)
    shades = np.array(list(SHADES.values()))[np.asarray(labels)]
    return (shades[:, None, None, None] + draw.integers(-20, 20, (len(labels), *size, 1))).astype(np.uint8)


def overall(run, split="test"):
    return getattr(run.results, split).overall


# Arrays


def test_arrays_of_images_and_a_yaml_spec(equipoise, tmp_path):
    """Mixup, averaged weights and a balanced sampler from a YAML file; a flag takes precedence."""
    counts = [40, 12, 5]
    for split in ("train", "val", "test"):
        labels = np.repeat([0, 1, 2], counts if split == "train" else 8)
        np.savez(tmp_path / f"{split}.npz", images=shaded(labels), labels=labels, class_names=np.array(NAMES))
    settings = {
        "data": ".",
        "model": "mlp",
        "model_options": {"hidden": [16], "dropout": 0.1},
        "augment": "flip,mixup:0.2",
        "sampler": "balanced",
        "ema": 0.8,
        "optimizer": "sgd",
        "lr": 0.05,
        "epochs": 12,
        "precision": 32,
        "out": "from-file",
    }
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(settings))
    finished = equipoise(tmp_path, "train", "spec.yaml", epochs=10)
    assert finished.status == 0, finished.err
    run = RunFolder(tmp_path / "from-file")
    record = run.record
    assert (record.epochs, record.spec["sampler"], record.spec["ema"]) == (10, "balanced", 0.8)
    assert (record.data.class_names, record.data.train_counts) == (list(NAMES), counts)
    assert record.model.input_shape == [1, 6, 5]
    assert overall(run)["mean_class_accuracy"] > 0.9
    assert all(row.train.get("accuracy") is None for row in run.history())  # mixed labels have no right and wrong


def test_features_in_one_file_with_several_labels(equipoise, tmp_path):
    draw = np.random.default_rng(0)
    features = draw.normal(50.0, 7.0, (240, 4))
    labels = (features[:, :3] > [50.0, 55.0, 60.0]).astype(int)
    np.savez(tmp_path / "mine.npz", features=features, labels=labels)
    run = equipoise.train(tmp_path, data="mine.npz", class_names="a,b,c", loss="bce", prior_bias=True, **QUICK)
    assert run.record.data.task == "multilabel"
    assert run.record.preparation.mean == pytest.approx([50.0] * 4, abs=2)
    assert overall(run)["mean_average_precision"] > 0.9
    assert any("Drawn from the 240 training samples" in note for note in run.record.data.notes)


def test_texts_with_word_vectors_of_a_file(equipoise, tmp_path):
    draw = np.random.default_rng(0)
    rows = [
        f"{' '.join(draw.permutation(['it', 'is', word]))},{label}" for word, label in [("up", 1), ("down", 0)] * 80
    ]
    (tmp_path / "texts.csv").write_text("\n".join(["text,label", *rows]))
    (tmp_path / "glove.txt").write_text("up 1 1\ndown -1 0.5\nleft 1 0\n")
    settings = {
        "model": "text-pooling-cnn",
        "model_options": "width=2",
        "word_vectors": "glove.txt",
        "epochs": 20,
        "lr": 0.03,
    }
    run = equipoise.train(tmp_path, data="texts.csv", **settings)
    assert run.record.spec["word_vectors"] == "glove.txt"
    assert overall(run)["accuracy"] > 0.9
    refused = equipoise(tmp_path, "train", data="texts.csv", **{**settings, "model_options": "width=3"})
    assert refused.status != 0
    assert "--word-vectors glove.txt: vectors must be" in refused.err


# Image files


def test_image_folders(equipoise, tmp_path):
    """Read by worker processes; tensorboard, one cycle of the learning rate and clipped gradients."""
    class_folders(tmp_path / "pictures", 12, "jpg")
    run = equipoise.train(
        tmp_path,
        data="pictures",
        image_size="6x5",
        workers=2,
        logger="tensorboard",
        schedule="one-cycle",
        clip=0.5,
        sampler="square-root",
        augment="flip,colour:0.01",
        **QUICK,
        **HALVES,
    )
    assert run.record.data.class_names == list(NAMES)
    assert run.record.data.samples == {"train": 18, "val": 9, "test": 9}
    assert overall(run)["accuracy"] > 0.9
    rates = [row.lr for row in run.history()]
    assert 0 < np.argmax(rates) < 6
    assert rates[-1] < 0.03 / 25
    assert any(file.name.startswith("events.out.tfevents") for file in (run.path / "logs").iterdir())


def test_csv_of_paths(equipoise, tmp_path):
    """Custom column names, a column of splits, images in another folder, decoded once."""
    rows = ["where,kind,part"]
    for i in range(27):
        name = NAMES[i % 3]
        picture(tmp_path / "elsewhere" / f"{i}.png", SHADES[name])
        rows.append(f"{i}.png,{name},{('train', 'train', 'train', 'val', 'test')[i % 5]}")
    (tmp_path / "all.csv").write_text("\n".join(rows))
    columns = {"path_column": "where", "label_column": "kind", "split_column": "part"}
    run = equipoise.train(
        tmp_path, data="all.csv", image_root="elsewhere", image_size=6, cache=True, **columns, **QUICK
    )
    assert run.record.data.samples == {"train": 17, "val": 5, "test": 5}
    assert run.record.data.name == "all"
    assert overall(run)["accuracy"] > 0.9


def test_long_tail_lists(equipoise, tmp_path):
    (tmp_path / "lists").mkdir()
    for split, counts in (("train", (15, 8, 4)), ("val", (3, 3, 3)), ("test", (4, 4, 4))):
        lines = []
        for label, count in enumerate(counts):
            for i in range(count):
                picture(tmp_path / "photos" / split / f"{label} {i}.jpg", list(SHADES.values())[label])
                lines.append(f"photos/{split}/{label} {i}.jpg {label}\n")
        (tmp_path / "lists" / f"Some_LT_{split}.txt").write_text("".join(lines))
    run = equipoise.train(tmp_path, data="lists", image_root=".", image_size=6, loss="balanced-softmax", **QUICK)
    assert run.record.data.train_counts == [15, 8, 4]
    assert overall(run)["accuracy"] > 0.9


def test_coco(equipoise, tmp_path):
    """The left half is bright where there is a bird, the right half where there is an ant."""
    (tmp_path / "annotations").mkdir()
    for split, count in (("train2017", 40), ("val2017", 20)):
        (tmp_path / split).mkdir()
        annotations = []
        for i in range(count):
            image = np.full((8, 8), 40, np.uint8)
            for half, (category, period) in enumerate(((10, 2), (20, 3))):
                if i % period == 0:
                    image[:, 4 * half : 4 * half + 4] = 200
                    annotations.append((i, category, 0))
            Image.fromarray(image).save(tmp_path / split / f"{i}.png")
        content = coco({i: f"{i}.png" for i in range(count)}, annotations)
        (tmp_path / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))
    run = equipoise.train(tmp_path, data=".", loss="asl", **QUICK)
    assert (run.record.data.task, run.record.data.class_names) == ("multilabel", ["bird", "ant"])
    assert overall(run)["mean_average_precision"] > 0.95
    assert (run.path / "thresholds.json").is_file()


# Tables of texts


def test_parquet_of_texts(equipoise, tmp_path):
    draw = np.random.default_rng(0)
    words = {"sport": ["ball", "goal", "team"], "food": ["soup", "bread", "salt"]}
    for split, count in (("train", 60), ("val", 20), ("test", 20)):
        labels = ["sport" if i % 4 else "food" for i in range(count)]
        texts = [f"the {draw.choice(words[label])} and the {draw.choice(words[label])}" for label in labels]
        pa.parquet.write_table(pa.table({"text": texts, "label": labels}), tmp_path / f"{split}.parquet")
    run = equipoise.train(tmp_path, data=".", epochs=10, lr=0.03)
    assert run.record.model.name == "text-bow"
    assert {"ball", "soup"} <= set(run.record.preparation.words)
    assert run.record.model.vocabulary == len(run.record.preparation.words) + 2
    assert overall(run)["mean_class_accuracy"] > 0.9


@pytest.mark.parametrize("form", ["one column", "a column each"])
def test_tables_with_several_labels(equipoise, tmp_path, form):
    rows = ["text,label" if form == "one column" else "text,label_wet,label_cold"]
    for i in range(60):
        wet, cold = i % 2 == 0, i % 3 == 0
        text = f"{'rain' if wet else 'sun'} and {'snow' if cold else 'heat'}"
        cells = "|".join(["wet"] * wet + ["cold"] * cold) if form == "one column" else f"{int(wet)},{int(cold)}"
        rows.append(f"{text},{cells}")
    (tmp_path / "all.csv").write_text("\n".join(rows))
    run = equipoise.train(tmp_path, data="all.csv", epochs=10, lr=0.03)
    assert run.record.data.task == "multilabel"
    assert set(run.record.data.class_names) == {"wet", "cold"}
    assert overall(run)["mean_average_precision"] > 0.95


# Masks


@pytest.fixture
def pixels(tmp_path):
    """A user-defined model in a file, and settings to train it quickly."""
    (tmp_path / "mine.py").write_text(MODEL)
    return {"model": "mine.py:pixels", "epochs": 12, "lr": 0.05, "batch_size": 4}


def test_images_and_masks(equipoise, tmp_path, pixels):
    for i in range(24):
        scene(tmp_path / "data" / "images" / f"{i}.png", tmp_path / "data" / "masks" / f"{i}.png", [0, 1, 2], i)
    names = {"class_names": "sky,road,car"}
    run = equipoise.train(tmp_path, data="data", model_options="width=8", augment="flip", **names, **pixels)
    assert run.record.data.ignore_index == 255
    assert (run.record.model.name, run.record.model.options) == ("mine.py:pixels", {"width": 8})
    assert overall(run)["mean_iou"] > 0.9
    assert (predictions(run, "test")["targets"] == -100).sum() == len(predictions(run, "test")["targets"])
    weights = torch.load(run.checkpoint, weights_only=True)["model"]
    assert weights["0.weight"].shape == (8, 3, 1, 1)


def test_cityscapes(equipoise, tmp_path):
    """The Cityscapes layout with label ids; most classes do not occur in so few images."""
    for split, count in (("train", 16), ("val", 5), ("test", 2)):
        for i in range(count):
            name = f"ulm_{i}"
            scene(
                tmp_path / "leftImg8bit" / split / "ulm" / f"{name}_leftImg8bit.png",
                tmp_path / "gtFine" / split / "ulm" / f"{name}_gtFine_labelIds.png",
                [7, 11, 33],
                i,
            )
    model = {"model": "unet", "model_options": ["width=8", "depth=1"], "epochs": 12, "lr": 0.03}
    run = equipoise.train(tmp_path, data=".", allow_empty=True, loss="ce+dice", **model)
    assert len(run.record.data.class_names) == 19
    classes_with_support = {row.name for row in run.results.test.per_class if row.support}
    assert classes_with_support == {"road", "building", "bicycle"}
    assert overall(run)["pixel_accuracy"] > 0.8


def test_voc(equipoise, tmp_path, pixels):
    sets = tmp_path / "data" / "ImageSets" / "Segmentation"
    sets.mkdir(parents=True)
    for split, start, stop in (("train", 0, 20), ("val", 20, 26)):
        (sets / f"{split}.txt").write_text("\n".join(str(i) for i in range(start, stop)))
        for i in range(start, stop):
            images, masks = (tmp_path / "data" / kind for kind in ("JPEGImages", "SegmentationClass"))
            scene(images / f"{i}.jpg", masks / f"{i}.png", [0, 15, 20], i)
    run = equipoise.train(tmp_path, data="data", allow_empty=True, **pixels)
    assert len(run.record.data.class_names) == 21
    assert run.record.data.train_counts[15] > 0
    assert overall(run)["pixel_accuracy"] > 0.9
