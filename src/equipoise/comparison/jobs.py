"""A pool of worker processes: a worker imports once and runs many calls, if wanted several at a time in threads.

A call that fails does not affect others. If a worker dies, its only call fails; several calls are run again, and
alone if that may find the guilty one.

This module imports nothing heavy, because every worker starts with it.
"""

from __future__ import annotations

import faulthandler
import io
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from multiprocessing import connection, reduction, resource_tracker
from types import TracebackType
from typing import Any, Protocol, Self

from equipoise._processes import end_with_parent

__all__ = ["Job", "JobResult", "Jobs", "LocalJobs", "attempt", "take_ready"]

TICK = 0.25
"""Seconds between two calls of ``tick``."""
LOST_DEVICE = 86
"""Exit status of a worker that cannot use its device any more."""
DEATHS = 2
"""A call whose worker died so often runs without others from then on."""


@dataclass(frozen=True)
class Job:
    """A function call in another process.

    Args:
        name: identifies its outcome.
        function: module-level function, which is pickled by name.
        arguments: picklable arguments.
        after: name of a call that must end first, successfully or not.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    after: str | None = None


@dataclass(frozen=True)
class JobResult:
    """The result of a call.

    Args:
        name: of the call.
        value: return value.
        error: error in one line; None if the call succeeded.
        log: output of a failed call.
        alone: whether it failed for a reason that other calls in its process may have caused.
        lost_device: whether its process cannot use its device any more.
    """

    name: str
    value: Any = None
    error: str | None = None
    log: str = ""
    alone: bool = False
    lost_device: bool = False


class Jobs(Protocol):
    """Runs calls in other processes, on this machine or on others."""

    @property
    def at_a_time(self) -> int | None:
        """Maximum number of concurrent calls, None if unknown."""

    def __enter__(self) -> Self:
        """Start."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, including calls that are still running."""

    def outcomes(self, calls: Sequence[Job], tick: Callable[[], None] = lambda: None) -> Iterator[JobResult]:
        """Outcomes in the order in which they are known; ``tick`` is called some times a second meanwhile."""


def take_ready(
    waiting: list[Job], busy: Iterable[Job], allowed: Callable[[Job], bool] = lambda call: True
) -> Job | None:
    """Remove and return the first allowed call that does not wait for another one; None if there is none."""
    to_come = {call.name for call in (*waiting, *busy)}
    ready = next((call for call in waiting if call.after not in to_come and allowed(call)), None)
    if ready is not None:
        waiting.remove(ready)
    return ready


def attempt(call: Job) -> JobResult:
    """Run a call; errors are returned as outcomes, with a traceback unless they are user errors."""
    from equipoise.train.errors import LostDeviceError, OutOfMemoryError, TrainingError

    alone = lost_device = False
    try:
        return JobResult(call.name, call.function(*call.arguments))
    except (ValueError, TrainingError) as error:
        line = " ".join(str(error).split())
        alone, lost_device = isinstance(error, OutOfMemoryError), isinstance(error, LostDeviceError)
        sys.stderr.write(f"{line}\n")
    except Exception as error:  # noqa: BLE001  (a run may fail in any way, the others go on)
        traceback.print_exc()
        line = " ".join(f"{type(error).__name__}: {error}".split())
    return JobResult(call.name, error=line, alone=alone, lost_device=lost_device)


