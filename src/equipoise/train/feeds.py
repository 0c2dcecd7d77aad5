"""Batches for a trainer, made once its processes know of each other."""

from __future__ import annotations

import os
from typing import Any

import pytorch_lightning as pl

from equipoise.data import DataSet, Split
from equipoise.train.feeding import Feed, Handfuls, evaluation_feed, training_feed
from equipoise.train.parts import sampler_of
from equipoise.train.spec import RunSpec

__all__ = ["Feeds"]

WITHOUT_GRADIENT = 4
"""How many times the samples of a training batch fit where no gradient is wanted."""

HANDFUL = 8
"""Steps after which Lightning's loop has its turn: signals and progress, for a step of a second still soon enough."""


class Feeds(pl.LightningDataModule):
    """Batches of the splits, made once the processes know of each other."""

    def __init__(self, spec: RunSpec, data: DataSet, splits: dict[str, Split], batch_size: int) -> None:
        super().__init__()
        self.spec, self.data, self.splits, self.batch_size = spec, data, splits, batch_size
        cores = os.cpu_count() or 1
        self.workers = min(8, max(1, cores - 1)) if spec.workers is None else spec.workers

    def _common(self) -> dict[str, Any]:
        assert self.trainer is not None
        return {"device": self.trainer.strategy.root_device, "workers": self.workers}

    def _share(self) -> int:
        """Samples of a batch in one process."""
        assert self.trainer is not None
        world = self.trainer.world_size
        if self.batch_size % world:
            raise ValueError(
                f"--batch-size must be a multiple of the {world} processes, got {self.batch_size}; it counts the "
                "samples of a step over all of them"
            )
        return self.batch_size // world

    def train_dataloader(self) -> Handfuls:
        """Training batches, several at a time where one process trains; the sampler knows the processes.

        Several processes share gradients and buffers at each call of the model that Lightning makes.
        """
        assert self.trainer is not None
        split, spec = self.splits["train"], self.spec
        sampler = sampler_of(spec, self.data, split)
        feed = training_feed(split, batch_size=self._share(), sampler=sampler, seed=spec.seed, **self._common())
        return Handfuls(feed, HANDFUL if self.trainer.world_size == 1 else 1)

    def evaluation(self, split: str) -> Feed:
        """All samples of a split, shared out among the processes."""
        assert self.trainer is not None
        return evaluation_feed(
            self.splits[split],
            batch_size=self._share() * (1 if self.data.task == "segmentation" else WITHOUT_GRADIENT),
            rank=self.trainer.global_rank,
            world_size=self.trainer.world_size,
            **self._common(),
        )

    def val_dataloader(self) -> Feed:
        """Validation samples."""
        return self.evaluation("val")
