"""Losses that are not sums of independent terms: they use the whole distribution of a row, or the whole batch."""

from __future__ import annotations

from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from equipoise._checks import check_choice, check_whole, is_traced
from equipoise.distributed import all_rows, all_sum, sum_before, world_size
from equipoise.kernels.hyper import Hyper
from equipoise.losses.base import Scalar, retire_preset
from equipoise.losses.softmax import RowLoss, Rows, SoftmaxLoss
from equipoise.losses.typed_kwargs import SoftmaxOptions
from equipoise.schedules import Number

__all__ = ["BrierLoss", "MMCELoss", "OHEMLoss", "calibration_term", "keep_hardest", "mmce"]


class BrierLoss(SoftmaxLoss):
    r"""Brier score :math:`\sum_k (p_k - t_k)^2` (Brier 1950): a proper scoring rule with bounded gradients.

    Args:
        preset: deprecated; the published code has the same defaults.
        options: see the top of ``losses.named``; the weight of a row is that of its target.

    >>> BrierLoss()(torch.zeros(1, 2), torch.tensor([0]))
    tensor(0.5000)
    """

    def __init__(self, *, preset: str | None = None, **options: Unpack[SoftmaxOptions]) -> None:
        retire_preset(preset)
        super().__init__(more_parts=[Scalar("squared_error", 1.0)], **options)


class OHEMLoss(RowLoss):
    """Cross-entropy of the hardest rows of the batch: online hard example mining.

    Keeps the ``k = max(1, min_kept, floor(keep * V))`` rows (pixels) with the largest loss out of V valid ones, in this
    process or, with ``sync=True``, across all processes. The mean is taken over the kept rows.

    Args:
        keep: fraction of the valid rows to keep.
        min_kept: minimum number of rows to keep.
        preset: deprecated; the published selection keeps 0.5 % of the pixels by mistake and is not available.
        options: see the top of ``losses.named``.

    >>> logits = torch.tensor([[0.0, 0.0], [3.0, 0.0]])
    >>> OHEMLoss(keep=0.5)(logits, torch.tensor([0, 0]))
    tensor(0.6931)
    """

    def __init__(
        self, keep: Number = 0.7, *, min_kept: int = 0, preset: str | None = None, **options: Unpack[SoftmaxOptions]
    ) -> None:
        retire_preset(preset)
        super().__init__(more_parts=[Scalar("keep", keep, high=1.0, absent=None)], **options)
        self.min_kept = check_whole("min_kept", min_kept, low=0)

    def rows(self, logits: Tensor, targets: Tensor) -> Rows:
        """Rows of the loss; those that are not kept are 0 and not valid."""
        exact = self._constant("hyper_double", logits) if is_traced(logits) else self.hyper_double
        keep = Hyper(exact, self.layout)["keep"]
        return keep_hardest(super().rows(logits, targets), keep, self.min_kept, sync=self.sync and self.training)


def keep_hardest(rows: Rows, keep: Tensor, min_kept: int, *, sync: bool = False) -> Rows:
    """Mark all but the hardest rows as not valid; ties keep the first rows. k stays on the device.

    ``keep`` is float64 for any dtype of the logits, so that k is exact: in float32, 0.7 of 10 would be 6.
    """
    valid = rows.inputs.valid.flatten()
    number = all_sum(valid.sum()) if sync else valid.sum()
    wanted = (keep * number.to(keep)).floor().clamp(min=max(1, min_kept)).to(valid.device)
    kept = _largest(rows.loss.detach().flatten(), valid, wanted, sync=sync).view_as(rows.loss)
    return rows._replace(loss=torch.where(kept, rows.loss, 0.0), inputs=rows.inputs._replace(valid=kept))


def _largest(values: Tensor, candidates: Tensor, k: Tensor, *, sync: bool = False) -> Tensor:
    """Mask of the k largest candidates (R,), or all if there are fewer; ties keep the first, NaN is the largest.

    A radix select: finds the k-th largest 16 bits at a time, by counting the candidates with the same higher bits.
    With ``sync`` the candidates of all processes are counted and k of them selected.
    """

    def of_all(count: Tensor) -> Tensor:
        return all_sum(count) if sync else count

    integer, bits = (torch.int64, 64) if values.dtype is torch.float64 else (torch.int32, 32)
    values = torch.where(values.isnan(), torch.nan, values + 0.0)  # a single NaN, of positive sign, and a single zero
    pattern = values.view(integer)
    pattern = torch.where(pattern < 0, ~pattern, pattern ^ torch.iinfo(integer).min)  # in the order of the values
    left = torch.minimum(k, of_all(candidates.sum()))
    above, undecided = torch.zeros_like(candidates), candidates
    for shift in range(bits - 16, -1, -16):
        digit = ((pattern >> shift) & 0xFFFF).long()
        counts = torch.zeros(2**16, dtype=torch.int32, device=digit.device)
        counts = of_all(counts.scatter_add(0, digit, undecided.to(torch.int32)))
        at_least = counts.flip(0).cumsum(0).flip(0)  # undecided candidates of this digit or a larger one
        last = (at_least >= left).sum() - 1
        left = left - torch.where(at_least < left, at_least, 0).amax()
        above = above | (undecided & (digit > last))
        undecided = undecided & (digit == last)
    before = sum_before(undecided.sum()) if sync else 0
    return above | (undecided & (undecided.cumsum(0) + before <= left))


