"""Volumes (N, C, depth, height, width): recall loss and Dice loss on a class with one voxel in 200.

Synthetic scans contain background, an organ, and lesions of a few voxels in it. Only every second slice is annotated;
the others are 255, which ``ignore_index`` ignores. A small 3-D network is trained with cross-entropy,
with recall loss, and with recall loss plus Dice loss. The example prints recall and IoU of each class on complete test
scans.

The losses need no reshaping: they support images (N, C, height, width) and any number of dimensions.

    python examples/volumes.py
    python examples/volumes.py --scans 32 --epochs 60
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

import equipoise
from equipoise.metrics import SegmentationScores

SIDE, IGNORE = 16, 255
CLASSES = ("background", "organ", "lesion")


def make_scans(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noisy scans (count, 1, SIDE, SIDE, SIDE) and their labels (count, SIDE, SIDE, SIDE)."""
    draw = torch.Generator().manual_seed(seed)
    axis = torch.arange(SIDE, dtype=torch.float32)
    voxels = torch.stack(torch.meshgrid(axis, axis, axis, indexing="ij"))  # (3, SIDE, SIDE, SIDE)

    def ball(centre: Tensor, radius: float) -> Tensor:
        return (voxels - centre.view(3, 1, 1, 1)).square().sum(0) < radius**2

    labels = torch.zeros(count, SIDE, SIDE, SIDE, dtype=torch.long)
    for scan in labels:
        middle = SIDE / 2 + 3 * (torch.rand(3, generator=draw) - 0.5)
        scan[ball(middle, 5.5)] = 1
        for _ in range(2):
            scan[ball(middle + 5 * (torch.rand(3, generator=draw) - 0.5), 1.3)] = 2
    grey = torch.tensor([0.0, 1.0, 2.0])[labels]
    return (grey + 0.5 * torch.randn(grey.shape, generator=draw)).unsqueeze(1), labels


def network() -> nn.Sequential:
    """Three convolutions: enough to tell what a voxel is from its surroundings."""
    return nn.Sequential(
        *(nn.Conv3d(1, 8, 3, padding=1), nn.BatchNorm3d(8), nn.ReLU()),
        *(nn.Conv3d(8, 8, 3, padding=1), nn.BatchNorm3d(8), nn.ReLU()),
        nn.Conv3d(8, len(CLASSES), 1),
    )


def train(loss: nn.Module, scans: Tensor, labels: Tensor, epochs: int) -> nn.Module:
    """A network trained with ``loss``."""
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
    for _ in range(epochs):
        for rows in torch.randperm(len(scans)).split(4):
            optimizer.zero_grad()
            loss(model(scans[rows]), labels[rows]).backward()
            optimizer.step()
    return model.eval()


class RecallAndDice(nn.Module):
    """The sum of both: recall loss finds a class, Dice loss keeps it from being found everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.recall = equipoise.RecallLoss(num_classes=len(CLASSES), ignore_index=IGNORE)
        self.dice = equipoise.DiceLoss(ignore_index=IGNORE)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Loss of logits (N, C, D, H, W) and targets (N, D, H, W)."""
        return self.recall(logits, targets) + self.dice(logits, targets)


def main() -> None:
    """Train with three losses and print what becomes of the classes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scans", type=int, default=12, help="training scans")
    parser.add_argument("--epochs", type=int, default=45)
    options = parser.parse_args()

    scans, labels = make_scans(options.scans, seed=0)
    test_scans, test_labels = make_scans(8, seed=1)
    shares = labels.flatten().bincount() / labels.numel()
    print("voxels:", ", ".join(f"{name} {share:.2%}" for name, share in zip(CLASSES, shares, strict=True)))
    labels[:, 1::2] = IGNORE  # every second slice is not annotated

    losses = {
        "cross-entropy": equipoise.CrossEntropyLoss(ignore_index=IGNORE),
        "recall": equipoise.RecallLoss(num_classes=len(CLASSES), ignore_index=IGNORE),
        "recall + dice": RecallAndDice(),
    }
    print(f"{'':14} {'recall of each class':>24} {'IoU of each class':>24}  mean IoU")
    for name, loss in losses.items():
        model = train(loss, scans, labels, options.epochs)
        with torch.no_grad():
            scores = SegmentationScores(len(CLASSES))(model(test_scans), test_labels)
        recall, iou = ((100 * scores[key]).tolist() for key in ("accuracy", "iou"))
        cells = "".join(f"{value:8.1f}" for value in [*recall, *iou])
        print(f"{name:14} {cells[:24]} {cells[24:]}  {100 * float(scores['mean_iou']):8.1f}")


if __name__ == "__main__":
    main()
