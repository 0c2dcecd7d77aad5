"""Predictions on samples of unknown classes: in a separate file, or marked by a target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from equipoise.predictions.source import Chunk, InputError, Predictions, no_targets

__all__ = ["check_open_label", "split_open"]


def check_open_label(source: Predictions, label: int) -> None:
    """Raise unless ``label`` can mark samples of unknown classes."""
    if not source.task.multiclass:
        raise InputError(
            f"{source.path}: an open label is for single-label data, found {source.task!r} predictions, of which no "
            "open set is defined; omit it"
        )
    if 0 <= label < source.num_classes:
        raise InputError(
            f"{source.path}: the open label must be a target that is no class, got {label} where the classes are 0 to "
            f"{source.num_classes - 1}; use a number such as -1 or {source.num_classes} in the file"
        )
    if label == source.ignore_index:
        raise InputError(
            f"{source.path}: the open label must differ from the ignored target, got {label} for both; choose another "
            "ignore_index"
        )


def split_open(source: Predictions) -> tuple[Predictions, Predictions]:
    """Split samples into known and unknown: unknown ones have the ``open_label`` of the source."""
    label = source.open_label
    if label is None:
        raise InputError(
            f"{source.path}: the predictions must be opened with an open label, found none; call "
            "open_predictions(path, open_label=-1)"
        )
    return tuple(_part(source, label, unknown) for unknown in (False, True))  # type: ignore[return-value]


def _part(source: Predictions, label: int, unknown: bool) -> Predictions:
    def read(size: int) -> Iterator[Chunk]:
        has_samples = False
        for chunk in source.read(size):
            scores, targets = chunk.scores, chunk.targets
            own = (targets == label) == unknown
            if own.any():
                has_samples = True
                kept = scores[own]
                yield Chunk(kept, no_targets(kept, source.task, source.ignore_index) if unknown else targets[own])
        if not has_samples:
            what = f"samples with the open label {label}" if unknown else f"samples without the open label {label}"
            raise InputError(f"{source.path}: there must be {what}, found none; check the targets or the label")

    return replace(source, read=read, samples=None, labelled=not unknown, open_label=None)
