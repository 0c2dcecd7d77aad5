"""The three tasks on embedded data: the content of a finished run is complete and correct."""

import csv
import json

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from equipoise.data import open_data
from equipoise.expressions import canonical
from equipoise.models import build_model
from equipoise.train.preparation import Preparation
from tests.e2e.commands import predictions, rows

TASKS = {
    "multiclass": {"data": "digits-lt", "model": "mlp", "epochs": 3, "loss": "focal:gamma=linear(5,2)"},
    "multilabel": {"data": "digit-scenes", "model": "mlp", "epochs": 3, "loss": "asl:target_gap=0.1", "lr": 0.003},
    "segmentation": {
        "data": "digit-maps",
        "image_size": 16,
        "model": "unet",
        "model_options": ["width=8", "depth=2"],
        "epochs": 3,
        "batch_size": 16,
        "loss": "ce+0.5*dice",
        "lr": 0.01,
    },
}
FILES = {
    "run.json",
    "spec.json",
    "history.jsonl",
    "results.json",
    "calibration.json",
    "checkpoint.ckpt",
    "train.log",
    "logs/metrics.csv",
    "predictions/val.npz",
    "predictions/test.npz",
}
MONITORS = {"multiclass": "mean_class_accuracy", "multilabel": "mean_average_precision", "segmentation": "mean_iou"}


@pytest.fixture(scope="module", params=TASKS)
def task(request):
    return request.param


@pytest.fixture(scope="module")
def run(task, equipoise, tmp_path_factory):
    return equipoise.train(tmp_path_factory.mktemp(task), **TASKS[task])


def test_files(task, run):
    files = {file.relative_to(run.path).as_posix() for file in run.path.rglob("*") if file.is_file()}
    assert files == FILES | {"multilabel": {"thresholds.json"}, "segmentation": {"examples.npz"}}.get(task, set())
    assert [entry.name for entry in run.path.parent.glob("run*")] == ["run"]


def test_record_of_a_run(task, run):
    record = run.record
    assert (record.format, record.data.task, record.epochs) == (1, task, 3)
    assert record.spec["loss"] == canonical(TASKS[task]["loss"])
    assert record.model.name == TASKS[task]["model"]
    assert len(record.data.train_counts) == len(record.data.class_names) == record.model.num_classes
    assert record.environment.processes == 1
    log = (run.path / "train.log").read_text()
    assert all(f"epoch {epoch}/3" in log for epoch in (1, 2, 3))
    assert " left" in log


def test_it_learns(task, run):
    """Better than any constant prediction."""
    overall, losses = run.results.test.overall, [row.train["loss"] for row in run.history()]
    assert losses[-1] < 0.8 * losses[0]
    if task == "multiclass":
        assert overall["mean_class_accuracy"] > 0.3
    elif task == "multilabel":
        assert overall["mean_average_precision"] > predictions(run, "test")["targets"].mean() + 0.15
    else:
        background = (predictions(run, "test")["targets"] == 0).mean()
        assert overall["mean_iou"] > background / 11 + 0.02


def test_evaluate_gives_the_same_metrics(run, equipoise, tmp_path):
    finished = equipoise(tmp_path, "evaluate", run.predictions("test"), "--json")
    assert finished.status == 0
    assert json.loads(finished.out)["overall"] == run.results.test.overall


def test_checkpoint_gives_the_saved_predictions(run):
    """A model built from the record of the run, with the weights of the checkpoint, gives the saved logits."""
    record, kept = run.record, torch.load(run.checkpoint, weights_only=True)
    assert kept["epoch"] == record.best_epoch
    made = record.model
    model = build_model(made.name, num_classes=made.num_classes, input_shape=made.input_shape, **made.options)
    model.load_state_dict(kept["model"])
    test = open_data(record.data.name, image_size=record.spec["image_size"]).test
    preparation = Preparation(**vars(record.preparation))
    inputs = preparation.normalise(preparation.scale(torch.from_numpy(test.inputs[:50])))
    saved = torch.from_numpy(predictions(run, "test")["logits"][:50]).float()
    with torch.inference_mode():
        assert_close(model.eval()(inputs), saved, rtol=1e-3, atol=1e-3)  # label maps are saved in half precision
    assert np.array_equal(predictions(run, "test")["targets"], test.labels)


def test_the_checkpoint_is_the_best_on_validation_data(task, run):
    values = [row.val[MONITORS[task]] for row in run.history()]
    record = run.record
    assert record.monitor == MONITORS[task]
    assert record.best_epoch == int(np.argmax(values))
    assert record.monitor_value == max(values)
    assert run.results.val.overall[MONITORS[task]] == pytest.approx(max(values), abs=1e-3)


def test_every_epoch_has_a_row(task, run):
    history = list(run.history())
    assert [row.epoch for row in history] == [0, 1, 2]
    assert len({row.lr for row in history}) == 3
    classes = run.record.model.num_classes
    for row in history:
        assert row.step == (row.epoch + 1) * history[0].step
        assert row.seconds > row.seconds_per_step > 0
        train, val = row.train, row.val
        assert 0 < train["gradient_norm"] <= train["largest_gradient_norm"]
        assert train["weight_norm"] > 1
        if task == "multilabel":
            assert -1 < train["probability_gap"] < 1
            assert -1 < val["probability_gap"] < 1
            assert train["adaptive_gap"] == pytest.approx(train["probability_gap"], abs=0.2)
        else:
            assert len(train["recall_weights"]) == classes
            assert all(0 <= weight <= 1 for weight in train["recall_weights"])
            for kind in ("confidence", "entropy", "nll"):
                right, wrong = val[f"{kind}_right"], val[f"{kind}_wrong"]
                assert (right > wrong) == (kind == "confidence")
                assert {f"{kind}_right", f"{kind}_wrong"} <= train.keys()
    if task == "multiclass":
        assert [row.train["gamma"] for row in history] == pytest.approx([5, 4, 3])
    elif task == "multilabel":
        assert len({row.train["gamma_neg"] for row in history}) == 3
    with (run.path / "logs" / "metrics.csv").open() as file:
        logged = list(csv.DictReader(file))
    assert [float(row["train/loss"]) for row in logged] == [row.train["loss"] for row in history]


@pytest.fixture(scope="module")
def two_tests(equipoise, tmp_path_factory):
    """Runs on the same training and validation data; the test labels are correct in one and wrong in the other."""
    data, runs = open_data("digits-lt"), []
    for shift in (0, 1):
        folder = tmp_path_factory.mktemp("shift")
        for name, split in (("train", data.train), ("val", data.val), ("test", data.test)):
            labels = (split.labels + shift) % 10 if name == "test" else split.labels
            np.savez(folder / f"{name}.npz", images=split.inputs, labels=labels, layout="nchw")
        runs.append(equipoise.train(folder, data=".", model="linear", epochs=4, lr=0.1))
    return runs


def test_test_data_do_not_affect_selection(two_tests):
    right, wrong = two_tests
    assert rows(right) == rows(wrong)
    assert right.record.best_epoch == wrong.record.best_epoch
    assert right.checkpoint.read_bytes() == wrong.checkpoint.read_bytes()
    for name in ("calibration.json", "predictions/val.npz"):
        assert (right.path / name).read_bytes() == (wrong.path / name).read_bytes()
    accuracies = [run.results.test.overall["accuracy"] for run in two_tests]
    assert accuracies[0] > 0.3 > accuracies[1]
