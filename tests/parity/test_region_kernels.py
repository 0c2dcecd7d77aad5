"""The fused kernels of the overlap losses against plain PyTorch: as close to the float64 truth, in value and gradient.

Without a CUDA device they run in Triton's interpreter (``TRITON_INTERPRET=1``), and are compiled for two GPUs besides.
"""

import math
import os
import subprocess
import sys

import pytest
import torch
from torch.testing import assert_close

from equipoise.kernels.choice import use
from equipoise.losses.region import dice_loss, soft_iou_loss, tversky_loss
from tests.marks import slow
from tests.parity.budget import CUDA, DEVICE, DTYPES, assert_within_budget, captured, needs_kernels
from tests.parity.regions import (
    IGNORED,
    LAYOUTS,
    check_ignored_pixels,
    check_nan_shows,
    check_nothing_counts,
    each_extent,
    each_kind,
    example,
)

pytest.importorskip("triton")


def run(backend, logits, targets, loss=tversky_loss, **options):
    """Losses of all classes, and the gradient for a fixed upstream gradient that differs from class to class."""
    logits = logits.detach().requires_grad_()
    with use(backend):
        losses = loss(logits, targets, reduction="none", **options)
        upstream = torch.linspace(1, 2, losses.numel(), dtype=losses.dtype, device=DEVICE).view_as(losses)
        return losses.detach(), torch.autograd.grad(losses, logits, upstream)[0]


def check(logits, targets, **options):
    # Smooth: the loss of an absent class is a constant otherwise, and its gradient nothing but rounding.
    options = {"classes": "all", "smooth": 1.0, **options}
    wide = targets.double() if targets.is_floating_point() else targets
    results = (
        run("triton", logits, targets, **options),
        run("reference", logits, targets, **options),
        run("reference", logits.double(), wide, **options),
    )
    accumulation = torch.float64 if logits.dtype is torch.float64 else torch.float32
    for fused, plain, exact in zip(*results, strict=True):
        assert_within_budget(fused, plain, exact, accumulation, roundings=64)


# A tile has 128 rows of 19 classes; 150 classes are more than it can hold where they are strided, 2100 everywhere.
SHAPES = [
    (2, 2, 33, 17), (1, 19, 8, 16), (1, 150, 3, 7), (3, 10), (1, 2100), (9, 1), (1, 1, 1), (2, 3, 2, 2, 2, 2),
    *slow((1, 2, 32, 32), (2, 19, 8, 16), (3, 19, 5, 27), (2, 150, 4, 4), (2, 150, 3, 7), (2, 600, 33), (1, 2, 2064)),
    *slow((2, 16, 1040), (3, 30, 528), (9, 30), (3, 2100), (70, 1), (5, 4)),
]  # fmt: skip


@needs_kernels
@each_extent
@each_kind
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(shape, dense, per_image):
    check(*example(shape, dense=dense), per_image=per_image)


@needs_kernels
@each_kind
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 5, 5, 27), *slow((2, 19, 5, 27), (1, 600, 40))], ids=str)
def test_dtypes(shape, dense, dtype):
    check(*example(shape, dense=dense, dtype=dtype), per_image=True)


@needs_kernels
@pytest.mark.parametrize("loss", [dice_loss, soft_iou_loss], ids=["dice", "soft_iou"])
def test_named_losses(loss):
    check(*example((2, 5, 6, 7)), loss=loss)


@needs_kernels
@each_extent
@each_kind
@pytest.mark.parametrize("change", LAYOUTS)
def test_strides(change, dense, per_image):
    logits, targets = example((2, 4, 6, 6), dense=dense)
    changed = change(logits)
    check(changed, targets, per_image=per_image)
    check(changed, change(targets) if dense else targets.transpose(1, 2), per_image=per_image)
    if dense:
        check(logits, change(targets), per_image=per_image)
    value, grad = run("triton", changed, targets, per_image=per_image)
    expected = run("triton", changed.contiguous(), targets, per_image=per_image)
    assert_close((value, grad), expected)


@needs_kernels
@each_kind
def test_strides_that_no_three_indices_can_follow(dense):
    logits, targets = example((3, 4, 4, 4, 4, 4), dense=dense)
    scattered = logits[:2, :, ::2, ::2, ::2, ::2]
    there = targets[:2, :, ::2, ::2, ::2, ::2] if dense else targets[:2, ::2, ::2, ::2, ::2]
    check(scattered, there)
    assert run("triton", scattered, there)[1].stride() == run("reference", scattered, there)[1].stride()


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_index_types(dtype):
    logits, targets = example((2, 19, 6, 7), ignored=0)
    targets[:, :2] = 101
    check(logits, targets.to(dtype), ignore_index=101)
    fused = run("triton", logits, targets.to(dtype), ignore_index=101)
    assert all(map(torch.equal, fused, run("triton", logits, targets, ignore_index=101)))


