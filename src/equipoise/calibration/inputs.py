"""Inputs of fits: logits and targets, checked, flattened to rows, in float64.

A logit of -inf is a probability of 0, as for a masked class; +inf of a label is a probability of 1. No fit changes
such a probability, and its likelihood is 1 or 0 for any parameters: fits by likelihood ignore it, and ignore a target
that contradicts it, with a note. NaN, +inf before a softmax and rows with all classes masked raise an error; ignored
rows and labels may hold any values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise._checks import (
    check_number,
    check_sigmoid_targets,
    check_softmax_targets,
    warn_of_probabilities,
)
from equipoise.calibration.fitted import check_shape
from equipoise.tasks import Task, check_binary

__all__ = ["logits_from_probs"]

# Elements of a block: large enough to keep the vector units busy, small enough for its temporaries to stay cheap.
BLOCK = 1 << 20

USE_LOGITS = "pass logits_from_probs(probs) of equipoise.calibration"
CHECK_MODEL = "check the model, and use logits_from_probs for probabilities"

LEAST = 1e-12
"""Substitute for probability 0 when its logarithm must be finite."""


class SingleRows(NamedTuple):
    """Valid rows of a softmax."""

    logits: Tensor  # (R, C) float64
    labels: Tensor  # (R,) int64
    note: str = ""


class MultiRows(NamedTuple):
    """Rows of a multi-label problem."""

    logits: Tensor  # (R, K) float64
    positive: Tensor  # (R, K) bool
    known: Tensor  # (R, K) bool
    note: str = ""


def single_rows(logits: Tensor, targets: Tensor, ignore_index: int, *, likelihood: bool = False) -> SingleRows:
    """Logits (N, C, d1, ..., dk) and class indices (N, d1, ..., dk) as rows, without those of ``ignore_index``.

    With ``likelihood`` also without those whose true class is masked.
    """
    check_some(logits, Task.MULTICLASS)
    _check_tensor(targets)
    if targets.is_floating_point() or targets.shape == logits.shape:
        raise ValueError(
            f"targets must be integer class indices of shape {(len(logits), *logits.shape[2:])}, got {targets.dtype} "
            f"of shape {tuple(targets.shape)}; "
            + (
                "use targets.argmax(1) for one-hot targets, or a multi-label method"
                if targets.ndim == logits.ndim
                else "call targets.long()"
            )
        )
    check_softmax_targets(logits, targets, ignore_index, validate=True)
    warn_of_probabilities("logits", logits, one_label=True, advice=USE_LOGITS)
    rows = flat_rows(logits)
    labels = targets.detach().long().reshape(-1).to(rows.device)
    valid = labels != ignore_index
    if not bool(valid.any()):
        raise ValueError(
            f"targets must hold at least one label, got {labels.numel()} targets that are all ignore_index="
            f"{ignore_index}; pass held-out data with labels"
        )
    if not bool(valid.all()):
        rows, labels = rows[valid], labels[valid]
    check_rows(rows)
    possible = rows.gather(1, labels[:, None]).squeeze(1) > -torch.inf
    if not likelihood or bool(possible.all()):
        return SingleRows(rows, labels)
    if not bool(possible.any()):
        raise ValueError(
            f"targets must name a class that is not masked in at least one row, got {len(labels)} rows whose true "
            "class has a logit of -inf; check the mask or the labels"
        )
    note = f"the true class is masked (-inf) in {int((~possible).sum())} of {len(labels)} rows, which are ignored"
    return SingleRows(rows[possible], labels[possible], note)


def multi_rows(logits: Tensor, targets: Tensor, ignore_value: float, *, likelihood: bool = False) -> MultiRows:
    """Logits and targets of 0, 1 or ``ignore_value``, both (N, K, d1, ..., dk), as rows.

    With ``likelihood`` labels with an infinite logit are treated as unknown.
    """
    check_some(logits, Task.MULTILABEL)
    _check_tensor(targets)
    may_be_unknown = check_sigmoid_targets(logits, targets, ignore_value, validate=True)
    warn_of_probabilities("logits", logits, one_label=False, advice=USE_LOGITS)
    rows = flat_rows(logits)
    labels = targets.detach().movedim(1, -1).reshape(rows.shape).to(rows.device)
    known = labels != ignore_value if may_be_unknown else torch.ones_like(labels, dtype=torch.bool)
    positive = known & (labels == 1)
    if bool((known & (labels != 1) & (labels != 0)).any()):
        raise ValueError(
            f"targets must be 0, 1 or ignore_value={ignore_value:g}, got soft labels; use (targets > 0.5) for decisions"
        )
    if not bool(known.any()):
        raise ValueError(
            f"targets must hold at least one label, got {labels.numel()} targets that are all ignore_value="
            f"{ignore_value:g}; pass held-out data with labels"
        )
    if bool(rows.isfinite().all()):
        return MultiRows(rows, positive, known)
    if bool((known & rows.isnan()).any()):
        raise ValueError(f"logits must be finite, or -inf and inf for probabilities of 0 and 1, got nan; {CHECK_MODEL}")
    if not likelihood:
        return MultiRows(rows, positive, known)
    against = int((known & rows.isinf() & (positive != (rows > 0))).sum())
    note = f"{against} of {int(known.sum())} targets contradict a logit of -inf or inf and are ignored"
    known = known & rows.isfinite()
    if not bool(known.any()):
        raise ValueError("logits must be finite for at least one label, got none; check the mask or the labels")
    return MultiRows(rows.where(known, 0.0), positive & known, known, note if against else "")


def task_of(logits: Tensor, targets: Tensor, task: str | None) -> Task:
    """The declared task, or the one inferred from the shape of the targets: multi-label if equal to the logits."""
    if task is None:
        check_shape(logits, Task.MULTILABEL)
        _check_tensor(targets)
        return Task.MULTILABEL if targets.ndim == logits.ndim else Task.MULTICLASS
    wanted = Task(task).fitted
    check_shape(logits, wanted)
    check_binary(task, logits.shape[1])
    return wanted


def flat_rows(logits: Tensor) -> Tensor:
    """(N, C, d1, ..., dk) as (R, C) float64."""
    rows = logits.detach().movedim(1, -1).reshape(-1, logits.shape[1])
    return (rows.cpu() if rows.device.type == "mps" else rows).double()


def blocks(rows: Tensor) -> Iterator[slice]:
    """Slices of rows, to keep temporaries small."""
    step = max(1, BLOCK // rows.shape[1])
    return (slice(start, start + step) for start in range(0, len(rows), step))


def label_blocks(rows: MultiRows) -> Iterator[MultiRows]:
    """Slices of labels with all rows, to keep temporaries small."""
    step = max(1, 4 * BLOCK // max(1, len(rows.logits)))
    for start in range(0, rows.logits.shape[1], step):
        some = slice(start, start + step)
        yield MultiRows(rows.logits[:, some], rows.positive[:, some], rows.known[:, some])


def random_folds(rows: int, folds: int, device: torch.device) -> Tensor:
    """Fold of each row (R,) for cross-validation, the same at every call; sizes differ by one at most."""
    return torch.randperm(rows, generator=torch.Generator().manual_seed(0)).to(device) % folds


def softplus(values: Tensor) -> Tensor:
    """``log(1 + exp(values))`` to full precision; that of torch is linear above 20."""
    return -torch.nn.functional.logsigmoid(-values)


def missing(labels: Tensor, num_classes: int) -> str:
    """A note about classes without samples, or an empty string."""
    counts = torch.bincount(labels, minlength=num_classes)
    return remark_on_classes((counts == 0).nonzero().squeeze(1).tolist(), "has no sample", "have no sample")


def remark_on_classes(classes: list[int], one: str, many: str, what: tuple[str, str] = ("class", "classes")) -> str:
    """``class 3 has no sample``, ``classes 1, 2, 3 ... (17 in all) have no sample``."""
    if not classes:
        return ""
    if len(classes) == 1:
        return f"{what[0]} {classes[0]} {one}"
    listed = ", ".join(map(str, classes[:5])) + (f" ... ({len(classes)} in all)" if len(classes) > 5 else "")
    return f"{what[1]} {listed} {many}"


def join_notes(*notes: str) -> str:
    """Notes joined into one line."""
    return "; ".join(note for note in notes if note)


def logits_from_probs(probs: Tensor, *, task: str = Task.MULTICLASS, floor: float = LEAST) -> Tensor:
    r"""Logits of given probabilities: :math:`\log p` (single-label) or :math:`\log p - \log(1 - p)` (multi-label).

    Both are finite: p is clipped to [floor, 1 - floor], because a probability that was rounded to 0 or 1 is not known
    more precisely; 1e-12 gives logits between -27.6 and 27.6.

    Args:
        probs: probabilities; for single-label data they sum to 1 over dimension 1 (within 0.01).
        task: ``"multiclass"`` or ``"multilabel"``.
        floor: minimum probability, in (0, 0.5).

    Shape: ``probs`` (N, C, d1, ..., dk); result the same, in the same dtype.

    >>> logits_from_probs(torch.tensor([[0.5, 0.5, 0.0]]))
    tensor([[ -0.6931,  -0.6931, -27.6310]])
    >>> logits_from_probs(torch.tensor([[0.5, 1.0]]), task="multilabel")
    tensor([[ 0.0000, 27.6310]])
    """
    check_number("floor", floor, low=0.0, high=0.5, open_low=True, open_high=True)
    kind = check_probs(probs, task)
    wide = probs.double().clamp(0.0, 1.0)  # in case of rounding
    least, most = math.log(floor), math.log1p(-floor)
    if not kind.multilabel:
        return wide.log().clamp(min=least).to(probs.dtype)
    return (wide.log().clamp(least, most) - (-wide).log1p().clamp(least, most)).to(probs.dtype)


def check_probs(probs: Tensor, task: str) -> Task:
    """The task of a name; raise unless ``probs`` are its probabilities."""
    kind = Task(task).fitted
    if not isinstance(probs, Tensor):
        raise TypeError(f"probs must be a tensor, got {type(probs).__name__}; use torch.as_tensor(probs)")
    if not probs.is_floating_point():
        raise TypeError(f"probs must be floating point, got {probs.dtype}; pass the probabilities of the model")
    least = 1 if kind.multilabel else 2
    if probs.ndim < 2 or probs.shape[1] < least:
        raise ValueError(
            f"probs must have shape (N, C, d1, ..., dk) with at least {least} entries in dimension 1, got "
            f"{tuple(probs.shape)}; for a single row use probs[None]"
        )
    check_binary(task, probs.shape[1])
    slack = max(1e-4, torch.finfo(probs.dtype).eps)  # sums of rounded numbers end a little above 1
    wrong = ~((probs >= -slack) & (probs <= 1 + slack))  # True for NaN
    if bool(wrong.any()):
        raise ValueError(
            f"probs must be probabilities in [0, 1], got {float(probs[wrong][0])!r}; apply the softmax or sigmoid first"
        )
    if not kind.multilabel and probs.numel():
        total = probs.double().sum(1)
        worst = total.flatten()[(total - 1.0).abs().argmax()]
        if abs(float(worst) - 1.0) > 0.01:
            raise ValueError(
                f"probs must sum to 1 over dimension 1, got a sum of {float(worst):g}; normalise them, or use "
                "task='multilabel' if each label has a probability of its own"
            )
    return kind


def check_some(logits: Tensor, task: Task) -> None:
    """Raise for empty logits."""
    check_shape(logits, task)
    if not logits.numel():
        raise ValueError(
            f"logits must hold at least one row, got shape {tuple(logits.shape)}; pass the logits of held-out data"
        )


def check_rows(rows: Tensor) -> None:
    """Raise unless rows (R, C) are logits of a softmax: below inf, with at least one finite value per row."""
    wrong = rows.isnan() | (rows == torch.inf)
    if bool(wrong.any()):
        raise ValueError(
            f"logits must be finite, or -inf for a masked class, got {float(rows[wrong][0]):g}; {CHECK_MODEL}"
        )
    if bool((rows.amax(1) == -torch.inf).any()):
        raise ValueError(
            f"logits must have a class that is not masked in every row, got {rows.shape[1]} that are all -inf; unmask "
            "the true class, or give the row the ignored target"
        )


def _check_tensor(targets: Tensor) -> None:
    if not isinstance(targets, Tensor):
        raise TypeError(f"targets must be a tensor, got {type(targets).__name__}; use torch.as_tensor(targets)")
