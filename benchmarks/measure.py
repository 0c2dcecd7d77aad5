"""Time and memory of one step, that is forward plus backward.

Time is the wall clock around complete steps, with the device synchronised before and after; ``gpu.py`` measures device
time.

Peak memory on the CPU comes from ``torch.profiler``: the allocator of torch reports every allocation and
deallocation, including temporaries inside operators. The peak is that of the cumulative sum from the start of the step,
so it excludes the inputs and includes the gradient. On CUDA the caching allocator reports the peak.

What is held for backward comes from ``torch.autograd.graph.saved_tensors_hooks``, read between forward and backward:
the distinct storages, at least as large as the logits, that the graph of the loss keeps alive at that moment.
"""

from __future__ import annotations

import gc
import json
import math
import random
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

__all__ = [
    "Forward",
    "Held",
    "Quartiles",
    "Step",
    "drain",
    "held_for_backward",
    "no_collection",
    "paired_ratio",
    "peak_bytes",
    "take_turns",
]

Forward: TypeAlias = Callable[[], Tensor]
"""Function that computes the scalar loss of a fixed batch."""

BLOCK_SECONDS = 0.01  # short steps are timed in blocks of at least this long


@dataclass(frozen=True)
class Quartiles:
    """Median with its first and third quartile."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Quartiles:
        """Quartiles of a sample, linearly interpolated."""
        low, median, high = torch.tensor(values, dtype=torch.float64).quantile(torch.tensor([0.25, 0.5, 0.75]).double())
        return cls(float(median), float(low), float(high))


@dataclass(frozen=True)
class Step:
    """Forward and backward of one candidate into the gradient of ``logits``."""

    forward: Forward
    logits: Tensor

    def __call__(self) -> None:
        """Run one step; the old gradient is cleared first."""
        self.logits.grad = None
        self.forward().backward()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Held:
    """Number of storages of at least the size of the logits that are kept for backward."""

    with_inputs: int
    without_inputs: int


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect garbage now and disable the collector inside the context, so that memory is freed deterministically."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def take_turns(
    steps: Mapping[str, Callable[[], None]], device: torch.device, rounds: int, block: float | None = None
) -> dict[str, list[float]]:
    """Seconds per step by name, one value per round; the order is shuffled in every round.

    Args:
        steps: steps by name.
        device: synchronised before and after a block of steps.
        rounds: number of blocks of each step.
        block: minimum seconds of a block, ``BLOCK_SECONDS`` by default.
    """
    least = BLOCK_SECONDS if block is None else block
    calls = {name: _calls_for(step, device, least) for name, step in steps.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    order, draw = list(steps), random.Random(0)
    with no_collection():
        for _ in range(rounds):
            draw.shuffle(order)
            for name in order:
                times[name].append(_time_calls(steps[name], device, calls[name]))
    return times


def paired_ratio(own: list[float], other: list[float]) -> Quartiles:
    """Quartiles of the ratio within a round."""
    return Quartiles.of([mine / theirs for mine, theirs in zip(own, other, strict=True)])


def _calls_for(step: Callable[[], None], device: torch.device, seconds: float) -> int:
    """Number of steps per block for a sufficient resolution; also warms up."""
    step()
    return max(1, math.ceil(seconds / min(_time_calls(step, device, 1) for _ in range(2))))


def _time_calls(step: Callable[[], None], device: torch.device, calls: int) -> float:
    """Seconds per step, averaged over a block of ``calls``."""
    drain(device)
    start = time.perf_counter()
    for _ in range(calls):
        step()
    drain(device)
    return (time.perf_counter() - start) / calls


def drain(device: torch.device) -> None:
    """Synchronise the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_bytes(step: Step) -> int:
    """Peak of the bytes allocated by a step, including the gradient and excluding the inputs."""
    device = step.logits.device
    step.logits.grad = None
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        return torch.cuda.max_memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        step()
    with TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = [event for event in json.loads(trace.read_text())["traceEvents"] if event.get("name") == "[memory]"]
    step.logits.grad = None
    live = peak = 0
    for event in sorted(events, key=lambda event: event["ts"]):
        live += event["args"]["Bytes"]
        peak = max(peak, live)
    return peak


class _Kept:
    """Replaces a saved tensor in the graph; freed with the node that saved it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.detach()  # not the tensor itself, which may own the node


def held_for_backward(forward: Forward, inputs: list[Tensor], size: int) -> Held:
    """Count the storages of at least ``size`` bytes that the graph keeps, with and without those of the inputs."""
    kept: weakref.WeakSet[_Kept] = weakref.WeakSet()

    def pack(tensor: Tensor) -> _Kept:
        held = _Kept(tensor)
        kept.add(held)
        return held

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda held: held.tensor):
        loss = forward()
    storages = {held.tensor.untyped_storage().data_ptr(): held.tensor.untyped_storage().nbytes() for held in kept}
    large = {pointer for pointer, nbytes in storages.items() if nbytes >= size}
    del loss  # keeps the graph alive until here
    return Held(len(large), len(large - {tensor.untyped_storage().data_ptr() for tensor in inputs}))
