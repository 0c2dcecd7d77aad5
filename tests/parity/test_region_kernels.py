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
from tests.parity.budget import DEVICE, DTYPES, assert_within_budget, needs_kernels

pytest.importorskip("triton")

IGNORED = -100

each_extent = pytest.mark.parametrize("per_image", [False, True], ids=["batch", "image"])
each_kind = pytest.mark.parametrize("dense", [False, True], ids=["index", "dense"])


def example(shape, *, dense=False, dtype=torch.float32, ignored=0.2, scale=2.0, seed=0):
    draw = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(shape, generator=draw, dtype=torch.float64)
    targets = torch.randint(shape[1], (shape[0], *shape[2:]), generator=draw)
    targets[torch.rand(targets.shape, generator=draw) < ignored] = IGNORED
    if dense:
        masses = torch.rand(shape, generator=draw)
        targets = masses / masses.sum(1, keepdim=True) * (targets != IGNORED).unsqueeze(1)
    return logits.to(DEVICE, dtype), targets.to(DEVICE)


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


# A tile has 1024 rows of 2 classes, 128 of 19, 16 of 150; 600 classes are more than it can hold.
SHAPES = [(1, 2, 32, 32), (2, 2, 33, 17), (2, 19, 8, 16), (3, 19, 5, 27), (2, 150, 4, 4), (2, 150, 3, 7), (2, 600, 33),
          (70, 1), (5, 4), (1, 1, 1), (2, 3, 2, 2, 2, 2)]  # fmt: skip


@needs_kernels
@each_extent
@each_kind
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(shape, dense, per_image):
    check(*example(shape, dense=dense), per_image=per_image)


@needs_kernels
@each_kind
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 19, 5, 27), (1, 600, 40)], ids=str)
def test_dtypes(shape, dense, dtype):
    check(*example(shape, dense=dense, dtype=dtype), per_image=True)


@needs_kernels
@pytest.mark.parametrize("loss", [dice_loss, soft_iou_loss], ids=["dice", "soft_iou"])
def test_named_losses(loss):
    check(*example((2, 5, 6, 7)), loss=loss)


def channels_last(logits):
    return logits.to(memory_format=torch.channels_last)


def sliced(logits):
    n, c, h, w = logits.shape
    room = torch.full((n, c + 2, h + 3, 2 * w + 1), math.nan, dtype=logits.dtype, device=logits.device)
    room[:, 1 : c + 1, 2 : h + 2, 1::2] = logits
    return room[:, 1 : c + 1, 2 : h + 2, 1::2]


def expanded(logits):
    return logits[:1, :, :, :1].expand(logits.shape)


@needs_kernels
@each_extent
@each_kind
@pytest.mark.parametrize("change", [channels_last, sliced, expanded, lambda z: z.transpose(2, 3)])
def test_strides(change, dense, per_image):
    logits, targets = example((2, 19, 12, 12), dense=dense)
    changed = change(logits)
    check(changed, targets, per_image=per_image)
    check(changed, change(targets) if dense else targets.transpose(1, 2), per_image=per_image)
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
@pytest.mark.parametrize("shape", [(2, 2, 700), (3, 19, 300), (2, 600, 100)], ids=str)
def test_programs_that_walk_over_many_tiles(shape, per_image, monkeypatch):
    from equipoise.kernels import region_fused

    monkeypatch.setattr(region_fused, "PROGRAMS", 2)
    check(*example(shape), per_image=per_image)


@needs_kernels
@pytest.mark.parametrize("shape", [(2, 19, 6, 7), (1, 600, 20)], ids=str)
def test_offsets_of_64_bits(shape, monkeypatch):
    from equipoise.kernels import region_fused

    monkeypatch.setattr(region_fused, "is_long", lambda *_: True)
    check(*example(shape), per_image=True)
    check(*example(shape, dense=True))


