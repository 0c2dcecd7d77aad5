"""Exported models: raw inputs in, calibrated probabilities out, using only the folder."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.testing import assert_close

import equipoise
from equipoise.calibration import fit_thresholds, load
from equipoise.data import Arrays, DataSet, Texts, open_data
from equipoise.models import build_model
from equipoise.train.export import Exported, export_run, load_exported
from equipoise.train.preparation import Preparation
from tests.cli.test_evaluate import run
from tests.models.test_registry import timm, torchvision  # noqa: F401  (fixtures)
from tests.train.run_folders import data_of, fits_of, images_of, make_run

TASKS = ["multiclass", "multilabel", "segmentation"]
each_task = pytest.mark.parametrize("task", TASKS)


def files_in(folder):
    return sorted(each.name for each in folder.iterdir())


def says(*words):
    return "(?s)" + ".*".join(re.escape(word) for word in words)


def edit(path, **changes):
    """Change entries of a JSON file; ``model__name`` is the name inside of model."""
    about = json.loads(path.read_text())
    for key, value in changes.items():
        *outer, last = key.split("__")
        inner = about
        for part in outer:
            inner = inner[part]
        inner[last] = value
    path.write_text(json.dumps(about))


@pytest.fixture
def exported(tmp_path):
    make_run(tmp_path / "run")
    return export_run(tmp_path / "run", tmp_path / "out")


# ---------------------------------------------------------------------------------------------------------------------
# What an exported model gives
# ---------------------------------------------------------------------------------------------------------------------


def expected_logits(model, task, images, *, fits=True):
    """Computed explicitly: pixels to [0, 1], mean and deviation of the training pixels, model, calibration."""
    train = data_of(task).train.inputs / 255.0
    x = torch.from_numpy((images / 255.0 - train.mean()) / train.std()).float()
    logits = model(x).detach()
    return fits_of(task, logits.shape[1])[0](logits) if fits else logits


@each_task
@pytest.mark.parametrize("fits", [True, False], ids=["fits", "no fits"])
def test_probabilities_are_prepared_and_calibrated(tmp_path, task, fits):
    model = make_run(tmp_path / "run", task, fits=fits)
    loaded = load_exported(export_run(tmp_path / "run", tmp_path / "out"))
    images = images_of(task)
    logits = expected_logits(model, task, images, fits=fits)
    probabilities = logits.sigmoid() if task == "multilabel" else logits.softmax(1)
    assert_close(loaded(images), probabilities, rtol=0, atol=1e-5)
    assert_close(loaded.logits(images), logits, rtol=1e-5, atol=1e-5)
    plain = expected_logits(model, task, images, fits=False)
    assert_close(loaded.logits(images, calibrated=False), plain, rtol=1e-5, atol=1e-5)
    assert not loaded(images).requires_grad
    assert not loaded.training
    assert (loaded.calibration is None) == (not fits)
    assert (loaded.thresholds is None) == (not fits or task != "multilabel")


@each_task
def test_decisions(tmp_path, task):
    make_run(tmp_path / "run", task)
    loaded = load_exported(export_run(tmp_path / "run", tmp_path / "out"))
    images = images_of(task, 40)
    logits, predictions = loaded.logits(images), loaded.predict(images)
    names = data_of(task).class_names
    if task == "multiclass":
        assert predictions == [names[k] for k in logits.argmax(1)]
        assert len(set(predictions)) > 1
    elif task == "multilabel":
        thresholds = torch.tensor(fits_of(task, 10)[1].thresholds)
        chosen = loaded.logits(images, calibrated=False) > thresholds
        assert predictions == [[name for name, one in zip(names, row, strict=True) if one] for row in chosen]
        assert not torch.equal(chosen, loaded(images) > 0.5)  # the thresholds matter
        assert not torch.equal(chosen, logits > thresholds)  # and what they are compared with
    else:
        assert torch.equal(predictions, logits.argmax(1))
        assert predictions.shape == (40, 32, 32)


def test_without_thresholds_labels_are_chosen_at_one_half(tmp_path):
    make_run(tmp_path / "run", "multilabel", fits=False)
    loaded = load_exported(export_run(tmp_path / "run", tmp_path / "out"))
    images = images_of("multilabel", 20)
    assert [len(labels) for labels in loaded.predict(images)] == (loaded(images) > 0.5).sum(1).tolist()


def test_image_files_are_read(exported, tmp_path):
    images = images_of("multiclass", 3)
    for k, image in enumerate(images):
        Image.fromarray(image[0]).save(tmp_path / f"{k}.png")
    loaded = load_exported(exported)
    assert_close(loaded([tmp_path / f"{k}.png" for k in range(3)]), loaded(images))
    assert loaded.predict(str(tmp_path / "0.png")) == loaded.predict(images[:1])


def test_models_of_features(tmp_path):
    draw = np.random.default_rng(0)
    split = Arrays(draw.normal(3.0, 2.0, (50, 4)).astype(np.float32), np.arange(50) % 3)
    data = DataSet("rows", "multiclass", ("a", "b", "c"), split, split, split)
    model = make_run(tmp_path / "run", data=data, name="linear")
    loaded = load_exported(export_run(tmp_path / "run", tmp_path / "out"))
    scaled = (split.inputs - split.inputs.mean(0)) / split.inputs.std(0)
    expected = fits_of("multiclass", 3)[0](model(torch.from_numpy(scaled))).softmax(1)
    assert_close(loaded(split.inputs), expected, rtol=0, atol=1e-5)


def test_models_of_text(tmp_path):
    texts = ("the good the bad", "good good day", "a bad day", "the day", "bad bad good")
    split = Texts(texts, np.array([0, 1, 0, 1, 0]))
    data = DataSet("texts", "multiclass", ("no", "yes"), split, split, split)
    model = make_run(tmp_path / "run", data=data, name="text-bow")
    loaded = load_exported(export_run(tmp_path / "run", tmp_path / "out"))
    tokens = Preparation.fit(split).as_arrays(split).inputs
    expected = fits_of("multiclass", 2)[0](model(torch.from_numpy(tokens).long())).softmax(1)
    assert_close(loaded(list(texts)), expected, rtol=0, atol=1e-5)
    assert set(loaded.predict(list(texts))) <= {"no", "yes"}


def test_other_precision(exported):
    """The model computes in half precision, and outputs are float32."""
    loaded = load_exported(exported)
    images = images_of("multiclass")
    expected = loaded(images)
    half = loaded.to(torch.bfloat16)
    assert next(half.model.parameters()).dtype == torch.bfloat16
    assert half(images).dtype == torch.float32
    assert_close(half(images), expected, rtol=0, atol=0.02)
    assert_close(half.to(torch.float64)(images).float(), expected, rtol=0, atol=0.02)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_device(exported):
    images = images_of("multiclass")
    loaded = load_exported(exported, device="cuda")
    assert loaded(images).device.type == "cuda"
    assert_close(loaded(images).cpu(), load_exported(exported)(images), rtol=0, atol=1e-5)


def test_tied_weights(tmp_path):
    """Two names for one tensor, as tied layers have them."""
    model = build_model("mlp", num_classes=10, input_shape=(1, 8, 8), hidden=[64, 64])
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear) and layer.weight.shape == (64, 64)]
    layers[1].weight = layers[0].weight
    make_run(tmp_path / "run", model=model, name="mlp", options={"hidden": [64, 64]})
    loaded = load_exported(export_run(tmp_path / "run", tmp_path / "out"))
    assert_close(loaded.model(torch.ones(2, 1, 8, 8)), model(torch.ones(2, 1, 8, 8)))


def test_inputs_of_the_caller_are_unchanged(exported):
    images = images_of("multiclass")
    before = images.copy()
    loaded = load_exported(exported)
    loaded(images), loaded(torch.from_numpy(images))
    assert np.array_equal(images, before)


def test_random_state_of_the_caller_is_unchanged(exported):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    load_exported(exported)
    assert torch.equal(torch.rand(3), expected)


def test_from_the_top_package_without_lightning(exported):
    """In a new process that has only the folder."""
    code = f"""
