"""Checkpoints of a run: the selected weights, and the state to resume from."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from pytorch_lightning.plugins import TorchCheckpointIO
from torch import Tensor

from equipoise._reading import InputError, read_checkpoint
from equipoise._writing import appearing
from equipoise.train.folder import AGAIN, RunFolder

__all__ = ["AtomicCheckpoints", "SelectedWeights", "save"]


def save(state: Mapping[str, object], path: Path) -> None:
    """Write a checkpoint atomically; a full disk raises ``OSError``."""
    written = io.BytesIO()
    torch.save(state, written)
    with appearing(path) as draft:
        draft.write_bytes(written.getbuffer())


class AtomicCheckpoints(TorchCheckpointIO):
    """Checkpoints that are written atomically and read without executing code."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:  # noqa: ANN401
        """Write atomically."""
        save(checkpoint, Path(path))

    def load_checkpoint(
        self,
        path: Any,  # noqa: ANN401
        map_location: Any = lambda storage, location: storage,  # noqa: ANN401
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Read tensors and plain values only."""
        return read_checkpoint(Path(path), advice=f"delete {path} to train from the first epoch", place=map_location)


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

    def save(self, path: Path) -> None:
        """Write the checkpoint atomically."""
        save({name: value for name, value in vars(self).items() if value is not None}, path)

    @classmethod
    def read(cls, folder: RunFolder) -> Self:
        """Read the checkpoint of a run; raises ``InputError`` if it is damaged."""
        content = read_checkpoint(folder.checkpoint, advice=AGAIN)
        if not isinstance(content.get("model"), dict):
            raise InputError(f"{folder.checkpoint}: the file must be the checkpoint of a run, found no model; {AGAIN}")
        return cls(content.get("epoch", -1), content["model"], content.get("trained"))
