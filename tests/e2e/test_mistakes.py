"""Errors give one message with advice, no traceback, and leave finished runs unchanged."""

import json
import os
import shutil

import numpy as np
import pytest
import torch

from equipoise.train.folder import RunFolder
from tests.data.making import class_folders, coco, mask, picture, rotten
from tests.e2e.commands import assert_same_run, contents, predictions

QUICK = {"model": "linear", "epochs": 2}
DIGITS = {"data": "digits-lt", **QUICK}
TWO = {"accelerator": "cpu", "devices": 2, "strategy": "ddp", "batch_size": 4}


@pytest.fixture(scope="module")
def earlier(equipoise, tmp_path_factory):
    """A finished run, which failing commands must not change."""
    return equipoise.train(tmp_path_factory.mktemp("runs"), out="earlier", **DIGITS)


@pytest.fixture
def refused(equipoise, earlier, tmp_path):
    """Run a command that must fail with these words, create nothing, and not change the earlier run."""

    def check(*words, status=2, lines=1, arguments=(), leaves=False, **options):
        before, out = contents(earlier.path), earlier.path.with_name("new")
        result = equipoise(tmp_path, "train", *arguments, out=out, **options)
        assert result.status == status, result
        assert "Traceback" not in result.err
        assert result.err.startswith("error: ")
        assert len(result.err.strip().splitlines()) == lines, result.err
        for word in words:
            assert word in result.err
        run = RunFolder(out)
        assert not out.exists()
        assert run.draft.exists() == leaves
        assert contents(earlier.path) == before
        return run

    return check


def half(path):
    """Truncate a file, like a broken download; return a function that restores it."""
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    return lambda: path.write_bytes(whole)


# Images and other files


@pytest.fixture
def pictures(tmp_path):
    for split, count in (("train", 6), ("val", 2), ("test", 2)):
        class_folders(tmp_path / "pictures" / split, count, "jpg")
    return tmp_path / "pictures"


@pytest.mark.parametrize(
    ("broken", "options"),
    [
        ("train", {}),
        ("train", {"cache": True}),
        ("val", {"workers": 0}),
        ("val", {"workers": 2}),
    ],
)
def test_corrupt_image(refused, pictures, broken, options):
    """All images are checked before training."""
    half(pictures / broken / "cat" / "01.jpg")
    refused(f"{broken}/cat/01.jpg", "found 1 of 30", "--skip-bad-images", data=pictures, **options)


def test_corrupt_image_in_one_of_two_processes(refused, pictures):
    rotten(pictures / "val" / "emu" / "01.jpg")
    refused(
        "val/emu/01.jpg",
        "another process of this run stopped",
        status=1,
        lines=2,
        data=pictures,
        workers=1,
        **QUICK,
        **TWO,
    )


def test_corrupt_image_after_the_training(refused, equipoise, pictures, tmp_path, earlier):
    """No epoch is trained again once the image is restored."""
    mend = rotten(pictures / "test" / "dog" / "00.jpg")
    run = refused("test/dog/00.jpg", leaves=True, data=pictures, workers=1, **QUICK)
    epochs = list(run.history())
    mend()
    finished = equipoise(tmp_path, "train", out=run.path, data=pictures, workers=1, **QUICK)
    assert finished.status == 0
    assert run.finished
    assert "epoch 1/2" not in finished.out
    assert list(run.history()) == epochs
    assert_same_run(run, equipoise.train(tmp_path, data=pictures, workers=1, **QUICK))
    shutil.rmtree(run.path)


def test_corrupt_mask(refused, tmp_path):
    for i in range(8):
        picture(tmp_path / "data" / "images" / f"{i}.png", size=(3, 2))
        mask(tmp_path / "data" / "masks" / f"{i}.png", [[0, 0, 1], [0, 1, 1]])
    half(tmp_path / "data" / "masks" / "3.png")
    refused("masks/3.png", "can be decoded", data=tmp_path / "data", epochs=1)


def test_images_of_several_sizes(refused, pictures):
    picture(pictures / "train" / "cat" / "00.jpg", size=(30, 20))
    refused("images must have one size", "found 2 sizes", "--image-size 10x12, which 29 of 30", data=pictures, epochs=1)


def test_a_test_image_of_another_size(refused, pictures):
    """The error comes before training."""
    picture(pictures / "test" / "emu" / "01.jpg", size=(30, 20))
    refused("images must have one size", "--image-size 10x12", data=pictures, **QUICK)


