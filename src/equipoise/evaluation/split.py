"""Random splits into a part to fit on and a part to evaluate on, the same each time a file is read."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from equipoise.calibration import Fitted, logits_from_probs
from equipoise.predictions import Predictions
from equipoise.predictions.source import Array

__all__ = ["FitRows", "FitSplit", "RowCollector", "SplitChunk", "cross_fit", "try_fit"]

FIT_SCORES = 20_000_000
"""Maximum number of scores for a fit; more would hardly change it."""
HALVES, ROWS = 1, 2
"""Streams of random numbers. ``default_rng(seed)`` itself may have generated the data, and a split by the same numbers
could depend on the labels."""

F = TypeVar("F", bound=Fitted)
FitRows = tuple[Tensor, Tensor]
"""Logits and targets of a fit."""


class SplitChunk(NamedTuple):
    """Some samples: scores, their logits, targets, and which samples belong to the first part.

    ``rounded`` and ``others`` are as in :class:`~equipoise.predictions.Chunk`.
    """

    scores: Tensor
    logits: Tensor
    targets: Tensor
    first: Tensor
    rounded: int = 0
    others: Any = None


@dataclass(frozen=True)
class FitSplit:
    """A file whose samples belong to the first part with probability ``share``, otherwise to the second."""

    source: Predictions
    seed: int
    share: float = 0.5
    progress: Callable[[int], None] = lambda samples: None

    def parts(self) -> Iterator[SplitChunk]:
        """All samples, in chunks."""
        draw = np.random.default_rng((self.seed, HALVES))
        for chunk in self.source.chunks():
            scores, targets = _tensors(chunk.scores, chunk.targets)
            first = torch.from_numpy(draw.random(len(scores)) < self.share)
            yield SplitChunk(scores, self._logits(scores), targets, first, chunk.rounded, chunk.others)
            self.progress(len(scores))

    def rows(self, *sides: bool) -> list[FitRows]:
        """Rows for fits on these parts, True for the first; reads the file once."""
        collectors = [RowCollector(self, side) for side in sides]
        for part in self.parts():
            for rows in collectors:
                rows.add(part)
        return [rows.finish() for rows in collectors]

    def _logits(self, scores: Tensor) -> Tensor:
        if self.source.from_logits:
            return scores
        return logits_from_probs(scores, task=self.source.task)


class RowCollector:
    """Gathers the rows of one part for a fit, at most ``FIT_SCORES`` scores."""

    def __init__(self, split: FitSplit, first: bool) -> None:
        source = split.source
        share = split.share if first else 1 - split.share
        expected = (source.samples or 0) * source.places * source.num_classes * share
        self.keep = min(1.0, FIT_SCORES / expected) if expected else 1.0
        self.first, self.draw = first, np.random.default_rng((split.seed, ROWS))
        self.kept: list[FitRows] = []

    def add(self, part: SplitChunk) -> None:
        """Add the samples of a chunk that belong to the part."""
        members = part.first == self.first
        logits, targets = part.logits[members], part.targets[members]
        if logits.ndim > 2:
            logits, targets = logits.movedim(1, -1).flatten(0, -2), targets.flatten()
        if self.keep < 1.0:
            sampled = torch.from_numpy(self.draw.random(len(logits)) < self.keep)
            logits, targets = logits[sampled], targets[sampled]
        self.kept.append((logits, targets))

    def finish(self) -> FitRows:
        """All collected rows."""
        logits, targets = (torch.cat(parts) for parts in zip(*self.kept, strict=True))
        return logits, targets


def try_fit(fit: Callable[..., F], rows: FitRows, **options: Any) -> tuple[F | None, str]:  # noqa: ANN401
    """A fit with its note, which replaces its warnings; or None with the reason why these rows cannot be fitted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            fitted = fit(*rows, **options)
        except ValueError as error:
            return None, str(error)
    return fitted, fitted.note


def cross_fit(
    fit: Callable[..., F],
    halves: Sequence[FitRows],
    **options: Any,  # noqa: ANN401
) -> list[tuple[F | None, str]]:
    """For each of two halves the result of :func:`try_fit` on the other half."""
    if not all(len(logits) for logits, _ in halves):  # halves are random: with very few samples one may be empty
        return [(None, "it is fitted on one half of the samples for the other, and one half has none")] * 2
    return [try_fit(fit, rows, **options) for rows in reversed(halves)]


def _tensors(scores: Array, targets: Array) -> tuple[Tensor, Tensor]:
    """Arrays as tensors of types that the metrics support, in native byte order; copies, not views of a file."""
    wide = scores.astype(np.float32 if scores.dtype.itemsize <= 4 else np.float64)
    return torch.from_numpy(wide), torch.from_numpy(targets.astype(np.int64))
