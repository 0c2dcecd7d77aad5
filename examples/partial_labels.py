"""Multi-label data with mostly unknown labels: mark unknown labels by -1.

The task is to predict which digits are on a canvas with several handwritten digits. Seven of ten training and
validation labels are hidden, as if annotators had been asked about a few labels per image. The same network is trained

* with all labels known, for comparison,
* with hidden labels treated as absent, the usual shortcut,
* with hidden labels as -1, which every sigmoid loss ignores, by binary cross-entropy and by the asymmetric loss.

Temperatures and thresholds are then fitted on validation labels that are mostly hidden as well; the fits ignore -1 too.
The example prints, in percent and on complete test labels, mAP, the calibration error before and after, and CF1 at
the thresholds. If unknown labels are treated as absent, calibration learns the wrong frequencies too.

    python examples/partial_labels.py
    python examples/partial_labels.py --hidden 0.9
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

import equipoise
from equipoise.calibration import fit_label_temperatures, fit_thresholds
from equipoise.data import Arrays, digit_scenes
from equipoise.metrics import CalibrationError, MultilabelAveragePrecision, MultilabelScores

UNKNOWN = -1


class DigitFinder(nn.Module):
    """Scores each of the 16 cells of a canvas and sums the evidence for each digit."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Sequential(nn.Conv2d(1, 128, kernel_size=8, stride=8), nn.ReLU(), nn.Conv2d(128, 10, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, 10) of images (N, 1, 32, 32)."""
        return self.place(images).flatten(2).sum(2)


def tensors(split: Arrays) -> tuple[Tensor, Tensor]:
    """Images in [0, 1] and labels 0 or 1."""
    return torch.from_numpy(split.inputs).float() / 255, torch.from_numpy(split.labels).float()


def hide(labels: Tensor, share: float, seed: int) -> Tensor:
    """Labels with a fraction of them unknown."""
    draw = torch.Generator().manual_seed(seed)
    return labels.masked_fill(torch.rand(labels.shape, generator=draw) < share, UNKNOWN)


def train(loss: nn.Module, images: Tensor, labels: Tensor, epochs: int = 20) -> nn.Module:
    """A network trained with ``loss``."""
    torch.manual_seed(0)
    model = DigitFinder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(100):
            optimizer.zero_grad()
            loss(model(images[rows]), labels[rows]).backward()
            optimizer.step()
    return model.eval()


def main() -> None:
    """Train in four ways and print the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=float, default=0.7, help="share of the labels that are unknown")
    options = parser.parse_args()

    data = digit_scenes(seed=0)
    (images, labels), (val_images, val_labels), (test_images, test_labels) = map(
        tensors, (data.train, data.val, data.test)
    )
    seen, val_seen = hide(labels, options.hidden, seed=1), hide(val_labels, options.hidden, seed=2)
    print(f"{(seen == UNKNOWN).float().mean():.0%} of the labels are unknown; {int((seen == 1).sum())} of", end=" ")
    print(f"{int(labels.sum())} positives are left, {int((seen[:, 9] == 1).sum())} of the rarest label")

    bce, asl = equipoise.BinaryCrossEntropyLoss(), equipoise.AsymmetricLoss()
    ways = {
        "all known, bce": (bce, labels, val_labels),
        "unknown is absent, bce": (bce, seen.clamp(min=0), val_seen.clamp(min=0)),
        "unknown is -1, bce": (bce, seen, val_seen),
        "unknown is -1, asl": (asl, seen, val_seen),
    }
    print(f"{'':24} {'mAP':>6} {'ECE':>6} {'after':>6} {'F1':>6}")
    for name, (loss, targets, val_targets) in ways.items():
        model = train(loss, images, targets)
        with torch.no_grad():
            val_logits, logits = model(val_images), model(test_images)
        calibrator = fit_label_temperatures(val_logits, val_targets, bias=True)
        thresholds = fit_thresholds(calibrator(val_logits), val_targets)
        ece = CalibrationError(kind="multilabel")
        scores = {
            "mAP": MultilabelAveragePrecision(10)(logits, test_labels),
            "ECE": ece(logits, test_labels),
            "after": ece(calibrator(logits), test_labels),
            "F1": MultilabelScores(10)(thresholds(calibrator(logits)), test_labels)["CF1"],
        }
        print(f"{name:24} " + " ".join(f"{100 * float(value):6.2f}" for value in scores.values()))


if __name__ == "__main__":
    main()
