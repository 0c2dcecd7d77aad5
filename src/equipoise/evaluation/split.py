"""The samples of a file in two parts, drawn by a seed, some at a time and the same at every walk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from equipoise.calibration import logits_from_probs
from equipoise.predictions import Predictions
from equipoise.predictions.source import Array

__all__ = ["Part", "Picker", "Split"]

FIT_SCORES = 20_000_000
"""Scores that a fit gets at most; more would hardly move it."""
HALVES, ROWS = 1, 2
"""Streams of draws. ``default_rng(seed)`` itself may have made the data, and a split by the same numbers would follow
the labels."""


class Part(NamedTuple):
    """Some samples: scores as they are, their logits, targets, and which samples belong to the first part.

    ``rounded`` and ``others`` are those of the :class:`~equipoise.predictions.Chunk`.
    """

    scores: Tensor
    logits: Tensor
    targets: Tensor
    first: Tensor
    rounded: int = 0
    others: Any = None


@dataclass(frozen=True)
class Split:
    """A file whose samples belong to the first part with probability ``share``, otherwise to the second."""

    source: Predictions
    seed: int
    share: float = 0.5
    progress: Callable[[int], None] = lambda samples: None

    def parts(self) -> Iterator[Part]:
        """All samples, some at a time."""
        draw = np.random.default_rng((self.seed, HALVES))
        for chunk in self.source.chunks():
            scores, targets = _tensors(chunk.scores, chunk.targets)
            first = torch.from_numpy(draw.random(len(scores)) < self.share)
            yield Part(scores, self._logits(scores), targets, first, chunk.rounded, chunk.others)
            self.progress(len(scores))

    def _logits(self, scores: Tensor) -> Tensor:
        if self.source.from_logits:
            return scores
        return logits_from_probs(scores, task=self.source.task)


class Picker:
    """Gathers the rows of one part that a fit gets."""

    def __init__(self, split: Split, first: bool) -> None:
        source = split.source
        expected = (
            (source.samples or 0) * source.places * source.num_classes * (split.share if first else 1 - split.share)
        )
        self.keep = min(1.0, FIT_SCORES / expected) if expected else 1.0
        self.first, self.draw = first, np.random.default_rng((split.seed, ROWS))
        self.kept: list[tuple[Tensor, Tensor]] = []

    def add(self, part: Part) -> None:
        """Take what belongs to the part."""
        own = part.first == self.first
        logits, targets = part.logits[own], part.targets[own]
        if logits.ndim > 2:
            logits, targets = logits.movedim(1, -1).flatten(0, -2), targets.flatten()
        if self.keep < 1.0:
            some = torch.from_numpy(self.draw.random(len(logits)) < self.keep)
            logits, targets = logits[some], targets[some]
        self.kept.append((logits, targets))

    def rows(self) -> tuple[Tensor, Tensor]:
        """All rows that were taken."""
        logits, targets = (torch.cat(parts) for parts in zip(*self.kept, strict=True))
        return logits, targets


def _tensors(scores: Array, targets: Array) -> tuple[Tensor, Tensor]:
    """Arrays as tensors of types that the metrics take, in the byte order of the machine; never views of a file."""
    wide = scores.astype(np.float32 if scores.dtype.itemsize <= 4 else np.float64)
    return torch.from_numpy(wide), torch.from_numpy(targets.astype(np.int64))