class LocalJobs:
    """Worker processes on this machine.

    Args:
        count: number of workers.
        begin: called once in each worker before its first call, to import what takes long.
        environments: environment variables, assigned to the workers in turn.
        together: maximum number of calls that a worker runs at a time, each in a thread.
        most: maximum number of calls of all workers at a time; None for as many as they run.
    """

    def __init__(
        self,
        count: int,
        begin: Callable[[], None],
        environments: Sequence[Mapping[str, str]] = ({},),
        *,
        together: int = 1,
        most: int | None = None,
    ) -> None:
        self.count, self.begin, self.environments, self.together = count, begin, environments, together
        self.at_a_time = count * together if most is None else most
        self.processes: list[_Process] = []
        self.deaths: Counter[str] = Counter()
        self.separate: set[str] = set()  # calls that run without others

    def __enter__(self) -> Self:
        _let_it_tidy_up_in_silence()
        try:
            for number in range(self.count):
                self.processes.append(self._started(number))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes:
            process.end()

    def outcomes(self, calls: Sequence[Job], tick: Callable[[], None] = lambda: None) -> Iterator[JobResult]:
        """Outcomes in the order in which they are known; ``tick`` is called some times a second meanwhile."""
        waiting = list(calls)
        while waiting or any(process.calls for process in self.processes):
            self._assign(waiting)
            of = {handle: process for process in self.processes if process.calls for handle in process.handles}
            for process in dict.fromkeys(of[handle] for handle in connection.wait(list(of), TICK)):
                yield from self._outcomes_of(process, waiting)
            tick()

    def _assign(self, waiting: list[Job]) -> None:
        """Give calls to the workers that have room, the one with the fewest calls first."""
        while free := [process for process in self.processes if self._has_room(process)]:
            process = min(free, key=lambda one: len(one.calls))
            busy = [call for one in self.processes for call in one.calls.values()]
            if len(busy) >= self.at_a_time:
                return
            call = take_ready(waiting, busy, lambda call: call.name not in self.separate)
            if call is None and not process.calls:
                call = take_ready(waiting, busy)
            if call is None:
                return
            if not process.alive:
                process.end()
                place = self.processes.index(process)
                process = self.processes[place] = self._started(process.number)
            process.give(call)

    def _has_room(self, process: _Process) -> bool:
        if process.calls and not process.alive:  # what becomes of them is decided first
            return False
        return len(process.calls) < self.together and self.separate.isdisjoint(process.calls)

    def _outcomes_of(self, process: _Process, waiting: list[Job]) -> Iterator[JobResult]:
        """Outcomes that a worker has sent, and what follows for its other calls if it died."""
        company = len(process.calls)
        while (outcome := process.received()) is not None:
            call = process.calls.pop(outcome.name)
            if outcome.lost_device:
                process.process.join()  # it ends
            if outcome.alone and company > 1:
                self.separate.add(call.name)
                waiting.append(call)
            else:
                yield outcome
        if process.calls and not process.alive:
            calls, process.calls = list(process.calls.values()), {}
            if company == 1:
                yield process.failure(calls[0])
                return
            self.deaths.update(call.name for call in calls)
            lost = process.process.exitcode == LOST_DEVICE
            self.separate |= {call.name for call in calls if lost or self.deaths[call.name] >= DEATHS}
            waiting[:0] = calls

    def _started(self, number: int) -> _Process:
        variables = self.environments[number % len(self.environments)]
        return _Process(number, self.begin, variables, self.together)


class _Process:
    """Handle of one worker process."""

    def __init__(self, number: int, begin: Callable[[], None], variables: Mapping[str, str], together: int) -> None:
        self.number, self.calls = number, dict[str, Job]()
        self.log = tempfile.TemporaryFile()  # noqa: SIM115  (for life; it has no name that a kill could leave)
        context = multiprocessing.get_context("spawn")
        self.ours, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, begin, dict(variables), together))
        self.process.start()  # not a daemon: it may start data loader processes
        theirs.close()
        with suppress(OSError):  # it died already; waiting for its first answer reports it
            reduction.send_handle(self.ours, self.log.fileno(), self.process.pid)

    @property
    def alive(self) -> bool:
        """Whether it can run calls."""
        return self.process.is_alive()

    @property
    def handles(self) -> tuple[Any, ...]:
        """Objects to wait for: an answer, or the end of the process."""
        return self.ours, self.process.sentinel

    def give(self, call: Job) -> None:
        """Send a call; if the process is dead, waiting for the answer reports it."""
        self.calls[call.name] = call
        with suppress(OSError):
            self.ours.send(call)

    def received(self) -> JobResult | None:
        """The next answer; None if there is none."""
        with suppress(EOFError, OSError):
            if self.calls and self.ours.poll():
                outcome: JobResult = self.ours.recv()
                return outcome if outcome.error is None or outcome.log else replace(outcome, log=self._logged())
        return None

    def failure(self, call: Job) -> JobResult:
        """The outcome of a call whose process died."""
        self.process.join()
        return JobResult(call.name, error=_cause_of_death(self.process.exitcode), log=self._logged())

    def _logged(self) -> str:
        self.log.seek(0)
        return self.log.read().decode("utf-8", errors="replace")

    def end(self) -> None:
        """Kill it immediately, which is safe because its files are written atomically."""
        self.process.kill()
        self.process.join()
        self.ours.close()
        self.log.close()


