"""Run an example as a user does, and record the gradients of each step of its optimiser.

    python tests/examples/recording.py FOLDER EXAMPLE [OPTION ...]

writes ``FOLDER/RANK.pt``: for each step, the gradient of each parameter.
"""

from __future__ import annotations

import os
import runpy
import sys
from unittest import mock

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook


def recorded(example, *options):
    """Gradients of each step while an example runs in this process."""
    steps = []

    def keep(optimizer, args, kwargs):
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        steps.append([parameter.grad.clone() for parameter in parameters])

    hook = register_optimizer_step_pre_hook(keep)
    try:
        with mock.patch.object(sys, "argv", [str(example), *map(str, options)]):
            runpy.run_path(str(example), run_name="__main__")
    finally:
        hook.remove()
    return steps


if __name__ == "__main__":
    folder, *command = sys.argv[1:]
    torch.save(recorded(*command), f"{folder}/{os.environ.get('RANK', 0)}.pt")
