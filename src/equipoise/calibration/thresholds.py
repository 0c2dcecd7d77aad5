"""A decision threshold per label that maximises its F1."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from equipoise._checks import check_number, check_whole
from equipoise._keywords import checks_keywords
from equipoise.calibration.fitted import Fitted, Task, announce, as_floats, check_shape, column
from equipoise.calibration.inputs import MultiRows, join_notes, label_blocks, multi_rows, remark_on_classes

__all__ = ["Thresholds", "fit_thresholds"]


@dataclass(frozen=True, repr=False)
class Thresholds(Fitted):
    r""":math:`z'_k = z_k - t_k`, so that a label is chosen if :math:`z'_k > 0`, that is above probability 1/2.

    For decisions: the shifted logits are not calibrated. Keeps the ranking of a label. Calibrate first,
    then fit thresholds on the calibrated logits.

    Args:
        thresholds: t, one logit per label.
        f1: expected F1 of each label on new data, by cross-fitting; None for a label without positives.

    >>> Thresholds((-1.0, 0.5)).decide(torch.tensor([[-0.5, 0.0]]))
    tensor([[ True, False]])
    >>> Thresholds((-1.0, 0.5))
    Thresholds(num_classes=2, probabilities=(0.268941, 0.622459))
    """

    kind: ClassVar[str] = "thresholds"

    thresholds: tuple[float, ...]
    f1: tuple[float | None, ...] = ()
    task: Task = field(default="multi", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        thresholds = as_floats("thresholds", self.thresholds)
        labels = len(thresholds)
        if self.f1 and (len(self.f1) != labels or any(v is not None and not 0 <= v <= 1 for v in self.f1)):
            raise ValueError(f"f1 must be one number in [0, 1] or None for each of the {labels} labels; fit again")
        self._set(thresholds=thresholds, f1=tuple(self.f1), num_classes=labels)

    @property
    def probabilities(self) -> tuple[float, ...]:
        """The thresholds as probabilities of the logits of the fit."""
        return tuple(torch.tensor(self.thresholds, dtype=torch.float64).sigmoid().tolist())

    @property
    def macro_f1(self) -> float:
        """Expected mean F1 over the labels with positives; NaN without any."""
        known = [value for value in self.f1 if value is not None]
        return math.fsum(known) / len(known) if known else math.nan

    def _shown(self, values: dict[str, object]) -> dict[str, object]:
        """Thresholds as probabilities."""
        return {
            "probabilities" if name == "thresholds" else name: self.probabilities if name == "thresholds" else value
            for name, value in values.items()
        }

    def decide(self, logits: Tensor) -> Tensor:
        """Whether each label is chosen: bool, in the shape of the logits."""
        check_shape(logits, self.task, self.num_classes)
        return self._apply(logits) > 0

    def _apply(self, logits: Tensor) -> Tensor:
        wide = logits.float() if logits.device.type == "mps" else logits.double()  # only the sign matters
        return (wide - column(self.thresholds, wide)).to(logits.dtype)

    def describe(self) -> str:
        """One-line description."""
        chances = self.probabilities
        expected = f", macro F1 {self.macro_f1:.4g} expected" if not math.isnan(self.macro_f1) else ""
        return f"thresholds at probability {min(chances):.3g} to {max(chances):.3g}{expected}{self._origin()}"


@checks_keywords
def fit_thresholds(
    logits: Tensor,
    targets: Tensor,
    *,
    folds: int = 5,
    min_positives: int = 1,
    shrinkage: float = 10.0,
    ignore_value: float = -1,
) -> Thresholds:
    r"""The threshold with the best F1 per label, halfway between two scores; the highest in a tie.

    With few positives the best cut is mostly noise: a label with n positives gets
    :math:`(n\, t_k + \lambda\, t_0) / (n + \lambda)`, :math:`t_0` the median threshold of the labels with at least
    ``min_positives``, and one with fewer gets :math:`t_0` (0, probability 1/2, if there is no such label).

    ``f1`` of the result estimates the F1 on new data: the threshold is chosen on all folds except one and evaluated on
    that fold, with counts summed over the folds. The F1 on the fit data would be too optimistic.

    Args:
        logits: (N, K, d1, ..., dk).
        targets: 0, 1 or ``ignore_value``, in the shape of the logits.
        folds: of the cross-fitting, at least 2; 0 leaves it out.
        min_positives: minimum number of positives for a separate threshold.
        shrinkage: lambda, in positives; 0 for none.
        ignore_value: targets to ignore.

    >>> logits = torch.tensor([[-3.0], [-2.0], [-1.0], [0.0], [1.0], [2.0]])
    >>> targets = torch.tensor([[0], [0], [1], [1], [1], [1]])
    >>> fitted = fit_thresholds(logits, targets, folds=0, min_positives=1)
    >>> fitted.thresholds
    (-1.5,)
    """
    check_number("shrinkage", shrinkage, low=0.0)
    min_positives = check_whole("min_positives", min_positives, low=1)
    folds = check_whole("folds", folds, low=0)
    if folds == 1:
        raise ValueError("folds must be 0 or at least 2, got 1; one fold leaves nothing to choose on")
    rows = multi_rows(logits, targets, ignore_value)
    samples = len(rows.logits)
    folds = min(folds, samples) if samples > 1 else 0
    fold = torch.randperm(samples, generator=torch.Generator().manual_seed(0)).to(rows.logits.device) % max(folds, 1)
    blocks = [_cuts(block, fold, folds) for block in label_blocks(rows)]
    cuts, counts = (torch.cat(parts, 1) for parts in zip(*blocks, strict=True))
    thresholds, *without = (_shrink(*each, min_positives, shrinkage) for each in zip(cuts, counts, strict=True))
    f1 = _cross_fitted_f1(rows, fold, without) if folds else ()
    positives = counts[0]
    how_few = "no positives" if min_positives <= 1 else f"fewer than {min_positives} positives"
    few = remark_on_classes(
        (positives < min_positives).nonzero().squeeze(1).tolist(),
        f"has {how_few} and uses the common threshold",
        f"have {how_few} and use the common threshold",
        ("label", "labels"),
    )
    none_known = (
        "" if bool((positives >= min_positives).any()) else "no label has enough positives, so nothing was learned"
    )
    return announce(
        Thresholds(
            tuple(thresholds.tolist()),
            f1,
            samples=samples,
            converged=not none_known,
            note=join_notes(few, none_known),
        )
    )


class Sorted(NamedTuple):
    """A block of labels, each with its rows by decreasing score; (K, R)."""

    scores: Tensor  # -inf for unknown targets too
    positive: Tensor
    known: Tensor
    row: Tensor


def _sorted(rows: MultiRows) -> Sorted:
    finite = rows.logits.where(rows.known & rows.logits.isfinite(), -math.inf)
    top = finite.amax(0).nan_to_num(neginf=0.0)
    always = top + top.abs().clamp(min=1)  # inf is chosen at any threshold above the other scores
    scores = rows.logits.masked_fill(~rows.known, -math.inf)
    scores, row = torch.where(scores == math.inf, always, scores).T.sort(descending=True)
    return Sorted(scores, rows.positive.T.gather(1, row), rows.known.T.gather(1, row), row)


def _without(part: Sorted, held_out: Tensor) -> Sorted:
    """The rows that are not held out, in order: every label loses the same number of rows."""
    kept = ~held_out[part.row]
    return Sorted(*(values[kept].view(len(kept), -1) for values in part))


def _cuts(rows: MultiRows, fold: Tensor, folds: int) -> tuple[Tensor, Tensor]:
    """Best cuts and numbers of positives, (1 + folds, K): for all rows, and without each fold. Sorts once."""
    whole = _sorted(rows)
    parts = [whole, *(_without(whole, fold == held) for held in range(folds))]
    return torch.stack([_best_cuts(part) for part in parts]), torch.stack([_learnt_from(part) for part in parts])


def _learnt_from(part: Sorted) -> Tensor:
    """Number of positives (K,) that a threshold can choose: those of -inf are never chosen."""
    return (part.positive & (part.scores > -math.inf)).sum(1)


def _shrink(cuts: Tensor, positives: Tensor, min_positives: float, shrinkage: float) -> Tensor:
    """Thresholds (K,) between the cuts and their median."""
    enough = positives >= min_positives
    common = statistics.median(cuts[enough].tolist()) if bool(enough.any()) else 0.0
    shrunk = (positives * cuts + shrinkage * common) / (positives + shrinkage).clamp(min=1e-300)
    return torch.where(enough, shrunk, common)


def _best_cuts(part: Sorted) -> Tensor:
    """Cut with the best F1 = 2 TP / (chosen + positives) per label; 0 without positives."""
    hits, chosen = part.positive.cumsum(1), part.known.cumsum(1)
    below = torch.cat([part.scores[:, 1:], torch.full_like(part.scores[:, :1], -math.inf)], 1)
    between = part.scores > below  # tied scores are on the same side
    f1 = torch.where(between, 2.0 * hits / (chosen + hits[:, -1:]).clamp(min=1), -1.0)
    at = f1.argmax(1, keepdim=True)
    upper, lower = part.scores.gather(1, at).squeeze(1), below.gather(1, at).squeeze(1)
    middle = upper + 0.5 * (lower - upper)
    just_below = torch.nextafter(upper - 1e-6 * upper.abs().clamp(min=1), torch.full_like(upper, -math.inf))
    cuts = torch.where(lower.isinf(), just_below, torch.where(middle < upper, middle, lower))
    return torch.where(_learnt_from(part) > 0, cuts, 0.0)


def _cross_fitted_f1(rows: MultiRows, fold: Tensor, without: list[Tensor]) -> tuple[float | None, ...]:
    """F1 of each label with every fold decided by the thresholds of the others; None without positives."""
    hits, chosen = torch.zeros(2, rows.logits.shape[1], dtype=torch.int64, device=fold.device)
    for held, thresholds in enumerate(without):
        out = fold == held
        decided = (rows.logits[out] > thresholds) & rows.known[out]
        hits += (decided & rows.positive[out]).sum(0)
        chosen += decided.sum(0)
    positives = rows.positive.sum(0)
    f1 = (2.0 * hits / (chosen + positives).clamp(min=1)).tolist()
    return tuple(value if count else None for value, count in zip(f1, positives.tolist(), strict=True))
