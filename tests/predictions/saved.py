"""Predictions with a known answer, and every way to save them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from equipoise.predictions import Predictions

FORMATS = ("npz", "folder", "csv", "parquet")
TABLES = ("csv", "parquet")
TASKS = ("multiclass", "multilabel", "segmentation")
CASES = [(task, form) for task in TASKS for form in FORMATS if task != "segmentation" or form not in TABLES]
"""A table has one row a sample and holds no label maps."""


def arrays_of(
    task: str, *, samples=240, classes=6, seed=3, names=True, counts=True, probs=False
) -> dict[str, np.ndarray]:
    """Overconfident scores of rare and common classes: targets are drawn from half of the logits."""
    draw = np.random.default_rng([seed, 77])
    shape = (samples, classes, 4, 5) if task == "segmentation" else (samples, classes)
    tail = np.linspace(1.5, -1.5, classes).reshape(-1, *(1 for _ in shape[2:]))
    logits = 2.0 * draw.normal(size=shape) + tail
    if task == "multilabel":
        targets = (draw.random(shape) < 1 / (1 + np.exp(-0.5 * logits))).astype(np.int64)
        targets[draw.random(shape) < 0.05] = -1
    else:
        noise = draw.gumbel(size=shape)
        targets = (0.5 * logits + noise).argmax(1)
        targets[draw.random(targets.shape) < 0.05] = -100
    arrays = {"logits": logits, "targets": targets}
    if probs:
        del arrays["logits"]
        arrays["probs"] = 1 / (1 + np.exp(-logits)) if task == "multilabel" else softmax(logits)
    if names:
        arrays["class_names"] = np.array([f"kind {k}" for k in range(classes)])
    if counts:
        arrays["train_counts"] = np.round(np.geomspace(500, 4, classes)).astype(np.int64)
    return arrays


def softmax(logits: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    return shifted / shifted.sum(1, keepdims=True)


def save(folder: Path, form: str, arrays: dict[str, np.ndarray], name: str = "saved", **options: object) -> Path:
    """Save arrays as the documentation says a user should."""
    if form == "npz":
        np.savez(folder / f"{name}.npz", **arrays)
        return folder / f"{name}.npz"
    if form == "folder":
        (folder / name).mkdir()
        for key, values in arrays.items():
            np.save(folder / name / f"{key}.npy", values)
        return folder / name
    path = folder / f"{name}.{form}"
    table = table_of(arrays)
    if form == "csv":
        pa.csv.write_csv(table, path)
    else:
        pa.parquet.write_table(table, path, **options)
    return path


def table_of(arrays: dict[str, np.ndarray]) -> pa.Table:
    """One row per sample; targets are class names if available, and empty for unknown labels."""
    kind = "logit" if "logits" in arrays else "prob"
    scores, targets = arrays[f"{kind}s"], arrays["targets"]
    names = arrays.get("class_names", np.arange(scores.shape[1]).astype(str)).tolist()
    columns: dict[str, object] = {f"{kind}_{name}": scores[:, k] for k, name in enumerate(names)}
    if targets.ndim == 2:
        for k, name in enumerate(names):
            columns[f"target_{name}"] = pa.array(targets[:, k], mask=targets[:, k] < 0)
    elif "class_names" in arrays:
        columns["target"] = [names[target] if target >= 0 else str(target) for target in targets.tolist()]
    else:
        columns["target"] = targets
    return pa.table(columns)


def all_of(predictions: Predictions) -> tuple[np.ndarray, np.ndarray]:
    """Scores and targets of all chunks."""
    chunks = list(predictions.chunks())
    scores, targets = [chunk.scores for chunk in chunks], [chunk.targets for chunk in chunks]
    return np.concatenate(scores), np.concatenate(targets)