def test_missing_files(refused, tmp_path):
    refused("no-such: there must be a file, a folder", data="no-such", **QUICK)
    refused("did you mean 'digits-lt'?", data="digit-lt", **QUICK)
    picture(tmp_path / "a.png")
    (tmp_path / "all.csv").write_text("path,label\n" + "a.png,x\ngone.png,y\n" * 5)
    refused("all.csv", "5 of 10 missing, e.g.", "gone.png", "image_root", data="all.csv", **QUICK)
    content = coco({1: "a.png", 2: "gone.png"}, [(1, 10, 0), (2, 20, 0)])
    (tmp_path / "some.json").write_text(json.dumps(content))
    refused("some.json", "gone.png", data="some.json", **QUICK)


# Labels


@pytest.fixture
def features(tmp_path):
    """Create a file of features with these labels."""

    def make(name, labels, **more):
        draw = np.random.default_rng(0)
        labels = np.asarray(labels)
        np.savez(tmp_path / name, features=draw.normal(size=(len(labels), 3)), labels=labels, **more)

    return make


def test_label_outside_of_the_classes(refused, features, tmp_path):
    features("mine.npz", np.arange(30) % 3)
    refused("labels must be classes from 0 to 1", "found 2", data="mine.npz", class_names="a,b", **QUICK)
    (tmp_path / "texts.csv").write_text("text,label\n" + "hello,cat\nworld,dgo\n" * 10)
    refused("'dgo'", "did you mean 'dog'?", data="texts.csv", class_names="cat,dog", epochs=1)


def test_class_without_a_training_sample(refused, equipoise, features, tmp_path):
    features("mine.npz", np.arange(30) % 3)
    names = {"data": "mine.npz", "class_names": "a,b,c,d"}
    refused("every class must have a training sample", "none of d", "--allow-empty", **names, **QUICK)
    for loss in ("ce", "ldam", "balanced-softmax", "ce:weight=effective"):
        run = equipoise.train(tmp_path, out=loss.replace(":", "-"), allow_empty=True, loss=loss, **names, **QUICK)
        assert all(np.isfinite(row.train["loss"]) for row in run.history())
        assert np.isfinite(predictions(run, "test")["logits"]).all()


def test_one_class(refused, equipoise, features, tmp_path):
    for i in range(12):
        picture(tmp_path / "eins" / "Bär" / f"{i}.png")
    refused("eins: there must be at least two classes, found one (Bär)", "add samples", data="eins", **QUICK)
    refused("found one (Bär)", data="eins", allow_empty=True, **QUICK)
    features("one-label.npz", (np.arange(40) % 3 == 0).astype(int)[:, None])
    run = equipoise.train(tmp_path, data="one-label.npz", task="multilabel", **QUICK)  # there or not is a question
    assert np.isfinite(run.results.test.overall["mean_average_precision"])


def test_validation_data_of_one_class(refused, equipoise, features, tmp_path):
    (tmp_path / "data").mkdir()
    for split, labels in (("train", np.arange(30) % 3), ("val", np.ones(6, int)), ("test", np.arange(9) % 3)):
        features(f"data/{split}.npz", labels)
    refused("validation data must hold at least two classes", "found 1 alone", "--allow-empty", data="data", **QUICK)
    run = equipoise.train(tmp_path, data="data", allow_empty=True, **QUICK)
    assert run.results.val.overall["accuracy"] is not None


# Settings


