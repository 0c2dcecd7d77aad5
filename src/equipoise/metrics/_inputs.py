"""Inputs of metrics: scores and targets, checked and split into blocks to keep temporaries small.

Scores are (N, C, d1, ..., dk), the classes or labels in dimension 1. A block is a few samples, or some locations of one
sample, as (n, C) or (n, C, p). float16 and bfloat16 are read as float32. Ignored elements are masked rather than
removed, so that nothing waits for a device.

Logits may be infinite: -inf is a probability of 0, as for a masked class, and +inf of a label is 1. NaN, +inf before a
softmax and rows with all classes masked raise an error; ignored elements may hold any values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise._checks import FLOATS, check_sigmoid_targets, check_softmax_targets, checks_values

__all__: list[str] = []

BLOCK = 2**20
"""Scores per block on the CPU: small enough for the cache, large enough for several threads."""
DEVICE_BLOCK = 2**25
"""Scores per block on other devices: large enough to use them fully."""


class ClassBlock(NamedTuple):
    """Scores (n, C[, p]) with labels and validity (n[, p]); ignored labels are 0."""

    scores: Tensor
    labels: Tensor
    valid: Tensor


class LabelBlock(NamedTuple):
    """Scores (n, L[, p]) with masks of positive and of known labels, in the shape of the scores."""

    scores: Tensor
    positive: Tensor
    known: Tensor


def class_blocks(
    scores: Tensor, targets: Tensor, *, from_logits: bool, ignore_index: int, validate: bool = False
) -> Iterator[ClassBlock]:
    """Check single-label input and iterate over its blocks."""
    check_scores(scores)
    scores = scores.detach()
    if targets.is_floating_point():
        raise TypeError(
            f"targets must be integer class indices of shape {(scores.shape[0], *scores.shape[2:])}, got "
            f"{targets.dtype}; call targets.long(), or targets.argmax(1) for distributions"
        )
    check_softmax_targets(scores, targets, ignore_index, validate)
    for block, labels in cut(scores, targets):
        labels = labels.long()
        valid = labels != ignore_index
        check_values(block, valid.unsqueeze(1), from_logits, True, validate)
        yield ClassBlock(block, labels.where(valid, 0), valid)


def label_blocks(
    scores: Tensor, targets: Tensor, *, from_logits: bool, ignore_value: int, validate: bool = False
) -> Iterator[LabelBlock]:
    """Check multi-label input and iterate over its blocks."""
    check_scores(scores)
    scores = scores.detach()
    may_be_unknown = check_sigmoid_targets(scores, targets, ignore_value, validate)
    for block, given in cut(scores, targets):
        positive = given == 1
        known = given != ignore_value if may_be_unknown else torch.ones_like(positive)
        check_values(block, known, from_logits, False, validate)
        if checks_values(given, validate) and not bool((positive | (given == 0) | ~known).all()):
            soft = given[~positive & (given != 0) & known]
            raise ValueError(
                f"targets must be 0, 1 or ignore_value={ignore_value}, got {float(soft[0]):g}; metrics count labels, "
                "round soft ones first"
            )
        yield LabelBlock(block, positive & known, known)


def check_scores(scores: Tensor) -> None:
    """Raise unless scores are floating-point with classes in dimension 1."""
    if scores.dtype not in FLOATS:
        raise TypeError(
            f"scores must be float16, bfloat16, float32 or float64, got {scores.dtype}; pass logits, or probabilities "
            "with from_logits=False"
        )
    if scores.ndim < 2 or scores.shape[1] == 0:
        raise ValueError(
            f"scores must have shape (N, C, d1, ..., dk) with at least one class, got {tuple(scores.shape)}; "
            "put the classes in dimension 1"
        )


def check_classes(scores: Tensor, expected: int, name: str) -> None:
    """Raise unless dimension 1 of the scores has the size given by an argument."""
    if scores.ndim > 1 and scores.shape[1] != expected:
        raise ValueError(
            f"scores must have {expected} entries in dimension 1, as {name} says, got shape {tuple(scores.shape)}; "
            f"check the outputs of the model or {name}"
        )


def check_groups(groups: Sequence[int] | Tensor) -> Tensor:
    """Group indices as a tensor (C,) of int64; raise if invalid."""
    try:
        numbers = torch.as_tensor(groups)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"groups must be one group index from 0 per class, shape (C,), got {groups!r}; "
            "pass e.g. shot_groups(train_counts), in which 0 is many, 1 medium and 2 few"
        ) from error
    if numbers.ndim != 1 or not len(numbers) or numbers.is_floating_point() or bool((numbers < 0).any()):
        raise ValueError(
            "groups must be one group index from 0 per class, shape (C,), got "
            f"{numbers.dtype} of shape {tuple(numbers.shape)} with values {numbers.flatten().tolist()[:8]}; "
            "pass e.g. shot_groups(train_counts) or torch.arange(C)"
        )
    return numbers.long().clone()


def check_values(block: Tensor, counted: Tensor, from_logits: bool, one_label: bool, validate: bool) -> None:
    """Raise if ``counted`` elements are not valid logits or probabilities, or rows of them (``one_label``)."""
    if not checks_values(block, validate) or not block.numel():
        return
    if from_logits:
        if not math.isfinite(float(block.sum())):  # a sum detects NaN and infinity; it may also overflow
            _check_logits(block, counted, one_label)
        return
    low, high = (float(bound) for bound in block.aminmax())
    if not (low >= 0.0 and high <= 1.0):  # check again without ignored elements
        low, high = (float(bound) for bound in block.where(counted, 0.0).aminmax())
    if not (low >= 0.0 and high <= 1.0):
        raise ValueError(
            f"scores must be probabilities in [0, 1] with from_logits=False, got values from {low:g} to {high:g}; "
            "pass logits with from_logits=True, or apply softmax or sigmoid"
        )
    if one_label:
        sums = block.sum(1, keepdim=True).where(counted, 1.0)
        off = (sums - 1).abs().argmax()
        if abs(float(sums.flatten()[off]) - 1) > 1e-2:  # tolerance for probabilities rounded to bfloat16
            raise ValueError(
                f"scores must be probabilities that sum to 1 over dimension 1, got a sum of "
                f"{float(sums.flatten()[off]):g}; normalise them, or use a multi-label metric"
            )


def _check_logits(block: Tensor, counted: Tensor, one_label: bool) -> None:
    """Raise for NaN and, before a softmax, for +inf and rows of -inf."""
    wrong = counted & (block.isnan() | (block == torch.inf) if one_label else block.isnan())
    if bool(wrong.any()):
        allowed = "-inf for a masked class" if one_label else "-inf and inf for probabilities of 0 and 1"
        raise ValueError(
            f"scores must be finite, or {allowed}, got {float(block[wrong][0]):g}; look for a division by zero or an "
            "overflow"
        )
    if one_label and bool((counted & (block.amax(1, keepdim=True) == -torch.inf)).any()):
        raise ValueError(
            f"scores must have a class that is not masked in every row, got {block.shape[1]} that are all -inf; "
            "unmask the true class, or give the row the ignored target"
        )


def cut(scores: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Blocks of scores and targets; targets may have a class dimension or not."""
    by_class = targets.ndim == scores.ndim
    size = BLOCK if scores.device.type == "cpu" else DEVICE_BLOCK
    for samples in _samples(scores, size):
        block, given = scores[samples], targets[samples]
        if scores.ndim > 2:  # samples before locations, so that a copy of strided memory is limited to one sample
            block, given = block.flatten(2), given.flatten(2 if by_class else 1)
        for places in _places(block, size):
            part = block[places]
            if part.dtype in (torch.float16, torch.bfloat16):
                part = part.float()
            yield part, given[places if by_class or block.ndim == 2 else places[:1] + places[2:]]


