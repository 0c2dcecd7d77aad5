"""Batches for the kernels of the region losses, and their memory layouts."""

import math

import pytest
import torch

from tests.parity.budget import DEVICE

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


def channels_last(logits):
    return logits.to(memory_format=torch.channels_last)


def sliced(logits):
    n, c, h, w = logits.shape
    room = torch.full((n, c + 2, h + 3, 2 * w + 1), math.nan, dtype=logits.dtype, device=logits.device)
    room[:, 1 : c + 1, 2 : h + 2, 1::2] = logits
    return room[:, 1 : c + 1, 2 : h + 2, 1::2]


def every_second(logits):
    """Every second element; neither compiler nor hardware may load two at once."""
    n, c, h, w = logits.shape
    room = torch.full((n, c, 2 * h, 2 * w), math.nan, dtype=logits.dtype, device=logits.device)
    room[:, :, ::2, ::2] = logits
    return room[:, :, ::2, ::2]


def expanded(logits):
    return logits[:1, :, :, :1].expand(logits.shape)


LAYOUTS = [channels_last, sliced, every_second, expanded, lambda z: z.transpose(2, 3)]


def check_ignored_pixels(run, shape, dense, per_image):
    """The content of ignored pixels does not affect value and gradient of ``run(backend, logits, targets, ...)``."""
    logits, targets = example(shape, dense=dense)
    hidden = (targets.sum(1, keepdim=True) == 0 if dense else (targets == IGNORED).unsqueeze(1)).expand_as(logits)
    assert hidden.any()
    value, grad = run("triton", logits, targets, per_image=per_image)
    assert (grad[hidden] == 0).all()
    for junk in (math.nan, math.inf, -math.inf):
        again = run("triton", logits.masked_fill(hidden, junk), targets, per_image=per_image)
        assert torch.equal(again[0], value)
        assert torch.equal(again[1], grad)


def check_nothing_counts(run, shape, per_image):
    """Without valid pixels, values and gradients are 0."""
    logits, _ = example(shape)
    for targets in (torch.full((shape[0], *shape[2:]), IGNORED), torch.zeros(shape)):
        losses, grad = run("triton", logits, targets.to(DEVICE), per_image=per_image, classes="all")
        assert torch.equal(losses, torch.zeros_like(losses))
        assert torch.equal(grad, torch.zeros_like(logits))


def check_nan_shows(run, shape):
    """NaN or infinity in a valid pixel makes all losses and gradients NaN."""
    logits, targets = example(shape, ignored=0)
    for junk in (math.nan, math.inf):
        spoilt = logits.clone()
        spoilt[0, 1, 2] = junk
        losses, grad = run("triton", spoilt, targets, classes="all")
        assert bool(losses.isnan().all())
        assert bool(grad.isnan().any())
