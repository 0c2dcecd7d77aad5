"""Multi-label losses on embedded images: ``python -m experiments.guide_labels``.

A few small convolutions learn which digits the images of ``digit-scenes`` hold (1,500 training images; 825 positives of
the digit 0 down to 12 of the digit 9), three seeds each. Nothing is tuned, the last epoch counts. Writes
``experiments/results/guide-labels.json``, and with ``--page`` the table of ``docs/which-loss.md``.
"""

from __future__ import annotations

import argparse
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.data import Arrays, open_data
from equipoise.metrics import CalibrationError, MultilabelAveragePrecision, MultilabelScores
from equipoise.train.folder import write_json
from equipoise.train.loss_text import build_loss
from experiments.guide import ROOT, write_tables

SEEDS, EPOCHS, BATCH, WIDTH, LABELS = 3, 12, 16, 16, 10
LOSSES = ("bce", "binary-focal", "asl", "db")
NAMES = {"map": "mAP", "rare_map": "mAP of the rare half", "cf1": "CF1 at one half", "ece": "ECE"}


def network() -> nn.Module:
    """Convolutions that see 15 x 15 pixels; the score of a label is the largest of all places."""
    layers: list[nn.Module] = []
    for inputs, dilation in ((1, 1), (WIDTH, 2), (WIDTH, 4)):
        layers += [nn.Conv2d(inputs, WIDTH, 3, padding=dilation, dilation=dilation), nn.BatchNorm2d(WIDTH), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(WIDTH, LABELS, 1), nn.AdaptiveMaxPool2d(1), nn.Flatten())


def arrays(split: Arrays) -> tuple[Tensor, Tensor]:
    """Images in [0, 1], and one value a label."""
    return torch.from_numpy(split.inputs).float() / 255, torch.from_numpy(split.labels).float()


def train(text: str, images: Tensor, labels: Tensor, seed: int) -> nn.Module:
    """A model trained with the loss that ``text`` says."""
    draw = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = network()
    loss = build_loss(
        text,
        task="multilabel",
        num_classes=LABELS,
        counts=labels.sum(0).tolist(),
        num_samples=len(images),
        epochs=EPOCHS,
        ignore_index=-100,
        sync=False,
    )
    steps = EPOCHS * -(-len(images) // BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
    for epoch in range(EPOCHS):
        loss.set_epoch(epoch)
        for batch in torch.randperm(len(images), generator=draw).split(BATCH):
            optimizer.zero_grad()
            loss(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            schedule.step()
    return model.eval()


@torch.no_grad()
def measure(model: nn.Module, images: Tensor, targets: Tensor) -> dict[str, float]:
    """Percent; the rare half are the digits 5 to 9."""
    logits = torch.cat([model(part) for part in images.split(100)])
    scores = {
        "map": MultilabelAveragePrecision(LABELS)(logits, targets),
        "rare_map": MultilabelAveragePrecision(LABELS, average="none")(logits, targets)[5:].mean(),
        "cf1": MultilabelScores(LABELS)(logits, targets)["CF1"],
        "ece": CalibrationError(bins=15, kind="multilabel")(logits, targets),
    }
    return {name: 100 * float(value) for name, value in scores.items()}


def table(record: dict[str, Any]) -> dict[str, str]:
    """The table of the page: mean and standard deviation over the seeds."""
    lines = ["| loss | " + " | ".join(NAMES.values()) + " |", "|---" * (len(NAMES) + 1) + "|"]
    for text, runs in record["results"].items():
        values = [[run[name] for run in runs] for name in NAMES]
        cells = [f"{statistics.fmean(one):.1f} ± {statistics.stdev(one):.1f}" for one in values]
        lines.append(f"| `{text}` | " + " | ".join(cells) + " |")
    return {"labels": "\n".join(lines)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Train everything and write what came of it."""
    parser = argparse.ArgumentParser(prog="python -m experiments.guide_labels", description=__doc__)
    out = ROOT / "experiments" / "results" / "guide-labels.json"
    parser.add_argument("--out", type=Path, default=out, metavar="FILE")
    parser.add_argument("--page", type=Path, help="write the table into this page")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    data = open_data("digit-scenes")
    training, test = arrays(data.train), arrays(data.test)
    results: dict[str, list[dict[str, float]]] = {}
    for text in LOSSES:
        results[text] = [measure(train(text, *training, seed), *test) for seed in range(SEEDS)]
        print(text, results[text], flush=True)
    environment = {"python": platform.python_version(), "torch": torch.__version__, "device": "cpu"}
    record = {"seeds": SEEDS, "epochs": EPOCHS, "environment": environment, "results": results}
    write_json(options.out, record)
    if options.page is not None:
        options.page.write_text(write_tables(options.page.read_text("utf-8"), table(record)), encoding="utf-8")


if __name__ == "__main__":
    main()
