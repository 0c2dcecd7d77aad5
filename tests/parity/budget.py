"""Parity by error budget: a kernel may be about as far from the float64 truth as plain PyTorch in the same dtype."""

import copy
import os

import pytest
import torch

from equipoise.kernels import use
from tests.losses.helpers import value_and_gradient
from tests.marks import slow

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
DTYPES = [*slow(torch.float16), torch.bfloat16, torch.float32, *slow(torch.float64)]

needs_kernels = pytest.mark.skipif(
    not CUDA and os.environ.get("TRITON_INTERPRET") != "1", reason="needs a CUDA device or TRITON_INTERPRET=1"
)


def captured(step):
    """A CUDA graph of a step and its result, after two steps in which synchronisation is an error."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(2):
                step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    return graph, result


def assert_within_budget(fused, plain, exact, accumulation, roundings=16):
    """The error is at most twice that of plain PyTorch, plus a few roundings of the largest number."""
    assert (fused.dtype, fused.shape) == (plain.dtype, plain.shape)
    if not exact.numel():
        return
    rounding = torch.finfo(fused.dtype)
    budget = 2 * (plain.double() - exact).abs().max() + roundings * torch.finfo(accumulation).eps * exact.abs().max()
    budget = budget + rounding.eps * exact.abs() + rounding.tiny * rounding.eps
    excess = ((fused.double() - exact).abs() - budget).max().item()
    assert excess <= 0, f"the kernel exceeds the error budget by {excess:.2e}"


def check_parity(loss, logits, targets, **options):
    """Value and gradient of both backends against the reference in float64; state too. Moves all to the device."""
    logits, targets = logits.detach().to(DEVICE), targets.to(DEVICE)
    options = {name: value.to(DEVICE) if isinstance(value, torch.Tensor) else value for name, value in options.items()}
    results, states = [], []
    for backend, dtype in (("triton", logits.dtype), ("reference", logits.dtype), ("reference", torch.float64)):
        twin = copy.deepcopy(loss)
        wide = targets.double() if targets.is_floating_point() and dtype is torch.float64 else targets
        with use(backend):
            results.append(value_and_gradient(twin, logits.to(dtype), wide, **options))
        states.append(twin.state_dict())
    accumulation = torch.float64 if logits.dtype is torch.float64 else torch.float32
    for fused, plain, exact in zip(*results, strict=True):
        assert_within_budget(fused, plain, exact, accumulation)
    for name, buffer in states[0].items():
        torch.testing.assert_close(buffer, states[1][name], equal_nan=True, rtol=1e-5, atol=1e-6)