def _let_it_tidy_up_in_silence() -> None:
    """Start the resource tracker, which removes leftovers of killed processes, such as semaphores, without warnings.

    Its warnings would follow the message on how to resume an interrupted comparison.
    """
    if os.name != "posix":
        return
    name, quiet = "PYTHONWARNINGS", "ignore:resource_tracker"
    before = os.environ.get(name)
    os.environ[name] = quiet if before is None else f"{before},{quiet}"  # the last filter wins
    try:
        resource_tracker.ensure_running()
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _cause_of_death(status: int | None) -> str:
    """Explanation of the exit status of a process."""
    if status is not None and status < 0:
        cause = f"was terminated by {signal.Signals(-status).name}"
        if status == -signal.SIGKILL:
            cause += ", which the system does if memory is low; use fewer --jobs or a smaller --batch-size"
        return f"the process of the run {cause}"
    return f"the process of the run ended with status {status}; see its log"


def _serve(
    calls: connection.Connection, begin: Callable[[], None], variables: Mapping[str, str], together: int
) -> None:
    """Main loop of a worker: start, then run calls until there are no more, or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent was interrupted too, and decides
    end_with_parent()
    threading.Thread(target=_wait_for_parent, daemon=True).start()  # if the kernel does not end it
    os.environ.update(variables)
    file = reduction.recv_handle(calls)
    os.dup2(file, 1)
    os.dup2(file, 2)
    output = open(file, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115  (for life)
    sys.stdout = sys.stderr = output if together == 1 else _OutputOfThreads(output)
    faulthandler.enable(file)
    begin()
    threads = _Threads(calls)
    while True:
        try:
            call = calls.recv()
        except EOFError:
            return
        if together > 1:
            threads.start(call)
            continue
        os.ftruncate(file, 0)
        os.lseek(file, 0, os.SEEK_SET)
        outcome = attempt(call)
        calls.send(outcome)
        if outcome.lost_device:
            os._exit(LOST_DEVICE)


class _Threads:
    """The calls that a worker runs at a time."""

    def __init__(self, calls: connection.Connection) -> None:
        self.calls, self.running, self.lock = calls, 0, threading.Lock()

    def start(self, call: Job) -> None:
        """Run a call in a thread, and send its outcome."""
        with self.lock:
            self.running += 1
        threading.Thread(target=self._run, args=(call,), daemon=True).start()

    def _run(self, call: Job) -> None:
        log = io.StringIO()
        _LOG.set(log)
        outcome = JobResult(call.name, error="the run ended without a result")
        try:
            outcome = attempt(call)
        finally:
            with self.lock:
                self.running -= 1
                if not outcome.lost_device or not self.running:
                    self._send(outcome if outcome.error is None else replace(outcome, log=log.getvalue()))
                if outcome.lost_device:  # any of the calls may have done it; each is tried alone
                    os._exit(LOST_DEVICE)

    def _send(self, outcome: JobResult) -> None:
        try:
            self.calls.send(outcome)
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            self.calls.send(JobResult(outcome.name, error=f"the result cannot be sent: {error}"))


_LOG: ContextVar[io.StringIO | None] = ContextVar("log", default=None)


class _OutputOfThreads(io.TextIOBase):
    """Writes to the log of the call whose thread writes, and to that of the process.

    Args:
        output: log of the process.
    """

    def __init__(self, output: io.TextIOWrapper) -> None:
        self.output = output

    def write(self, text: str, /) -> int:
        """Write to both."""
        log = _LOG.get()
        if log is not None:
            log.write(text)
        return self.output.write(text)

    def flush(self) -> None:
        """Flush the log of the process."""
        self.output.flush()

    def fileno(self) -> int:
        """That of the process."""
        return self.output.fileno()


def _wait_for_parent() -> None:
    """Exit when the parent is gone: the next attempt needs exclusive access to the folder."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
