"""The loaders of a run, built once its processes are known."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from equipoise.data import DataSet, Split
from equipoise.heads import KeptFeatures, keep_features
from equipoise.train.builders import sampler_of
from equipoise.train.company import company
from equipoise.train.loaders import Loader, PairedLoaders, TrainingOrder, evaluation_loader, training_loader
from equipoise.train.preparation import Preparation
from equipoise.train.spec import RunSpec

__all__ = ["RunLoaders", "classifier_features"]

WITHOUT_GRADIENT = 4
"""Batch size without gradients, relative to that of training."""

PIXELS_KEPT = 2048
"""Rows of features to keep of a batch of label maps: neighbouring pixels are redundant."""


class RunLoaders:
    """Loaders of the splits of a run.

    Args:
        fabric: device and processes.
        spec: settings of the run.
        data: the data set.
        splits: its splits by name, and ``"open"`` if there is an open set.
        batch_size: samples of a step over all processes.
        second_sampler: sampler of a second batch in each step, if any.
    """

    def __init__(
        self,
        fabric: Fabric,
        spec: RunSpec,
        data: DataSet,
        splits: dict[str, Split],
        batch_size: int,
        second_sampler: str | None = None,
    ) -> None:
        if batch_size % fabric.world_size:
            raise ValueError(
                f"--batch-size must be a multiple of the {fabric.world_size} processes, got {batch_size}; it counts "
                "the samples of a step over all of them"
            )
        self.fabric, self.spec, self.data, self.splits, self.batch_size = fabric, spec, data, splits, batch_size
        self.second_sampler = second_sampler
        cores = os.cpu_count() or 1
        self.workers = max(1, min(8, cores - 1) // company().size) if spec.workers is None else spec.workers
        self.common: dict[str, Any] = {"device": fabric.device, "workers": self.workers}
        self.own_size = batch_size // fabric.world_size

    def training(self) -> Loader | PairedLoaders:
        """Training batches."""
        first = self._training(None, None)
        if self.second_sampler is None:
            return first
        assert isinstance(first.order, TrainingOrder)
        return PairedLoaders(first, self._training(self.second_sampler, first.order.sampler.length))

    def _training(self, sampler: str | None, length: int | None) -> Loader:
        split, spec = self.splits["train"], self.spec
        draws = sampler_of(spec, self.data, split, sampler, length)
        return training_loader(split, batch_size=self.own_size, sampler=draws, seed=spec.seed, **self.common)

    def evaluation(self, split: str) -> Loader:
        """All samples of a split, distributed over the processes."""
        return evaluation_loader(
            self.splits[split],
            batch_size=self.own_size * (1 if self.data.task.pixels else WITHOUT_GRADIENT),
            rank=self.fabric.global_rank,
            world_size=self.fabric.world_size,
            **self.common,
        )


def classifier_features(loaders: RunLoaders, preparation: Preparation, model: nn.Module, split: str) -> KeptFeatures:
    """Inputs of the classifier of a model for a split, all of them in every process; the model moves to the device.

    Features that do not fit on the device are kept in host memory.
    """
    maps = loaders.data.task.pixels
    loader = evaluation_loader(
        loaders.splits[split],
        batch_size=loaders.batch_size * (1 if maps else WITHOUT_GRADIENT),
        **loaders.common,
    )
    device: torch.device = loaders.fabric.device
    places = dict.fromkeys([device, torch.device("cpu")])
    for place in places:
        try:
            return keep_features(
                model.to(device),
                _PreparedBatches(loader, preparation),
                ignore_index=loaders.data.ignore_index,
                rows_per_batch=PIXELS_KEPT if maps else None,
                device=place,
                seed=loaders.spec.seed,
            )
        except MemoryError as error:
            why = str(error).partition("; ")[0]
    raise MemoryError(
        f"{why}; use a --model with fewer features before its last layer, or resume on a machine with more memory: "
        "stage one is kept"
    )


class _PreparedBatches:
    """Prepared batches."""

    def __init__(self, loader: Loader, preparation: Preparation) -> None:
        self.loader, self.preparation = loader, preparation

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for inputs, labels in self.loader:
            yield self.preparation.prepare(inputs), labels
