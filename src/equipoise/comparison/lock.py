"""Who may write into a folder: one comparison at a time, and none while processes of a killed one are still there.

The system takes a lock back when its process is gone, however it went; nobody has to clean up.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from equipoise._writing import open_unlinked

try:
    import fcntl
except ImportError:  # not on this system: nothing is locked
    fcntl = None  # type: ignore[assignment]

__all__ = ["LOCKS", "at_work", "only_one"]

LOCKS = (".lock", ".lock-of-runs")
"""Files that are locked, the first by the comparison and the second by its runs."""

PATIENCE = 60.0
"""Seconds that processes of a killed comparison have to find out."""


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Hold the folder for one comparison; what a killed one left running is waited for.

    Raises:
        ValueError: another comparison holds it.
    """
    with open_unlinked(folder / LOCKS[0], "a+") as holder, open_unlinked(folder / LOCKS[1], "a+") as runs:
        if not _lock(holder, shared=False):
            holder.seek(0)
            raise ValueError(
                f"{folder}: one comparison at a time must work there, found process {holder.read().strip() or '?'} at "
                "it; wait for it, or choose another --out"
            )
        holder.truncate(0)
        holder.write(str(os.getpid()))
        holder.flush()
        end = time.monotonic() + PATIENCE
        while not _lock(runs, shared=False):
            if time.monotonic() > end:
                raise ValueError(
                    f"{folder}: runs of a comparison that was stopped must be over, found some still at work; end "
                    "their processes, then give the command again"
                )
            time.sleep(0.05)
        _unlock(runs)
        yield


@contextmanager
def at_work(folder: Path) -> Iterator[None]:
    """Hold the folder for one of the runs of its comparison.

    Raises:
        SystemExit: the comparison is gone, and with it the right to train: another one may be there by now.
    """
    with open_unlinked(folder / LOCKS[1], "a+") as runs:
        _lock(runs, shared=True, wait=True)
        parent = multiprocessing.parent_process()
        if parent is not None and not parent.is_alive():
            raise SystemExit("the process that asked for the run is gone")
        yield


def _lock(file: IO[str], *, shared: bool, wait: bool = False) -> bool:
    """Whether nobody else has it; file systems without locks have none."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _unlock(file: IO[str]) -> None:
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_UN)
