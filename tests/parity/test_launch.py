"""Launching without Triton's own binding: which kernels are compiled again, with a kernel that only records calls."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from equipoise.kernels.triton.launch import launcher as module
from equipoise.kernels.triton.launch.launcher import Launch, Launcher


class Noting:
    """A kernel that records its calls; it is its own compiled form."""

    function, packed_metadata = "function", "metadata"

    def __init__(self):
        self.bound, self.run_directly = [], []

    def __getitem__(self, grid):
        def through_triton(*arguments, num_warps):
            self.bound.append((grid, arguments, num_warps))
            return self

        return through_triton

    def run(self, *arguments):
        self.run_directly.append(arguments)


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 7, raising=False)
    return Noting()


def tensors(dtype=torch.float32, start=0):
    return tuple(torch.zeros(64, dtype=dtype)[start:] for _ in range(2))


def test_second_launch_is_direct(kernel):
    launcher, launch, given = Launcher(kernel), Launch(3, (48, 5), ("plan", True), 4), tensors()
    for _ in range(3):
        launcher._launch(0, launch, given)
    assert kernel.bound == [((3,), (*given, 48, 5, "plan", True), 4)]
    pointers = [tensor.data_ptr() for tensor in given]
    direct = (3, 1, 1, 7, "function", "metadata", None, None, None, *pointers, 48, 5, "plan", True)
    assert kernel.run_directly == [direct, direct]


def test_batches_of_another_size_share_a_kernel_where_triton_would(kernel):
    launcher, given = Launcher(kernel), tensors()
    launcher._launch(0, Launch(3, (48, 5), ("plan",), 4), given)
    launcher._launch(0, Launch(9, (96, 7), ("plan",), 4), given)
    assert len(kernel.bound) == 1
    assert kernel.run_directly[0][0] == 9
    assert kernel.run_directly[0][-3:] == (96, 7, "plan")


@pytest.mark.parametrize(
    ("device", "other", "given"),
    [
        (1, Launch(3, (48, 5), ("plan",), 4), tensors()),
        (0, Launch(3, (48, 5), ("plan",), 8), tensors()),
        (0, Launch(3, (48, 5), ("scheme",), 4), tensors()),
        (0, Launch(3, (47, 5), ("plan",), 4), tensors()),
        (0, Launch(3, (48, 1), ("plan",), 4), tensors()),
        (0, Launch(3, (48, 2**40 + 1), ("plan",), 4), tensors()),
        (0, Launch(3, (48, 5), ("plan",), 4), tensors(torch.float16)),
        (0, Launch(3, (48, 5), ("plan",), 4), tensors(start=1)),
    ],
    ids=["device", "warps", "constants", "not a multiple of 16", "one", "64 bits", "type", "not aligned"],
)
def test_new_specialisation_is_compiled_again(kernel, device, other, given):
    launcher = Launcher(kernel)
    launcher._launch(0, Launch(3, (48, 5), ("plan",), 4), tensors())
    launcher._launch(device, other, given)
    assert len(kernel.bound) == 2
    assert not kernel.run_directly


def test_a_profiler_sees_every_launch(kernel, monkeypatch):
    launcher, launch = Launcher(kernel), Launch(3, (48, 5), ("plan",), 4)
    launcher._launch(0, launch, tensors())
    monkeypatch.setattr(module, "_observed", lambda: True)
    launcher._launch(0, launch, tensors())
    launcher._launch(0, Launch(3, (48, 5), ("plan",), 4), tensors())
    assert len(kernel.bound) == 3
    assert not kernel.run_directly