class MMCELoss(RowLoss):
    r"""Cross-entropy plus ``strength`` times the maximum mean calibration error (Kumar et al. 2018).

    With r the confidence (largest probability) of a row, the kernel :math:`k_{ij} = \exp(-|r_i - r_j| / 0.4)`, m
    correct and n incorrect rows:

    .. math::
        MMCE^2 = \sum_{right} \frac{(1 - r_i)(1 - r_j) k_{ij}}{m^2} + \sum_{wrong} \frac{r_i r_j k_{ij}}{n^2}
        - 2 \sum_{right, wrong} \frac{(1 - r_i) r_j k_{ij}}{m n}

    It is 0 if all rows are correct or all are incorrect. The sums over pairs are computed by cumulative sums over the
    sorted rows, in O(R log R) for R rows.

    Args:
        strength: factor; the paper uses 2 for images and 8 for documents, with the published normalisation.
        normalization: ``"definition"`` divides each sum by its number of pairs, as above; ``"published"`` does so
            twice, as the published code does, which makes the term about 50 times smaller.
        preset: deprecated; the published normalisation is the default.
        options: see the top of ``losses.named``.
    """

    def __init__(
        self,
        strength: Number = 2.0,
        *,
        normalization: str = "published",
        preset: str | None = None,
        **options: Unpack[SoftmaxOptions],
    ) -> None:
        retire_preset(preset)
        check_choice("normalization", normalization, ("published", "definition"))
        super().__init__(more_parts=[Scalar("strength", strength, absent=None)], **options)
        self.normalization = normalization

    def rows(self, logits: Tensor, targets: Tensor) -> Rows:
        """Cross-entropy of each valid row plus its part of the calibration error."""
        strength = Hyper(self.hyper(logits), self.layout)["strength"]
        rows = super().rows(logits, targets)
        term = calibration_term(rows, strength, self.normalization, sync=self.sync and self.training)
        return rows._replace(loss=rows.loss + term)


def calibration_term(rows: Rows, strength: Tensor | float, normalization: str, *, sync: bool = False) -> Tensor:
    """Distribute the calibration error over the rows, 0 for ignored rows.

    Each row gets a part in proportion to its weight, so that the weighted mean is the calibration error. With ``sync``
    the error is that of the rows of all processes.
    """
    inputs = rows.inputs
    probs = inputs.logits.to(rows.loss.dtype).masked_fill(~inputs.valid.unsqueeze(1), 0.0).softmax(1)
    confidence, predicted = probs.max(1)
    right, valid = predicted == inputs.labels, inputs.valid
    mass = valid.to(confidence.dtype)
    if rows.weight is not None and not inputs.dense:
        mass = mass * rows.weight[inputs.labels]
    if sync and world_size() > 1:
        joined = all_rows(torch.stack([part.flatten().to(confidence.dtype) for part in (confidence, right, valid)], 1))
        error = mmce(joined[:, 0], joined[:, 1] > 0, joined[:, 2] > 0, normalization)
        # The rows of this process add up to their part of the error, but must carry its full gradient.
        local, total = mass.sum(), all_sum(mass.sum())
        error = error.detach() + torch.where(local > 0, total / local, 0.0) * (error - error.detach())
    else:
        error = mmce(confidence.flatten(), right.flatten(), valid.flatten(), normalization)
    return torch.where(valid, strength * error * mass, 0.0)


def mmce(confidence: Tensor, right: Tensor, valid: Tensor, normalization: str) -> Tensor:
    """Maximum mean calibration error of rows (R,), differentiable in their confidence; a scalar."""
    dtype = confidence.dtype
    confidence = confidence if confidence.device.type == "mps" else confidence.double()  # long sums
    confidence, order = confidence.sort()
    right, valid = right[order], valid[order]
    is_right, is_wrong = (valid & right).to(confidence.dtype), (valid & ~right).to(confidence.dtype)
    short, over = is_right * (1.0 - confidence), is_wrong * confidence
    near_short, near_over = _kernel_sums(confidence, torch.stack([short, over]))
    m, n = is_right.sum(), is_wrong.sum()
    squared = torch.zeros_like(m)
    for pairs, products, factor in (
        (m * m, short * near_short, 1.0),
        (n * n, over * near_over, 1.0),
        (m * n, short * near_over, -2.0),
    ):
        total = products.sum() / pairs.clamp(min=1.0)
        squared = squared + factor * (total / (pairs + 1e-5) if normalization == "published" else total)
    both = (m > 0) & (n > 0)
    floor = 1e-10 if normalization == "published" else 0.0  # the published code never takes the root of 0
    radicand = squared.clamp(min=0.0) + floor
    usable = both & (radicand > 0)
    return torch.where(usable, torch.where(usable, radicand, 1.0).sqrt(), 0.0).to(dtype)


def _kernel_sums(places: Tensor, amounts: Tensor) -> Tensor:
    r"""For each i the sum of :math:`a_j \exp(-|r_i - r_j| / 0.4)` over all j; r sorted, (R,), a and result (K, R).

    On either side of :math:`r_i` the kernel is a product of two factors, so that cumulative sums suffice. Ties with
    :math:`r_i` are summed separately: their kernel is 1, with gradient 0. Nothing overflows, as r is in [0, 1].
    """
    below, up_to = torch.searchsorted(places, places.detach()), torch.searchsorted(places, places.detach(), right=True)
    rising, falling = (places / 0.4).exp(), (-places / 0.4).exp()
    lower = F.pad((amounts * rising).cumsum(1), (1, 0))[:, below] * falling
    upper = F.pad((amounts * falling).flip(1).cumsum(1).flip(1), (0, 1))[:, up_to] * rising
    running = F.pad(amounts.cumsum(1), (1, 0))
    return lower + upper + running[:, up_to] - running[:, below]
