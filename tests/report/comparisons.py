"""Folders of comparisons with known contents, written directly: nothing is trained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import torch

from equipoise.calibration import fit_label_temperatures, fit_temperature, save
from equipoise.comparison import verdict as verdicts
from equipoise.comparison.folder import ComparisonFolder, PlanEntry, PlannedRun
from equipoise.comparison.judge import judge
from equipoise.evaluation import evaluate, evaluate_open_set
from equipoise.predictions import open_predictions
from equipoise.train.folder import RunFolder, write_json
from tests.predictions.saved import arrays_of

MONITOR = {"multiclass": "mean_class_accuracy", "multilabel": "mean_average_precision", "segmentation": "mean_iou"}
LOSSES = {
    "multiclass": ("ce", "focal:gamma=1,3", "recall"),
    "multilabel": ("bce", "asl:target_gap=0.1"),
    "segmentation": ("ce", "recall"),
}
CLASSES = {
    "ce": "CrossEntropyLoss",
    "focal": "FocalLoss",
    "recall": "RecallLoss",
    "bce": "BinaryCrossEntropyLoss",
    "asl": "AsymmetricLoss",
    **dict.fromkeys(("sdn", "crt", "ncm"), "CrossEntropyLoss"),
}
WITHOUT_EPOCHS = ("crt", "ncm")
"""Methods whose runs leave no history."""


def write_comparison(
    path: Path, task: str = "multiclass", *, losses=(), seeds=3, classes=6, epochs=4, samples=60, names=None, unknown=0
) -> ComparisonFolder:
    """A comparison whose runs are all finished, with its verdict; ``unknown`` samples are of unknown classes."""
    folder = ComparisonFolder(path)
    losses = losses or LOSSES[task]
    entries = [PlanEntry(text, _candidates(text)) for text in losses]
    runs = [
        PlannedRun(loss, seed, RunFolder(path / "runs" / f"{loss.replace(':', '-')}-{seed}"))
        for entry in entries
        for loss in entry.candidates
        for seed in range(seeds)
    ]
    spec = {"data": "digits-lt", "losses": list(losses), "seeds": list(range(seeds)), "epochs": epochs, "model": "mlp"}
    folder.write_plan(spec, entries, losses[0], runs)
    arrays = arrays_of(task, samples=samples, classes=classes)
    arrays["class_names"] = np.array(names or arrays["class_names"])
    for number, run in enumerate(runs):
        _write_run(run, task, arrays, epochs, number, unknown)
    write_json(folder.verdict, judge(folder, draws=50).to_json())
    return folder


def read_verdict(folder: ComparisonFolder) -> verdicts.Verdict:
    """The verdict as it was written."""
    return verdicts.read_verdict(folder.verdict)


def _candidates(text: str) -> tuple[str, ...]:
    head, equals, values = text.partition("=")
    return tuple(f"{head}={value}" for value in values.split(",")) if equals else (text,)


def _write_run(run: PlannedRun, task: str, arrays: dict, epochs: int, number: int, unknown: int) -> None:
    draw = np.random.default_rng(number)
    path = run.folder.path
    (path / "predictions").mkdir(parents=True)
    logits = arrays["logits"] + draw.normal(size=arrays["logits"].shape) * 0.8
    logits = logits.astype(np.float16 if task == "segmentation" else np.float32)
    np.savez(path / "predictions" / "test.npz", **(arrays | {"logits": logits}))
    if task == "segmentation":
        images = draw.integers(0, 255, (3, 3, *logits.shape[2:]), dtype=np.uint8)
        np.savez_compressed(path / "examples.npz", images=images, indices=np.array([0, 20, 50]))
    fit = fit_label_temperatures if task == "multilabel" else fit_temperature
    fitted = fit(torch.from_numpy(logits).double(), torch.from_numpy(arrays["targets"]))
    save(fitted, path / "calibration.json")
    test = open_predictions(path / "predictions" / "test.npz")
    evaluation = evaluate(test, fitted=fitted).to_json()
    results = {"val": evaluation, "test": evaluation}
    if unknown:
        shutil.copyfile(path / "predictions" / "test.npz", path / "predictions" / "val.npz")
        np.savez(path / "predictions" / "open.npz", logits=draw.normal(size=(unknown, logits.shape[1])))
        strange = open_predictions(path / "predictions" / "open.npz", targets=False)
        results["open"] = evaluate_open_set(test, strange, val=test).to_json()
    write_json(path / "results.json", results)
    names, counts = arrays["class_names"].tolist(), arrays["train_counts"].tolist()
    if run.loss.partition(":")[0] not in WITHOUT_EPOCHS:
        rows = [_row(task, epoch, len(names), run.loss, draw) for epoch in range(epochs)]
        (path / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    about = {
        "format": 1,
        "equipoise": "0.1.0",
        "spec": {"checkpoint": "best"},
        "data": {
            "name": "digits-lt",
            "task": task,
            "class_names": names,
            "train_counts": counts,
            "samples": {"train": sum(counts), "val": 50, "test": len(logits)} | ({"open": unknown} if unknown else {}),
            "notes": ["a note about the data"],
        },
        "model": {"name": "mlp", "parameters": 1234},
        "loss": f"{CLASSES[run.loss.partition(':')[0]]}(epochs={epochs})",
        "environment": {"python": "3.11.7", "torch": "2.13.0", "device": "cpu"},
        "epochs": epochs,
        "best_epoch": epochs - 1,
        "monitor": MONITOR[task],
        "monitor_value": 0.5 + 0.01 * number,
        "seconds_per_step": 0.01 + 0.001 * number,
        "started": f"2026-11-16T12:{number:02}:00+00:00",
        "finished": f"2026-11-16T12:{number + 1:02}:00+00:00",
    }
    write_json(path / "run.json", about)


def _row(task: str, epoch: int, classes: int, loss: str, draw: np.random.Generator) -> dict:
    falling = 1 / (1 + epoch) + 0.05 * draw.random()
    train = {"loss": falling, "weight_norm": 30 + epoch, "gradient_norm": 2 * falling}
    val = {MONITOR[task]: 1 - 0.6 * falling, "nll": falling, "ece": 0.2 * falling}
    if task == "multilabel":
        train |= {"probability_gap": falling, "probability_positive": 0.5 + falling, "probability_negative": 0.5}
        val["probability_gap"] = falling
        if loss.startswith("asl"):
            train["gamma_neg"] = 4 - epoch / 4
    else:
        sides = {
            f"{what}_{side}": falling * (2 if side == "wrong" else 1)
            for side in ("right", "wrong")
            for what in ("confidence", "entropy", "nll")
        }
        weights = (np.linspace(0.1, 1, classes) * falling).round(5).tolist()
        train |= sides | {"recall_weights": weights, "focal_weights": weights[::-1]}
        val |= sides
    return {"epoch": epoch, "step": epoch, "lr": 0.1, "train": train, "val": val, "seconds_per_step": 0.01}
