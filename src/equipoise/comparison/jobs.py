"""A pool of worker processes: a worker imports once and runs many calls; if it dies, only its current call fails.

This module imports nothing heavy, because every worker starts with it.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection, reduction, resource_tracker
from types import TracebackType
from typing import Any, Protocol, Self

from equipoise._processes import end_with_parent

__all__ = ["Job", "JobResult", "Jobs", "LocalJobs", "attempt", "take_ready"]

TICK = 0.25
"""Seconds between two calls of ``tick``."""


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
    """

    name: str
    value: Any = None
    error: str | None = None
    log: str = ""


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


def take_ready(waiting: list[Job], busy: Iterable[Job]) -> Job | None:
    """Remove and return the first call that does not wait for another one; None if all do."""
    to_come = {call.name for call in (*waiting, *busy)}
    ready = next((call for call in waiting if call.after not in to_come), None)
    if ready is not None:
        waiting.remove(ready)
    return ready


def attempt(call: Job) -> JobResult:
    """Run a call; errors are returned as outcomes, with a traceback unless they are user errors."""
    from equipoise.train.errors import TrainingError

    try:
        return JobResult(call.name, call.function(*call.arguments))
    except (ValueError, TrainingError) as error:
        line = " ".join(str(error).split())
        sys.stderr.write(f"{line}\n")
    except Exception as error:  # noqa: BLE001  (a run may fail in any way, the others go on)
        traceback.print_exc()
        line = " ".join(f"{type(error).__name__}: {error}".split())
    return JobResult(call.name, error=line)


class LocalJobs:
    """Worker processes on this machine.

    Args:
        count: number of workers.
        begin: called once in each worker before its first call, to import what takes long.
        environments: environment variables, assigned to the workers in turn.
    """

    def __init__(
        self, count: int, begin: Callable[[], None], environments: Sequence[Mapping[str, str]] = ({},)
    ) -> None:
        self.count, self.begin, self.environments = count, begin, environments
        self.idle: list[_Process] = []
        self.busy: dict[_Process, Job] = {}

    @property
    def at_a_time(self) -> int:
        """Maximum number of concurrent calls."""
        return self.count

    def __enter__(self) -> Self:
        _let_it_tidy_up_in_silence()
        try:
            for number in range(self.count):
                self.idle.append(self._started(number))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in (*self.idle, *self.busy):
            process.end()

    def outcomes(self, calls: Sequence[Job], tick: Callable[[], None] = lambda: None) -> Iterator[JobResult]:
        """Outcomes in the order in which they are known; ``tick`` is called some times a second meanwhile."""
        waiting = list(calls)
        while waiting or self.busy:
            while self.idle and (call := take_ready(waiting, self.busy.values())) is not None:
                process = self.idle.pop(0)
                if not process.alive:
                    process.end()
                    process = self._started(process.number)
                self.busy[process] = call
                process.give(call)
            of = {handle: process for process in self.busy for handle in process.handles}
            for process in dict.fromkeys(of[handle] for handle in connection.wait(list(of), TICK)):
                self.idle.append(process)
                yield process.outcome(self.busy.pop(process))
            tick()

    def _started(self, number: int) -> _Process:
        variables = self.environments[number % len(self.environments)]
        return _Process(number, self.begin, variables)


class _Process:
    """Handle of one worker process."""

    def __init__(self, number: int, begin: Callable[[], None], variables: Mapping[str, str]) -> None:
        self.number = number
        self.log = tempfile.TemporaryFile()  # noqa: SIM115  (for life; it has no name that a kill could leave)
        context = multiprocessing.get_context("spawn")
        self.ours, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, begin, dict(variables)))
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
        with suppress(OSError):
            self.ours.send(call)

    def outcome(self, call: Job) -> JobResult:
        """The answer, or an error if the process died."""
        outcome: JobResult | None = None
        with suppress(EOFError, OSError):
            if self.ours.poll():
                outcome = self.ours.recv()
        if outcome is None:
            self.process.join()
            outcome = JobResult(call.name, error=_cause_of_death(self.process.exitcode))
        if outcome.error is None:
            return outcome
        self.log.seek(0)
        return JobResult(outcome.name, error=outcome.error, log=self.log.read().decode("utf-8", errors="replace"))

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


def _serve(calls: connection.Connection, begin: Callable[[], None], variables: Mapping[str, str]) -> None:
    """Main loop of a worker: start, then run calls until there are no more, or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent was interrupted too, and decides
    end_with_parent()
    threading.Thread(target=_wait_for_parent, daemon=True).start()  # if the kernel does not end it
    os.environ.update(variables)
    file = reduction.recv_handle(calls)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout = sys.stderr = open(file, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115  (for life)
    faulthandler.enable(file)
    begin()
    while True:
        try:
            call = calls.recv()
        except EOFError:
            return
        os.ftruncate(file, 0)
        os.lseek(file, 0, os.SEEK_SET)
        calls.send(attempt(call))


def _wait_for_parent() -> None:
    """Exit when the parent is gone: the next attempt needs exclusive access to the folder."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
