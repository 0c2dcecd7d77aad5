"""Runs that share a process: one at a time uses torch, while the devices work for all of them.

Torch keeps some state for the whole process, such as its default generators. A run that waits for its device hands the
turn to another run and takes its own state along, so that every run has the numbers that it has alone.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from typing import Any, TypeVar

import numpy as np
import torch

__all__ = ["Company", "SharedProcess", "company", "worker_process"]

ROOM = 1.5
"""Free memory of the device for another run, relative to the memory of each run so far."""

WAITS = 2
"""A run waits twice in an epoch."""
AHEAD = 8
"""Maximum number of graphs that a run has waiting for the device."""

Made = TypeVar("Made")


class Company:
    """The other runs of this process: none."""

    size = 1

    def wait(self, device: torch.device) -> None:
        """Return at once: the next value that is read from the device waits for it."""

    def pace(self) -> None:
        """Return at once: the driver limits the work that waits for a device."""

    def share(self, kind: str, key: Hashable, make: Callable[[], Made]) -> Made:
        """What ``make`` returns."""
        return make()


def company() -> Company:
    """The runs of the process that the current one is a member of."""
    return _COMPANY.get()


_COMPANY: ContextVar[Company] = ContextVar("company", default=Company())  # noqa: B039  (has no state)


class SharedProcess(Company):
    """The runs of a process, each in its own thread and, on a GPU, on its own stream."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._shared: dict[str, tuple[Hashable, Any]] = {}
        self.size = 0
        self._threads: set[int] = set()  # of members, and of runs that wait to be one
        self._settled = 0  # runs that have finished an epoch, and so have all of their memory

    @contextmanager
    def member(self, *, on_gpu: bool = False) -> Iterator[None]:
        """Take part as a run: wait for its turn, and on a GPU until there is memory; it gets its own generators."""
        token, thread = _COMPANY.set(self), threading.get_ident()
        self._threads.add(thread)
        try:
            with self._turn:
                self._turn.wait_for(lambda: not on_gpu or self._has_room())
                yield from self._with_turn(on_gpu)
        finally:
            self._threads.discard(thread)
            _COMPANY.reset(token)

    def _with_turn(self, on_gpu: bool) -> Iterator[None]:
        """Run a member that has the turn."""
        self.size += 1
        before, state = _RandomState.now(), _Member()
        _MEMBER.set(state)
        try:
            if on_gpu:
                _separate_generators()
            with torch.cuda.stream(torch.cuda.Stream()) if on_gpu else nullcontext():  # type: ignore[no-untyped-call]
                yield
        finally:
            before.restore()
            self.size -= 1
            self._settled -= state.settled
            self._turn.notify_all()

    def _has_room(self) -> bool:
        """Whether another run fits on the device; the first one is alone until its memory is known."""
        if self.size == 0:
            return True
        if self._settled < self.size:
            return False
        free = torch.cuda.mem_get_info()[0]
        return free > ROOM * torch.cuda.memory_reserved() / self.size

    def wait(self, device: torch.device) -> None:
        """Let other runs use the process, on a GPU until it has finished the work of this run."""
        state = _MEMBER.get()
        state.submitted.clear()
        state.waits += 1
        if state.waits >= WAITS and not state.settled:
            state.settled = True
            self._settled += 1
            self._turn.notify_all()
        self._hand_over(_recorded() if device.type == "cuda" else None)

    def pace(self) -> None:
        """Let other runs submit their work, too, if a GPU has enough of this one.

        The queue of the driver is limited: a run that fills it with an epoch would have the device for itself.
        """
        submitted = _MEMBER.get().submitted
        submitted.append(_recorded())
        if len(submitted) >= AHEAD:
            for _ in range(AHEAD // 2 - 1):
                submitted.popleft()
            self._hand_over(submitted.popleft())

    def _hand_over(self, finished: torch.cuda.Event | None) -> None:
        """Let other runs use the process until an event of the device, and take the turn again."""
        own = _RandomState.now()
        self._turn.release()
        try:
            if finished is not None:
                finished.synchronize()
            elif len(self._threads) > 1:
                time.sleep(1e-4)  # otherwise this thread would take the turn again before another one wakes up
        finally:
            self._turn.acquire()
            own.restore()

    def share(self, kind: str, key: Hashable, make: Callable[[], Made]) -> Made:
        """What ``make`` returned for this key; the last key of a kind is kept."""
        if kind not in self._shared or self._shared[kind][0] != key:
            self._shared.pop(kind, None)  # not two in memory
            self._shared[kind] = key, make()
        made: Made = self._shared[kind][1]
        return made


@cache
def worker_process() -> SharedProcess:
    """The company of all runs in this process, if it is a worker."""
    return SharedProcess()


class _Member:
    """What a company knows of one of its runs."""

    def __init__(self) -> None:
        self.waits, self.settled = 0, False
        self.submitted: deque[torch.cuda.Event] = deque()


def _recorded() -> torch.cuda.Event:
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


_MEMBER: ContextVar[_Member] = ContextVar("member")


class _RandomState:
    """The states of all generators that are shared by the process."""

    def __init__(self, python: Any, numpy: Any, host: torch.Tensor, devices: list[torch.Generator]) -> None:  # noqa: ANN401
        self.python, self.numpy, self.host, self.devices = python, numpy, host, devices

    @classmethod
    def now(cls) -> _RandomState:
        """The states of the run that has the turn."""
        devices = [generator.graphsafe_get_state() for generator in _device_generators()]
        return cls(random.getstate(), np.random.get_state(), torch.get_rng_state(), devices)

    def restore(self) -> None:
        """Put them back."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.host)
        for generator, state in zip(_device_generators(), self.devices, strict=False):  # none before CUDA was used
            generator.graphsafe_set_state(state)


def _device_generators() -> tuple[torch.Generator, ...]:
    return torch.cuda.default_generators if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]


def _separate_generators() -> None:
    """Give the default generators of the GPUs states that no other run has, as captured steps keep theirs."""
    torch.cuda.init()  # type: ignore[no-untyped-call]
    for generator in _device_generators():
        generator.graphsafe_set_state(generator.clone_state())
