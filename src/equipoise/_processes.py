"""Child processes that must not outlive their parent. Imports nothing heavy."""

from __future__ import annotations

import os
import signal
import sys

__all__ = ["end_with_parent"]

PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>


def end_with_parent(number: int = 0) -> None:
    """Ask the kernel to kill this process when its parent ends for any reason; no effect except on Linux.

    Strictly, when the thread of the parent that started this process ends. A ``DataLoader`` worker checks for its
    parent itself, but only while it has no batch to decode: one that waits for a file would stay.

    Args:
        number: index of a worker, unused; the argument of ``worker_init_fn`` of a ``DataLoader``.
    """
    if sys.platform != "linux":
        return
    import ctypes

    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before the call
        os._exit(1)
