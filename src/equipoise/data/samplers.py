r"""Samplers that control the frequency of each class, with any number of processes.

Every process draws the whole epoch from the same seed and takes its part; the parts are disjoint and equally long. Call
``set_epoch(e)`` before each epoch.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch.distributed
from numpy.typing import NDArray
from torch.utils.data import Sampler

from equipoise._checks import check_number, check_whole

__all__ = ["SAMPLERS", "ClassSampler", "DeferredSampler", "EpochSampler", "RepeatFactorSampler", "sampler_for"]


class EpochSampler(Sampler[int], ABC):
    """A sampler whose epochs depend on the seed and the epoch only, distributed among processes.

    Args:
        length: number of indices per epoch over all processes, None if it changes with the epoch.
        seed: random seed.
        rank: rank of this process, None for that of ``torch.distributed``.
        world_size: number of processes, None for that of ``torch.distributed``.
    """

    samples: int | None = None
    """Number of samples in the data, if known."""

    def __init__(self, length: int, *, seed: int, rank: int | None, world_size: int | None) -> None:
        running = torch.distributed.is_available() and torch.distributed.is_initialized()
        self.rank = rank if rank is not None else torch.distributed.get_rank() if running else 0
        self.world_size = world_size if world_size is not None else torch.distributed.get_world_size() if running else 1
        if not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"rank must be in [0, world_size), got rank {self.rank} of {self.world_size}; omit both under "
                "torch.distributed"
            )
        self.length, self.seed, self.epoch = length, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, counted from 0."""
        self.epoch = int(epoch)

    @abstractmethod
    def draw(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """Indices of the whole epoch, in order."""

    def __iter__(self) -> Iterator[int]:
        indices = self.draw(np.random.default_rng([self.seed, self.epoch]))
        size = len(self) * self.world_size
        indices = np.resize(indices, size) if len(indices) < size else indices[:size]  # equal length for all processes
        yield from indices[self.rank :: self.world_size].tolist()

    def __len__(self) -> int:
        return math.ceil(self.length / self.world_size)


class ClassSampler(EpochSampler):
    r"""Each class with probability :math:`\propto n_c^q`, its samples in turn.

    q = 1 keeps the distribution of the data, 1/2 is the square root, 0 balanced classes (Kang et al. 2020), -1 the
    reversed sampler of Zhou et al. 2020. With ``epochs`` the probabilities change over the training from those of q = 1
    to those of q (progressively balanced, Kang et al. 2020).

    The number of samples of each class in an epoch matches its probability to within one, and no sample of a class is
    repeated before all of them were drawn once.

    Args:
        labels: (N,) class indices, or (N, C) of 0 and 1: a multi-label sample is drawn for any of its labels.
        power: q.
        epochs: number of epochs over which the probabilities move; None for no movement.
        length: samples of an epoch over all processes, None for N.
        seed: random seed.
        rank: rank of this process, None for that of ``torch.distributed``.
        world_size: number of processes, None for that of ``torch.distributed``.

    >>> sampler = ClassSampler([0, 0, 0, 0, 0, 0, 1, 1], power=0.0)
    >>> sorted([0, 0, 0, 0, 0, 0, 1, 1][i] for i in sampler)
    [0, 0, 0, 0, 1, 1, 1, 1]
    """

    def __init__(
        self,
        labels: Sequence[int] | NDArray[Any],
        *,
        power: float = 0.0,
        epochs: int | None = None,
        length: int | None = None,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        self.members = _members(labels)
        self.samples = len(labels)
        super().__init__(len(labels) if length is None else length, seed=seed, rank=rank, world_size=world_size)
        self.power = check_number("power", power)
        self.epochs = None if epochs is None else check_whole("epochs", epochs, low=1)

    def probabilities(self) -> NDArray[np.float64]:
        """Probability of each class in this epoch, (C,); 0 for a class without samples."""
        counts = np.array([len(own) for own in self.members], dtype=np.float64)
        present = counts > 0
        target = np.zeros_like(counts)
        target[present] = counts[present] ** self.power
        target /= target.sum()
        if self.epochs is None:
            return target
        moved = min(self.epoch / max(self.epochs - 1, 1), 1.0)
        mixed: NDArray[np.float64] = (1.0 - moved) * counts / counts.sum() + moved * target
        return mixed

    def draw(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """Indices of the whole epoch."""
        ends = np.cumsum(self.probabilities()) * self.length
        # systematic sampling: integers whose means are exactly the expected counts
        quotas = np.diff(np.floor(np.concatenate([[0.0], ends]) + generator.random())).astype(np.int64)
        quotas[np.argmax(quotas)] += self.length - quotas.sum()
        drawn = [_in_turn(own, quota, generator) for own, quota in zip(self.members, quotas, strict=True) if quota]
        return generator.permutation(np.concatenate(drawn))


class RepeatFactorSampler(EpochSampler):
    r"""Repeat samples of rare classes (Gupta et al. 2019).

    A sample is repeated :math:`r_i = \max_{c \in i} \max(1, \sqrt{t / f_c})` times, f_c the fraction of samples with
    class c; fractions are rounded at random in each epoch. The length is the mean over epochs.

    Args:
        labels: (N,) class indices, or (N, C) of 0 and 1.
        threshold: t, the fraction below which classes are repeated.
        seed: random seed.
        rank: rank of this process, None for that of ``torch.distributed``.
        world_size: number of processes, None for that of ``torch.distributed``.

    >>> len(RepeatFactorSampler([0] * 99 + [1], threshold=0.04))
    101
    """

    def __init__(
        self,
        labels: Sequence[int] | NDArray[Any],
        *,
        threshold: float = 0.001,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        check_number("threshold", threshold, low=0.0, high=1.0, open_low=True)
        self.factors = np.ones(len(labels))
        for own in _members(labels):
            if len(own):
                factor = max(1.0, math.sqrt(threshold * len(labels) / len(own)))
                self.factors[own] = np.maximum(self.factors[own], factor)
        self.samples = len(labels)
        super().__init__(round(self.factors.sum()), seed=seed, rank=rank, world_size=world_size)

    def draw(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """Indices of the whole epoch."""
        # systematic rounding: floor or ceil of each factor, with a constant sum
        ends = np.cumsum(self.factors[(order := generator.permutation(len(self.factors)))])
        times = np.diff(np.floor(np.concatenate([[0.0], ends]) + generator.random())).astype(np.int64)
        indices = np.repeat(order, times)
        return generator.permutation(np.resize(indices, self.length))


class DeferredSampler(EpochSampler):
    """Deferred re-sampling (DRS, Cao et al. 2019): switch to another sampler at ``start``.

    All epochs have the length and the seed of ``before``.

    Args:
        before: sampler of the first epochs, ``sampler_for("none", labels)`` for the original distribution.
        after: sampler of the last epochs, of the same process.
        epochs: number of epochs of the training.
        start: fraction of the training at which ``after`` starts, as in ``equipoise.weights.Deferred``.

    >>> labels = [0, 0, 0, 0, 0, 0, 1, 1]
    >>> sampler = DeferredSampler(sampler_for("none", labels), sampler_for("balanced", labels), epochs=200)
    >>> sampler.set_epoch(159)
    >>> sorted(labels[i] for i in sampler)
    [0, 0, 0, 0, 0, 0, 1, 1]
    >>> sampler.set_epoch(160)
    >>> sorted(labels[i] for i in sampler)
    [0, 0, 0, 0, 1, 1, 1, 1]
    """

    def __init__(self, before: EpochSampler, after: EpochSampler, *, epochs: int, start: float = 0.8) -> None:
        epochs = check_whole("epochs", epochs, low=1)
        check_number("start", start, low=0.0, high=1.0)
        for name, sampler in (("before", before), ("after", after)):
            if not isinstance(sampler, EpochSampler):
                raise TypeError(
                    f"{name} must be a sampler of equipoise.data, got {type(sampler).__name__}; pass e.g. "
                    'sampler_for("balanced", labels)'
                )
        if None not in (before.samples, after.samples) and before.samples != after.samples:
            raise ValueError(
                f"before and after must draw from the same samples, got {before.samples} and {after.samples} samples; "
                "create both with the labels of the training data"
            )
        if (before.rank, before.world_size) != (after.rank, after.world_size):
            raise ValueError(
                "before and after must belong to the same process, got rank "
                f"{before.rank} of {before.world_size} and {after.rank} of {after.world_size}; give both the same rank "
                "and world_size"
            )
        super().__init__(before.length, seed=before.seed, rank=before.rank, world_size=before.world_size)
        self.before, self.after, self.epochs, self.start = before, after, epochs, start
        self.samples = before.samples

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, counted from 0."""
        super().set_epoch(epoch)
        self.before.set_epoch(epoch)
        self.after.set_epoch(epoch)

    def draw(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """Indices of the whole epoch."""
        started = self.epoch / self.epochs >= self.start
        return (self.after if started else self.before).draw(generator)


SAMPLERS = ("none", "balanced", "square-root", "progressive", "reversed", "repeat-factor")
"""Names accepted by ``sampler_for``."""


def sampler_for(
    name: str,
    labels: Sequence[int] | NDArray[Any],
    *,
    epochs: int | None = None,
    seed: int = 0,
    rank: int | None = None,
    world_size: int | None = None,
    length: int | None = None,
) -> EpochSampler:
    """The sampler of that name; ``"none"`` shuffles only, ``"progressive"`` requires ``epochs``.

    ``length`` is the number of samples of an epoch; None for all samples once. ``"repeat-factor"`` has its own.
    """
    options: dict[str, Any] = {"seed": seed, "rank": rank, "world_size": world_size}
    if name == "repeat-factor":
        return RepeatFactorSampler(labels, **options)
    options["length"] = length
    if name == "none":  # a single class: all samples are drawn equally often, whatever their number of labels
        return ClassSampler(np.zeros(len(labels), np.int64), **options)
    powers = {"balanced": 0.0, "square-root": 0.5, "reversed": -1.0}
    if name in powers:
        return ClassSampler(labels, power=powers[name], **options)
    if name == "progressive":
        if epochs is None:
            raise ValueError("epochs must be the number of epochs for the progressive sampler, got None; pass it")
        return ClassSampler(labels, power=0.0, epochs=epochs, **options)
    raise ValueError(f"sampler must be one of {', '.join(SAMPLERS)}, got {name!r}; choose one of these names")


def _members(labels: Sequence[int] | NDArray[Any]) -> list[NDArray[np.int64]]:
    """Indices of the samples of each class."""
    array = np.asarray(labels)
    if array.ndim not in (1, 2) or not len(array) or array.dtype.kind not in "iub":
        raise ValueError(
            "labels must be integers, (N,) class indices or (N, C) of 0 and 1, with at least one sample, got "
            f"{array.dtype} of shape {array.shape}; pass the labels of the training data"
        )
    if array.ndim == 2:
        return [np.flatnonzero(column == 1) for column in array.T]
    if array.min() < 0:
        raise ValueError(f"labels must not be negative, got {array.min()}; remove ignored samples")
    order = np.argsort(array, kind="stable")
    return np.split(order, np.cumsum(np.bincount(array))[:-1])


def _in_turn(own: NDArray[np.int64], quota: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw as many indices as the quota, without repeating any before all were drawn."""
    rounds = -(-quota // len(own))
    return np.concatenate([generator.permutation(own) for _ in range(rounds)])[:quota]
