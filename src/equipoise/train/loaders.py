"""Batches of a split: gathered on the device where the data fit there, otherwise sent to it one batch ahead.

A batch is (inputs, labels) on the device of the model and raw: images (n, channels, height, width) of uint8, features
(n, D) of float32, or tokens (n, length) of integers; labels are class indices (n,) of int64, several labels (n, C) of
float32 with -1 for unknown ones, or label maps (n, height, width) of int64. The data keep their smaller types until
they are on the device.

The order of a training epoch is a function of the seed and of the number of the epoch. It is asked for when the first
batch is, since Lightning makes its iterator before it says which epoch comes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain, islice
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
    "Feed",
    "Handfuls",
    "SideBySide",
    "evaluation_feed",
    "fits",
    "labels_for_sampling",
    "training_feed",
]

Batch: TypeAlias = tuple[Tensor, Tensor]
Indices: TypeAlias = NDArray[np.int64]

SHARE = 0.3
"""Of the free memory of a device, what a split may take: the rest is for the model and what it computes."""


class Order(ABC):
    """Which samples of this process come in which batch."""

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
    """What a sampler draws, in batches of one size; what is left of an epoch is left out.

    With fewer samples than a batch there is one smaller batch. The number of batches is the same in every process.
    """

    def __init__(self, sampler: EpochSampler, batch_size: int) -> None:
        super().__init__(max(1, sampler.length // (batch_size * sampler.world_size)))
        self.sampler, self.batch_size = sampler, batch_size

    def indices(self) -> Indices:
        """Samples of the epoch that the sampler is in."""
        drawn = np.fromiter(self.sampler, np.int64, len(self.sampler))
        return drawn[: self.batches * self.batch_size]


class EvaluationOrder(Order):
    """Every sample once over all processes, in as many batches of nearly one size in each of them.

    A batch holds ``batch_size`` samples at most, and one more where batches of one sample would not come out even.
    """

    def __init__(self, samples: int, batch_size: int, rank: int, world_size: int) -> None:
        if samples < world_size:
            raise DataError(
                f"a split must hold a sample for each of the {world_size} processes, found {samples}; take fewer "
                "devices or add samples"
            )
        super().__init__(min(math.ceil(math.ceil(samples / world_size) / batch_size), samples // world_size))
        self._own = np.array_split(np.arange(samples), world_size)[rank]

    def indices(self) -> Indices:
        """Samples of this process, the same in every epoch."""
        return self._own


class Feed(ABC):
    """Batches of a split on a device, once around each time it is iterated.

    Args:
        order: which samples come in which batch.
        device: where batches are wanted.
    """

    batch_sampler = None  # what Lightning looks for beside a sampler

    def __init__(self, order: Order, device: torch.device) -> None:
        self.order, self.device = order, device

    @property
    def sampler(self) -> EpochSampler | None:
        """What draws training samples; call its ``set_epoch`` before each epoch, as Lightning does. None otherwise."""
        return self.order.sampler if isinstance(self.order, TrainingOrder) else None

    @property
    def indices(self) -> Indices:
        """Where in the split the samples of this process stand, in the order of the batches."""
        return self.order.indices()

    def __len__(self) -> int:
        return len(self.order)

    @abstractmethod
    def __iter__(self) -> Iterator[Batch]:
        """Batches; the order is settled when the first is asked for."""


class ResidentFeed(Feed):
    """Arrays that lie on the device: a batch is gathered there, and nothing waits for it."""

    def __init__(self, data: Batch, order: Order, device: torch.device) -> None:
        super().__init__(order, device)
        self.data = data

    def __iter__(self) -> Iterator[Batch]:
        inputs, labels = self.data
        batches = list(self.order)
        chosen = torch.from_numpy(np.concatenate(batches))
        if self.device.type == "cuda":
            chosen = chosen.pin_memory()
        chosen = chosen.to(self.device, non_blocking=True)
        for rows in torch.split(chosen, [len(batch) for batch in batches]):
            yield inputs.index_select(0, rows), _targets(labels.index_select(0, rows))


class HostFeed(Feed):
    """Arrays that do not fit on the device: batches are gathered in the memory of the host."""

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
        """Into pinned memory at once, from which a copy to the device does not stop the host."""
        pinned = self.device.type == "cuda"
        rows_out = torch.empty((len(rows), *source.shape[1:]), dtype=source.dtype, pin_memory=pinned)
        return torch.index_select(source, 0, rows, out=rows_out)


class DecodingFeed(Feed):
    """Images that lie in files, decoded by worker processes a few batches ahead."""

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
            generator=torch.Generator().manual_seed(seed),  # otherwise every epoch draws from the generator of all
        )

    def __iter__(self) -> Iterator[Batch]:
        return _sent(self._decoded(), self.device)

    def _decoded(self) -> Iterator[Batch]:
        for batch in self.loader:
            if isinstance(batch, DataError):
                raise batch
            yield batch


class SideBySide:
    """Batches of several feeds, each pair behind the other: (inputs, labels, inputs, labels, ...).

    Args:
        feeds: of as many batches.
    """

    def __init__(self, *feeds: Feed) -> None:
        self.feeds = feeds

    @property
    def sampler(self) -> SideBySide:
        """All of them, for ``set_epoch``."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Move every sampler."""
        for feed in self.feeds:
            if feed.sampler is not None:
                feed.sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return min(map(len, self.feeds))

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        for batches in zip(*self.feeds, strict=False):
            yield tuple(chain.from_iterable(batches))


