"""Calls on a Ray cluster, whose machines must share the folder of the comparison and the data."""

from __future__ import annotations

import importlib
import io
import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from equipoise._extras import missing
from equipoise.comparison.jobs import TICK, Job, JobResult, attempt, take_ready

__all__ = ["RayJobs"]


class RayJobs:
    """Worker processes on a Ray cluster.

    Args:
        address: of the cluster: ``auto``, ``HOST:PORT``, ``ray://HOST:PORT``; ``local`` starts one on this machine.
        begin: called once in each process before its first call.
        most: maximum number of concurrent calls; None leaves it to the cluster.
        on_gpus: whether every call gets a GPU; None if the cluster has any.
    """

    def __init__(
        self, address: str, begin: Callable[[], None], most: int | None = None, on_gpus: bool | None = None
    ) -> None:
        self.address, self.begin, self.most, self.on_gpus = address, begin, most, on_gpus

    @property
    def at_a_time(self) -> int | None:
        """Maximum number of concurrent calls, None if the cluster decides."""
        return self.most

    def __enter__(self) -> Self:
        try:
            ray: Any = importlib.import_module("ray")
        except ModuleNotFoundError:
            raise missing("--ray", "ray") from None
        try:
            _knock(self.address)
            ray.init(address=self.address, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError) as error:
            raise ValueError(
                f"--ray must be the address of a running cluster, got {self.address!r}: {_line(error)}; start one "
                "with `ray start --head`, and pass auto or HOST:PORT"
            ) from None
        self.ray = ray
        on_gpus = bool(ray.cluster_resources().get("GPU")) if self.on_gpus is None else self.on_gpus
        self.remote = ray.remote(num_cpus=1, num_gpus=int(on_gpus), max_retries=0)(_attempt_there)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ray.shutdown()

    def outcomes(self, calls: Sequence[Job], tick: Callable[[], None] = lambda: None) -> Iterator[JobResult]:
        """Outcomes in the order in which they are known; ``tick`` is called some times a second meanwhile."""
        waiting, busy = list(calls), dict[Any, Job]()
        while waiting or busy:
            while self.most is None or len(busy) < self.most:
                call = take_ready(waiting, busy.values())
                if call is None:
                    break
                busy[self.remote.remote(call, self.begin, str(Path.cwd()))] = call
            ready, _ = self.ray.wait(list(busy), num_returns=1, timeout=TICK)
            for reference in ready:
                yield self._outcome(busy.pop(reference), reference)
            tick()

    def _outcome(self, call: Job, reference: Any) -> JobResult:  # noqa: ANN401
        try:
            outcome: JobResult = self.ray.get(reference)
        except self.ray.exceptions.RayError as error:  # the process or its machine died
            return JobResult(call.name, error=f"the cluster lost the run: {_line(error)}", log=str(error))
        return outcome


def _knock(address: str) -> None:
    """Raise if nothing listens at the address; Ray would retry for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _attempt_there(call: Job, begin: Callable[[], None], folder: str) -> JobResult:
    """Run a call in a process of the cluster, in the same working folder."""
    if not Path(folder).is_dir():
        error = f"{socket.gethostname()}: the machines of the cluster must share the folder {folder}, found none there"
        return JobResult(call.name, error=error)
    os.chdir(folder)
    begin()
    log = io.StringIO()
    with redirect_stdout(log), redirect_stderr(log):
        outcome = attempt(call)
    return outcome if outcome.error is None else replace(outcome, log=log.getvalue())


def _line(error: BaseException) -> str:
    """The first non-empty line of an error."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
