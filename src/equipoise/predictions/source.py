"""Saved predictions of any file format, and the checks of their values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from equipoise._reading import InputError, reading
from equipoise.tasks import Task

__all__ = ["Array", "Chunk", "InputError", "Predictions", "no_targets", "resolve_task"]

Array: TypeAlias = NDArray[Any]

CHUNK_ELEMENTS = 4_000_000
"""Maximum number of scores in memory."""
EXACT = 1e-5
"""Tolerance of sums of single-precision probabilities."""
ROUNDED = 0.1
"""Maximum deviation of a sum from 1 by rounding that normalisation corrects."""
DECIMALS = range(1, 7)
"""Numbers of decimals of rounded tables."""
UNKNOWN = -1
"""Target of an unknown label (multi-label)."""


class Chunk(NamedTuple):
    """A chunk of samples: scores (n, C, d1, ..., dk) and targets (n, d1, ..., dk), or (n, C) for multi-label data."""

    scores: Array
    targets: Array
    rounded: int = 0
    """Number of rows that were normalised because of rounding."""
    others: Any = None
    """A table of the columns that are neither scores nor targets, if requested."""
    decisions: Array | None = None
    """Decisions of thresholds, for writing: bool, in the shape of the scores."""


@dataclass(frozen=True)
class Predictions:
    """Scores and targets of one file or folder.

    Args:
        path: path of the file or folder.
        task: ``"multiclass"``, ``"multilabel"`` or ``"segmentation"``.
        from_logits: whether the scores are logits; otherwise they are probabilities.
        num_classes: C.
        samples: N, or None if unknown before reading (CSV).
        read: number of samples to the chunks, in order.
        class_names: one per class; indices if the file has no names.
        train_counts: training samples per class, if the file has them.
        ignore_index: target to ignore (single-label and segmentation).
        places: d1 * ... * dk.
        labelled: False without targets; chunks then hold ignored targets.
        open_label: target of samples that belong to no class, which ``split_open`` separates.
    """

    path: Path
    task: Task
    from_logits: bool
    num_classes: int
    samples: int | None
    read: Callable[[int], Iterator[Chunk]]
    class_names: tuple[str, ...]
    train_counts: tuple[float, ...] | None = None
    ignore_index: int = -100
    places: int = 1
    labelled: bool = True
    open_label: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "task", Task(self.task))

    @property
    def named(self) -> bool:
        """Whether the classes have names."""
        return self.class_names != tuple(str(number) for number in range(self.num_classes))

    @property
    def ignoring(self) -> dict[str, Any]:
        """``ignore_index`` as a keyword argument of metrics and fits; empty for multi-label data."""
        return {} if self.task.multilabel else {"ignore_index": self.ignore_index}

    def chunks(self) -> Iterator[Chunk]:
        """All samples in order, checked, in chunks."""
        size = max(1, CHUNK_ELEMENTS // (self.num_classes * self.places))
        seen = 0
        with reading(self.path):
            for chunk in self.read(size):
                self._check(chunk, seen)
                seen += len(chunk.scores)
                yield chunk if self.from_logits else self._normalised(chunk)
        if seen == 0:
            raise InputError(f"{self.path}: there must be at least one sample, found none; check what wrote the file")

    def _check(self, chunk: Chunk, first: int) -> None:
        """Raise for invalid values."""
        scores, targets = chunk.scores, chunk.targets
        if not np.isfinite(scores).all():
            self._check_infinite(scores, targets, first)
        if not self.from_logits:
            self._check_probabilities(scores, first)
        if self.task.multilabel:
            wrong = (targets != 0) & (targets != 1) & (targets != UNKNOWN)
            if wrong.any():
                wrong_value = targets[wrong][0]
                what = (
                    f"write {UNKNOWN} for unknown"
                    if np.isnan(wrong_value)
                    else "for class indices use --task multiclass"
                )
                raise InputError(
                    f"{self.path}: targets must be 0, 1 or {UNKNOWN} (unknown) for multi-label data, found "
                    f"{wrong_value} at {_place(wrong, first)}; {what}"
                )
            return
        wrong = ((targets < 0) | (targets >= self.num_classes)) & (targets != self.ignore_index)
        if wrong.any():
            raise InputError(
                f"{self.path}: targets must be class indices from 0 to {self.num_classes - 1} or the ignored "
                f"{self.ignore_index}, found {targets[wrong][0]} at {_place(wrong, first)}; check the labels or pass "
                "--ignore-index"
            )

    def _check_infinite(self, scores: Array, targets: Array, first: int) -> None:
        """Raise for non-finite scores, except logits of probability 0 or 1 (-inf, for labels also inf)."""
        several = self.task.multilabel
        allowed = np.isinf(scores) & (several | (scores < 0)) & self.from_logits
        wrong = ~(np.isfinite(scores) | allowed)
        if wrong.any():
            masks = "-inf and inf for probabilities of 0 and 1" if several else "-inf for a masked class"
            what = f"logits must be finite, or {masks}" if self.from_logits else "probs must be finite"
            raise InputError(
                f"{self.path}: {what}, found {scores[wrong][0]} at {_place(wrong, first)}; check the model for overflow"
            )
        if several:
            return
        masked = (scores == -np.inf).all(1) & ((targets != self.ignore_index) | (not self.labelled))
        if masked.any():
            raise InputError(
                f"{self.path}: logits must have a class that is not masked in every row, found only -inf at "
                f"{_place(masked, first)}; unmask the true class, or give the row the ignored target "
                f"{self.ignore_index}"
            )

    def _normalised(self, chunk: Chunk) -> Chunk:
        """Probabilities clipped to [0, 1] after rounding; normalised to a sum of 1 for single-label data."""
        scores = chunk.scores.clip(0.0, 1.0)
        if self.task.multilabel:
            return chunk._replace(scores=scores)
        sums = scores.sum(1, dtype=np.float64, keepdims=True)
        off = np.abs(sums - 1.0) > EXACT
        if not off.any():
            return chunk._replace(scores=scores)
        return chunk._replace(scores=(scores / np.where(off, sums, 1.0)).astype(scores.dtype), rounded=int(off.sum()))

    def _check_probabilities(self, scores: Array, first: int) -> None:
        slack = 1e-2 if scores.dtype == np.float16 else 1e-3
        outside = (scores < -slack) | (scores > 1.0 + slack)
        if outside.any():
            raise InputError(
                f"{self.path}: probs must be between 0 and 1, found {scores[outside][0]:g} at "
                f"{_place(outside, first)}; call the array logits if that is what they are"
            )
        if self.task.multilabel:
            return
        sums = scores.sum(1, dtype=np.float64)
        off = np.abs(sums - 1.0) > slack
        if off.any():
            explained = self.num_classes * _rounding(scores)
            off = np.abs(sums - 1.0) > max(slack, min(explained, ROUNDED))
        if off.any():
            what = (
                "they look rounded: save them with more decimals, or what is left of them as "
                "probs / probs.sum(1, keepdims=True)"
                if np.abs(sums - 1.0).max() <= explained
                else "apply the softmax first, or use --task multilabel for independent labels"
            )
            raise InputError(
                f"{self.path}: probs must sum to 1 over the classes, found {sums[off][0]:g} at {_place(off, first)}; "
                f"{what}"
            )


def _rounding(scores: Array) -> float:
    """Maximum rounding error of a score written with this number of decimals; 0 if not rounded."""
    for decimals in DECIMALS:
        units = scores.astype(np.float64) * 10.0**decimals
        if (np.abs(units - units.round()) <= 10.0**decimals * np.finfo(scores.dtype).eps).all():
            return 0.5 * 10.0**-decimals + 1e-9  # sums have rounding errors, too
    return 0.0


def _place(wrong: Array, first: int) -> str:
    """Description of the first location where ``wrong`` holds."""
    index = [int(i) for i in np.argwhere(wrong)[0]]
    index[0] += first
    return f"sample {index[0]}" + (f", position {tuple(index[1:])}" if index[1:] else "")


def no_targets(scores: Array, task: Task, ignore_index: int) -> Array:
    """Ignored targets, for scores without targets."""
    if task.multilabel:
        return np.full(scores.shape, UNKNOWN, np.int64)
    return np.full((scores.shape[0], *scores.shape[2:]), ignore_index, np.int64)


def resolve_task(path: Path, scores: tuple[int, ...], targets: tuple[int, ...], wanted: Task | None) -> Task:
    """The task inferred from the shapes, or the requested one; raise if they do not match."""
    shapes = f"scores {scores} and targets {targets}"
    if len(scores) < 2:
        raise InputError(
            f"{path}: scores must be (N, C) or (N, C, d1, ..., dk), found {scores}; for one binary label store them as "
            "(N, 1) with targets (N, 1) and --task multilabel"
        )
    if scores[0] != targets[0] if targets else True:
        raise InputError(f"{path}: scores and targets must have as many samples, found {shapes}; check what wrote them")
    index_shape = (scores[0], *scores[2:])
    fits: dict[Task, bool] = {
        Task.MULTICLASS: targets == index_shape and len(scores) == 2,
        Task.MULTILABEL: targets == scores and len(scores) == 2,
        Task.SEGMENTATION: targets == index_shape and len(scores) > 2,
    }
    if wanted is not None:
        if not fits[wanted]:
            expected = f"{scores}" if wanted.multilabel else f"{index_shape}"
            raise InputError(f"{path}: --task {wanted} needs targets of shape {expected}, found {shapes}; check both")
        return wanted
    matching = [task for task, fit in fits.items() if fit]
    if len(matching) != 1:
        raise InputError(
            f"{path}: the shapes tell no task, found {shapes}; expected targets (N,) for single-label data, (N, C) "
            "for several, (N, d1, ..., dk) for segmentation with scores (N, C, d1, ..., dk)"
        )
    return matching[0]
