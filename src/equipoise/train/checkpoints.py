"""Checkpoints of a run: the selected weights, and the state to resume from."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from equipoise._reading import InputError, read_checkpoint
from equipoise._writing import appearing
from equipoise.train.folder import AGAIN, RunFolder

__all__ = ["ResumePoint", "SelectedWeights", "save"]

FROM_START = "it is deleted, and training starts from the first epoch"
"""What follows if a checkpoint cannot be resumed from."""


def save(state: Mapping[str, object], path: Path, *, sync: bool = True) -> None:
    """Write a checkpoint atomically; a full disk raises ``OSError``. ``sync``: wait until it is on disk."""
    written = io.BytesIO()
    torch.save(state, written)
    with appearing(path, sync=sync) as draft:
        draft.write_bytes(written.getbuffer())


@dataclass(frozen=True)
class ResumePoint:
    """The state after an epoch, from which an interrupted training is resumed, ``resume.ckpt``.

    Args:
        epochs: number of finished epochs.
        best_value: monitored metric of the selected epoch.
        best_epoch: the selected epoch, from 0.
        step_seconds: mean time of a step in the last epoch.
        training: state of ``Training``.
    """

    epochs: int
    best_value: float
    best_epoch: int
    step_seconds: float
    training: Mapping[str, Any]

    def save(self, path: Path, *, sync: bool = True) -> None:
        """Write the checkpoint atomically."""
        save(vars(self), path, sync=sync)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the checkpoint; raises ``InputError`` if it is damaged, or of a version before 0.2."""
        content = read_checkpoint(path, advice=FROM_START)
        if "pytorch-lightning_version" in content:
            raise InputError(
                f"{path}: the file must be of this version of equipoise, got one of an earlier version; {FROM_START}"
            )
        if {field.name for field in fields(cls)} != content.keys() or not isinstance(content["training"], dict):
            raise InputError(f"{path}: the file must be the state of a training, got other contents; {FROM_START}")
        return cls(**content)


@dataclass(frozen=True)
class SelectedWeights:
    """The weights of the selected epoch, ``checkpoint.ckpt``.

    Args:
        epoch: from 0; -1 for a model that took no steps.
        model: weights of the model that predicts.
        trained: weights of the trained model if it is another one; otherwise None.
    """

    epoch: int
    model: Mapping[str, Tensor]
    trained: Mapping[str, Tensor] | None = None

    def save(self, path: Path, *, sync: bool = True) -> None:
        """Write the checkpoint atomically."""
        save({name: value for name, value in vars(self).items() if value is not None}, path, sync=sync)

    @classmethod
    def read(cls, folder: RunFolder) -> Self:
        """Read the checkpoint of a run; raises ``InputError`` if it is damaged."""
        content = read_checkpoint(folder.checkpoint, advice=AGAIN)
        if not isinstance(content.get("model"), dict):
            raise InputError(f"{folder.checkpoint}: the file must be the checkpoint of a run, found no model; {AGAIN}")
        return cls(content.get("epoch", -1), content["model"], content.get("trained"))
