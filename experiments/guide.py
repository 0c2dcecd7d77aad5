"""Losses on handwritten digits, clean, mislabelled and long-tailed: ``python -m experiments.guide``.

A hidden layer of 128 learns 8 x 8 digits (scikit-learn's) with every loss that ``docs/which-loss.md`` speaks of, five
seeds each; a seed draws the split, the wrong labels, the weights and the batches. The last epoch counts, nothing is
tuned. Writes ``experiments/results/guide.json`` and the tables of the page. Some minutes on one core.
"""

from __future__ import annotations

import argparse
import platform
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from equipoise.calibration import fit_temperature
from equipoise.metrics import CalibrationError
from equipoise.train.folder import write_json
from equipoise.train.loss_text import build_loss

ROOT = Path(__file__).parent.parent
SEEDS, EPOCHS, BATCH, CLASSES = 5, 60, 64, 10
TAIL = [round(90 * 50 ** (-index / 9)) for index in range(10)]
"""Training samples of the digits 0 to 9 in the long-tailed setting: 90 down to 2."""

SETTINGS: dict[str, tuple[str, ...]] = {
    "clean": ("ce", "ce:label_smoothing=0.1", "focal", "flsd-53", "cyclical-focal", "brier", "mmce"),
    "wrong": ("ce", "ce:label_smoothing=0.1", "focal", "flsd-53", "cyclical-focal", "brier", "ohem"),
    "tail": ("ce", "focal", "cyclical-focal", "recall", "inverse", "class-balanced", "balanced-softmax", "la:tau=2"),
}
"""``clean``: balanced; ``wrong``: 30 % of the training labels are another digit; ``tail``: 90 to 2 samples a class."""


def split(setting: str, seed: int) -> dict[str, tuple[Tensor, Tensor]]:
    """900 training (fewer in the tail), 297 validation and 600 test digits; only training labels are ever wrong."""
    pixels, digits = load_digits(return_X_y=True)
    draw = np.random.default_rng(seed)
    order = draw.permutation(len(digits))
    rows = {"train": order[:900], "val": order[900:1197], "test": order[1197:]}
    if setting == "tail":
        rows["train"] = np.concatenate([rows["train"][digits[rows["train"]] == k][:n] for k, n in enumerate(TAIL)])
    labels = digits.copy()
    if setting == "wrong":
        wrong = rows["train"][draw.random(900) < 0.3]
        labels[wrong] = (labels[wrong] + draw.integers(1, CLASSES, len(wrong))) % CLASSES
    return {
        name: (torch.from_numpy(pixels[index]).float() / 16, torch.from_numpy(labels[index]))
        for name, index in rows.items()
    }


def train(text: str, data: dict[str, tuple[Tensor, Tensor]], seed: int) -> Callable[[Tensor], Tensor]:
    """A model trained with the loss that ``text`` says."""
    images, labels = data["train"]
    draw = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, CLASSES))
    loss = build_loss(
        text,
        task="multiclass",
        num_classes=CLASSES,
        counts=labels.bincount(minlength=CLASSES).tolist(),
        num_samples=len(labels),
        epochs=EPOCHS,
        ignore_index=-100,
        sync=False,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    for epoch in range(EPOCHS):
        loss.set_epoch(epoch)
        for batch in torch.randperm(len(labels), generator=draw).split(BATCH):
            optimizer.zero_grad()
            loss(model(images[batch]), labels[batch]).backward()
            optimizer.step()
    return torch.no_grad()(model.eval())


def measure(model: Callable[[Tensor], Tensor], data: dict[str, tuple[Tensor, Tensor]]) -> dict[str, float]:
    """Metrics in percent, and the unscaled NLL; ``few`` are the digits 5 to 9, rare in the tail."""
    images, targets = data["test"]
    logits = model(images)
    right = (logits.argmax(1) == targets).double()
    recalls = [float(right[targets == k].mean()) for k in range(CLASSES)]
    fitted = fit_temperature(model(data["val"][0]), data["val"][1])
    ece = CalibrationError(bins=15)
    return {
        "accuracy": 100 * float(right.mean()),
        "mean_class_accuracy": 100 * statistics.fmean(recalls),
        "few": 100 * statistics.fmean(recalls[5:]),
        "nll": float(nn.functional.cross_entropy(logits, targets)),
        "ece": 100 * float(ece(logits, targets)),
        "ece_after": 100 * float(CalibrationError(bins=15)(fitted(logits), targets)),
    }


def tables(record: dict[str, Any]) -> dict[str, str]:
    """The tables of the page: mean and standard deviation over the seeds."""
    columns = {
        "clean": ("accuracy", "nll", "ece", "ece_after"),
        "wrong": ("accuracy", "nll", "ece", "ece_after"),
        "tail": ("mean_class_accuracy", "few", "nll", "ece", "ece_after"),
    }
    names = {
        "accuracy": "accuracy",
        "mean_class_accuracy": "mean class accuracy",
        "few": "accuracy of the rare half",
        "nll": "NLL",
        "ece": "ECE",
        "ece_after": "ECE after temperature",
    }
    tables_by_setting = {}
    for setting, shown in columns.items():
        lines = ["| loss | " + " | ".join(names[name] for name in shown) + " |", "|---" * (len(shown) + 1) + "|"]
        for text, runs in record["results"][setting].items():
            cells = []
            for name in shown:
                values, digits = [run[name] for run in runs], 3 if name == "nll" else 1
                cells.append(f"{statistics.fmean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}")
            lines.append(f"| `{text}` | " + " | ".join(cells) + " |")
        tables_by_setting[setting] = "\n".join(lines)
    return tables_by_setting


def write_tables(page: str, texts: dict[str, str]) -> str:
    """The page with each table between ``<!-- name -->`` and ``<!-- end -->``."""
    for name, text in texts.items():
        before, rest = page.split(f"<!-- {name} -->\n")
        page = f"{before}<!-- {name} -->\n{text}\n<!-- end -->{rest.split('<!-- end -->', 1)[1]}"
    return page


def main(arguments: Sequence[str] | None = None) -> None:
    """Train everything and write what came of it."""
    parser = argparse.ArgumentParser(prog="python -m experiments.guide", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "experiments" / "results" / "guide.json", metavar="FILE")
    parser.add_argument("--page", type=Path, help="write the tables into this page")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    results: dict[str, dict[str, list[dict[str, float]]]] = {}
    for setting, losses in SETTINGS.items():
        data = [split(setting, seed) for seed in range(SEEDS)]
        results[setting] = {}
        for text in losses:
            results[setting][text] = [measure(train(text, data[seed], seed), data[seed]) for seed in range(SEEDS)]
            print(
                setting, text, f"{statistics.fmean(run['accuracy'] for run in results[setting][text]):.1f}", flush=True
            )
    environment = {"python": platform.python_version(), "torch": torch.__version__, "device": "cpu"}
    record = {"seeds": SEEDS, "epochs": EPOCHS, "tail": TAIL, "environment": environment, "results": results}
    write_json(options.out, record)
    if options.page is not None:
        options.page.write_text(write_tables(options.page.read_text("utf-8"), tables(record)), encoding="utf-8")


if __name__ == "__main__":
    main()
