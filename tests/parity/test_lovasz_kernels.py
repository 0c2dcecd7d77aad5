"""The fused Lovász loss against plain PyTorch, in Triton's interpreter where there is no CUDA device.

Errors that are equal but for rounding may be sorted either way, which shows in the gradient of the two pixels: digit by
digit it is compared in float64, in other types as a whole.
"""

import math

import pytest
import torch
from torch.testing import assert_close

from equipoise.kernels import use
from equipoise.kernels.reference import lovasz as lovasz_reference
from equipoise.losses.region import lovasz_softmax_loss
from tests.marks import slow
from tests.parity.budget import CUDA, DEVICE, DTYPES, assert_within_budget, captured, needs_kernels
from tests.parity.regions import (
    LAYOUTS,
    check_ignored_pixels,
    check_nan_shows,
    check_nothing_counts,
    each_extent,
    each_kind,
    example,
)

pytest.importorskip("triton")

from equipoise.kernels.triton.launch import batch
from equipoise.kernels.triton.launch import lovasz as lovasz_launch
from equipoise.kernels.triton.launch import region as region_launch

pytestmark = needs_kernels

SHAPES = [
    (1, 40, 3, 7), (3, 10), (9, 1), (1, 1, 1), (2, 3, 2, 2, 2, 2),
    *slow((1, 2, 32, 32), (2, 2, 33, 17), (3, 19, 5, 27), (2, 40, 3, 7), (2, 40, 33), (1, 2, 2064), (3, 30, 528)),
    *slow((9, 30), (3, 200), (70, 1)),
]  # fmt: skip


def run(backend, logits, targets, classes="all", **options):
    """Losses of all classes, and the gradient for a fixed upstream gradient that differs from class to class."""
    logits = logits.detach().requires_grad_()
    with use(backend):
        losses = lovasz_softmax_loss(logits, targets, reduction="none", classes=classes, **options)
        upstream = torch.linspace(1, 2, losses.numel(), dtype=losses.dtype, device=DEVICE).view_as(losses)
        return losses.detach(), torch.autograd.grad(losses, logits, upstream)[0]


def check(logits, targets, **options):
    """In float64 the same digits; else the losses within budget, and the gradient as a whole."""
    fused, plain = (run(backend, logits, targets, **options) for backend in ("triton", "reference"))
    if logits.dtype is torch.float64:
        assert_close(fused, plain, rtol=1e-11, atol=1e-14)
        return
    exact = run("reference", logits.double(), targets, **options)
    assert_within_budget(fused[0], plain[0], exact[0], torch.float32, roundings=64)
    assert fused[1].dtype is logits.dtype
    missed, allowed = ((gradient.double() - exact[1]).abs().sum() for gradient in (fused[1], plain[1]))
    assert missed <= 2 * allowed + 2e-3 * exact[1].abs().sum()


@each_extent
@each_kind
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(shape, dense, per_image):
    check(*example(shape, dense=dense, dtype=torch.float64), per_image=per_image)


@each_extent
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 4, 6, 8), *slow((2, 4, 16, 24), (2, 19, 5, 27), (1, 40, 40))], ids=str)
def test_dtypes(shape, dtype, per_image):
    check(*example(shape, dtype=dtype), per_image=per_image)


@each_extent
@pytest.mark.parametrize("change", LAYOUTS)
def test_strides(change, per_image):
    logits, targets = example((2, 4, 6, 6))
    changed = change(logits)
    check(changed, targets, per_image=per_image)
    check(changed, targets.transpose(1, 2), per_image=per_image)
    assert_close(
        run("triton", changed, targets, per_image=per_image),
        run("triton", changed.contiguous(), targets, per_image=per_image),
    )


def test_strides_that_no_three_indices_can_follow():
    logits, targets = example((3, 4, 4, 4, 4, 4), dtype=torch.float64)
    check(logits[:2, :, ::2, ::2, ::2, ::2], targets[:2, ::2, ::2, ::2, ::2])