@needs_kernels
def test_label_156_of_type_uint8_is_not_ignored():
    logits, targets = example((1, 157, 3), ignored=0)
    targets[:] = torch.tensor([156, 156, 0])
    check(logits, targets.byte())


@needs_kernels
@each_extent
@each_kind
@pytest.mark.parametrize("warps", [2, 24])  # one lane for all tiles, and several
@pytest.mark.parametrize("shape", [(2, 2, 1700), (30, 40), *slow((3, 19, 700), (2, 600, 100), (900, 19))], ids=str)
def test_programs_that_walk_over_many_tiles(shape, warps, dense, per_image, monkeypatch):
    from equipoise.kernels.triton.launch import region as region_launch

    monkeypatch.setattr(region_launch, "WARPS", warps)
    region_launch._summing.cache_clear()
    check(*example(shape, dense=dense), per_image=per_image and len(shape) > 2)
    region_launch._summing.cache_clear()


@needs_kernels
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (3, 1, 70), (2, 1100, 5), (1, 2100, 1), (3, 20, 1100), (1, 40, 1025)], ids=str
)
@pytest.mark.parametrize("most", [None, 16])
def test_sums_of_programs_are_added_up(shape, most, monkeypatch):
    from equipoise.kernels.triton.launch import rows as rows_launch

    if most is not None:  # beyond, PyTorch adds
        monkeypatch.setattr(rows_launch, "FEW_PROGRAMS", most)
        monkeypatch.setattr(rows_launch, "MANY_PROGRAMS", most)
    partial = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(DEVICE)
    assert_close(rows_launch.added(partial), partial.sum(1))


@needs_kernels
@pytest.mark.parametrize("shape", [(2, 19, 6, 7), (1, 600, 20)], ids=str)
def test_offsets_of_64_bits(shape, monkeypatch):
    from equipoise.kernels.triton.launch import batch
    from equipoise.kernels.triton.launch import region as region_launch

    plans = (region_launch._summing, region_launch._erring, region_launch._descending)
    for cached in plans:
        cached.cache_clear()
    monkeypatch.setattr(batch, "is_long", lambda *_: True)
    check(*example(shape), per_image=True)
    check(*example(shape, dense=True))
    for cached in plans:
        cached.cache_clear()


@needs_kernels
@each_kind
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 40), *slow((1, 600, 40))], ids=str)
def test_extreme_logits(shape, dtype, dense):
    logits, targets = example(shape, dense=dense, dtype=torch.float64)
    check((1e4 * logits.sign()).to(dtype), targets)
    check((1e4 * logits.sign()).to(dtype) + 1, targets)
    for size in (30.0, 89.0, 104.0, 720.0):  # from 89 and 709 on, probabilities of float32 and float64 are denormal
        losses, grad = run("triton", (size * logits.sign()).to(dtype), targets, classes="all")
        assert bool(((losses >= 0) & (losses <= 1 + 1e-6)).all())
        assert bool(grad.isfinite().all())
    masked = logits.masked_fill(logits > 2, -math.inf).to(dtype)  # classes that are ruled out
    check(masked, targets)


@needs_kernels
@each_extent
@each_kind
@pytest.mark.parametrize("shape", [(2, 5, 6, 7), *slow((2, 19, 6, 7), (2, 600, 9))], ids=str)
def test_ignored_pixels_can_be_anything(shape, dense, per_image):
    check_ignored_pixels(run, shape, dense, per_image)


@needs_kernels
@each_extent
@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (1, 600, 3), (0, 3, 4), (2, 3, 0)], ids=str)
def test_no_valid_pixel(shape, per_image):
    check_nothing_counts(run, shape, per_image)


@needs_kernels
@pytest.mark.parametrize("shape", [(1, 3, 4), (1, 600, 4)], ids=str)
def test_nan_of_a_valid_pixel_shows(shape):
    check_nan_shows(run, shape)


def reduced(backend, logits, targets, **options):
    logits = logits.detach().requires_grad_()
    with use(backend):
        loss = tversky_loss(logits, targets, **options)
        return loss.detach(), torch.autograd.grad(3 * loss, logits)[0]


