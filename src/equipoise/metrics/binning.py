r"""Binned confidence: sums, equal-mass bins, and calibration errors.

Bins are right-closed, :math:`(e_{b-1}, e_b]`; confidence 0 belongs to the first and 1 to the last, so every sample is
in exactly one bin. Edges of equal width are :math:`b / B`, rounded to the type of the confidences: a value that
represents an edge, such as 0.2 for B = 15, is in the bin below it in float32 and in float64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from equipoise._checks import check_choice
from equipoise.metrics._inputs import tally

__all__ = ["NORMS", "BinSums", "ReliabilityCurve", "bin_edges", "bin_index", "bin_sums", "binned_error"]

NORMS = ("l1", "l2", "max")


class BinSums(NamedTuple):
    """Sums for a calibration error, each (..., bins): counts, and sums of confidence and of correctness."""

    count: Tensor  # type: ignore[assignment]
    confidence: Tensor
    correct: Tensor


class ReliabilityCurve(NamedTuple):
    """A reliability diagram as numbers.

    Args:
        edges: of the bins, (bins + 1,); with equal-mass bins and groups (groups, bins + 1).
        count: samples in each bin, (bins,) or (groups, bins).
        confidence: their mean confidence, NaN for empty bins; shaped as ``count``.
        accuracy: fraction of correct samples, NaN for empty bins; shaped as ``count``.
    """

    edges: Tensor
    count: Tensor  # type: ignore[assignment]
    confidence: Tensor
    accuracy: Tensor


def bin_edges(bins: int, *, dtype: torch.dtype = torch.float64, device: torch.device | None = None) -> Tensor:
    """Edges of bins of equal width, b / bins rounded once to ``dtype``; (bins + 1,)."""
    return (torch.arange(bins + 1, dtype=torch.float64, device=device) / bins).to(dtype)


def bin_index(confidence: Tensor, bins: int | Tensor) -> Tensor:
    """Bin of each confidence: ``bins`` of equal width, or between the given edges; int64, shaped as ``confidence``.

    >>> bin_index(torch.tensor([0.0, 0.2, 0.21, 1.0]), 15)
    tensor([ 0,  2,  3, 14])
    """
    edges = bin_edges(bins, device=confidence.device) if isinstance(bins, int) else bins
    return torch.bucketize(confidence, edges[1:-1].to(confidence.dtype))


def bin_sums(
    confidence: Tensor,
    correct: Tensor,
    bins: int | Tensor,
    *,
    groups: Tensor | None = None,
    num_groups: int = 1,
    valid: Tensor | None = None,
    weight: Tensor | None = None,
) -> BinSums:
    """Sums of each bin.

    Args:
        confidence: in [0, 1], of any shape.
        correct: bool, shaped as ``confidence``.
        bins: number of bins of equal width, or their edges (bins + 1,).
        groups: number of the group of each confidence, in [0, num_groups).
        num_groups: number of groups.
        valid: bool; False excludes an entry.
        weight: (..., n) for n confidences in one dimension: how often each counts. The result then has the leading
            dimensions of ``weight``, in float64, which is what ``bootstrap`` asks for.

    Returns:
        Sums of shape (bins,), or (num_groups, bins) with ``groups``.

    >>> sums = bin_sums(torch.tensor([0.2, 0.9, 0.8]), torch.tensor([False, True, False]), 2)
    >>> sums.count, sums.correct
    (tensor([1, 2]), tensor([0, 1]))
    """
    width = bins if isinstance(bins, int) else len(bins) - 1
    size = width * num_groups
    slots = bin_index(confidence, bins)
    if groups is not None:
        slots = slots + width * groups
    if valid is not None:
        slots = slots.where(valid, size)  # one more slot, for ignored entries
    shape = (width,) if groups is None else (num_groups, width)
    if weight is not None:
        return _weighted_sums(slots, confidence, correct, weight, size, shape)
    wrong_count, correct_count = tally(slots + (size + 1) * correct, 2 * (size + 1)).view(2, size + 1)[:, :size]
    confidences = tally(slots, size + 1, confidence)[:size]
    return BinSums((wrong_count + correct_count).view(shape), confidences.view(shape), correct_count.view(shape))


def _weighted_sums(
    slots: Tensor, confidence: Tensor, correct: Tensor, weight: Tensor, size: int, shape: tuple[int, ...]
) -> BinSums:
    weight = weight.double()
    empty = torch.zeros(*weight.shape[:-1], size + 1, dtype=torch.float64, device=slots.device)
    sums = (
        empty.index_add(-1, slots, each)[..., :size].reshape(*weight.shape[:-1], *shape)
        for each in (weight, weight * confidence, weight * correct)
    )
    return BinSums(*sums)


def binned_error(sums: BinSums, norm: str = "l1") -> Tensor:
    r"""Calibration error of bins, over the last dimension; NaN where there is no sample.

    With :math:`n_b` samples, accuracy :math:`a_b` and mean confidence :math:`c_b` in bin b of n samples:
    ``"l1"`` is ECE :math:`\sum_b \frac{n_b}{n} |a_b - c_b|`, ``"l2"`` is
    :math:`(\sum_b \frac{n_b}{n} (a_b - c_b)^2)^{1/2}`, ``"max"`` is MCE, the largest gap of a bin that has samples.
    """
    check_choice("norm", norm, NORMS)
    count = sums.count.double()
    total = count.sum(-1)
    gap = (sums.correct - sums.confidence).abs()  # times n_b
    if norm == "l1":
        return gap.sum(-1) / total
    gaps = gap / count.clamp(min=torch.finfo(torch.float64).tiny)
    if norm == "l2":
        return ((gap * gaps).sum(-1) / total).sqrt()
    return gaps.amax(-1).where(total > 0, torch.nan)


# ------------------------------------------------------------------------------------------------------- equal mass


class Cells(NamedTuple):
    """Groups of tied samples, by confidence and row by row; all of shape (cells,).

    Each holds at least the sums of :class:`BinSums`, and the range of confidence that it stands for.
    """

    sums: BinSums
    lower: Tensor
    upper: Tensor
    row: Tensor


def cells_of_samples(confidence: Tensor, correct: Tensor, row: Tensor) -> Cells:
    """One cell for the samples of a row that have the same confidence; all arguments (n,)."""
    confidence = confidence.double()
    order = confidence.argsort()
    order = order[row[order].argsort(stable=True)]
    confidence, correct, row = confidence[order], correct[order], row[order]
    fresh = torch.ones_like(row, dtype=torch.bool)  # where a cell begins
    fresh[1:] = (confidence[1:] != confidence[:-1]) | (row[1:] != row[:-1])
    first = fresh.nonzero().squeeze(1)
    cell = fresh.long().cumsum(0) - 1
    count = tally(cell, len(first))
    correct_count = tally(cell + len(first) * correct, 2 * len(first))[len(first) :]
    value = confidence[first]
    return Cells(BinSums(count, count * value, correct_count), value, value, row[first])


def cells_of_histogram(sums: BinSums, edges: Tensor) -> Cells:
    """The cells of a fine histogram; sums (rows, cells), edges (cells + 1,)."""
    rows, width = sums.count.shape
    row = torch.arange(rows, device=edges.device).repeat_interleave(width)
    flat = BinSums(*(part.flatten() for part in sums))
    return Cells(flat, edges[:-1].repeat(rows), edges[1:].repeat(rows), row)


def equal_mass(cells: Cells, rows: int, bins: int) -> tuple[BinSums, Tensor]:
    r"""Sums (rows, bins) of bins that hold equally many samples, and their edges (rows, bins + 1).

    The sample of rank i (from 0) of n is in bin :math:`\lfloor i B / n \rfloor`, so sizes differ by one at most and
    every sample is in a bin. A cell that contains a cut is split proportionally in counts, correct samples and
    confidence. So the result does not depend on the order of equal confidences.
    """
    count = cells.sums.count
    device = count.device
    totals = tally(cells.row, rows, count).long()
    if not len(count):
        empty = torch.zeros(rows, bins, dtype=torch.float64, device=device)
        return BinSums(empty.long(), empty, empty), torch.full((rows, bins + 1), torch.nan, device=device).double()
    ends = count.cumsum(0)
    starts = totals.cumsum(0) - totals
    steps = torch.arange(bins + 1, device=device)
    cuts = starts.unsqueeze(1) + (steps * totals.unsqueeze(1) + bins - 1).div(bins, rounding_mode="floor")
    cell = torch.searchsorted(ends, cuts).clamp(max=len(count) - 1)  # the cell of the last sample before a cut
    inside = 1.0 - (ends[cell] - cuts).double() / count[cell].clamp(min=1)

    def between_cuts(sums: Tensor) -> Tensor:
        up_to = sums.cumsum(0, dtype=torch.float64)[cell] - (1.0 - inside) * sums[cell]
        return up_to.diff(dim=-1)

    first = torch.searchsorted(ends, starts, right=True).clamp(max=len(count) - 1)
    edges = torch.cat([cells.lower[first].unsqueeze(1), cells.upper[cell[:, 1:]]], 1)
    edges = edges.where(totals.unsqueeze(1) > 0, torch.nan)
    return BinSums(cuts.diff(dim=-1), between_cuts(cells.sums.confidence), between_cuts(cells.sums.correct)), edges


def fine_edges(resolution: int, device: torch.device | None = None) -> Tensor:
    """Edges of a fine histogram over [0, 1], of equal width on the scale of logits in [-16, 16]; (resolution + 1,).

    Near 0 and 1, where most confidences are, cells are narrow: a relative 32 / resolution of the distance to the end.
    """
    edges = torch.linspace(-16.0, 16.0, resolution + 1, dtype=torch.float64, device=device).sigmoid()
    edges[:1].zero_()
    edges[-1:].fill_(1.0)  # an assignment would wait for the device
    return edges
