"""Time that a CUDA device alone takes: steps captured once in a CUDA graph and replayed between two events.

A replay launches everything at once, so that neither Python nor the launches are in the time. Steps on small logits
are captured several times in a row, as a graph of a few microseconds would be over before the next one is launched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from benchmarks.measure import Quartiles, Step
from benchmarks.targets import LARGE

__all__ = ["copy_bandwidth", "device_seconds"]

WARM_UP = 3  # steps before a capture: compilation, autotuning, workspaces
REPLAYS = 30  # of a graph in one round, at most
CASE_SECONDS = 0.06  # replaying one case, all rounds together, where one replay is short enough
STEPS_IN_A_ROW = 10  # captured in one graph where logits are not large


def copy_bandwidth(device: torch.device, rounds: int, nbytes: int = 2**30) -> Quartiles:
    """Bytes read and written in a second by copies of one large tensor onto another."""
    source = torch.rand(nbytes // 4, device=device)
    destination = torch.empty_like(source)
    seconds = _time_blocks(lambda: destination.copy_(source), rounds, REPLAYS // 3)
    return Quartiles.of([2 * source.nbytes / each for each in seconds])


def device_seconds(step: Step, rounds: int) -> list[float]:
    """Seconds of device time of one step, a number for each round; an error where it cannot be captured."""
    steps = 1 if step.logits.nbytes >= LARGE else STEPS_IN_A_ROW
    graph = _capture(step, steps)
    try:
        once = min(_time_blocks(graph.replay, rounds=2, calls=1))
        replays = max(1, min(REPLAYS, int(CASE_SECONDS / rounds / once)))
        return [seconds / steps for seconds in _time_blocks(graph.replay, rounds, replays)]
    finally:
        step.logits.grad = None  # it lies in the memory of the graph
        graph.reset()
        torch.cuda.empty_cache()


def _capture(step: Step, steps: int) -> torch.cuda.CUDAGraph:
    """A graph of forward and backward; backward allocates the gradient inside it, nothing is zeroed."""
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step()
        with _synchronising_is_an_error():  # a capture that fails leaves a mess, so find out before
            step()
    current.wait_stream(side)
    step.logits.grad = None
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=side):
            for _ in range(steps):
                step()
    except RuntimeError as error:
        torch.cuda.set_stream(current)  # the context does not come back from a capture that cannot be ended
        raise error.__context__ or error from None  # what broke it, not that it is broken
    return graph


@contextmanager
def _synchronising_is_an_error() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _time_blocks(work: Callable[[], object], rounds: int, calls: int) -> list[float]:
    """Seconds between events around blocks of calls, for one call; after one block that warms up."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(rounds + 1)]
    for start, end in events:
        start.record()
        for _ in range(calls):
            work()
        end.record()
    torch.cuda.synchronize()
    return [1e-3 * start.elapsed_time(end) / calls for start, end in events[1:]]
