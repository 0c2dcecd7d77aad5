"""Loaders of a split: batches are gathered on the device if the data fit there, otherwise prefetched to it.

A batch is (inputs, labels) on the device of the model, unprepared: images (n, channels, height, width) of uint8,
features (n, D) of float32, or tokens (n, length) of integers; labels are class indices (n,) of int64, multi-label
targets (n, C) of float32 with -1 for unknown ones, or label maps (n, height, width) of int64. The data keep their
smaller types until they are on the device.

The order of a training epoch is a function of seed and epoch, which ``set_epoch`` sets.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from equipoise._checks import check_whole
from equipoise._processes import end_with_parent
from equipoise.data.arrays import Arrays, Split, Task
from equipoise.data.errors import DataError
from equipoise.data.files import FileImages
from equipoise.data.samplers import EpochSampler

__all__ = [
    "Batch",
    "Loader",
    "PairedLoaders",
    "evaluation_loader",
    "fits",
    "labels_for_sampling",
    "training_loader",
]

Batch: TypeAlias = tuple[Tensor, Tensor]
Indices: TypeAlias = NDArray[np.int64]

SHARE = 0.3
"""Fraction of the free memory of a device that a split may use; the rest is for model and activations."""


class Order(ABC):
    """Assignment of the samples of this process to batches."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

    @abstractmethod
    def indices(self) -> Indices:
        """Samples of this process, in order."""

    def __iter__(self) -> Iterator[Indices]:
        return iter(np.array_split(self.indices(), self.batches))

    def __len__(self) -> int:
        return self.batches


