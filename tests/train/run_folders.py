"""Folders of finished runs without training: a model with random weights on a few embedded digits."""

import json
import shutil

import numpy as np
import torch

import equipoise
from equipoise.calibration import LabelTemperatures, Temperature, Thresholds, save
from equipoise.data import EMBEDDED
from equipoise.evaluation.results import FORMAT, Calibration, Evaluation
from equipoise.models import build_model
from equipoise.train.folder import RunFolder
from equipoise.train.preparation import Preparation

DATA = {"multiclass": "digits-lt", "multilabel": "digit-scenes", "segmentation": "digit-maps"}
MODELS = {
    "multiclass": ("mlp", {"hidden": [8]}),
    "multilabel": ("mlp", {"hidden": [8]}),
    "segmentation": ("unet", {"width": 4}),
}


def data_of(task):
    return EMBEDDED[DATA[task]]()


def fits_of(task, classes):
    """A calibration and thresholds that change the outputs."""
    if task != "multilabel":
        return Temperature(2.5, num_classes=classes), None
    steps = torch.linspace(0.0, 1.0, classes, dtype=torch.float64)
    calibration = LabelTemperatures(tuple((1.0 + steps).tolist()), tuple((steps - 0.5).tolist()))
    return calibration, Thresholds(tuple((0.2 * steps - 0.1).tolist()))


def results_of(nll, calibrated):
    """An evaluation with metrics and calibration only."""
    before, after = ({"nll": value, "ece": value / 10} for value in (nll, calibrated))
    return Evaluation(
        format=FORMAT,
        file="made.npz",
        task="multiclass",
        samples=4,
        classes=2,
        scores="logits",
        bins=15,
        main="accuracy",
        suspicions=[],
        overall={"accuracy": 0.5, **before},
        intervals={},
        calibration=Calibration(before, after, fits=[], fitted_on="validation data", note=""),
        groups=[],
        per_class=[],
        reliability={},
    ).to_json()


def make_run(path, task="multiclass", *, data=None, preparation=None, model=None, name=None, options=None, fits=True):
    """A finished run at ``path``; returns its model in eval mode."""
    data = data or data_of(task)
    classes = len(data.class_names)
    preparation = preparation or Preparation.fit(data.train)
    if name is None:
        name, options = MODELS[task]
    known = {"input_shape": preparation.input_shape, "vocabulary": preparation.vocabulary}
    if model is None:
        with torch.random.fork_rng():
            torch.manual_seed(3)
            model = build_model(name, num_classes=classes, **known, **(options or {}))
    model.eval()
    path.mkdir()
    if ".py:" in name:
        shutil.copyfile(name.rpartition(":")[0], path / "model.py")
    calibration, thresholds = fits_of(task, classes)
    if fits:
        save(calibration, path / "calibration.json")
        if thresholds is not None:
            save(thresholds, path / "thresholds.json")
    weights = model.state_dict()
    torch.save(
        {"state_dict": {f"model.{k}": v for k, v in weights.items()}, "model": weights}, path / "checkpoint.ckpt"
    )
    samples = {part: len(getattr(data, part)) for part in ("train", "val", "test")}
    about = {
        "format": 1,
        "equipoise": equipoise.__version__,
        "spec": {"data": data.name, "loss": "focal:gamma=3", "epochs": 7, "checkpoint": "best"},
        "data": {
            "name": data.name,
            "task": task,
            "class_names": list(data.class_names),
            "train_counts": data.train_counts.tolist(),
            "ignore_index": data.ignore_index,
            "samples": samples,
            "notes": ["Class 9 is rare."],
        },
        "model": {
            "name": name,
            "options": options or {},
            "parameters": sum(each.numel() for each in model.parameters()),
            "num_classes": classes,
            **known,
        },
        "preparation": preparation.to_json(),
        "best_epoch": 4,
        "monitor": "accuracy",
        "monitor_value": 0.5,
        "seconds_per_step": 0.01,
        "started": "2026-11-16T12:00:00+00:00",
        "finished": "2026-11-16T12:01:00+00:00",
    }
    (path / "run.json").write_text(json.dumps(about))
    results = {"val": results_of(0.6, 0.4), "test": results_of(0.75, 0.25)}
    (path / "results.json").write_text(json.dumps(results))
    assert RunFolder(path).finished
    return model


def images_of(task, count=5):
    return np.array(data_of(task).test.inputs[:count])
