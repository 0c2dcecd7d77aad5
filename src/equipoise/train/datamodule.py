"""The data module: loaders for a trainer, built once its processes are known."""

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
from equipoise.train.loaders import GroupedBatches, Loader, PairedLoaders, evaluation_loader, training_loader
from equipoise.train.preparation import Preparation
from equipoise.train.spec import RunSpec

__all__ = ["DataModule", "classifier_features"]

WITHOUT_GRADIENT = 4
"""Batch size without gradients, relative to that of training."""

PIXELS_KEPT = 2048
"""Rows of features to keep of a batch of label maps: neighbouring pixels are redundant."""

STEPS_PER_GROUP = 8
"""Steps between two turns of Lightning's loop, which handles signals and progress."""


class DataModule(pl.LightningDataModule):
    """Loaders of the splits, built once the processes are known."""

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
        """Batch size of one process."""
        assert self.trainer is not None
        world = self.trainer.world_size
        if self.batch_size % world:
            raise ValueError(
                f"--batch-size must be a multiple of the {world} processes, got {self.batch_size}; it counts the "
                "samples of a step over all of them"
            )
        return self.batch_size // world

    def train_dataloader(self) -> GroupedBatches:
        """Training batches, grouped if a single process trains.

        Several processes synchronise gradients and buffers at each call of the model by Lightning.
        """
        assert self.trainer is not None
        loaders = [self._training(name) for name in dict.fromkeys([None, self.second_sampler])]
        loader = loaders[0] if len(loaders) == 1 else PairedLoaders(*loaders)
        return GroupedBatches(loader, STEPS_PER_GROUP if self.trainer.world_size == 1 else 1)

    def _training(self, sampler: str | None) -> Loader:
        split, spec = self.splits["train"], self.spec
        draws = sampler_of(spec, self.data, split, sampler)
        return training_loader(split, batch_size=self._share(), sampler=draws, seed=spec.seed, **self._common())

    def evaluation(self, split: str) -> Loader:
        """All samples of a split, distributed over the processes."""
        assert self.trainer is not None
        return evaluation_loader(
            self.splits[split],
            batch_size=self._share() * (1 if self.data.task.pixels else WITHOUT_GRADIENT),
            rank=self.trainer.global_rank,
            world_size=self.trainer.world_size,
            **self._common(),
        )

    def val_dataloader(self) -> Loader:
        """Validation samples."""
        return self.evaluation("val")


def classifier_features(
    data_module: DataModule, preparation: Preparation, device: torch.device, model: nn.Module, split: str
) -> KeptFeatures:
    """Inputs of the classifier of a model for a split, all of them in every process; the model moves to the device.

    Features that do not fit on the device are kept in host memory.
    """
    maps = data_module.data.task.pixels
    loader = evaluation_loader(
        data_module.splits[split],
        batch_size=data_module.batch_size * (1 if maps else WITHOUT_GRADIENT),
        device=device,
        workers=data_module.workers,
    )
    places = dict.fromkeys([device, torch.device("cpu")])
    for place in places:
        try:
            return keep_features(
                model.to(device),
                _Prepared(loader, preparation),
                ignore_index=data_module.data.ignore_index,
                rows_per_batch=PIXELS_KEPT if maps else None,
                device=place,
                seed=data_module.spec.seed,
            )
        except MemoryError as error:
            why = str(error).partition("; ")[0]
    raise MemoryError(
        f"{why}; use a --model with fewer features before its last layer, or resume on a machine with more memory: "
        "stage one is kept"
    )


class _Prepared:
    """Prepared batches."""

    def __init__(self, loader: Loader, preparation: Preparation) -> None:
        self.loader, self.preparation = loader, preparation

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for inputs, labels in self.loader:
            yield self.preparation.prepare(inputs), labels
