"""Four losses on long-tailed handwritten digits: who serves the rare classes, and whose probabilities can be trusted.

A small network learns scikit-learn's 8x8 digits from 100 images of the digit 0, fewer of each next digit, and 2 images
of the digit 9. The test images are balanced. Within a seed, every loss gets the same images, initial weights and
batches; all losses have their default arguments and nothing was tuned. One small data set ranks nothing: the table
shows the losses at work. Run it with ``make demo``.
"""

from collections.abc import Callable
from statistics import mean, stdev

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

from equipoise import CrossEntropyLoss, CyclicalFocalLoss, FocalLoss, RecallLoss

CLASSES = 10
HEAD_COUNT = 100  # training images of the most frequent class
RATIO = 50  # between the most and the least frequent class
TEST_COUNT = 74  # test images of each class: what the head leaves of the rarest digit in the data set
MANY, FEW = 40, 10  # many: at least 40 training images; few: fewer than 10; medium: between
SEEDS = (0, 1, 2)
EPOCHS = 60
BATCH = 32

COUNTS = [round(HEAD_COUNT * RATIO ** (-c / (CLASSES - 1))) for c in range(CLASSES)]
LOSSES: dict[str, Callable[[], nn.Module]] = {
    "cross-entropy": CrossEntropyLoss,
    "focal": lambda: FocalLoss(gamma=2.0),
    "cyclical focal": lambda: CyclicalFocalLoss(epochs=EPOCHS),
    "recall": lambda: RecallLoss(num_classes=CLASSES),
}


def load_split(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training images and labels with a long tail, then test images and labels, balanced."""
    digits = load_digits()
    images = torch.tensor(digits.data / 16.0, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    rng = np.random.default_rng(seed)
    shuffled = [rng.permutation(np.flatnonzero(digits.target == c)) for c in range(CLASSES)]
    test = np.concatenate([rows[:TEST_COUNT] for rows in shuffled])
    train = np.concatenate([rows[TEST_COUNT:][:count] for rows, count in zip(shuffled, COUNTS, strict=True)])
    return images[train], labels[train], images[test], labels[test]


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


def expected_calibration_error(probs: Tensor, targets: Tensor, bins: int = 15) -> float:
    """Return the gap between confidence and accuracy, averaged over right-closed bins of equal width."""
    confidence, predicted = probs.max(dim=1)
    index = torch.bucketize(confidence, torch.linspace(0, 1, bins + 1)[1:-1])
    gaps = torch.zeros(bins).index_add_(0, index, confidence - (predicted == targets).float())
    return gaps.abs().sum().item() / len(targets)


def scores(model: nn.Module, images: Tensor, labels: Tensor) -> list[float]:
    """Return accuracy (all, many, medium, few) and calibration error on the test images, in percent."""
    with torch.no_grad():
        probs = model(images).softmax(dim=1)
    hits = (probs.argmax(dim=1) == labels).float()
    count = torch.tensor(COUNTS)[labels]
    groups = (count > 0, count >= MANY, (count < MANY) & (count >= FEW), count < FEW)
    accuracies = [hits[group].mean().item() for group in groups]
    return [100 * score for score in (*accuracies, expected_calibration_error(probs, labels))]


def main() -> None:
    """Train every loss with every seed and print the table."""
    torch.set_num_threads(1)  # the network is too small to gain from more
    console = Console()
    results: dict[str, list[list[float]]] = {name: [] for name in LOSSES}
    for seed in track(SEEDS, description="Training", console=console, transient=True):
        train_images, train_labels, test_images, test_labels = load_split(seed)
        for name, make_loss in LOSSES.items():
            model = train_model(make_loss(), train_images, train_labels, seed)
            results[name].append(scores(model, test_images, test_labels))

    title = "Long-tailed digits: test accuracy and calibration error, in %"
    table = Table("loss", title=title, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in ("top-1", "many", "medium", "few", "ECE"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, rows in results.items():
        table.add_row(name, *(f"{mean(column):.1f} ± {stdev(column):.1f}" for column in zip(*rows, strict=True)))
    console.print(table)
    console.print(
        f"Training images of the digits 0 to 9: {', '.join(map(str, COUNTS))}.\n"
        f"many: {MANY} or more of them, few: fewer than {FEW}, medium: between. Test: {TEST_COUNT} of each.\n"
        f"ECE: 15 bins of equal width. Mean ± standard deviation over {len(SEEDS)} seeds.",
        highlight=False,
    )


if __name__ == "__main__":
    main()