@each_extent
@pytest.mark.parametrize("sorted_at_once", [1, 100])
@pytest.mark.parametrize("block", [16, 64])
def test_lines_in_blocks_and_a_few_at_a_time(block, sorted_at_once, per_image, monkeypatch):
    logits, targets = example((3, 7, 50), dtype=torch.float64)
    monkeypatch.setattr(lovasz_reference, "SORTED_AT_ONCE", sorted_at_once)
    monkeypatch.setattr(lovasz_launch, "BLOCK", block)
    lovasz_launch._along.cache_clear()
    check(logits, targets, per_image=per_image)
    lovasz_launch._along.cache_clear()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_index_types(dtype):
    logits, targets = example((2, 19, 6, 7), ignored=0, dtype=torch.float64)
    targets[:, :2] = 101
    check(logits, targets.to(dtype), ignore_index=101)


def test_an_ignored_class_and_one_that_a_byte_takes_for_it():
    logits, targets = example((1, 157, 12), ignored=0, dtype=torch.float64)
    targets[:, :8] = targets[:, :8] % 3
    check(logits, targets, ignore_index=1)
    targets[:, :4] = 156  # -100 in one byte
    check(logits, targets.byte())


@pytest.mark.parametrize("shape", [(2, 19, 6, 7), (1, 40, 20)], ids=str)
def test_offsets_of_64_bits(shape, monkeypatch):
    plans = (region_launch._summing, region_launch._erring, region_launch._descending)
    for cached in plans:
        cached.cache_clear()
    monkeypatch.setattr(batch, "is_long", lambda *_: True)
    check(*example(shape, dtype=torch.float64), per_image=True)
    for cached in plans:
        cached.cache_clear()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 40), *slow((1, 40, 40))], ids=str)
def test_extreme_logits(shape, dtype):
    logits, targets = example(shape, dtype=torch.float64)
    for size in (30.0, 89.0, 104.0, 720.0, 1e4):  # from 89 and 709 on, probabilities of both types are denormal
        losses, grad = run("triton", (size * logits.sign()).to(dtype), targets)
        assert bool(((losses >= 0) & (losses <= 1 + 1e-6)).all())
        assert bool(grad.isfinite().all())
    check(logits.masked_fill(logits > 2, -math.inf).to(dtype), targets)  # classes that are ruled out


@each_extent
@each_kind
@pytest.mark.parametrize("shape", [(2, 5, 6, 7), *slow((2, 19, 6, 7), (2, 40, 9))], ids=str)
def test_ignored_pixels_can_be_anything(shape, dense, per_image):
    check_ignored_pixels(run, shape, dense, per_image)


@each_extent
@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (0, 3, 4), (2, 3, 0), *slow((1, 40, 3))], ids=str)
def test_no_valid_pixel(shape, per_image):
    check_nothing_counts(run, shape, per_image)


@pytest.mark.parametrize("shape", [(1, 3, 4), (1, 40, 4)], ids=str)
def test_nan_of_a_valid_pixel_shows(shape):
    check_nan_shows(run, shape)


@each_extent
def test_only_classes_that_are_present(per_image):
    logits, targets = example((3, 5, 6, 7), dtype=torch.float64)
    targets[targets == 3] = 0  # a class that no image has
    targets[0][targets[0] == 2] = 1  # and one that an image has not
    check(logits, targets, per_image=per_image, classes="present")
    assert (run("triton", logits, targets, per_image=per_image, classes="present")[0][..., 3] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("classes", [2, 7, *slow(40)])
def test_equal_errors_keep_the_order_of_the_pixels(classes, dtype):
    logits, targets = example((2, classes, 40), dtype=dtype)
    check(80.0 * logits.sign(), targets)  # all errors 0 or 1
    logits = logits[:1, :, :1].expand(logits.shape)
    check(logits, targets)
    check(0.0 * logits, targets)


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
@each_extent
@each_kind
def test_captured_in_a_cuda_graph_without_a_sync(dense, per_image):
    logits, targets = example((2, 19, 33, 47), dense=dense)
    logits.requires_grad_()

    def step():
        loss = lovasz_softmax_loss(logits, targets, per_image=per_image)
        return loss.detach(), *torch.autograd.grad(3 * loss, logits)

    graph, result = captured(step)
    with torch.no_grad():
        logits.copy_(torch.randn_like(logits))
    graph.replay()
    assert all(map(torch.equal, result, step()))
