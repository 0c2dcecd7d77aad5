"""Settings of the machine."""

from __future__ import annotations

import platform

import pytest
import torch

from equipoise.train.folder import RunFolder
from equipoise.train.spec import RunSpec
from equipoise.train.trainer import environment, trainer_for


def trainer(tmp_path, **settings):
    return trainer_for(RunSpec(data="digits-lt", logger="none", **settings), RunFolder(tmp_path / "run"), [])


def test_the_cpu_of_a_mac_trains(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert trainer(tmp_path).strategy.root_device.type == "cpu"
    with pytest.raises(ValueError, match=r"--accelerator.* must suit this machine: .*no float64.*use cpu"):
        trainer(tmp_path, accelerator="gpu")


def test_a_run_names_the_system_and_not_its_kernel(tmp_path):
    assert environment(trainer(tmp_path, accelerator="cpu")).platform.split() == [
        platform.system(),
        platform.machine(),
    ]


def test_missing_accelerator(tmp_path):
    with pytest.raises(ValueError, match=r"--accelerator.* must suit this machine"):
        trainer(tmp_path, accelerator="tpu")
