"""Running a function on two real processes of ``torch.distributed``."""

import os
import time

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def on_two_processes(function, folder, patience):
    """What ``function(rank, folder)`` left in ``folder/RANK.pt`` on each; fails where they wait for one another."""
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("needs torch.distributed with gloo")
    context = mp.spawn(function, args=(str(folder),), nprocs=2, join=False)
    end = time.monotonic() + patience
    while not context.join(timeout=5):
        if time.monotonic() > end:
            for process in context.processes:
                process.kill()
            pytest.fail(f"the processes still wait for one another after {patience} s")
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def leave():
    """End a process whose results are saved, as soon as the other one is as far.

    One that goes earlier breaks connections under the other, and threads of gloo that are still there when an
    interpreter comes to its own end may abort it.
    """
    dist.barrier()
    os._exit(0)
