"""Progress of a comparison: one bar over the epochs of all runs in a terminal, otherwise one line per run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from equipoise._formatting import duration
from equipoise.comparison.folder import PlannedRun
from equipoise.metric_registry import metric_info

__all__ = ["Display", "Pace"]

LONG = 60.0
"""Seconds of expected training above which an estimate is printed before the first run ends."""
ENOUGH = 2
"""Minimum number of epochs for the estimate,"""
SETTLED = 4.0
"""and minimum seconds: very short epochs are too noisy on shared cores."""
VERY_LONG = 1200.0
"""Seconds of expected training above which a cheaper command is proposed."""


class Pace:
    """Estimate of the remaining time, from the work since the first progress, which excludes the startup.

    Args:
        total: amount of work.
        done: amount done before the start.
        clock: seconds.

    >>> seconds = iter([10.0, 12.0, 14.0])
    >>> pace = Pace(total=100, done=40, clock=lambda: next(seconds))
    >>> [pace.left(done) for done in (40, 41, 43, 51)]
    [None, None, 57.0, 19.6]
    """

    def __init__(self, total: float, done: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.total, self.before, self.clock = total, done, clock
        self.first: tuple[float, float] | None = None
        self.measured = 0.0  # seconds that the estimate is based on

    def left(self, done: float) -> float | None:
        """Remaining seconds, None if unknown."""
        if done <= self.before:
            return None
        now = self.clock()
        if self.first is None:
            self.first = done, now
        earlier, then = self.first
        self.measured = now - then
        return self.measured / (done - earlier) * (self.total - done) if done > earlier else None


class Display:
    """Shows the progress of the runs, which it reads from their folders, on any machine.

    Args:
        runs: all runs of the comparison.
        epochs: number of epochs of each run.
        say: called with a line for each run that ended.
        console: a terminal for the bar; None for no bar.
        cheaper: the command of a comparison with fewer epochs or seeds, proposed if this one takes long.
    """

    def __init__(
        self,
        runs: Sequence[PlannedRun],
        epochs: Sequence[int],
        say: Callable[[str], None],
        console: Console | None,
        *,
        cheaper: str = "",
    ) -> None:
        self.cheaper = cheaper
        self.runs, self.say = runs, say
        self.epochs = {run.name: number for run, number in zip(runs, epochs, strict=True)}
        self.open = [run for run in runs if not run.folder.finished]
        self.pace = Pace(sum(epochs), self._done())
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[left]}"),
        )
        self.bar = Progress(*columns, console=console, transient=True, disable=console is None)
        self.untold = console is None  # the bar shows the estimate already
        self.task = self.bar.add_task("", total=self.pace.total, left="")
        self.tick()

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def tick(self) -> None:
        """Update the progress of the runs."""
        done = self._done()
        over = len(self.runs) - len(self.open)
        seconds = self.pace.left(done)
        left = _in_words(seconds)
        self.bar.update(self.task, completed=done, description=f"{over} of {len(self.runs)} runs", left=left)
        settled = done >= self.pace.before + ENOUGH and self.pace.measured >= SETTLED
        if not settled or seconds is None:
            return
        if self.untold and seconds > LONG:
            self.untold = False
            self.say(f"about {left}, at the pace of the first {duration(self.pace.measured)}")
        if self.cheaper and seconds > VERY_LONG:
            self.say(f"for a first look: {self.cheaper}")
        self.cheaper = ""

    def finished(self, run: PlannedRun) -> None:
        """Report that a run finished."""
        record = run.folder.record
        metric = metric_info(record.monitor)
        self._over(run, f"{metric.label} {metric.text(record.monitor_value)} on validation data")

    def failed(self, run: PlannedRun, error: str, log: Path) -> None:
        """Report that a run failed."""
        self._over(run, f"failed: {error}; see {log}")

    def _over(self, run: PlannedRun, result: str) -> None:
        self.open.remove(run)
        left = self._left(self._done()) if self.open else ""
        self.untold = self.untold and not left
        count = f"{len(self.runs) - len(self.open):>{len(str(len(self.runs)))}}/{len(self.runs)}"
        self.say(f"{count} {run.loss}, seed {run.seed}: {result}" + (f"; {left}" if left else ""))

    def _done(self) -> int:
        """Number of finished epochs; failed runs count as finished."""
        still_open = {run.name: _epochs(run) for run in self.open}
        return sum(still_open.get(name, epochs) for name, epochs in self.epochs.items())

    def _left(self, done: int) -> str:
        return _in_words(self.pace.left(done))


def _in_words(seconds: float | None) -> str:
    return "" if seconds is None else f"{duration(seconds)} left"


def _epochs(run: PlannedRun) -> int:
    """Number of epochs of a run that are recorded."""
    try:
        return (run.folder.where / "history.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0
