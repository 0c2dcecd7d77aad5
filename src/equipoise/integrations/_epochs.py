"""Check at the start of a training that losses and trainer agree on the number of epochs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from equipoise.losses import Loss

__all__: list[str] = []


def check_epochs(losses: Iterable[Loss], epochs: int) -> None:
    """Raise if the schedules of a loss end before the training, warn if the training ends before them."""
    for loss in losses:
        if loss.epochs is None or loss.epochs == epochs:
            continue
        message = (
            f"epochs of {type(loss).__name__} must be the {epochs} epochs of the training, got epochs={loss.epochs}; "
            f"give the loss epochs={epochs}"
        )
        if loss.epochs < epochs:
            raise ValueError(message)
        if loss.scheduled:
            warnings.warn(f"{message}, unless the training is resumed later: its schedules will not end", stacklevel=3)
