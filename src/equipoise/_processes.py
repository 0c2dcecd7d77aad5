"""Processes that must not outlive the one that started them. Nothing heavy is imported here."""

from __future__ import annotations

import os
import signal
import sys

__all__ = ["end_with_parent"]

PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>


def end_with_parent(number: int = 0) -> None:
    """Have the kernel kill this process when its parent ends, however that ends: on Linux, elsewhere nothing happens.

    Strictly when the thread of the parent ends that started this process. A worker of a ``DataLoader`` looks for its
    parent by itself, but only while it has no batch to decode: one that waits for a file would stay.

    Args:
        number: of a worker, which has no say; as ``worker_init_fn`` of a ``DataLoader`` gets it.
    """
    if sys.platform != "linux":
        return
    import ctypes

    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the kernel knew
        os._exit(1)
