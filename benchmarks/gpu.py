"""Device time on CUDA: steps are captured in a CUDA graph and replayed between two events.

A replay launches all kernels together, which excludes the overhead of Python and of launches. Steps on small logits
are captured several times in a row, because a graph of a few microseconds would end before the next one is launched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from benchmarks.measure import Quartiles, Step
from benchmarks.targets import LARGE

__all__ = ["copy_bandwidth", "device_seconds"]

WARM_UP = 3  # steps before a capture: compilation, autotuning, workspaces
REPLAYS = 30  # maximum replays of a graph in one round
CASE_SECONDS = 0.06  # seconds of replays per case over all rounds
STEPS_IN_A_ROW = 10  # steps captured in one graph if logits are small


def copy_bandwidth(device: torch.device, rounds: int, nbytes: int = 2**30) -> Quartiles:
    """Bytes read and written per second by copies of a large tensor."""
    source = torch.rand(nbytes // 4, device=device)
    destination = torch.empty_like(source)
    seconds = _time_blocks(lambda: destination.copy_(source), rounds, REPLAYS // 3)
    return Quartiles.of([2 * source.nbytes / each for each in seconds])


def device_seconds(step: Step, rounds: int) -> list[float]:
    """Seconds of device time per step, one value per round; raises if the step cannot be captured."""
    steps = 1 if step.logits.nbytes >= LARGE else STEPS_IN_A_ROW
    graph = _capture(step, steps)
    try:
        once = min(_time_blocks(graph.replay, rounds=2, calls=1))
        replays = max(1, min(REPLAYS, int(CASE_SECONDS / rounds / once)))
        return [seconds / steps for seconds in _time_blocks(graph.replay, rounds, replays)]
    finally:
        step.logits.grad = None  # it is in the memory of the graph
        graph.reset()
        torch.cuda.empty_cache()


def _capture(step: Step, steps: int) -> torch.cuda.CUDAGraph:
    """A graph of forward and backward; backward allocates the gradient inside it, nothing is zeroed."""
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step()
        with _synchronising_is_an_error():  # a failed capture corrupts the state, so test it before
            step()
    current.wait_stream(side)
    step.logits.grad = None
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=side):
            for _ in range(steps):
                step()
    except RuntimeError as error:
        torch.cuda.set_stream(current)  # the context hangs if the capture cannot be ended
        raise error.__context__ or error from None  # the cause, not the consequence
    return graph


@contextmanager
def _synchronising_is_an_error() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _time_blocks(work: Callable[[], object], rounds: int, calls: int) -> list[float]:
    """Seconds per call, between events around blocks of calls; the first block is for warm-up."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(rounds + 1)]
    for start, end in events:
        start.record()
        for _ in range(calls):
            work()
        end.record()
    torch.cuda.synchronize()
    return [1e-3 * start.elapsed_time(end) / calls for start, end in events[1:]]
