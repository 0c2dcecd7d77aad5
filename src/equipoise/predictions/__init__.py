"""Saved predictions of any framework, read and written some samples at a time.

``open_predictions(path)`` takes an ``.npz``, a folder of ``.npy`` files, a ``.csv`` or a ``.parquet``; what comes out
is the same for all of them. Numbers are checked as they are read.
"""

from equipoise.predictions.files import FORMATS, open_predictions
from equipoise.predictions.open_set import split_open
from equipoise.predictions.source import Chunk, InputError, Predictions, Task
from equipoise.predictions.write import write_predictions

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
