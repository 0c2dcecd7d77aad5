"""Small kernels on the statistics of a batch, each instead of a dozen operations on a few numbers."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["recall_kernel", "steer_kernel"]


@triton.jit
def recall_kernel(
    counts, recall, batches, weight,
    C: tl.constexpr, MOMENTUM: tl.constexpr, MIN_ERRORS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Recall weights (C,) from support and hits of each class, (2, C), see ``weights.recall``.

    MOMENTUM: momentum of the moving average, None for the batch alone; MIN_ERRORS: None for no lower bound.
    """
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = k < C
    support = tl.load(counts + k, mask=inside, other=0).to(weight.dtype.element_ty)
    errors = support - tl.load(counts + C + k, mask=inside, other=0).to(weight.dtype.element_ty)
    present = support > 0.0
    if MIN_ERRORS is not None:
        errors = tl.maximum(errors, MIN_ERRORS)
    missed = errors / tl.maximum(support, 1.0)
    if MOMENTUM is None:
        result = tl.where(present, missed, 1.0)
    else:
        seen = tl.load(batches + k, mask=inside, other=0) + present.to(tl.int64)
        rate = tl.maximum(1.0 / tl.maximum(seen, 1).to(support.dtype), MOMENTUM)
        before = tl.load(recall + k, mask=inside, other=0.0)
        after = tl.where(present, rate * (1.0 - missed) + (1.0 - rate) * before, before)
        tl.store(recall + k, after, mask=inside)
        tl.store(batches + k, seen, mask=inside)
        result = 1.0 - after
    tl.store(weight + k, result, mask=inside)


@triton.jit
def steer_kernel(
    seen, gamma, gap, parts, labels,
    TARGET: tl.constexpr, STEP: tl.constexpr, GAMMA_MAX: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Update the exponents (labels,) and store the gaps, given partial sums of p, t, p t and 1.

    ``seen`` is (4, parts, labels). See ``losses.asymmetry``.
    """
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.arange(0, BLOCK_P)
    inside = k < labels
    there = (part < parts)[:, None] & inside[None, :]
    at = seen + part[:, None] * labels + k[None, :]
    step = parts * labels
    p_all = tl.sum(tl.load(at, mask=there, other=0.0), 0)
    positives = tl.sum(tl.load(at + step, mask=there, other=0.0), 0)
    p_positive = tl.sum(tl.load(at + 2 * step, mask=there, other=0.0), 0)
    negatives = tl.sum(tl.load(at + 3 * step, mask=there, other=0.0), 0) - positives
    p_negative = negatives - (p_all - p_positive)  # the sum of 1 - p over the negatives
    both = (positives > 0.0) & (negatives > 0.0)
    found = p_positive / tl.where(both, positives, 1.0) - p_negative / tl.where(both, negatives, 1.0)
    usable = inside & both & (found == found)  # no update for NaN
    before = tl.load(gamma + k, mask=inside, other=0.0)
    moved = tl.minimum(tl.maximum(before + STEP * (TARGET - found), 0.0), GAMMA_MAX)
    tl.store(gamma + k, moved, mask=usable)
    tl.store(gap + k, found, mask=usable)