import sys
import numpy as np
import equipoise
model = equipoise.load_exported({str(exported)!r})
assert type(model).__name__ == "Exported"
print(model(np.zeros((2, 1, 8, 8), np.uint8)).shape)
print({{"pytorch_lightning", "pydantic", "typer", "sklearn", "matplotlib"}} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split("\n")[:2] == ["torch.Size([2, 10])", "set()"], done.stderr
    assert equipoise.load_exported is load_exported


# ---------------------------------------------------------------------------------------------------------------------
# After a training
# ---------------------------------------------------------------------------------------------------------------------

TRAINED = {
    "multiclass": ("--data", "digits-lt", "--model", "mlp"),
    "multilabel": ("--data", "digit-scenes", "--model", "mlp"),
    "segmentation": ("--data", "digit-maps", "--model", "unet", "--model-options", "width=8", "--batch-size", 64),
}


@each_task
def test_a_trained_model_gives_the_predictions_of_its_run(tmp_path, task):
    """From the command line: train and export; raw images give the saved predictions, calibrated."""
    folder = tmp_path / "run"
    ran = run("train", *TRAINED[task], "--epochs", 1, "--accelerator", "cpu", "--out", folder)
    assert ran.exit_code == 0, ran.output
    ran = run("export", folder)
    assert ran.exit_code == 0, ran.output
    loaded = load_exported(folder / "exported")
    data, some = data_of(task), slice(0, 100)
    saved = np.load(folder / "predictions" / "test.npz")
    logits = torch.from_numpy(saved["logits"][some])
    images = data.test.inputs[some]
    assert np.array_equal(saved["targets"][some], data.test.labels[some])
    fitted = load(folder / "calibration.json")
    assert loaded.calibration == fitted
    own = loaded.logits(images, calibrated=False)
    if task == "segmentation":  # label maps are saved in half precision
        assert logits.dtype == torch.float16
        assert_close(own, logits.float(), rtol=2**-10, atol=1e-5)
        logits = own
    expected = fitted(logits).sigmoid() if task == "multilabel" else fitted(logits).softmax(1)
    assert_close(loaded(images), expected, rtol=0, atol=1e-5)
    assert (loaded(images) - (logits.sigmoid() if task == "multilabel" else logits.softmax(1))).abs().max() > 1e-3
    if task == "multilabel":  # the thresholds are used on the scores that they were fitted on
        own = loaded.logits(data.val.inputs, calibrated=False)
        again = fit_thresholds(own, torch.from_numpy(data.val.labels))
        assert loaded.thresholds.thresholds == pytest.approx(again.thresholds, abs=1e-4)


def test_a_model_of_image_files_and_of_a_program(tmp_path):
    """Photographs of many sizes, resized; a model from a user's file."""
    draw = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for k in range(20):
            pixels = draw.integers(0, 256, (*draw.integers(9, 30, 2), 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{k}.png")
    (tmp_path / "mine.py").write_text(PROGRAM.replace("64", "3 * 8 * 6"))
    folder = tmp_path / "run"
    model = ("--model", f"{tmp_path}/mine.py:tiny", "--model-options", "width=5")
    data = ("--data", tmp_path / "photos", "--image-size", "8x6", "--fit", "crop", "--workers", 0)
    ran = run("train", *data, *model, "--epochs", 1, "--accelerator", "cpu", "--out", folder)
    assert ran.exit_code == 0, ran.output
    loaded = load_exported(export_run(folder, tmp_path / "out"), trust_code=True)
    test = open_data(tmp_path / "photos", image_size=(8, 6)).test
    saved = torch.from_numpy(np.load(folder / "predictions" / "test.npz")["logits"])
    assert_close(loaded.logits(list(test.paths), calibrated=False), saved, rtol=0, atol=1e-5)
    opened = [Image.open(path) for path in test.paths]
    assert_close(loaded(opened), load(folder / "calibration.json")(saved).softmax(1), rtol=0, atol=1e-5)


def test_a_model_of_texts(tmp_path):
    words = {"praise": ["good", "fine", "nice", "warm"], "blame": ["bad", "cold", "poor", "late"]}
    draw = np.random.default_rng(0)
    rows = [
        f"{' '.join(draw.choice([*words[label], 'the', 'a'], draw.integers(1, 9)))},{label}"
        for label in words
        for _ in range(40)
    ]
    (tmp_path / "texts.csv").write_text("\n".join(["text,label", *rows]))
    folder = tmp_path / "run"
    ran = run("train", "--data", tmp_path / "texts.csv", "--epochs", 1, "--accelerator", "cpu", "--out", folder)
    assert ran.exit_code == 0, ran.output
    loaded = load_exported(export_run(folder, tmp_path / "out"))
    texts = open_data(tmp_path / "texts.csv").test.texts
    saved = torch.from_numpy(np.load(folder / "predictions" / "test.npz")["logits"])
    expected = load(folder / "calibration.json")(saved).softmax(1)
    assert_close(loaded(list(texts)), expected, rtol=0, atol=1e-5)
    assert set(loaded.predict(list(texts))) <= {"praise", "blame"}


def test_averaged_weights_are_what_is_exported(tmp_path):
    folder = tmp_path / "run"
    ran = run("train", *TRAINED["multiclass"], "--epochs", 2, "--ema", 0.5, "--accelerator", "cpu", "--out", folder)
    assert ran.exit_code == 0, ran.output
    loaded = load_exported(export_run(folder, tmp_path / "out"))
    saved = torch.from_numpy(np.load(folder / "predictions" / "test.npz")["logits"])
    own = loaded.logits(data_of("multiclass").test.inputs, calibrated=False)
    assert_close(own, saved, rtol=0, atol=1e-4)


# ---------------------------------------------------------------------------------------------------------------------
# The folder
# ---------------------------------------------------------------------------------------------------------------------


@each_task
def test_the_folder(tmp_path, task):
    make_run(tmp_path / "run", task)
    before = files_in(tmp_path / "run")
    out = export_run(tmp_path / "run", tmp_path / "out")
    assert out == tmp_path / "out"
    assert files_in(out) == ["README.md", "model.json", "model.safetensors"]
    assert files_in(tmp_path) == ["out", "run"]
    assert files_in(tmp_path / "run") == before
    assert len({each.stat().st_mode for each in out.iterdir()}) == 1  # all files have the same permissions
    loaded = load_exported(out)
    assert loaded.record.class_names == list(data_of(task).class_names)
    assert loaded.record.results.overall["nll"] == 0.75
    assert loaded.record.equipoise == equipoise.__version__
    with pytest.warns(DeprecationWarning, match="attributes of record"):
        assert loaded.about == json.loads((out / "model.json").read_text())


def test_the_card(tmp_path):
    make_run(tmp_path / "run", "multilabel")
    card = (export_run(tmp_path / "run", tmp_path / "out") / "README.md").read_text()
    for line in (
        "# mlp on digit-scenes",
        "- loss: `focal:gamma=3`",
        "| | uncalibrated | calibrated |",
        "| accuracy | 50.00 |  |",
        "| NLL | 0.7500 | 0.2500 |",
        "| ECE | 7.50 | 2.50 |",
        "- Class 9 is rare.",
    ):
        assert line in card.splitlines(), card
    assert "1,500 samples; the weights are those of epoch 5 of 7, the best on 500 validation samples." in card
    assert "validation samples (label-temperatures). `predict` chooses a label above its threshold" in card


def test_the_card_of_a_model_without_calibration(tmp_path):
    """A temperature fitted on test data would not be a result of this model."""
    make_run(tmp_path / "run", fits=False)
    edit(tmp_path / "run" / "run.json", spec__loss="auto", spec__checkpoint="last", best_epoch=6)
    card = (export_run(tmp_path / "run", tmp_path / "out") / "README.md").read_text()
    assert "| NLL | 0.7500 |  |" in card
    assert "no calibration could be fitted" in card
    assert "epoch 7 of 7.\n" in card  # nothing was chosen
    assert "- loss: `ce`" in card


@each_task
def test_the_code_of_the_card_runs(tmp_path, task):
    make_run(tmp_path / "run", task, fits=False)
    out = export_run(tmp_path / "run", tmp_path / "out")
    (code,) = re.findall(r"```python\n(.*?)```", (out / "README.md").read_text(), re.DOTALL)
    ran = {"inputs": images_of(task)}
    exec(code.replace("PATH OF THIS FOLDER", str(out)), ran)
    assert isinstance(ran["model"], Exported)


def test_export_after_a_killed_export(tmp_path):
    make_run(tmp_path / "run")
    (tmp_path / ".out.draft-abcdefgh" / "out").mkdir(parents=True)
    export_run(tmp_path / "run", tmp_path / "out")
    assert files_in(tmp_path) == ["out", "run"]


def test_a_failed_export_leaves_nothing(tmp_path, monkeypatch):
    """The disk is full when the last file is written."""
    make_run(tmp_path / "run")

    def full(about):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("equipoise.train.export.model_card", full)
    with pytest.raises(OSError, match="No space left"):
        export_run(tmp_path / "run", tmp_path / "out")
    assert files_in(tmp_path) == ["run"]


# ---------------------------------------------------------------------------------------------------------------------
# What cannot be exported
# ---------------------------------------------------------------------------------------------------------------------


def test_no_run(tmp_path):
    with pytest.raises(ValueError, match=says("nowhere: no run: there is no such folder", "equipoise train")):
        export_run(tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(ValueError, match=says("no run: run.json is missing")):
        export_run(tmp_path, tmp_path / "out")


@pytest.mark.parametrize("asked", ["run", "run.unfinished"])
def test_an_unfinished_run(tmp_path, asked):
    make_run(tmp_path / "run.unfinished")
    with pytest.raises(ValueError, match=says(f"{asked}: the run is unfinished", "resume it")):
        export_run(tmp_path / asked, tmp_path / "out")


def test_the_folder_of_a_run_before_it_was_finished(tmp_path):
    with pytest.raises(ValueError, match=says("run.unfinished: no run: there is no such folder")):
        export_run(tmp_path / "run.unfinished", tmp_path / "out")
    make_run(tmp_path / "run")
    with pytest.raises(ValueError, match=says("the run is finished, in", "run; use that")):
        export_run(tmp_path / "run.unfinished", tmp_path / "out")


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 2}'])
def test_a_damaged_run(tmp_path, content):
    make_run(tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text(content)
    with pytest.raises(ValueError, match=says("run.json: the file must be of a run in format 1")):
        export_run(tmp_path / "run", tmp_path / "out")


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_target_that_exists_stays(tmp_path, kind):
    make_run(tmp_path / "run")
    out = tmp_path / "out"
    out.mkdir() if kind == "folder" else out.write_text("mine")
    with pytest.raises(ValueError, match=says("out: ", "already exists", "remove it")):
        export_run(tmp_path / "run", out)
    assert (out.is_dir() and not files_in(out)) if kind == "folder" else out.read_text() == "mine"


def test_a_target_in_no_folder(tmp_path):
    make_run(tmp_path / "run")
    with pytest.raises(ValueError, match=says("the folder", "must exist", "create it")):
        export_run(tmp_path / "run", tmp_path / "a" / "b")


@pytest.mark.parametrize("content", [b"", b"no checkpoint", None])
def test_a_damaged_checkpoint(tmp_path, content):
    make_run(tmp_path / "run")
    path = tmp_path / "run" / "checkpoint.ckpt"
    torch.save({"weights": {}}, path) if content is None else path.write_bytes(content)
    with pytest.raises(ValueError, match=says("checkpoint.ckpt: the file must be the checkpoint")):
        export_run(tmp_path / "run", tmp_path / "out")


def test_checkpoint_is_not_executed(tmp_path):
    make_run(tmp_path / "run")
    torch.save({"model": Evil(tmp_path / "trace")}, tmp_path / "run" / "checkpoint.ckpt")
    with pytest.raises(ValueError, match=says("checkpoint.ckpt", "UnpicklingError")):
        export_run(tmp_path / "run", tmp_path / "out")
    assert files_in(tmp_path) == ["run"]


class Evil:
    """Runs code when unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


def test_weights_of_another_model_are_not_exported(tmp_path):
    make_run(tmp_path / "run")
    edit(tmp_path / "run" / "run.json", model__options={"hidden": [9]})
    with pytest.raises(ValueError, match=says("model.safetensors", "the weights must be those of the model")):
        export_run(tmp_path / "run", tmp_path / "out")
    assert files_in(tmp_path) == ["run"]


# ---------------------------------------------------------------------------------------------------------------------
# What cannot be loaded
# ---------------------------------------------------------------------------------------------------------------------


def test_no_exported_model(tmp_path):
    with pytest.raises(FileNotFoundError, match=says("nowhere: no exported model: there is no such folder")):
        load_exported(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=says("model.json is missing", "equipoise export")):
        load_exported(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "other"}, ("must have format 'equipoise.model'",)),
        ({"version": 2}, ("version must be at most 1", "found 2", "upgrade")),
        ({"version": None}, ("version must be at most 1", "found None")),
        ({"model": 3}, ("model must be an object, found 3",)),
        ({"model": {"name": "mlp"}}, ("model.options is missing",)),
        ({"preparation__kind": "sounds"}, ("preparation.kind must be one of",)),
        ({"preparation__mean": []}, ("found ValueError: mean and std",)),
        ({"calibration": {"format": "none"}}, ("calibration.version is missing",)),
        ({"thresholds": 0.5}, ("thresholds must be an object",)),
        ({"model__name": "/tmp/evil.py:f"}, ("found code at '/tmp/evil.py:f'",)),
        ({"model__name": "../model.py:f"}, ("found code at",)),
        ({"model__num_classes": 9}, ("10 class names for 9 outputs",)),
        (
            {"model__options": {"hidden": [9]}},
            ("model.safetensors", "the weights must be those of the model", "size mismatch"),
        ),
    ],
)
def test_a_damaged_description(exported, changes, words):
    edit(exported / "model.json", **changes)
    with pytest.raises(ValueError, match=says(*words)):
        load_exported(exported, trust_code=True)


def test_invalid_json(exported):
    (exported / "model.json").write_text("{")
    with pytest.raises(ValueError, match=says("model.json: the file must be as equipoise export wrote it")):
        load_exported(exported)


def test_damaged_weights(exported):
    weights = exported / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(ValueError, match=says("model.safetensors: the weights must be those of the model")):
        load_exported(exported)


# ---------------------------------------------------------------------------------------------------------------------
# Models from elsewhere
# ---------------------------------------------------------------------------------------------------------------------

PROGRAM = """
from torch import nn

def tiny(num_classes, input_shape, width=4):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Tanh(), nn.Linear(width, num_classes))
"""


def test_the_users_own_model_is_loaded_only_on_trust(tmp_path):
    (tmp_path / "mine.py").write_text(PROGRAM)
    model = make_run(tmp_path / "run", name=f"{tmp_path}/mine.py:tiny", options={"width": 6})
    out = export_run(tmp_path / "run", tmp_path / "out")
    (tmp_path / "mine.py").unlink()
    assert files_in(out) == ["README.md", "model.json", "model.py", "model.safetensors"]
    assert (out / "model.py").read_text() == PROGRAM
    assert "trust_code=True" in (out / "README.md").read_text()
    with pytest.raises(ValueError, match=says("runs its code model.py", "read it", "trust_code=True")):
        load_exported(out)
    images = images_of("multiclass")
    probabilities = expected_logits(model, "multiclass", images).softmax(1)
    assert_close(load_exported(out, trust_code=True)(images), probabilities, rtol=0, atol=1e-5)


def test_user_code_is_not_run_by_export(tmp_path):
    (tmp_path / "mine.py").write_text(PROGRAM)
    make_run(tmp_path / "run", name=f"{tmp_path}/mine.py:tiny")
    program = f"from pathlib import Path; Path({str(tmp_path / 'trace')!r}).touch()"
    (tmp_path / "run" / "model.py").write_text(program)
    out = export_run(tmp_path / "run", tmp_path / "out")
    with pytest.raises(ValueError, match="trust_code"):
        load_exported(out)
    assert "trace" not in files_in(tmp_path)


def test_the_users_own_file_must_be_there(tmp_path):
    (tmp_path / "mine.py").write_text(PROGRAM)
    make_run(tmp_path / "run", name=f"{tmp_path}/mine.py:tiny")
    (tmp_path / "run" / "model.py").unlink()
    with pytest.raises(ValueError, match=says("model.py: the code of the model is missing")):
        export_run(tmp_path / "run", tmp_path / "out")


def test_pretrained_weights_of_timm_are_not_fetched_again(tmp_path, timm):  # noqa: F811
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 10))
    options = {"pretrained": True, "pretrained_cfg": "x", "checkpoint_path": "y", "drop_rate": 0.1}
    make_run(tmp_path / "run", model=model, name="timm:resnet26", options=options)
    out = export_run(tmp_path / "run", tmp_path / "out")
    timm.calls.clear()
    load_exported(out)
    assert timm.calls == [("resnet26", {"num_classes": 10, "in_chans": 1, "drop_rate": 0.1})]
    edit(out / "model.json", model__name="timm:hf-hub:somebody/resnet26")
    with pytest.raises(ValueError, match=says("without a download", "timm:hf-hub:somebody/resnet26")):
        load_exported(out)


def colour(task):
    data = data_of(task)
    split = Arrays(np.repeat(data.test.inputs[:20], 3, axis=1), data.test.labels[:20])
    return DataSet("colour", task, data.class_names, split, split, split)


def test_pretrained_weights_of_torchvision_are_not_fetched_again(tmp_path, torchvision):  # noqa: F811
    options = {"weights": "DEFAULT", "progress": False}
    make_run(tmp_path / "run", data=colour("multiclass"), name="torchvision:resnet18", options=options)
    out = export_run(tmp_path / "run", tmp_path / "out")
    torchvision.calls.clear()
    load_exported(out)
    assert torchvision.calls == [("resnet18", None, {"num_classes": 10, "progress": False})]


def test_backbones_of_torchvision_are_not_fetched(tmp_path, torchvision, monkeypatch):  # noqa: F811
    """Downloading them is the default of its segmentation models."""
    original = torchvision.get_model
    monkeypatch.setattr(
        torchvision,
        "get_model",
        lambda name, weights_backbone="DEFAULT", **rest: (
            torchvision.calls.append(weights_backbone),
            original(name, **rest),
        )[1],
    )
    make_run(
        tmp_path / "run",
        "segmentation",
        data=colour("segmentation"),
        name="torchvision:fcn_resnet50",
        options={"weights_backbone": "DEFAULT"},
    )
    out = export_run(tmp_path / "run", tmp_path / "out")
    torchvision.calls.clear()
    load_exported(out)
    assert torchvision.calls[0] is None


def test_pretrained_models_that_change_their_inputs(tmp_path, torchvision):  # noqa: F811
    """With weights, torchvision's GoogLeNet undoes the normalisation of images, and has no further classifiers."""
    torchvision.list_models = lambda module=None: ["googlenet"] if module is None else []
    make_run(tmp_path / "run", data=colour("multiclass"), name="torchvision:googlenet", options={"weights": "DEFAULT"})
    torchvision.calls.clear()
    export_run(tmp_path / "run", tmp_path / "out")
    assert torchvision.calls == [("googlenet", None, {"num_classes": 10, "transform_input": True, "aux_logits": False})]
