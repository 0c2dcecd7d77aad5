"""Calls in processes of this machine: a process imports once and takes many calls; one that dies costs one call.

Nothing heavy is imported here, as every process begins with this module.
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

__all__ = ["Call", "Jobs", "LocalJobs", "Outcome", "attempt", "take_ready"]

TICK = 0.25
"""Seconds between two looks at the clock."""


@dataclass(frozen=True)
class Call:
    """Something to do in another process.

    Args:
        name: by which its outcome is known.
        function: found by its name there.
        arguments: that can be pickled.
        after: name of a call that has to be over first, whatever became of it.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    after: str | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of a call.

    Args:
        name: of the call.
        value: what it returned.
        error: what went wrong, in one line; None where nothing did.
        log: where something did: what was written before.
    """

    name: str
    value: Any = None
    error: str | None = None
    log: str = ""


class Jobs(Protocol):
    """Takes calls to other processes, on this machine or elsewhere."""

    @property
    def at_a_time(self) -> int | None:
        """Calls under way at most, None where nobody knows."""

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End, also what is still under way."""

    def outcomes(self, calls: Sequence[Call], tick: Callable[[], None] = lambda: None) -> Iterator[Outcome]:
        """Outcomes in the order in which they are known; ``tick`` is called some times a second meanwhile."""


def take_ready(waiting: list[Call], busy: Iterable[Call]) -> Call | None:
    """Take out the first call that waits for no other; None where all do."""
    to_come = {call.name for call in (*waiting, *busy)}
    ready = next((call for call in waiting if call.after not in to_come), None)
    if ready is not None:
        waiting.remove(ready)
    return ready


def attempt(call: Call) -> Outcome:
    """Do it; what goes wrong is an outcome like any other, and has its traceback where it is no message for people."""
    from equipoise.train.errors import TrainingError

    try:
        return Outcome(call.name, call.function(*call.arguments))
    except (ValueError, TrainingError) as error:
        line = " ".join(str(error).split())
        sys.stderr.write(f"{line}\n")
    except Exception as error:  # noqa: BLE001  (a run may fail in any way, the others go on)
        traceback.print_exc()
        line = " ".join(f"{type(error).__name__}: {error}".split())
    return Outcome(call.name, error=line)


class LocalJobs:
    """Processes of this machine.

    Args:
        count: how many.
        begin: what each does first, while there is no call yet: imports take long.
        environments: variables of the processes, which take turns with them.
    """

    def __init__(
        self, count: int, begin: Callable[[], None], environments: Sequence[Mapping[str, str]] = ({},)
    ) -> None:
        self.count, self.begin, self.environments = count, begin, environments
        self.idle: list[_Process] = []
        self.busy: dict[_Process, Call] = {}

    @property
    def at_a_time(self) -> int:
        """Calls under way at most."""
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

    def outcomes(self, calls: Sequence[Call], tick: Callable[[], None] = lambda: None) -> Iterator[Outcome]:
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
    """One process, seen from outside."""

    def __init__(self, number: int, begin: Callable[[], None], variables: Mapping[str, str]) -> None:
        self.number = number
        self.log = tempfile.TemporaryFile()  # noqa: SIM115  (for life; it has no name that a kill could leave)
        context = multiprocessing.get_context("spawn")
        self.ours, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, begin, dict(variables)))
        self.process.start()  # no daemon: it may have processes of its own that decode images
        theirs.close()
        with suppress(OSError):  # it died already, which shows when the first answer is awaited
            reduction.send_handle(self.ours, self.log.fileno(), self.process.pid)

    @property
    def alive(self) -> bool:
        """Whether it can take calls."""
        return self.process.is_alive()

    @property
    def handles(self) -> tuple[Any, ...]:
        """What can be waited for: an answer, or the end of the process."""
        return self.ours, self.process.sentinel

    def give(self, call: Call) -> None:
        """Ask for a call; that nobody is there any more shows when the answer is awaited."""
        with suppress(OSError):
            self.ours.send(call)

    def outcome(self, call: Call) -> Outcome:
        """The answer, or that there will be none."""
        found: Outcome | None = None
        with suppress(EOFError, OSError):
            if self.ours.poll():
                found = self.ours.recv()
        if found is None:
            self.process.join()
            found = Outcome(call.name, error=_cause_of_death(self.process.exitcode))
        if found.error is None:
            return found
        self.log.seek(0)
        return Outcome(found.name, error=found.error, log=self.log.read().decode("utf-8", errors="replace"))

    def end(self) -> None:
        """End it at once: all that it writes appears whole or not at all."""
        self.process.kill()
        self.process.join()
        self.ours.close()
        self.log.close()


def _let_it_tidy_up_in_silence() -> None:
    """Start the process that removes what killed ones left, such as semaphores of those that decode images.

    It warns of what it removes, where a comparison was interrupted right below the message that says how to go on.
    """
    if os.name != "posix":
        return
    name, quiet = "PYTHONWARNINGS", "ignore:resource_tracker"
    before = os.environ.get(name)
    os.environ[name] = quiet if before is None else f"{before},{quiet}"  # the last one counts
    try:
        resource_tracker.ensure_running()
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _cause_of_death(status: int | None) -> str:
    """What the exit status of a process says."""
    if status is not None and status < 0:
        cause = f"was ended by {signal.Signals(-status).name}"
        if status == -signal.SIGKILL:
            cause += ", as the system does where memory is short; fewer --jobs or a smaller --batch-size need less"
        return f"the process of the run {cause}"
    return f"the process of the run ended with status {status}; its log may say why"


def _serve(calls: connection.Connection, begin: Callable[[], None], variables: Mapping[str, str]) -> None:
    """The life of a process: begin, then answer calls until there are none, or nobody who would ask."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asks was interrupted too, and decides
    end_with_parent()
    threading.Thread(target=_wait_for_parent, daemon=True).start()  # where the kernel does not see to it
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
    """A process whose parent was killed must not go on: the next attempt has to have the folder for itself."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
