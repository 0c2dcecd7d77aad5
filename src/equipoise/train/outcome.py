"""Predictions of a trained model on validation, test and open-set data, and their evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from equipoise._writing import appearing
from equipoise.calibration import Fitted, fit_thresholds, save, temperature_scaling
from equipoise.data import FileImages, Split
from equipoise.evaluation import evaluate, evaluate_open_set
from equipoise.evaluation.split import FitSplit, try_fit
from equipoise.predictions import open_predictions
from equipoise.train.folder import RunFolder, write_json
from equipoise.train.run_loaders import RunLoaders
from equipoise.train.training import Training

__all__ = ["judge", "keep_examples", "predict"]

KEPT_SCORES = 1_000_000_000
"""Maximum number of logits of label maps to save per split, 2 GB; otherwise an evenly spaced subset is saved."""
EXAMPLES = 6
"""Number of test images to save."""
IGNORED = -100
"""Label to ignore in saved targets, which may differ from that of the data."""


def predict(training: Training, loaders: RunLoaders, folder: RunFolder, split: str) -> None:
    """Save logits and targets of a split, in the order of its samples."""
    whole, fabric = loaders.splits[split], training.fabric
    kept = _kept(whole, training)
    if kept is not None:
        loaders.splits[split] = whole.take(kept)
    loader = loaders.evaluation(split)
    logits, targets = (tensor.numpy() for tensor in training.predict(loader))
    order = loader.indices
    if fabric.world_size > 1:
        part = folder.draft / f".{split}.{fabric.global_rank}.npz"
        with appearing(part) as draft:
            np.savez(draft, logits=logits, targets=targets, indices=order)
        fabric.barrier()
        if not fabric.is_global_zero:
            return
        parts = [folder.draft / f".{split}.{rank}.npz" for rank in range(fabric.world_size)]
        loaded = [dict(np.load(file)) for file in parts]
        logits, targets, order = (
            np.concatenate([own[key] for own in loaded]) for key in ("logits", "targets", "indices")
        )
        for file in parts:
            file.unlink()
    in_order = np.argsort(order, kind="stable")
    data = training.task.data
    if not data.task.multilabel:
        small = np.int16 if len(data.class_names) < 2**15 else np.int64
        targets = np.where(targets == data.ignore_index, IGNORED, targets.astype(np.int64)).astype(small)
    file = folder.predictions(split)
    file.parent.mkdir(exist_ok=True)
    with appearing(file) as draft:
        np.savez(
            draft,
            logits=logits[in_order],
            targets=targets[in_order].astype(np.int8) if data.task.multilabel else targets[in_order],
            class_names=np.array(data.class_names),
            train_counts=data.train_counts,
        )


def _kept(split: Split, training: Training) -> NDArray[np.int64] | None:
    """Indices of the images whose label maps are saved; None for all."""
    if not training.task.kind.pixels:
        return None
    size = training.preparation.input_shape
    if size is None:
        return None
    scores = training.task.num_classes * size[1] * size[2]
    most = max(1, KEPT_SCORES // scores)
    return None if len(split) <= most else np.linspace(0, len(split) - 1, most).round().astype(np.int64)


def keep_examples(split: Split, folder: RunFolder) -> None:
    """Save a few evenly spaced test images for reports with label maps: ``images`` and ``indices``."""
    indices = np.unique(np.linspace(0, len(split) - 1, EXAMPLES).round().astype(np.int64))
    few = split.take(indices)
    images = (few.as_arrays() if isinstance(few, FileImages) else few).inputs  # type: ignore[union-attr]
    with appearing(folder.draft / "examples.npz") as draft:
        np.savez_compressed(draft, images=images, indices=indices)


def judge(folder: RunFolder, say: Callable[[str], None], temperature_by: Literal["nll", "ece"] = "nll") -> None:
    """Fit calibration and thresholds on validation data, evaluate validation, test and open-set predictions."""
    val, test = (open_predictions(folder.predictions(split)) for split in ("val", "test"))
    (rows,) = FitSplit(val, seed=0, share=1.0).rows(True)
    fits: dict[str, Callable[..., Fitted]] = {"calibration": temperature_scaling(val.task, temperature_by).fit}
    if val.task.multilabel:
        fits["thresholds"] = fit_thresholds
    fitted: dict[str, Fitted] = {}
    for name, fit in fits.items():
        value, reason = try_fit(fit, rows)
        if value is None:
            say(f"no {name} could be fitted on the validation data: {reason}")
            continue
        fitted[name] = value
        save(value, folder.draft / f"{name}.json")
    temperature = fitted.get("calibration")
    results = {
        "val": evaluate(val, fitted=temperature, temperature_by=temperature_by).to_json(),
        "test": evaluate(test, fitted=temperature, temperature_by=temperature_by).to_json(),
    }
    if folder.predictions("open").is_file():
        unknown = open_predictions(folder.predictions("open"), targets=False)
        results["open"] = evaluate_open_set(test, unknown, val=val).to_json()
    write_json(folder.draft / "results.json", results)
