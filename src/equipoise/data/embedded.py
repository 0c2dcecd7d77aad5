"""Handwritten digits from scikit-learn as three imbalanced tasks. Nothing is downloaded or cached.

The three splits use different digits, so no test digit occurs in training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from equipoise._extras import missing
from equipoise._paths import EMBEDDED_NAMES
from equipoise.data.arrays import Arrays, DataSet
from equipoise.data.longtail import exponential_counts, subsample
from equipoise.tasks import Task

__all__ = ["EMBEDDED", "digit_maps", "digit_scenes", "digits_lt"]

CLASSES = 10
SIDE = 8
CELLS = 4
"""A canvas has CELLS x CELLS cells for digits."""
INK = 4
"""Minimum grey value (of 16) of the pixels of a digit."""
SPLITS = ("train", "val", "test")
TEST, VAL = 40, 20
"""Held-out digits per class."""


class Pool(NamedTuple):
    """Digits available to one split."""

    images: NDArray[np.uint8]  # (n, 8, 8), 0 to 255
    labels: NDArray[np.int64]


def digits_lt(*, ratio: float = 50.0, seed: int = 0) -> DataSet:
    """One digit per image, long-tailed in training: 100 of the digit 0 down to 2 of the digit 9 at ratio 50.

    Images are (1, 8, 8); 20 validation and 40 test images of each class, balanced.
    """
    pools = _pools(seed)
    labels = pools["train"].labels
    kept = subsample(labels, exponential_counts(CLASSES, 100, ratio), seed=seed)
    parts = [Pool(pools["train"].images[kept], labels[kept]), pools["val"], pools["test"]]
    return _data_set("digits-lt", Task.MULTICLASS, [(pool.images[:, None], pool.labels) for pool in parts])


def digit_scenes(*, ratio: float = 50.0, seed: int = 0) -> DataSet:
    """Several digits on a canvas of (1, 32, 32), as multi-label data: digit 0 on every second, digit 9 on every 100th.

    1500 training, 500 validation and 1000 test canvases, all with the same frequencies.
    """
    return _data_set(
        "digit-scenes", Task.MULTILABEL, [(images, present) for images, present, _ in _scenes(ratio, seed)]
    )


def digit_maps(*, ratio: float = 50.0, seed: int = 0) -> DataSet:
    """The canvases of ``digit_scenes`` as segmentation: 0 is background, c + 1 the pixels of digit c.

    The background has more than 300 times the pixels of the rarest digit.
    """
    names = ("background", *map(str, range(CLASSES)))
    return _data_set(
        "digit-maps", Task.SEGMENTATION, [(images, maps) for images, _, maps in _scenes(ratio, seed)], names
    )


EMBEDDED: Mapping[str, Callable[..., DataSet]] = MappingProxyType(
    dict(zip(EMBEDDED_NAMES, (digits_lt, digit_scenes, digit_maps), strict=True))
)
"""The embedded data sets by name."""


def _data_set(
    name: str,
    task: Task,
    splits: list[tuple[NDArray[Any], NDArray[Any]]],
    names: tuple[str, ...] = tuple(map(str, range(CLASSES))),
) -> DataSet:
    train, val, test = (Arrays(inputs, labels) for inputs, labels in splits)
    return DataSet(name, task, names, train, val, test)


def _pools(seed: int) -> dict[str, Pool]:
    """The 1797 digits, distributed among the splits."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise missing("reading the embedded digits", "sklearn") from None
    features, labels = load_digits(return_X_y=True)
    images = np.minimum(features.reshape(-1, SIDE, SIDE) * 16, 255).astype(np.uint8)
    draw = np.random.default_rng(seed)
    order = draw.permutation(len(labels))
    rank = np.empty(len(labels), np.int64)  # index of each digit within its class
    for c in range(CLASSES):
        own = order[labels[order] == c]
        rank[own] = np.arange(len(own))
    parts = {"test": rank < TEST, "val": (rank >= TEST) & (rank < TEST + VAL), "train": rank >= TEST + VAL}
    return {name: Pool(images[part], labels[part].astype(np.int64)) for name, part in parts.items()}


def _scenes(ratio: float, seed: int) -> list[tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]]:
    """Per split: images (N, 1, 32, 32), presence (N, 10) and label maps (N, 32, 32)."""
    pools = _pools(seed)
    frequency = 0.5 * np.asarray(exponential_counts(CLASSES, 1_000_000, ratio)) / 1_000_000
    sizes = {"train": 1500, "val": 500, "test": 1000}
    return [
        _compose(pools[name], sizes[name], frequency, np.random.default_rng([seed, number]))
        for number, name in enumerate(SPLITS)
    ]


def _compose(
    pool: Pool, count: int, frequency: NDArray[np.float64], draw: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    present = (draw.random((count, CLASSES)) < frequency).astype(np.int64)
    empty = np.flatnonzero(present.sum(1) == 0)
    present[empty, draw.integers(0, 3, len(empty))] = 1  # at least one digit per canvas
    cells = np.argsort(draw.random((count, CELLS * CELLS)), axis=1)  # a separate cell for each digit of a canvas
    members = [np.flatnonzero(pool.labels == c) for c in range(CLASSES)]
    images = np.zeros((count, CELLS, CELLS, SIDE, SIDE), np.uint8)
    maps = np.zeros(images.shape, np.int64)
    for c in range(CLASSES):
        where = np.flatnonzero(present[:, c])
        row, column = np.divmod(cells[where, c], CELLS)
        digits = pool.images[draw.choice(members[c], len(where))]
        images[where, row, column] = digits
        maps[where, row, column] = np.where(digits >= 16 * INK, c + 1, 0)
    side = CELLS * SIDE
    flat = images.transpose(0, 1, 3, 2, 4).reshape(count, 1, side, side)
    return flat, present, maps.transpose(0, 1, 3, 2, 4).reshape(count, side, side)
