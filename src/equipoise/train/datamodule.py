"""Batches for a trainer, made once its processes know of each other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from equipoise.data import DataSet, Split
from equipoise.heads import KeptFeatures, keep_features
from equipoise.train.builders import sampler_of
from equipoise.train.loaders import Feed, Handfuls, SideBySide, evaluation_feed, training_feed
from equipoise.train.preparation import Preparation
from equipoise.train.spec import RunSpec

__all__ = ["Feeds", "seen_features"]

WITHOUT_GRADIENT = 4
"""How many times the samples of a training batch fit where no gradient is wanted."""

PIXELS_KEPT = 2048
"""Rows of features that are kept of a batch of label maps: neighbouring pixels tell little more."""

HANDFUL = 8
"""Steps after which Lightning's loop has its turn: signals and progress, for a step of a second still soon enough."""


class Feeds(pl.LightningDataModule):
    """Batches of the splits, made once the processes know of each other."""

    def __init__(
        self,
        spec: RunSpec,
        data: DataSet,
        splits: dict[str, Split],
        batch_size: int,
        second_sampler: str | None = None,
    ) -> None:
        super().__init__()
        self.spec, self.data, self.splits, self.batch_size = spec, data, splits, batch_size
        self.second_sampler = second_sampler
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
        feeds = [self._training(name) for name in dict.fromkeys([None, self.second_sampler])]
        feed = feeds[0] if len(feeds) == 1 else SideBySide(*feeds)
        return Handfuls(feed, HANDFUL if self.trainer.world_size == 1 else 1)

    def _training(self, sampler: str | None) -> Feed:
        split, spec = self.splits["train"], self.spec
        draws = sampler_of(spec, self.data, split, sampler)
        return training_feed(split, batch_size=self._share(), sampler=draws, seed=spec.seed, **self._common())

    def evaluation(self, split: str) -> Feed:
        """All samples of a split, shared out among the processes."""
        assert self.trainer is not None
        return evaluation_feed(
            self.splits[split],
            batch_size=self._share() * (1 if self.data.task.pixels else WITHOUT_GRADIENT),
            rank=self.trainer.global_rank,
            world_size=self.trainer.world_size,
            **self._common(),
        )

    def val_dataloader(self) -> Feed:
        """Validation samples."""
        return self.evaluation("val")


def seen_features(
    feeds: Feeds, preparation: Preparation, device: torch.device, model: nn.Module, split: str
) -> KeptFeatures:
    """What the classifier of a model sees of a split, all of it in every process; the model moves to the device.

    Features that the device has no room for are kept in the memory of the host.
    """
    maps = feeds.data.task.pixels
    feed = evaluation_feed(
        feeds.splits[split],
        batch_size=feeds.batch_size * (1 if maps else WITHOUT_GRADIENT),
        device=device,
        workers=feeds.workers,
    )
    places = dict.fromkeys([device, torch.device("cpu")])
    for place in places:
        try:
            return keep_features(
                model.to(device),
                _Prepared(feed, preparation),
                ignore_index=feeds.data.ignore_index,
                rows_per_batch=PIXELS_KEPT if maps else None,
                device=place,
                seed=feeds.spec.seed,
            )
        except MemoryError as error:
            why = str(error).partition("; ")[0]
    raise MemoryError(
        f"{why}; take a --model with fewer features before its last layer, or go on where there is more memory: stage "
        "one is kept"
    )


class _Prepared:
    """Batches as the model sees them."""

    def __init__(self, feed: Feed, preparation: Preparation) -> None:
        self.feed, self.preparation = feed, preparation

    def __len__(self) -> int:
        return len(self.feed)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for inputs, labels in self.feed:
            yield self.preparation.prepare(inputs), labels