def _samples(scores: Tensor, size: int) -> Iterator[slice]:
    """Slices of samples, at least one."""
    each = scores[:1].numel()
    step = max(1, size // max(1, each))
    return (slice(start, start + step) for start in range(0, len(scores) if each else 0, step))


def _places(block: Tensor, size: int) -> Iterator[tuple[slice, ...]]:
    """A whole block (n, C[, p]), or slices of locations if it is too large."""
    if block.ndim == 2:
        return iter([(slice(None),)])
    step = max(1, size // (len(block) * block.shape[1])) if block.numel() > size else block.shape[2]
    return ((slice(None), slice(None), slice(at, at + step)) for at in range(0, block.shape[2], step))


# ------------------------------------------------------------------------------------------------------- arithmetic


def tally(slots: Tensor, size: int, weight: Tensor | None = None) -> Tensor:
    """Count, or sum of ``weight`` in float64, for each slot in [0, size); (size,) int64 or float64."""
    slots = slots.flatten()
    if slots.device.type == "cpu":
        return torch.bincount(slots, None if weight is None else weight.flatten().double(), size)
    if weight is None:
        return tally_into(torch.zeros(size, dtype=torch.int64, device=slots.device), slots)
    sums = torch.zeros(size, dtype=torch.float64, device=slots.device)
    return sums.scatter_add_(0, slots, weight.flatten().double())


def tally_into(counts: Tensor, slots: Tensor) -> Tensor:
    """Add the count of each slot to ``counts`` (size,), in place and without waiting for a device."""
    slots = slots.flatten()
    return counts.scatter_add_(0, slots, torch.ones_like(slots))


def predictions(scores: Tensor) -> Tensor:
    """Index of the largest score in dimension 1, the first in a tie; (n[, p])."""
    if scores.ndim == 2 or scores.device.type != "cpu" or scores.numel() == 0:
        return scores.argmax(1)
    # the same, several times as fast if the classes are not contiguous in memory: mark the largest scores by their
    # distance from the last class
    classes = scores.shape[1]
    distance = torch.arange(classes - 1, -1, -1, dtype=torch.float32).view(-1, 1)
    marks = torch.eq(scores, scores.amax(1, keepdim=True), out=torch.empty(scores.shape, dtype=torch.float32))
    return (classes - 1) - marks.mul_(distance).amax(1).long()


def top_match(scores: Tensor, labels: Tensor, from_logits: bool) -> tuple[Tensor, Tensor]:
    """Largest probability of each row, and whether the label is predicted; both (n[, p])."""
    probs = scores.softmax(1) if from_logits else scores.clone()
    column = labels.unsqueeze(1)
    true_prob = probs.gather(1, column).squeeze(1)
    others = probs.scatter_(1, column, -1.0).amax(1)
    confidence, correct = torch.maximum(true_prob, others), true_prob > others
    # if they are so close that rounding may create or break a tie, compare the scores
    close = (true_prob - others).abs() <= 1e-5 * confidence
    if scores.device.type != "cpu":
        return confidence, correct.where(~close, scores.argmax(1) == labels)
    if bool(close.any()):
        correct[close] = scores.movedim(1, -1)[close].argmax(1) == labels[close]
    return confidence, correct


def true_scores(scores: Tensor, labels: Tensor) -> Tensor:
    """The score of the true class, (n[, p])."""
    return scores.gather(1, labels.unsqueeze(1)).squeeze(1)