class TrainingOrder(Order):
    """Samples of a sampler in batches of one size; the last incomplete batch of an epoch is dropped.

    With fewer samples than a batch there is one smaller batch. The number of batches is the same in every process.
    """

    def __init__(self, sampler: EpochSampler, batch_size: int) -> None:
        super().__init__(max(1, sampler.length // (batch_size * sampler.world_size)))
        self.sampler, self.batch_size = sampler, batch_size

    def indices(self) -> Indices:
        """Samples of the current epoch."""
        drawn = np.fromiter(self.sampler, np.int64, len(self.sampler))
        return drawn[: self.batches * self.batch_size]


class EvaluationOrder(Order):
    """Every sample once over all processes, in the same number of batches of similar size in each.

    A batch has at most ``batch_size`` samples, or one more if batches of one sample would not be even.
    """

    def __init__(self, samples: int, batch_size: int, rank: int, world_size: int) -> None:
        if samples < world_size:
            raise DataError(
                f"a split must hold a sample for each of the {world_size} processes, found {samples}; use fewer "
                "devices or add samples"
            )
        super().__init__(min(math.ceil(math.ceil(samples / world_size) / batch_size), samples // world_size))
        self._own = np.array_split(np.arange(samples), world_size)[rank]

    def indices(self) -> Indices:
        """Samples of this process, the same in every epoch."""
        return self._own


class Loader(ABC):
    """Batches of a split on a device; an iteration is an epoch.

    Args:
        order: assignment of samples to batches.
        device: of the batches.
    """

    def __init__(self, order: Order, device: torch.device) -> None:
        self.order, self.device = order, device

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the sampler of training data."""
        if isinstance(self.order, TrainingOrder):
            self.order.sampler.set_epoch(epoch)

    @property
    def indices(self) -> Indices:
        """Indices in the split of the samples of this process, in the order of the batches."""
        return self.order.indices()

    def __len__(self) -> int:
        return len(self.order)

    @abstractmethod
    def __iter__(self) -> Iterator[Batch]:
        """Batches; the order is computed with the first."""


class DeviceLoader(Loader):
    """Arrays on the device: batches are gathered there, without synchronisation."""

    def __init__(self, data: Batch, order: Order, device: torch.device) -> None:
        super().__init__(order, device)
        self.data = data

    def __iter__(self) -> Iterator[Batch]:
        batches = list(self.order)
        for rows in torch.split(self.rows(batches), [len(batch) for batch in batches]):
            yield self.gather(rows)

    def rows(self, batches: list[Indices]) -> Tensor:
        """Indices of all samples of the batches, on the device."""
        chosen = torch.from_numpy(np.concatenate(batches))
        if self.device.type == "cuda":
            chosen = chosen.pin_memory()
        return chosen.to(self.device, non_blocking=True)

    def gather(self, rows: Tensor) -> Batch:
        """The batch of these samples."""
        inputs, labels = self.data
        return inputs.index_select(0, rows), _targets(labels.index_select(0, rows))


class HostLoader(Loader):
    """Arrays that do not fit on the device: batches are gathered in host memory."""

    def __init__(self, data: Batch, order: Order, device: torch.device) -> None:
        super().__init__(order, device)
        self.data = data

    def __iter__(self) -> Iterator[Batch]:
        return _sent(self._gathered(), self.device)

    def _gathered(self) -> Iterator[Batch]:
        inputs, labels = self.data
        for batch in self.order:
            rows = torch.from_numpy(batch)
            yield self._gather(inputs, rows), self._gather(labels, rows)

    def _gather(self, source: Tensor, rows: Tensor) -> Tensor:
        """Gather into pinned memory, from which copies to the device are asynchronous."""
        pinned = self.device.type == "cuda"
        rows_out = torch.empty((len(rows), *source.shape[1:]), dtype=source.dtype, pin_memory=pinned)
        return torch.index_select(source, 0, rows, out=rows_out)


class DecodingLoader(Loader):
    """Image files, decoded by worker processes a few batches ahead."""

    def __init__(self, split: FileImages, order: Order, device: torch.device, workers: int, seed: int) -> None:
        super().__init__(order, device)
        workers = min(workers, len(order))
        self.loader: DataLoader[Batch | DataError] = DataLoader(
            Decoder(split, threads=1 if workers else None),
            sampler=order,
            batch_size=None,  # the order gives whole batches
            collate_fn=_as_it_is,
            num_workers=workers,
            worker_init_fn=end_with_parent,
            persistent_workers=workers > 0,
            prefetch_factor=2 if workers else None,
            pin_memory=device.type == "cuda",
            generator=torch.Generator().manual_seed(seed),  # otherwise every epoch draws from the global generator
        )

    def __iter__(self) -> Iterator[Batch]:
        return _sent(self._decoded(), self.device)

    def _decoded(self) -> Iterator[Batch]:
        for batch in self.loader:
            if isinstance(batch, DataError):
                raise batch
            yield batch


class PairedLoaders:
    """Batches of several loaders, concatenated: (inputs, labels, inputs, labels, ...).

    Args:
        loaders: with the same number of batches.
    """

    def __init__(self, *loaders: Loader) -> None:
        self.loaders = loaders

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of every sampler."""
        for loader in self.loaders:
            loader.set_epoch(epoch)

    def __len__(self) -> int:
        return min(map(len, self.loaders))

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        for batches in zip(*self.loaders, strict=False):
            yield tuple(chain.from_iterable(batches))


class Decoder(Dataset["Batch | DataError"]):
    """Decodes whole batches.

    An error of a file is returned as a value: an exception of a worker process would arrive with a traceback in place
    of its message.
    """

    def __init__(self, split: FileImages, threads: int | None) -> None:
        self.split, self.threads = split, threads

    def __getitem__(self, indices: Indices) -> Batch | DataError:
        try:
            return _host_tensors(self.split.take(indices).as_arrays(threads=self.threads))
        except DataError as error:
            return error


def training_loader(
    split: Split,
    *,
    batch_size: int,
    sampler: EpochSampler,
    device: torch.device | str,
    workers: int = 0,
    seed: int = 0,
) -> Loader:
    """Batches of one size, as a sampler draws them. The last incomplete batch of an epoch is dropped.

    Args:
        split: arrays or image files; texts as ``Preparation.as_arrays`` gives them.
        batch_size: samples of a batch in this process.
        sampler: of ``equipoise.data.sampler_for``, for this process.
        device: of the batches.
        workers: processes that decode image files; 0 decodes in this one.
        seed: of the worker processes.
    """
    batch_size = check_whole("batch_size", batch_size, low=1)
    return _loader(split, TrainingOrder(sampler, batch_size), device, workers, seed)


def evaluation_loader(
    split: Split,
    *,
    batch_size: int,
    device: torch.device | str,
    workers: int = 0,
    rank: int = 0,
    world_size: int = 1,
) -> Loader:
    """Every sample once over all processes, which have the same number of batches; ``indices`` are those of this one.

    Args:
        split: arrays or image files; texts as ``Preparation.as_arrays`` gives them.
        batch_size: samples of a batch in this process, at most.
        device: of the batches.
        workers: processes that decode image files; 0 decodes in this one.
        rank: number of this process.
        world_size: number of processes.
    """
    batch_size = check_whole("batch_size", batch_size, low=1)
    return _loader(split, EvaluationOrder(len(split), batch_size, rank, world_size), device, workers, 0)


def fits(needed: int, free: float) -> bool:
    """Whether a split of ``needed`` bytes may be moved to a device with ``free`` bytes.

    >>> fits(2 * 10**9, free=80 * 10**9), fits(30 * 10**9, free=80 * 10**9)
    (True, False)
    """
    return needed <= SHARE * free


def labels_for_sampling(split: Split, task: Task, *, ignore_index: int = -100) -> NDArray[Any]:
    """Labels for a sampler: class indices (N,), or the classes of each sample (N, C), of label maps those that occur.

    Samples whose only label is ``ignore_index`` have no class.
    """
    labels = split.labels
    if task.multilabel or labels.ndim == 2:
        return labels
    values = labels.reshape(len(labels), -1)
    counted = values != ignore_index
    if labels.ndim == 1 and counted.all():
        return labels
    present = np.zeros((len(labels), int(values.max(initial=0, where=counted)) + 1), np.int8)
    for row, own, valid in zip(present, values, counted, strict=True):
        row[own[valid]] = 1
    return present


def _loader(split: Split, order: Order, device: torch.device | str, workers: int, seed: int) -> Loader:
    where = _with_index(torch.device(device))
    if isinstance(split, FileImages):
        return DecodingLoader(split, order, where, workers, seed)
    if not isinstance(split, Arrays):
        raise TypeError(f"split must be arrays or image files, got {type(split).__name__}; encode texts first")
    resident = _resident(split, where)
    return HostLoader(_host_tensors(split), order, where) if resident is None else DeviceLoader(resident, order, where)


_RESIDENT: WeakKeyDictionary[Arrays, dict[torch.device, Batch]] = WeakKeyDictionary()
"""Splits on devices, as long as they are referenced: all loaders of a split share one copy."""


def _resident(split: Arrays, device: torch.device) -> Batch | None:
    """The split on a device; None if it does not fit."""
    moved = _RESIDENT.setdefault(split, {})
    if device not in moved:
        inputs, labels = _host_tensors(split)
        if not fits(inputs.nbytes + labels.nbytes, _free_memory(device)):
            return None
        moved[device] = inputs.to(device), labels.to(device)
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # runs on other streams read them, too
    return moved[device]


def _free_memory(device: torch.device) -> float:
    """Free bytes: unlimited on the host, which has the arrays already; unknown, 0, on devices other than CUDA."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return math.inf if device.type == "cpu" else 0


def _with_index(device: torch.device) -> torch.device:
    """``cuda`` as ``cuda:0``, so that equal devices are equal."""
    return torch.device("cuda", torch.cuda.current_device()) if device == torch.device("cuda") else device


def _host_tensors(split: Arrays) -> Batch:
    """Inputs and labels in small types, without a copy if they have them already."""
    inputs, labels = split.inputs, split.labels
    kept = "float32" if inputs.dtype.kind == "f" else inputs.dtype.name
    if labels.ndim == 1:
        return _tensor(inputs, kept), _tensor(labels, "int64")
    if labels.ndim == 2:
        return _tensor(inputs, kept), _tensor(labels, "float32" if labels.dtype.kind == "f" else "int8")
    return _tensor(inputs, kept), _tensor(labels, MAP_TYPES.get(labels.dtype.name, labels.dtype.name))


MAP_TYPES = {"bool": "uint8", "uint16": "int32", "uint32": "int64", "uint64": "int64"}
"""Types of label maps with limited support in torch, and types that hold their values."""


def _tensor(array: NDArray[Any], dtype: str) -> Tensor:
    """A tensor that shares the memory of the array if torch can read it."""
    return torch.from_numpy(np.require(array, dtype, ["C", "W"]))


def _targets(labels: Tensor) -> Tensor:
    """Labels for losses: int64, so that every ``ignore_index`` fits, or float32 for multi-label targets."""
    return labels.float() if labels.ndim == 2 else labels.long()


def _as_it_is(batch: Any) -> Any:  # noqa: ANN401  (what torch expects of a collate_fn)
    return batch


def _sent(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """Batches of the host on the device; a GPU prefetches the next one."""
    if device.type != "cuda":
        for inputs, labels in batches:
            yield inputs.to(device), _targets(labels.to(device))
        return
    stream = _copying_stream(device)
    before: tuple[Batch, torch.cuda.Event] | None = None
    for inputs, labels in batches:
        with torch.cuda.stream(stream):
            sent = inputs.to(device, non_blocking=True), labels.to(device, non_blocking=True)
            arrived = stream.record_event()
        if before is not None:
            yield _received(*before, device)
        before = sent, arrived
    if before is not None:
        yield _received(*before, device)


@cache
def _copying_stream(device: torch.device) -> torch.cuda.Stream:
    """One stream for all loaders of a device: memory is cached per stream, and new streams would accumulate."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _received(batch: Batch, arrived: torch.cuda.Event, device: torch.device) -> Batch:
    """The batch for the current stream, which waits for the copy and keeps the memory while it is used."""
    current = torch.cuda.current_stream(device)
    current.wait_event(arrived)
    for tensor in batch:
        tensor.record_stream(current)
    inputs, labels = batch
    return inputs, _targets(labels)
