"""Four losses on long-tailed handwritten digits: who serves the rare classes, and whose probabilities can be trusted.

A small network learns scikit-learn's 8x8 digits from 100 images of the digit 0, fewer of each next digit, and 2 images
of the digit 9. The test images are balanced. Within a seed, every loss gets the same images, initial weights and
batches; all losses have their default arguments and nothing was tuned. One small data set ranks nothing: the table
shows the losses at work. Run it with ``make demo``.
"""

from collections.abc import Callable
from statistics import mean, stdev

import torch
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

from equipoise import CrossEntropyLoss, CyclicalFocalLoss, FocalLoss, RecallLoss
from equipoise.data import Arrays, digits_lt
from equipoise.metrics import CalibrationError, ShotAccuracy

CLASSES = 10
CUTS = (10, 40)  # few: fewer than 10 training images; many: more than 40; medium: between
SEEDS = (0, 1, 2)
EPOCHS = 60
BATCH = 32

LOSSES: dict[str, Callable[[], nn.Module]] = {
    "cross-entropy": CrossEntropyLoss,
    "focal": lambda: FocalLoss(gamma=2.0),
    "cyclical focal": lambda: CyclicalFocalLoss(epochs=EPOCHS),
    "recall": lambda: RecallLoss(num_classes=CLASSES),
}


def tensors(split: Arrays) -> tuple[Tensor, Tensor]:
    """Return images as rows of numbers between 0 and 1, and labels."""
    return torch.from_numpy(split.inputs).flatten(1) / 255.0, torch.from_numpy(split.labels)


def train_model(loss: nn.Module, images: Tensor, labels: Tensor, seed: int) -> nn.Module:
    """Return a small network trained with ``loss``."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(images.shape[1], 128), nn.ReLU(), nn.Linear(128, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for epoch in range(EPOCHS):
        loss.set_epoch(epoch)
        for rows in torch.randperm(len(labels)).split(BATCH):
            optimizer.zero_grad()
            loss(model(images[rows]), labels[rows]).backward()
            optimizer.step()
        schedule.step()
    return model


def scores(model: nn.Module, images: Tensor, labels: Tensor, counts: Tensor) -> list[float]:
    """Return accuracy (all, many, medium, few) and calibration error on the test images, in percent."""
    with torch.no_grad():
        logits = model(images)
    accuracy = ShotAccuracy(counts, cuts=CUTS)(logits, labels)
    values = [*(accuracy[name] for name in ("all", "many", "medium", "few")), CalibrationError()(logits, labels)]
    return [100 * float(value) for value in values]


def main() -> None:
    """Train every loss with every seed and print the table."""
    torch.set_num_threads(1)  # the network is too small to gain from more
    console = Console()
    results: dict[str, list[list[float]]] = {name: [] for name in LOSSES}
    for seed in track(SEEDS, description="Training", console=console, transient=True):
        data = digits_lt(seed=seed)
        counts = torch.from_numpy(data.train_counts)
        for name, make_loss in LOSSES.items():
            model = train_model(make_loss(), *tensors(data.train), seed)
            results[name].append(scores(model, *tensors(data.test), counts))

    title = "Long-tailed digits: test accuracy and calibration error, in %"
    table = Table("loss", title=title, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in ("top-1", "many", "medium", "few", "ECE"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, rows in results.items():
        table.add_row(name, *(f"{mean(column):.1f} ± {stdev(column):.1f}" for column in zip(*rows, strict=True)))
    console.print(table)
    console.print(
        f"Training images of the digits 0 to 9: {', '.join(map(str, data.train_counts))}.\n"
        f"many: more than {CUTS[1]} of them, few: fewer than {CUTS[0]}, medium: between. Test: 40 of each.\n"
        f"ECE: 15 bins of equal width. Mean ± standard deviation over {len(SEEDS)} seeds.",
        highlight=False,
    )


if __name__ == "__main__":
    main()