@needs_kernels
@each_extent
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("classes", ["present", "all"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reduced(per_image, reduction, classes, dtype):
    options = {"per_image": per_image, "reduction": reduction, "classes": classes, "alpha": 0.3, "beta": 0.9}
    logits, targets = example((3, 5, 6, 7), dtype=dtype)
    targets[targets == 3] = 0  # a class that no image has
    targets[0][targets[0] == 2] = 1  # and one that an image has not
    targets[1] = IGNORED  # and an image without any
    for smooth in (0.0, 1.0):
        fused = reduced("triton", logits, targets, smooth=smooth, **options)
        plain = reduced("reference", logits, targets, smooth=smooth, **options)
        exact = reduced("reference", logits.double(), targets, smooth=smooth, **options)
        accumulation = torch.float64 if dtype is torch.float64 else torch.float32
        for one, other, truth in zip(fused, plain, exact, strict=True):
            assert_within_budget(one, other, truth, accumulation, roundings=64)


@needs_kernels
@each_extent
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_reduced_to_nothing_and_to_nan(per_image, reduction):
    options = {"per_image": per_image, "reduction": reduction}
    logits, targets = example((2, 3, 5, 4), ignored=0)
    loss, grad = reduced("triton", logits, torch.full_like(targets, IGNORED), **options)
    assert loss == 0
    assert torch.equal(grad, torch.zeros_like(grad))
    logits[1, 2, 3, 3] = math.nan
    loss, grad = reduced("triton", logits, targets, **options)
    assert loss.isnan()
    assert grad[1].isnan().all()


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_reduced_to_what_underflows(dtype):
    logits = torch.zeros(1, 3, 4, 4, dtype=dtype, device=DEVICE)
    logits[:, 1] = -95.0 if dtype is torch.float32 else -735.0  # whose probability is no normal number
    loss, grad = reduced("triton", logits, torch.zeros(1, 4, 4, dtype=torch.int64, device=DEVICE), classes="all")
    assert loss.isfinite()
    assert grad.isfinite().all()


@needs_kernels
def test_class_prices_that_change_every_step(monkeypatch):
    from equipoise.kernels.triton import region as region_fused

    logits, targets = example((2, 5, 6, 7))
    expected = [reduced("triton", logits, targets, alpha=0.1 * step) for step in range(1, 5)]
    monkeypatch.setattr(region_fused, "MOST_OPTIONS", 2)
    monkeypatch.setattr(region_fused, "_known", set())
    for step in range(1, 5):
        assert_close(reduced("triton", logits, targets, alpha=0.1 * step), expected[step - 1])
    assert len(region_fused._known) == 2
    assert_close(
        reduced("triton", logits, targets, alpha=10**20)[0], reduced("reference", logits, targets, alpha=1e20)[0]
    )


@needs_kernels
def test_too_many_sums_for_one_program(monkeypatch):
    from equipoise.kernels.triton import region as region_fused

    logits, targets = example((2, 19, 6, 7))
    expected = reduced("triton", logits, targets, per_image=True)
    monkeypatch.setattr(region_fused, "MOST_ENTRIES", 100)
    assert_close(reduced("triton", logits, targets, per_image=True), expected)


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
@each_extent
@each_kind
def test_captured_in_a_cuda_graph_without_a_sync(dense, per_image):
    logits, targets = example((2, 19, 33, 47), dense=dense)
    logits.requires_grad_()

    def step():
        loss = tversky_loss(logits, targets, per_image=per_image)
        return loss.detach(), *torch.autograd.grad(3 * loss, logits)

    graph, result = captured(step)
    with torch.no_grad():
        logits.copy_(torch.randn_like(logits))
    graph.replay()
    assert all(map(torch.equal, result, reduced("triton", logits, targets, per_image=per_image)))


@needs_kernels
@each_extent
@each_kind
def test_second_derivatives(dense, per_image):
    logits, targets = example((2, 3, 2, 2), dense=dense, dtype=torch.float64)
    logits.requires_grad_()
    with use("triton"):
        assert torch.autograd.gradcheck(lambda z: tversky_loss(z, targets, per_image=per_image), logits)
        assert torch.autograd.gradgradcheck(lambda z: tversky_loss(z, targets, per_image=per_image), logits)


@needs_kernels
def test_results_are_deterministic():
    logits, targets = example((2, 19, 16, 17))
    first = run("triton", logits, targets)
    for _ in range(3):
        assert all(map(torch.equal, run("triton", logits, targets), first))


@needs_kernels
@each_kind
def test_compiles_without_graph_break(dense):
    torch.compiler.reset()
    with use("triton"):
        compiled = torch.compile(tversky_loss, fullgraph=True, backend="aot_eager")
        for size in (6, 8):
            logits, targets = example((2, 19, size, 7), dense=dense)
            logits.requires_grad_()
            value, expected = compiled(logits, targets), tversky_loss(logits, targets)
            assert_close(value, expected)
            assert_close(torch.autograd.grad(value, logits), torch.autograd.grad(expected, logits))


@pytest.mark.slow
def test_kernels_compile_for_gpus_that_are_not_here(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-m", "tests.parity.compile_ahead", "region"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[0]) >= 100
