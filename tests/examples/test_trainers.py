"""Losses in common trainers: the examples learn, and have the gradient of one big batch if they claim so.

The gradients are those that the optimiser of the unchanged example sees (``recording.py``): on two real processes with
four batches a step, and on one process with one batch a step. float32 throughout: 1e-6 is some units in the last place.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import equipoise
from tests.examples.recording import recorded

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"
RECORDING = Path(__file__).parent / "recording.py"
PATIENCE = 240  # seconds for one example; on an idle core they need about twenty
SAME = 1e-6

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * PATIENCE)]
two_processes = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="needs torch.distributed with gloo"
)


def run(folder, *command, **environment):
    """Output of a Python command without GPU and downloads."""
    process = subprocess.Popen(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with the processes it started
        pytest.fail(f"still running after {PATIENCE} s: {command}")
    assert process.returncode == 0, errors
    return output, errors


def gradients_of_two_processes(folder, example, *options):
    """Gradients of each step; they are the same in both processes, because DDP averages them."""
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)
    output, _ = run(folder, *launch, RECORDING, folder, EXAMPLES / example, *options)
    first, second = (torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert largest_difference(first, second) == 0.0
    return first, output


def largest_difference(steps, others):
    """Maximum over all steps and parameters; each step must have a gradient that is not negligible."""
    worst = 0.0
    for step, other in zip(steps, others, strict=True):
        assert max(gradient.abs().max() for gradient in step) > 0.01
        worst = max(worst, *((a - b).abs().max().item() for a, b in zip(step, other, strict=True)))
    return worst


def percent(name, text):
    return float(re.search(rf"{name} ([\d.]+)%", text)[1])


@pytest.fixture
def alone(monkeypatch):
    """Allow Accelerate in this process, on the CPU, any number of times."""
    from accelerate.state import AcceleratorState, GradientState

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def forget():
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()

    yield forget
    forget()


@pytest.fixture
def averages_of_means(monkeypatch):
    """Eight batches a step, each divided by its own denominator: what accumulation does without a normalizer."""
    forward = equipoise.SoftmaxLoss.forward

    def mean(self, logits, targets, *, normalizer=None):
        return forward(self, logits, targets) / 8

    return lambda: monkeypatch.setattr(equipoise.SoftmaxLoss, "forward", mean)


def test_a_plain_loop_is_compiled_once_and_learns(tmp_path):
    output, errors = run(tmp_path, EXAMPLES / "pytorch_loop.py", TORCH_LOGS="recompiles")
    assert "Recompiling" not in errors
    xi = [float(value) for value in re.findall(r"xi ([\d.]+)", output)]
    assert len(xi) == 20
    assert xi[0] == xi[-1] == 1.0
    assert min(xi) < 0.02
    assert percent("accuracy", output) > 65


def test_a_lightning_module_learns_and_its_loss_is_logged(tmp_path):
    output, _ = run(tmp_path, EXAMPLES / "lightning_module.py")
    assert "loss/gamma 0.150" in output  # of the last epoch: 3 * (1 - 19 / 20)
    weights = [float(value) for value in re.findall(r"loss/recall_weights/\d ([\d.]+)", output)]
    assert len(weights) == 10
    assert weights[0] < weights[9] < 1
    assert float(re.search(r"accuracy\W+([\d.]+)", output)[1]) > 0.65


@two_processes
def test_hugging_face_has_the_gradient_of_one_big_batch(tmp_path, capfd, alone, averages_of_means):
    example, options = EXAMPLES / "hugging_face.py", ("--out", tmp_path)
    dealt, _ = gradients_of_two_processes(
        tmp_path, example, "--steps", 2, "--batch-size", 4, "--accumulate", 4, *options
    )
    alone()
    joined = recorded(example, "--steps", 25, "--batch-size", 32, "--accumulate", 1, *options)
    assert percent("name", capfd.readouterr().out) > 60
    assert largest_difference(dealt[:1], joined[:1]) < SAME
    alone()
    averages_of_means()
    averaged = recorded(example, "--steps", 1, "--batch-size", 4, "--accumulate", 8, *options)
    assert largest_difference(averaged, joined[:1]) > 1000 * SAME


@two_processes
def test_accelerate_has_the_gradient_of_one_big_batch(tmp_path, capfd, alone, averages_of_means):
    example = EXAMPLES / "accelerate_loop.py"
    dealt, output = gradients_of_two_processes(tmp_path, example, "--epochs", 1, "--batch-size", 8, "--accumulate", 4)
    assert output.count("accuracy") == 1
    alone()
    joined = recorded(example, "--epochs", 20, "--batch-size", 64, "--accumulate", 1)
    assert percent("accuracy", capfd.readouterr().out) > 65
    # four steps of 64 samples; the fifth has the last 20, of which two processes see some twice to have as many each
    assert largest_difference(dealt[:4], joined[:4]) < SAME
    alone()
    averages_of_means()
    averaged = recorded(example, "--epochs", 1, "--batch-size", 8, "--accumulate", 8)
    assert largest_difference(averaged[:1], joined[:1]) > 1000 * SAME


@two_processes
def test_two_processes_of_torchrun_train_as_one(tmp_path, capfd, monkeypatch):
    example = EXAMPLES / "distributed.py"
    dealt, output = gradients_of_two_processes(tmp_path, example, "--epochs", 2)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "localhost", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    joined = recorded(example, "--epochs", 2, "--batch-size", 32)
    assert len(joined) == 16
    assert largest_difference(dealt, joined) < SAME
    assert capfd.readouterr().out == output  # the recalls of the classes, and the accuracy
