"""Time and memory of one step, that is forward plus backward.

Time is the wall clock around whole steps, with the device drained before and after; ``gpu.py`` has the time that the
device alone takes.

Peak memory on the CPU comes from ``torch.profiler``: torch's allocator reports every block it hands out and takes
back, also the temporaries inside an operator, which a count of Python's tensors would not see. The peak is that of the
running sum from the start of the step, so the inputs are not in it and the gradient is. On CUDA the caching allocator
keeps the same number itself.

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
"""Computes the loss, a scalar, of a batch that it knows."""

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
        """Run once; the old gradient is dropped, so that nothing accumulates."""
        self.logits.grad = None
        self.forward().backward()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Held:
    """Number of storages of at least the size of the logits that are kept for backward."""

    with_inputs: int
    without_inputs: int


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect garbage now and not again before the end, so that no memory goes at a moment of its own."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def take_turns(
    steps: Mapping[str, Callable[[], None]], device: torch.device, rounds: int, block: float | None = None
) -> dict[str, list[float]]:
    """Seconds of a step by name, one number for each round; the order is a new one in every round.

    Args:
        steps: what is timed.
        device: what is drained before and after a block of steps.
        rounds: blocks of each.
        block: seconds that a block takes at least, ``BLOCK_SECONDS`` by default.
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
    """How many steps make a block that the clock resolves; also warms up."""
    step()
    return max(1, math.ceil(seconds / min(_time_calls(step, device, 1) for _ in range(2))))


def _time_calls(step: Callable[[], None], device: torch.device, calls: int) -> float:
    """Seconds that one step takes, averaged over a block of ``calls``."""
    drain(device)
    start = time.perf_counter()
    for _ in range(calls):
        step()
    drain(device)
    return (time.perf_counter() - start) / calls


def drain(device: torch.device) -> None:
    """Wait until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_bytes(step: Step) -> int:
    """Largest number of bytes that a step has allocated at once, the gradient included and the inputs not."""
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
    """What the graph keeps in place of a saved tensor; dies with the node that saved it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.detach()  # not the tensor itself, which may own the node


def held_for_backward(forward: Forward, inputs: list[Tensor], size: int) -> Held:
    """Count the storages of at least ``size`` bytes that the graph keeps, with those of the inputs and without."""
    kept: weakref.WeakSet[_Kept] = weakref.WeakSet()

    def pack(tensor: Tensor) -> _Kept:
        held = _Kept(tensor)
        kept.add(held)
        return held

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda held: held.tensor):
        loss = forward()
    storages = {held.tensor.untyped_storage().data_ptr(): held.tensor.untyped_storage().nbytes() for held in kept}
    large = {pointer for pointer, nbytes in storages.items() if nbytes >= size}
    del loss  # the graph has lived until here
    return Held(len(large), len(large - {tensor.untyped_storage().data_ptr() for tensor in inputs}))