class Handfuls:
    """Several batches at a time: iterators over the next few, which are taken one after the other.

    Args:
        feed: batches.
        size: of a handful; what is left of an epoch is a smaller one.
    """

    batch_sampler = None  # what Lightning looks for beside a sampler

    def __init__(self, feed: Feed | SideBySide, size: int) -> None:
        self.feed, self.size = feed, size

    @property
    def sampler(self) -> EpochSampler | SideBySide | None:
        """That of the feed."""
        return self.feed.sampler

    def __len__(self) -> int:
        return math.ceil(len(self.feed) / self.size)

    def __iter__(self) -> Iterator[Iterator[tuple[Tensor, ...]]]:
        batches: Iterator[tuple[Tensor, ...]] = iter(self.feed)
        for _ in range(len(self)):
            yield islice(batches, self.size)


class Decoder(Dataset["Batch | DataError"]):
    """Decodes whole batches.

    What is wrong with a file comes back as a value: an exception that left a worker would arrive with the traceback of
    another process in place of its message.
    """

    def __init__(self, split: FileImages, threads: int | None) -> None:
        self.split, self.threads = split, threads

    def __getitem__(self, indices: Indices) -> Batch | DataError:
        try:
            return _host_tensors(self.split.take(indices).as_arrays(threads=self.threads))
        except DataError as error:
            return error


def training_feed(
    split: Split,
    *,
    batch_size: int,
    sampler: EpochSampler,
    device: torch.device | str,
    workers: int = 0,
    seed: int = 0,
) -> Feed:
    """Batches of one size, as a sampler draws them. What is left of an epoch is left out.

    Args:
        split: arrays or image files; texts as ``Preparation.as_arrays`` gives them.
        batch_size: samples of a batch in this process.
        sampler: of ``equipoise.data.sampler_for``; it knows the number of processes.
        device: where batches are wanted.
        workers: processes that decode image files; 0 decodes in this one.
        seed: of the worker processes.
    """
    batch_size = check_whole("batch_size", batch_size, low=1)
    return _feed(split, TrainingOrder(sampler, batch_size), device, workers, seed)


def evaluation_feed(
    split: Split,
    *,
    batch_size: int,
    device: torch.device | str,
    workers: int = 0,
    rank: int = 0,
    world_size: int = 1,
) -> Feed:
    """Every sample once over all processes, which all have as many batches; ``indices`` says which are whose.

    Args:
        split: arrays or image files; texts as ``Preparation.as_arrays`` gives them.
        batch_size: samples of a batch in this process, at most.
        device: where batches are wanted.
        workers: processes that decode image files; 0 decodes in this one.
        rank: number of this process.
        world_size: number of processes.
    """
    batch_size = check_whole("batch_size", batch_size, low=1)
    return _feed(split, EvaluationOrder(len(split), batch_size, rank, world_size), device, workers, 0)


