"""A ``LightningModule`` with a loss that has a schedule and running statistics.

Recall loss weights each class by the fraction of its samples that is missed, as a moving average over the batches. It
is combined with focal loss whose gamma decreases from 3 to 0. The loss is an attribute of the module, so Lightning
moves it to the device and saves its state in the checkpoints. ``LossSchedule`` sets the epoch and logs the settings:
gamma and the weight of each class.

    python examples/lightning_module.py
    python examples/lightning_module.py --epochs 60
"""

from __future__ import annotations

import argparse

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import equipoise
from equipoise.data import digits_lt
from equipoise.integrations.lightning import LossSchedule
from equipoise.losses import focal
from equipoise.metrics import CalibrationError, ShotAccuracy
from equipoise.schedules import Linear
from equipoise.weights import RecallWeights


class Digits(pl.LightningModule):
    """A small network on images of 8 x 8 pixels."""

    def __init__(self, epochs: int, train_counts: list[int]) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        self.loss = equipoise.SoftmaxLoss(  # (1) instead of nn.CrossEntropyLoss()
            focal(Linear(3.0, 0.0)), weight=RecallWeights(10, momentum=0.1), epochs=epochs, sync=True
        )
        self.shots, self.ece = ShotAccuracy(train_counts), CalibrationError()

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """The loss of a batch."""
        images, labels = batch
        loss = self.loss(self.model(images), labels)  # (2)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def test_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        """Metrics of a batch: torchmetrics classes, as usual in Lightning."""
        images, labels = batch
        logits = self.model(images)
        self.shots.update(logits, labels)
        self.ece.update(logits, labels)

    def on_test_epoch_end(self) -> None:
        """Metrics of all batches of all processes."""
        shots = self.shots.compute()
        self.log_dict({"accuracy": shots["all"], "accuracy_of_rare": shots["few"], "ece": self.ece.compute()})

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimiser."""
        return torch.optim.AdamW(self.model.parameters(), lr=3e-3)


def main() -> None:
    """Train and test."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    epochs = parser.parse_args().epochs

    pl.seed_everything(0)
    data = digits_lt()
    train, test = (
        TensorDataset(torch.from_numpy(split.inputs).float() / 255, torch.from_numpy(split.labels))
        for split in (data.train, data.test)
    )
    trainer = pl.Trainer(
        max_epochs=epochs,
        callbacks=[LossSchedule()],  # (3)
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    digits = Digits(epochs, data.train_counts.tolist())
    trainer.fit(digits, DataLoader(train, batch_size=32, shuffle=True, drop_last=True))
    for name, value in trainer.callback_metrics.items():
        print(f"{name} {value:.3f}")
    trainer.test(digits, DataLoader(test, batch_size=200))


if __name__ == "__main__":
    main()
