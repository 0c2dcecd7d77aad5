"""Settings of the machine."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
import torch

from equipoise.train.fabric import environment, fabric_for, logger_for
from equipoise.train.folder import RunFolder
from equipoise.train.spec import RunSpec


def fabric(**settings):
    return fabric_for(RunSpec(data="digits-lt", **settings))


def test_the_cpu_of_a_mac_trains(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert fabric().device.type == "cpu"
    with pytest.raises(ValueError, match=r"--accelerator.* must suit this machine: .*no float64.*use cpu"):
        fabric(accelerator="gpu")


def test_a_run_names_the_system_and_not_its_kernel():
    assert environment(fabric(accelerator="cpu")).platform.split() == [
        platform.system(),
        platform.machine(),
    ]


def test_missing_accelerator():
    with pytest.raises(ValueError, match=r"--accelerator.* must suit this machine"):
        fabric(accelerator="tpu")


@pytest.mark.parametrize("name", ["csv", "tensorboard"])
def test_loggers_write_into_the_folder(tmp_path, name):
    folder = RunFolder(tmp_path / "run")
    logger = logger_for(RunSpec(data="digits-lt", logger=name), folder)
    logger.log_metrics({"loss": 1.0}, 3)
    logger.save()
    assert any(folder.draft.joinpath("logs").iterdir())


def test_unknown_logger():
    with pytest.raises(ValueError, match=r"--logger must be none, csv, .* or module:Class, got 'xyz'"):
        logger_for(RunSpec(data="digits-lt", logger="xyz"), RunFolder(Path("run")))
