"""Locks of a folder: one comparison at a time, and none while processes of a killed one are still running.

The system releases the lock of a process when it ends for any reason, so no cleanup is needed.
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
except ImportError:  # not available on this system: no locks
    fcntl = None  # type: ignore[assignment]

__all__ = ["LOCKS", "at_work", "only_one"]

LOCKS = (".lock", ".lock-of-runs")
"""Lock files of the comparison and of its runs."""

PATIENCE = 60.0
"""Seconds to wait for the processes of a killed comparison to end."""


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Lock the folder for one comparison, after waiting for processes of a killed one.

    Raises:
        ValueError: another comparison holds it.
    """
    with open_unlinked(folder / LOCKS[0], "a+") as holder, open_unlinked(folder / LOCKS[1], "a+") as runs:
        if not _lock(holder, shared=False):
            holder.seek(0)
            raise ValueError(
                f"{folder}: the folder must not be in use by another comparison, found process "
                f"{holder.read().strip() or '?'}; wait for it to end, or choose another --out"
            )
        holder.truncate(0)
        holder.write(str(os.getpid()))
        holder.flush()
        end = time.monotonic() + PATIENCE
        while not _lock(runs, shared=False):
            if time.monotonic() > end:
                raise ValueError(
                    f"{folder}: no run of a stopped comparison must be active, found some; end "
                    "their processes, then run the command again"
                )
            time.sleep(0.05)
        _unlock(runs)
        yield


@contextmanager
def at_work(folder: Path) -> Iterator[None]:
    """Lock the folder for one of the runs of its comparison.

    Raises:
        SystemExit: the comparison has ended, so that another one may use the folder.
    """
    with open_unlinked(folder / LOCKS[1], "a+") as runs:
        _lock(runs, shared=True, wait=True)
        parent = multiprocessing.parent_process()
        if parent is not None and not parent.is_alive():
            raise SystemExit("the parent process of the run is gone")
        yield


def _lock(file: IO[str], *, shared: bool, wait: bool = False) -> bool:
    """Whether the lock could be acquired; True on file systems without locks."""
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
