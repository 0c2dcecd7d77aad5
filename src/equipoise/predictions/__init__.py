"""Saved predictions of any framework, read and written in chunks.

``open_predictions(path)`` reads an ``.npz``, a folder of ``.npy`` files, a ``.csv`` or a ``.parquet`` into the same
representation. Values are checked during reading.
"""

from equipoise.predictions.files import FORMATS, open_predictions
from equipoise.predictions.open_set import split_open
from equipoise.predictions.source import Chunk, InputError, Predictions
from equipoise.predictions.write import write_predictions
from equipoise.tasks import Task

__all__ = [
    "FORMATS",
    "Chunk",
    "InputError",
    "Predictions",
    "Task",
    "open_predictions",
    "split_open",
    "write_predictions",
]
