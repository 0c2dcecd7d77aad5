r"""What a Lovász loss does with sorted errors, as Triton kernels: the steps of the Jaccard loss along their order.

A line has the pixels of one class, of the batch or of an image, by falling errors. After its first n pixels, with h
hits of the class among them and H in all, the intersection is I = H - h and the union U = I + n, and the Jaccard loss
steps up by 1 / U at a pixel of the class and by I / (U (U - 1)) at any other. One kernel counts the hits of each block
of a line; a scan over the blocks stands between; the other kernel walks on from there.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["hits_kernel", "steps_kernel"]


@triton.jit
def _block(errors, order, labels, first, pixels, blocks, C: tl.constexpr, BLOCK: tl.constexpr):
    """The block of a program: line, number of each pixel in it, their errors, where they lie, which are of the class.

    Ignored pixels, whose error is below 0, and those behind the end of the line are of no class.
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

    ``errors`` and ``order`` (lines, pixels) are sorted; ``labels`` (groups, pixels) are not. The lines are those from
    number ``first`` on of groups of C.
    """
    _, _, _, _, own = _block(errors, order, labels, first, pixels, blocks, C, BLOCK)
    tl.store(hits + tl.program_id(0), tl.sum(own.to(tl.int32)))


@triton.jit
def steps_kernel(
    errors, order, labels, hits, seen, slopes, losses, first, pixels, blocks, C: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Derivative of the loss of a line with respect to p, unsorted, and what each block adds to that loss.

    Arguments as for ``hits_kernel``, and ``seen``, the hits up to and with each block; ``slopes`` (lines, pixels),
    ``losses`` (lines, blocks).
    """
    program = tl.program_id(0)
    line, n, error, place, own = _block(errors, order, labels, first, pixels, blocks, C, BLOCK)
    before = tl.load(seen + program) - tl.load(hits + program)
    whole = tl.load(seen + line * blocks + blocks - 1)
    intersection = whole - before - tl.cumsum(own.to(tl.int32), 0)
    union = intersection + n + 1
    share = intersection.to(error.dtype) / tl.maximum(union - 1, 1).to(error.dtype)
    # a class without pixels: all of the loss is the first, largest error
    step = tl.where(own | (union == 1), 1.0, share) / union.to(error.dtype)
    step = tl.where(error < 0.0, 0.0, step)
    tl.store(losses + program, tl.sum(step * error))
    tl.store(slopes + place, tl.where(own, -step, step), mask=n < pixels)
