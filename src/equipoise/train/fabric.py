"""The devices of a run through Lightning Fabric, its logger and its environment."""

from __future__ import annotations

import importlib
import logging
import os
import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.single_device import SingleDeviceStrategy
from lightning_fabric.utilities.exceptions import MisconfigurationException
from lightning_fabric.utilities.warnings import PossibleUserWarning

from equipoise.train.folder import RunFolder
from equipoise.train.record import Environment
from equipoise.train.spec import RunSpec

__all__ = [
    "check_machine",
    "device_name",
    "environment",
    "fabric_for",
    "launch",
    "logger_for",
    "on_one_device",
    "quiet",
]

LOGGERS = {
    "csv": "CSVLogger",
    "tensorboard": "TensorBoardLogger",
    "wandb": "WandbLogger",
    "mlflow": "MLFlowLogger",
    "comet": "CometLogger",
    "neptune": "NeptuneLogger",
}


def fabric_for(spec: RunSpec) -> Fabric:
    """The devices, their strategy and precision; settings of the machine are passed on unchanged."""
    devices: Any = int(spec.devices) if spec.devices.lstrip("-").isdigit() else spec.devices
    try:
        return Fabric(
            accelerator=_accelerator(spec.accelerator),
            devices=devices,
            num_nodes=spec.nodes,
            strategy=spec.strategy,
            precision=spec.precision,  # type: ignore[arg-type]
        )
    except (MisconfigurationException, ImportError, ValueError, RuntimeError, TypeError) as error:
        raise ValueError(
            f"--accelerator, --devices, --nodes, --strategy and --precision must suit this machine: {error}"
        ) from None


def launch(fabric: Fabric, *, deterministic: bool) -> None:
    """Start the other processes of the run, if any.

    Algorithms of cuDNN are chosen by its heuristics: timing them takes seconds in every thread, was no faster for the
    models that were measured, and would make results depend on what else runs.
    """
    if deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # without it cuBLAS refuses to be deterministic
    torch.use_deterministic_algorithms(deterministic)
    try:
        fabric.launch()
    except TypeError as error:  # a strategy that forks needs a function to run
        raise ValueError(f"--strategy must start processes by the command line, e.g. ddp: {error}") from None


def on_one_device(fabric: Fabric) -> bool:
    """Whether one process trains on one device, without wrappers around the model."""
    return type(fabric.strategy) is SingleDeviceStrategy


def check_machine(spec: RunSpec) -> None:
    """Raise if the machine or the logger does not exist, before anything is trained; nothing is written."""
    with quiet():
        fabric_for(spec)
    if spec.logger in ("none", "csv", "tensorboard"):  # other loggers may create a run on a server
        logger_for(spec, RunFolder(Path("run")))
    else:
        _logger_kind(spec)


def _accelerator(asked: str) -> str:
    """The accelerator: all metrics sum in float64, which MPS does not support."""
    if torch.backends.mps.is_available():
        if asked == "auto":
            return "cpu"
        if asked in ("gpu", "mps"):
            raise ValueError(f"MPS has no float64, in which metrics are summed; use cpu instead of {asked}")
    return asked


def logger_for(spec: RunSpec, folder: RunFolder) -> Any:  # noqa: ANN401
    """The logger of that name, None for ``"none"``; loggers that write files write them into the folder."""
    if spec.logger == "none":
        return None
    kind = _logger_kind(spec)
    options = {"name": "logs", "version": ""} if spec.logger in ("csv", "tensorboard") else {}
    try:
        return kind(save_dir=str(folder.draft), **options)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"--logger {spec.logger} needs a package that is not installed ({error}); install it"
        ) from None


def _logger_kind(spec: RunSpec) -> Any:  # noqa: ANN401
    if spec.logger in LOGGERS:
        return getattr(importlib.import_module("pytorch_lightning.loggers"), LOGGERS[spec.logger])
    module, _, name = spec.logger.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        raise ValueError(
            f"--logger must be none, {', '.join(LOGGERS)} or module:Class, got {spec.logger!r}; check the name"
        ) from None


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the messages of Lightning."""
    loggers = [logging.getLogger(name) for name in ("pytorch_lightning", "lightning_fabric")]
    before = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PossibleUserWarning)
        for category in (UserWarning, FutureWarning):
            warnings.filterwarnings("ignore", category=category, module=r"(pytorch_lightning|lightning_fabric)\.")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, before, strict=True):
                logger.setLevel(level)


def environment(fabric: Fabric) -> Environment:
    """Versions and hardware."""
    return Environment(
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        torch=torch.__version__,
        pytorch_lightning=version("pytorch-lightning"),
        numpy=np.__version__,
        device=device_name(fabric),
        processes=fabric.world_size,
        cores=os.cpu_count(),
        threads=torch.get_num_threads(),
    )


def device_name(fabric: Fabric) -> str:
    """Name of the device."""
    device = fabric.device
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
