"""How far a comparison is: one bar over the epochs of all runs on a terminal, otherwise a line for each run."""

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
"""Seconds for which people want to know how long it takes before the first run is over."""
ENOUGH = 4
"""Epochs that tell it,"""
SETTLED = 10.0
"""and seconds: four short epochs are over in less than one, which tells little where cores are shared."""


class Pace:
    """How long it will take, from what was done since the first bit was done: what comes before is no work.

    Args:
        total: amount of work.
        done: how much of it was done before.
        clock: seconds.

    >>> seconds = iter([10.0, 12.0, 14.0])
    >>> pace = Pace(total=100, done=40, clock=lambda: next(seconds))
    >>> [pace.left(done) for done in (40, 41, 43, 51)]
    [None, None, 57.0, 19.6]
    """

    def __init__(self, total: float, done: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.total, self.before, self.clock = total, done, clock
        self.first: tuple[float, float] | None = None
        self.measured = 0.0  # seconds that the answer rests on

    def left(self, done: float) -> float | None:
        """Seconds, None where nothing is known yet."""
        if done <= self.before:
            return None
        now = self.clock()
        if self.first is None:
            self.first = done, now
        earlier, then = self.first
        self.measured = now - then
        return self.measured / (done - earlier) * (self.total - done) if done > earlier else None


class Display:
    """Tells people how far the runs are, from what lies in their folders, wherever they are trained.

    Args:
        runs: all of the comparison.
        epochs: of each run.
        say: called with a line for each run that is over.
        console: a terminal for the bar; None for none.
    """

    def __init__(
        self, runs: Sequence[PlannedRun], epochs: Sequence[int], say: Callable[[str], None], console: Console | None
    ) -> None:
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
        self.untold = console is None  # how long it takes, of which a bar would tell
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
        """Look how far the runs are."""
        done = self._done()
        over = len(self.runs) - len(self.open)
        seconds = self.pace.left(done)
        left = _in_words(seconds)
        self.bar.update(self.task, completed=done, description=f"{over} of {len(self.runs)} runs", left=left)
        settled = done >= self.pace.before + ENOUGH and self.pace.measured >= SETTLED
        if self.untold and settled and seconds is not None and seconds > LONG:
            self.untold = False
            self.say(f"about {left}, at the pace of the first {duration(self.pace.measured)}")

    def finished(self, run: PlannedRun) -> None:
        """A run came to its end."""
        record = run.folder.record
        metric = metric_info(record.monitor)
        self._over(run, f"{metric.label} {metric.text(record.monitor_value)} on validation data")

    def failed(self, run: PlannedRun, error: str, log: Path) -> None:
        """A run failed."""
        self._over(run, f"failed: {error}; see {log}")

    def _over(self, run: PlannedRun, result: str) -> None:
        self.open.remove(run)
        left = self._left(self._done()) if self.open else ""
        self.untold = self.untold and not left
        count = f"{len(self.runs) - len(self.open):>{len(str(len(self.runs)))}}/{len(self.runs)}"
        self.say(f"{count} {run.loss}, seed {run.seed}: {result}" + (f"; {left}" if left else ""))

    def _done(self) -> int:
        """Epochs that are over; a run that failed is over too."""
        still_open = {run.name: _epochs(run) for run in self.open}
        return sum(still_open.get(name, epochs) for name, epochs in self.epochs.items())

    def _left(self, done: int) -> str:
        return _in_words(self.pace.left(done))


def _in_words(seconds: float | None) -> str:
    return "" if seconds is None else f"{duration(seconds)} left"


def _epochs(run: PlannedRun) -> int:
    """Epochs of a run that have a row."""
    try:
        return (run.folder.where / "history.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0
