r"""Prior correction: from the class frequencies of the training data to those in use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from equipoise._checks import (
    check_class_vector,
    check_counts,
    check_length,
    check_number,
    check_whole,
    warn_of_probabilities,
)
from equipoise._keywords import checks_keywords
from equipoise.calibration.fitted import Fitted, announce, as_floats, column
from equipoise.calibration.inputs import USE_LOGITS, check_rows, check_some, flat_rows, single_rows
from equipoise.tasks import Task

__all__ = ["PriorCorrection", "correct_prior", "estimate_prior", "fit_prior"]

# Lower bound of an estimated prior, so that its logarithm is finite.
LEAST_SHARE = 1e-12
MAX_ITER, TOLERANCE, SHRINKAGE = 1000, 1e-7, 3.0
Vector = Sequence[float] | Tensor


@dataclass(frozen=True, repr=False)
class PriorCorrection(Fitted):
    r""":math:`z'_c = z_c + \log \pi'_c - \log \pi_c`, the posterior under other priors (Saerens et al. 2002, eq. 2.4).

    Changes predictions towards the classes that are more frequent in use.

    Args:
        train_prior: pi, frequency of each class in the training data (or in the balanced distribution).
        target_prior: pi', frequency of each class in use.

    >>> PriorCorrection((0.5, 0.5), (0.9, 0.1))(torch.tensor([[0.0, 0.0]])).softmax(1)
    tensor([[0.9000, 0.1000]])
    """

    kind: ClassVar[str] = "prior"

    train_prior: tuple[float, ...]
    target_prior: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        train = as_floats("train_prior", self.train_prior, positive=True)
        target = as_floats("target_prior", self.target_prior, positive=True)
        if len(target) != len(train):
            raise ValueError(
                f"target_prior must have one frequency for each of the {len(train)} classes, got {len(target)}; "
                "pass shares of the same classes"
            )
        self._set(train_prior=train, target_prior=target, num_classes=len(train))

    def _apply(self, logits: Tensor) -> Tensor:
        pairs = zip(self.train_prior, self.target_prior, strict=True)
        return logits + column([math.log(target) - math.log(train) for train, target in pairs], logits)

    def describe(self) -> str:
        """One-line description."""
        ratio = [target / train for train, target in zip(self.train_prior, self.target_prior, strict=True)]
        most = max(range(len(ratio)), key=ratio.__getitem__)
        least = min(range(len(ratio)), key=ratio.__getitem__)
        names = self.class_names or tuple(f"class {number}" for number in range(len(ratio)))
        return (
            f"prior correction: {names[most]} is {ratio[most]:.3g} times, {names[least]} {ratio[least]:.3g} times as "
            f"frequent as in training{self._origin()}"
        )


@checks_keywords
def correct_prior(
    logits: Tensor,
    *,
    train_prior: Vector | None = None,
    train_counts: Vector | None = None,
    target_prior: Vector | None = None,
    shrinkage: float = SHRINKAGE,
) -> Tensor:
    r"""Logits under the target prior: :math:`z_c + \log \pi'_c - \log \pi_c`. May change predictions.

    Without ``target_prior`` it is estimated from these logits, :func:`estimate_prior`. See :func:`fit_prior` for the
    arguments and for a correction that is estimated once and applied to other logits.

    Shape: ``logits`` (N, C, d1, ..., dk); result the same.

    >>> correct_prior(torch.zeros(1, 2), train_counts=[90, 10], target_prior=[0.5, 0.5]).softmax(1)
    tensor([[0.1000, 0.9000]])
    """
    fitted = announce(_fit(logits, None, train_prior, train_counts, target_prior, shrinkage, ignore_index=-100))
    return fitted(logits)


@checks_keywords
def fit_prior(
    logits: Tensor,
    targets: Tensor | None = None,
    *,
    train_prior: Vector | None = None,
    train_counts: Vector | None = None,
    target_prior: Vector | None = None,
    shrinkage: float = SHRINKAGE,
    ignore_index: int = -100,
) -> PriorCorrection:
    """Fit a prior correction; by default the target prior is estimated from the logits by EM.

    A model trained with balancing (logit adjustment, balanced softmax, class-balanced sampling, weights of inverse
    frequency) has a uniform training prior: ``train_prior=[1] * C``.

    Args:
        logits: logits in use, (N, C, d1, ..., dk).
        targets: not needed; if given, rows of ``ignore_index`` are excluded from the estimate.
        train_prior: frequency of each class in training, above 0; normalised.
        train_counts: alternatively the counts; a class without samples counts as 1.
        target_prior: frequency of each class in use, above 0; None: :func:`estimate_prior`.
        shrinkage: shrinkage of the estimate.
        ignore_index: targets to ignore.

    >>> fit_prior(torch.zeros(4, 2), train_counts=[3, 1], target_prior=[1, 1])
    PriorCorrection(num_classes=2, train_prior=(0.75, 0.25), target_prior=(0.5, 0.5))
    """
    return announce(_fit(logits, targets, train_prior, train_counts, target_prior, shrinkage, ignore_index))


@checks_keywords
def estimate_prior(
    logits: Tensor,
    *,
    train_prior: Vector | None = None,
    train_counts: Vector | None = None,
    shrinkage: float = SHRINKAGE,
    max_iter: int = MAX_ITER,
    tolerance: float = TOLERANCE,
) -> tuple[float, ...]:
    r"""Frequency of each class in unlabelled data, by EM (Saerens, Latinne & Decaestecker 2002).

    Maximises :math:`\sum_i \log \sum_c \pi'_c \, p_{ic} / \pi_c + \lambda C \sum_c \pi_c \log \pi'_c` over
    :math:`\pi'`, from :math:`\pi` on, until no frequency changes by more than ``tolerance``. The second term, with
    lambda the ``shrinkage``, adds lambda samples of each class (at training frequencies): without it few rows give
    frequencies of 0, which rule out the class in every row. Frequencies are kept above 1e-12.

    Only the class frequencies may differ from training, and the probabilities must be calibrated per class under the
    training prior: use :func:`~equipoise.calibration.fit_vector` first.

    Shape: ``logits`` (N, C, d1, ..., dk); C frequencies.

    >>> logits = torch.tensor([[5.0, -5.0]] * 3 + [[-5.0, 5.0]])
    >>> [round(share, 3) for share in estimate_prior(logits, train_counts=[1, 1], shrinkage=0.0)]
    [0.75, 0.25]
    >>> [round(share, 3) for share in estimate_prior(logits, train_counts=[1, 1])]  # 4 rows say little
    [0.6, 0.4]
    """
    train = _checked(logits, train_prior, train_counts)
    max_iter = check_whole("max_iter", max_iter, low=1)
    check_number("tolerance", tolerance, low=0.0)
    check_number("shrinkage", shrinkage, low=0.0)
    warn_of_probabilities("logits", logits, one_label=True, advice=USE_LOGITS)
    rows = flat_rows(logits)
    check_rows(rows)
    return _em(rows, train, shrinkage, max_iter, tolerance).prior


def _fit(
    logits: Tensor,
    targets: Tensor | None,
    train_prior: Vector | None,
    train_counts: Vector | None,
    target_prior: Vector | None,
    shrinkage: float,
    ignore_index: int,
) -> PriorCorrection:
    train = _checked(logits, train_prior, train_counts)
    check_number("shrinkage", shrinkage, low=0.0)
    if targets is None or target_prior is not None:
        warn_of_probabilities("logits", logits, one_label=True, advice=USE_LOGITS)
        rows = flat_rows(logits)
        check_rows(rows)
    else:  # only rows with labels are used
        rows = single_rows(logits, targets, ignore_index).logits
    if target_prior is not None:
        target = _shares("target_prior", target_prior)
        check_length("target_prior", len(target), logits.shape[1])
        return PriorCorrection(train, target)
    solution = _em(rows, train, shrinkage, MAX_ITER, TOLERANCE)
    return PriorCorrection(train, solution.prior, samples=len(rows), converged=solution.converged, note=solution.note)


class Estimate(NamedTuple):
    """Result of EM."""

    prior: tuple[float, ...]
    converged: bool
    note: str


def _em(rows: Tensor, train: tuple[float, ...], shrinkage: float, max_iter: int, tolerance: float) -> Estimate:
    log_train = torch.tensor(train, dtype=torch.float64, device=rows.device).log()
    log_ratio = rows - log_train  # p / pi of a row up to a factor, which cancels
    ratio = (log_ratio - log_ratio.amax(1, keepdim=True)).exp_()
    added = shrinkage * len(train) * log_train.exp()
    share, moved, steps = log_train.exp(), math.inf, 0
    while moved > tolerance and steps < max_iter:
        new = share * (ratio.T @ (ratio @ share).reciprocal()) + added
        new = (new / new.sum()).clamp(min=LEAST_SHARE)
        new /= new.sum()
        moved, share, steps = float((new - share).abs().max()), new, steps + 1
    converged = moved <= tolerance
    note = "" if converged else f"EM still changed by {moved:.2g} after {steps} steps"
    return Estimate(tuple(share.tolist()), converged, note)


def _checked(logits: Tensor, prior: Vector | None, counts: Vector | None) -> tuple[float, ...]:
    """The training prior for logits with this number of classes."""
    check_some(logits, Task.MULTICLASS)
    train = _train_prior(prior, counts)
    check_length("train_prior" if counts is None else "train_counts", len(train), logits.shape[1])
    return train


def _train_prior(prior: Vector | None, counts: Vector | None) -> tuple[float, ...]:
    if (prior is None) == (counts is None):
        came = "neither" if prior is None else "both"
        raise ValueError(
            f"train_prior or train_counts must be given, one of them, got {came}; pass the training counts"
        )
    if counts is not None:
        floored = [max(count, 1.0) for count in check_counts("train_counts", counts)]
        return tuple(count / math.fsum(floored) for count in floored)
    assert prior is not None
    return _shares("train_prior", prior)


def _shares(name: str, values: Vector) -> tuple[float, ...]:
    shares = check_class_vector(name, values)
    if min(shares) <= 0.0:
        raise ValueError(
            f"{name} must be above 0 for every class, got {min(shares):g}; use a small frequency instead of 0"
        )
    return tuple(share / math.fsum(shares) for share in shares)