def test_all_typos_at_once(refused, tmp_path):
    """Errors that need no torch come first, then the others."""
    lines = ["data: digits-lt", "epoch: 3", "lr: fast", "sampler: balancd", "loss: focall:gamma=2", "model: resnet23"]
    (tmp_path / "spec.yaml").write_text("\n".join([*lines, "augment: flop", "batch_size: 0"]))
    refused(
        "spec.yaml: 5 mistakes in the settings",
        "epoch: there is no such setting; did you mean 'epochs'?",
        "lr: input should be a valid number",
        "got 'balancd'",
        "got 'focall'; did you mean 'focal'?",
        "batch_size: input should be greater than or equal to 1, got 0",
        arguments=["spec.yaml"],
        lines=6,
    )
    (tmp_path / "spec.yaml").write_text("\n".join([lines[0], "loss: focal:gama=2", lines[-1], "augment: flop"]))
    refused(
        "spec.yaml: 3 mistakes in the settings",
        "got 'gama'; did you mean 'gamma'",
        "got 'resnet23'; did you mean 'resnet32'?",
        "'flop'",
        arguments=["spec.yaml"],
        lines=4,
    )
    refused("gone.yaml", "no such file", arguments=["gone.yaml"])
    (tmp_path / "spec.yaml").write_text("data: [digits-lt")
    refused("spec.yaml", "not YAML", arguments=["spec.yaml"])


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (("did you mean 'focal'?",), {"loss": "focall"}),
        (("got 'gama'; did you mean 'gamma'?",), {"loss": "focal:gama=2"}),
        (("for multi-label data", "take one of ce, focal"), {"loss": "asl"}),
        (("did you mean 'resnet32'?",), {"model": "resnet23"}),
        (("timm:resnet18", "not installed; pip install timm"), {"model": "timm:resnet18"}),
        (("there is no", "gone.py"), {"model": "gone.py:make"}),
        (("mine.py", "failed with ZeroDivisionError", "line 2"), {"model": "mine.py:make"}),
        (("got 'hiden'; did you mean 'hidden'?",), {"model": "mlp", "model_options": "hiden=[4]"}),
        (("--model-options must be key=value, got 'hidden'",), {"model": "mlp", "model_options": "hidden"}),
        (("maps.py:make must make logits of shape (2, 10)", "got (2, 10, 8, 8)"), {"model": "maps.py:make"}),
        (("--monitor must be one of 'accuracy'", "got 'acc'"), {"monitor": "acc"}),
        (("--logger must be none, csv", "got 'paper'"), {"logger": "paper"}),
        (("--precision must suit this machine", "17"), {"precision": "17"}),
    ],
)
def test_unknown_words(refused, tmp_path, words, options):
    (tmp_path / "mine.py").write_text("def make(num_classes):\n    return 1 / 0\n")
    (tmp_path / "maps.py").write_text(
        "from torch import nn\ndef make(num_classes):\n    return nn.Conv2d(1, num_classes, 1)\n"
    )
    refused(*words, **DIGITS | options)


def test_corrected_command_can_use_the_same_folder(equipoise, tmp_path):
    """An invalid setting leaves no file that blocks the corrected command."""
    assert equipoise(tmp_path, "train", out="run", loss="asl", **DIGITS).status == 2
    assert equipoise.train(tmp_path, loss="focal", **DIGITS).finished


def test_folder_that_is_not_a_run(equipoise, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("ten years")
    for options in ({}, {"restart": True}):
        result = equipoise(tmp_path, "train", out="run", **DIGITS, **options)
        assert result.status == 2
        assert "the folder exists and is not a run" in result.err
    assert (tmp_path / "run" / "thesis.txt").read_text() == "ten years"


# Machine and numbers


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_nan_loss(refused, optimizer):
    words = ("the loss became nan in epoch 1", "lower --lr", "--clip")
    refused(*words, status=1, optimizer=optimizer, lr=1e30, **DIGITS | {"model": "mlp"})


@pytest.mark.skipif("COVERAGE_PROCESS_CONFIG" in os.environ, reason="coverage writes files too, which are limited here")
def test_full_disk(equipoise, tmp_path, earlier):
    """Whichever file fills the disk, the same command resumes once there is space."""
    before, draft = contents(earlier.path), tmp_path / "run.unfinished"
    left = []
    for largest in (3000, 6000, 10_000, 20_000):
        result = equipoise(tmp_path, "train", out="run", largest_file=largest, **DIGITS)
        assert result.status == 1
        assert "Traceback" not in result.err
        assert "the disk is full" in result.err
        assert "make room" in result.err
        assert not (tmp_path / "run").exists()
        left.append(sorted(file.name for file in draft.rglob("*") if file.is_file()))
        assert not any(".draft" in name for name in left[-1])
    assert left[0] == []  # no epoch was finished
    assert "resume.ckpt" in left[-1]
    assert_same_run(equipoise.train(tmp_path, **DIGITS), earlier)
    assert contents(earlier.path) == before


OUT_OF_MEMORY = """
import torch
from torch import nn


class Hungry(nn.Linear):
    def forward(self, x):
        {how}
        return super().forward(x.flatten(1))


def make(num_classes):
    return Hungry(64, num_classes)
"""


def test_out_of_memory(refused, tmp_path):
    """The error that CUDA raises, from a user-defined model."""
    message = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 2 MiB."
    (tmp_path / "mine.py").write_text(OUT_OF_MEMORY.format(how=f"raise torch.OutOfMemoryError({message!r})"))
    words = ("does not have enough memory (CUDA out of memory)", "lower --batch-size")
    refused(*words, status=1, **DIGITS | {"model": "mine.py:make"})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_out_of_memory_of_a_device(refused, tmp_path):
    (tmp_path / "mine.py").write_text(OUT_OF_MEMORY.format(how="x.is_cuda and torch.empty(2**44, device=x.device)"))
    words = ("does not have enough memory (CUDA out of memory)", "lower --batch-size")
    refused(*words, status=1, accelerator="gpu", **DIGITS | {"model": "mine.py:make"})
