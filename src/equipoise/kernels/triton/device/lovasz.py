r"""Triton kernels of the Lovász loss: the increments of the Jaccard loss along the sorted errors.

A line has the pixels of one class, of the batch or of an image, by descending error. After its first n pixels, with h
pixels of the class among them and H in all, the intersection is I = H - h and the union U = I + n. The Jaccard loss
increases by 1 / U at a pixel of the class and by I / (U (U - 1)) at any other. One kernel counts the pixels of the
class in each block of a line, PyTorch computes the cumulative sum over the blocks, and the other kernel uses both.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["hits_kernel", "steps_kernel"]


@triton.jit
def _block(errors, order, labels, first, pixels, blocks, C: tl.constexpr, BLOCK: tl.constexpr):
    """The block of a program: line, ranks of its pixels, errors, offsets, and which pixels belong to the class.

    Ignored pixels, whose error is below 0, and padding belong to no class.
    """
    program = tl.program_id(0)
    line = program // blocks
    n = (program % blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = n < pixels
    start = line.to(tl.int64) * pixels
    error = tl.load(errors + start + n, mask=inside, other=-1.0)
    place = tl.load(order + start + n, mask=inside, other=0)
    of_all = first + line
    label = tl.load(labels + (of_all // C).to(tl.int64) * pixels + place, mask=inside, other=0).to(tl.int64)
    own = (label == of_all % C) & ((error < 0.0) == 0)
    return line, n, error, start + place, own


@triton.jit
def hits_kernel(
    errors, order, labels, hits, first, pixels, blocks, C: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Pixels of the class in each block, (lines, blocks).

    ``errors`` and ``order`` (lines, pixels) are sorted; ``labels`` (groups, pixels) are not. The lines start at
    line ``first`` of all lines, C per group.
    """
    _, _, _, _, own = _block(errors, order, labels, first, pixels, blocks, C, BLOCK)
    tl.store(hits + tl.program_id(0), tl.sum(own.to(tl.int32)))


@triton.jit
def steps_kernel(
    errors, order, labels, hits, seen, slopes, losses, first, pixels, blocks, C: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Derivative of the loss of a line with respect to p, unsorted, and the contribution of each block to the loss.

    Arguments as for ``hits_kernel``, and ``seen``, cumulative hits including each block; ``slopes`` (lines, pixels),
    ``losses`` (lines, blocks).
    """
    program = tl.program_id(0)
    line, n, error, place, own = _block(errors, order, labels, first, pixels, blocks, C, BLOCK)
    before = tl.load(seen + program) - tl.load(hits + program)
    whole = tl.load(seen + line * blocks + blocks - 1)
    intersection = whole - before - tl.cumsum(own.to(tl.int32), 0)
    union = intersection + n + 1
    share = intersection.to(error.dtype) / tl.maximum(union - 1, 1).to(error.dtype)
    # without pixels of the class, the loss is the largest error, which is the first
    step = tl.where(own | (union == 1), 1.0, share) / union.to(error.dtype)
    step = tl.where(error < 0.0, 0.0, step)
    tl.store(losses + program, tl.sum(step * error))
    tl.store(slopes + place, tl.where(own, -step, step), mask=n < pixels)