@needs_kernels
@each_kind
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 40), (1, 600, 40)], ids=str)
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
@pytest.mark.parametrize("shape", [(2, 19, 6, 7), (2, 600, 9)], ids=str)
def test_ignored_pixels_can_be_anything(shape, dense, per_image):
    logits, targets = example(shape, dense=dense)
    hidden = (targets.sum(1, keepdim=True) == 0 if dense else (targets == IGNORED).unsqueeze(1)).expand_as(logits)
    assert hidden.any()
    value, grad = run("triton", logits, targets, per_image=per_image)
    assert (grad[hidden] == 0).all()
    for junk in (math.nan, math.inf, -math.inf):
        again = run("triton", logits.masked_fill(hidden, junk), targets, per_image=per_image)
        assert torch.equal(again[0], value)
        assert torch.equal(again[1], grad)


@needs_kernels
@each_extent
@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (1, 600, 3), (0, 3, 4), (2, 3, 0)], ids=str)
def test_nothing_counts(shape, per_image):
    logits, _ = example(shape)
    for targets in (torch.full((shape[0], *shape[2:]), IGNORED), torch.zeros(shape)):
        losses, grad = run("triton", logits, targets.to(DEVICE), per_image=per_image, classes="all")
        assert torch.equal(losses, torch.zeros_like(losses))
        assert torch.equal(grad, torch.zeros_like(logits))


@needs_kernels
@pytest.mark.parametrize("shape", [(1, 3, 4), (1, 600, 4)], ids=str)
def test_nan_of_a_valid_pixel_shows(shape):
    logits, targets = example(shape, ignored=0)
    for junk in (math.nan, math.inf):
        spoilt = logits.clone()
        spoilt[0, 1, 2] = junk
        losses, grad = run("triton", spoilt, targets, classes="all")
        assert bool(losses.isnan().all())
        assert bool(grad.isnan().any())


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
def test_the_same_numbers_every_time():
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
            assert torch.equal(value, expected)  # the same kernels
            assert torch.equal(*torch.autograd.grad(value, logits), *torch.autograd.grad(expected, logits))


# Compiled ahead of time: what the interpreter accepts, the compiler may not.

COMPILE = """
import itertools
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from equipoise.kernels import region_triton as kernels

FLOATS = [("fp16", "fp32"), ("bf16", "fp32"), ("fp32", "fp32"), ("fp64", "fp64")]

def compile_for(capability, kernel, data, sums, index, dense, whole, long, tile):
    types = {"logits": data, "targets": data if dense else index, "slopes": sums, "softmaxes": sums}
    types["out"] = data if kernel is kernels.gradient_kernel else sums
    flags = {"C": 19 if whole else 600, "DENSE": dense, "WHOLE": whole, "SLOPES": True, "LONG": long}
    flags |= dict(zip(("BLOCK_R", "BLOCK_C"), tile))
    signature, constants = {}, {}
    for place, name in enumerate(kernel.arg_names):
        if name in flags:
            signature[name], constants[place,] = "constexpr", flags[name]
        elif name == "sizes" or name.endswith("strides"):
            signature[name] = ("i32",) * (3 if name == "sizes" else 4)
        else:
            signature[name] = "*" + types[name] if name in types else "i64" if long and name == "rows" else "i32"
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 4, "maxnreg": 128})

for capability, dense in itertools.product((80, 90), (False, True)):
    for (data, sums), index, long in zip(FLOATS, ("u8", "i32", "i64", "i64"), (False, False, False, True)):
        whole = long or data == "fp32"
        compile_for(capability, kernels.sums_kernel, data, sums, index, dense, whole, long, (32, 32))
        compile_for(capability, kernels.gradient_kernel, data, sums, index, dense, whole, long, (32, 32))
        if not whole:
            compile_for(capability, kernels.softmax_kernel, data, sums, index, dense, whole, long, (32, 64))
"""


@pytest.mark.slow
def test_kernels_compile_for_gpus_that_are_not_here(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