def fits(needed: int, free: float) -> bool:
    """Whether a split of so many bytes may live on a device with so many free.

    >>> fits(2 * 10**9, free=80 * 10**9), fits(30 * 10**9, free=80 * 10**9)
    (True, False)
    """
    return needed <= SHARE * free


def labels_for_sampling(split: Split, task: Task, *, ignore_index: int = -100) -> NDArray[Any]:
    """What a sampler counts: class indices (N,), or which classes a sample has, (N, C).

    Of label maps the classes that occur. Samples whose only label is ``ignore_index`` have no class.
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


def _feed(split: Split, order: Order, device: torch.device | str, workers: int, seed: int) -> Feed:
    where = _with_index(torch.device(device))
    if isinstance(split, FileImages):
        return DecodingFeed(split, order, where, workers, seed)
    if not isinstance(split, Arrays):
        raise TypeError(f"split must be arrays or image files, got {type(split).__name__}; encode texts first")
    resident = _resident(split, where)
    return HostFeed(_host_tensors(split), order, where) if resident is None else ResidentFeed(resident, order, where)


_RESIDENT: WeakKeyDictionary[Arrays, dict[torch.device, Batch]] = WeakKeyDictionary()
"""Splits that were moved, for as long as they live: all feeds of a split share one copy."""


def _resident(split: Arrays, device: torch.device) -> Batch | None:
    """The split on a device, None where it does not fit."""
    moved = _RESIDENT.setdefault(split, {})
    if device not in moved:
        inputs, labels = _host_tensors(split)
        if not fits(inputs.nbytes + labels.nbytes, _free_memory(device)):
            return None
        moved[device] = inputs.to(device), labels.to(device)
    return moved[device]


def _free_memory(device: torch.device) -> float:
    """Bytes; the memory of the host holds the arrays already, that of other devices than CUDA's is not known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return math.inf if device.type == "cpu" else 0


def _with_index(device: torch.device) -> torch.device:
    """``cuda`` as ``cuda:0``, so that equal devices are equal."""
    return torch.device("cuda", torch.cuda.current_device()) if device == torch.device("cuda") else device


def _host_tensors(split: Arrays) -> Batch:
    """Inputs and labels in small types, without a copy where they have them already."""
    inputs, labels = split.inputs, split.labels
    kept = "float32" if inputs.dtype.kind == "f" else inputs.dtype.name
    if labels.ndim == 1:
        return _tensor(inputs, kept), _tensor(labels, "int64")
    if labels.ndim == 2:
        return _tensor(inputs, kept), _tensor(labels, "float32" if labels.dtype.kind == "f" else "int8")
    return _tensor(inputs, kept), _tensor(labels, MAP_TYPES.get(labels.dtype.name, labels.dtype.name))


MAP_TYPES = {"bool": "uint8", "uint16": "int32", "uint32": "int64", "uint64": "int64"}
"""Types of label maps that torch has little arithmetic for, and what holds their values."""


def _tensor(array: NDArray[Any], dtype: str) -> Tensor:
    """A tensor on the memory of the array, unless torch cannot read it there."""
    return torch.from_numpy(np.require(array, dtype, ["C", "W"]))


def _targets(labels: Tensor) -> Tensor:
    """Labels as losses take them: int64, so that every ``ignore_index`` fits, or float32 for several labels."""
    return labels.float() if labels.ndim == 2 else labels.long()


def _as_it_is(batch: Any) -> Any:  # noqa: ANN401  (what torch expects of a collate_fn)
    return batch


def _sent(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """Batches of the host on the device; to a GPU the next one is under way while this one is used."""
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
    """One for all feeds of a device: memory is kept for each stream, and a new one an epoch would keep ever more."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _received(batch: Batch, arrived: torch.cuda.Event, device: torch.device) -> Batch:
    """The batch for the stream that computes: it waits for the copy, and keeps the memory until it is done with it."""
    current = torch.cuda.current_stream(device)
    current.wait_event(arrived)
    for tensor in batch:
        tensor.record_stream(current)
    inputs, labels = batch
    return inputs, _targets(labels)
