"""Coverage of the confidence intervals of ``equipoise compare``, and its false positives, in simulated comparisons.

A baseline and three losses predict the same test samples with ten seeds. Their logits are sums of normal effects of
sample, loss and seed, and a residual. The runs go through the bootstrap and the rule of a real comparison, with the
first 2, 3, 5 and all 10 seeds. In one setting seeds add about as much noise as test samples, in the other most of it.
The true difference is the mean over all simulated comparisons, for this size of the test set, because metrics such as
ECE depend on it. A false positive is a comparison of four equal losses with any difference that is significant after
Holm's adjustment.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.comparison.resampling import RunStatistics, resample
from equipoise.comparison.statistics import ALPHA, Difference, holm, moderated, paired_difference
from equipoise.predictions.source import Chunk
from equipoise.tasks import Task

__all__ = ["Settings", "format_coverage", "run"]

METRICS: Mapping[str, tuple[str, ...]] = {
    "multiclass": ("accuracy", "mean_class_accuracy", "macro_f1", "ece", "nll"),
    "multilabel": ("mean_average_precision",),
    "segmentation": ("mean_iou",),
}
SEED = {"multiclass": 6, "multilabel": 5, "segmentation": 12}
"""Random numbers of each task, as in the recorded results."""
SETTINGS = {"seeds and samples": 0.15, "mostly seeds": 0.6}
"""Standard deviation of the effect of a seed on the strength of each class."""
SUPPORT = (160, 80, 40, 20, 12)
"""Test samples of the classes for single-label data; the other tasks have the same number of classes or labels."""
IMAGES, SIDE = 40, 8
LOSSES, SEEDS = 4, (2, 3, 5, 10)
BLOCK = 20
"""Number of comparisons per block of a process."""

Array = NDArray[Any]
Families = dict[tuple[str, int], list[list[Difference]]]
"""Differences of all losses of each comparison, by metric and number of seeds."""


@dataclass(frozen=True)
class Settings:
    """Settings of the simulation.

    Args:
        comparisons: number of comparisons of each kind.
        draws: number of bootstrap draws.
        jobs: number of processes.
        tasks: keys of ``METRICS``.
    """

    comparisons: int = 1000
    draws: int = 200
    jobs: int = os.cpu_count() or 1
    tasks: tuple[str, ...] = tuple(METRICS)


def run(settings: Settings, progress: Callable[[str], None] = lambda text: None) -> list[dict[str, Any]]:
    """One row per metric, setting and number of seeds."""
    rows = []
    with ProcessPoolExecutor(settings.jobs) as pool:
        for task in settings.tasks:
            for noise in SETTINGS:
                progress(f"{task}, {noise}: {settings.comparisons} comparisons, twice")
                numbers = range(settings.comparisons)
                blocks = [numbers[start : start + BLOCK] for start in numbers[::BLOCK]]
                different, equal = (
                    _joined(pool.map(partial(_simulate, task, noise, same, settings.draws), blocks))
                    for same in (False, True)
                )
                rows += [
                    {"metric": metric, "setting": noise, "seeds": seeds} | _coverage(different[key], equal[key])
                    for key in different
                    for metric, seeds in [key]
                ]
    return rows


def _joined(
    parts: Iterator[Families],
) -> Families:
    families_by_key: Families = defaultdict(list)
    for part in parts:
        for key, families in part.items():
            families_by_key[key] += families
    return families_by_key


def _coverage(different: Sequence[Sequence[Difference]], equal: Sequence[Sequence[Difference]]) -> dict[str, float]:
    """Coverage of all intervals and of the narrowest tenth, and the rate of false positives."""
    truth = np.mean([[one.mean for one in family] for family in different], 0)
    limits = np.array([[one.interval for one in family] for family in different])
    held = (limits[..., 0] <= truth) & (truth <= limits[..., 1])
    width = limits[..., 1] - limits[..., 0]
    narrow = width <= np.quantile(width, 0.1, axis=0)  # of each loss: their noise differs
    wrong = [min(holm([one.p or 0.0 for one in family])) < ALPHA for family in equal]
    return {
        "comparisons": len(different),
        "coverage": float(held.mean()),
        "narrowest_tenth": float(held[narrow].mean()),
        "false_positives": float(np.mean(wrong)),
    }


def _simulate(task: str, noise: str, equal: bool, draws: int, numbers: Sequence[int]) -> Families:
    """Simulate the comparisons with these numbers."""
    families: Families = defaultdict(list)
    for number in numbers:
        random = np.random.default_rng((SEED[task], len(noise), equal, number))
        flat = [run for row in _runs(random, task, SETTINGS[noise], equal) for run in row]
        ones = np.ones((flat[0].test.samples, 1), np.float32)
        whole = [run.weigh(ones) for run in flat]
        drawn = resample(flat, draws=draws, seed=number)
        for metric in METRICS[task]:
            values = np.array([one[metric][0] for one in whole]).reshape(LOSSES, -1)
            resampled = np.stack([one[metric] for one in drawn]).reshape(*values.shape, draws)
            for seeds in SEEDS:
                families[metric, seeds].append(_family(flat[0], metric, values[:, :seeds], resampled[:, :seeds]))
    return families


def _family(first: RunStatistics, metric: str, values: Array, resampled: Array) -> list[Difference]:
    variance = values.var(1, ddof=1)
    return moderated(
        [
            paired_difference(
                values[k] - values[0],
                resampled[k] - resampled[0],
                samples=first.drawn(metric),
                least=first.least.get(metric, 0.0),
                unpaired=float(variance[k] + variance[0]),
            )
            for k in range(1, len(values))
        ]
    )


# ------------------------------------------------------------------------------------------------------- predictions


def _runs(random: np.random.Generator, task: str, training: float, equal: bool) -> list[list[RunStatistics]]:
    """Statistics of the runs of each loss (rows) with each seed (columns)."""
    classes = len(SUPPORT)
    support = random.multinomial(sum(SUPPORT), np.array(SUPPORT) / sum(SUPPORT)).clip(min=2)
    labels = np.repeat(np.arange(classes), support)
    if task == "segmentation":
        of_image = random.dirichlet(np.full(classes, 0.5), IMAGES)
        labels = np.stack([random.choice(classes, (SIDE, SIDE), p=p) for p in of_image])
    positive = (
        np.eye(classes)[labels]
        if task != "multilabel"
        else random.random((300, classes)) < np.linspace(0.4, 0.08, classes)
    )
    shared = random.normal(size=positive.shape)
    if task == "segmentation":
        shared += random.normal(size=(IMAGES, 1, 1, classes))  # difficulty of an image, shared by its pixels
    strength = np.linspace(2.5, 1.0, classes)
    runs = []
    for loss in range(LOSSES):
        gain = 0.0 if equal else 0.15 * loss * np.linspace(-0.5, 2.0, classes)
        taste = 0.4 * random.normal(size=shared.shape)
        row = []
        for _ in range(max(SEEDS)):
            own = strength + gain + training * random.normal(size=classes)
            logits = shared + taste + 0.4 * random.normal(size=shared.shape) + positive * own
            if task == "multilabel":
                logits -= 2.0
            row.append(_run(task, logits, positive.astype(np.int64) if task == "multilabel" else labels))
        runs.append(row)
    return runs


def _run(task: str, logits: Array, targets: Array) -> RunStatistics:
    """Statistics of a simulated run."""
    classes = logits.shape[-1]
    scores = np.moveaxis(logits, -1, 1).astype(np.float32)
    test = SimpleNamespace(per_class=[SimpleNamespace(group="many")] * classes)
    folder = SimpleNamespace(results=SimpleNamespace(test=test, open=None), where=Path(os.devnull))
    source = SimpleNamespace(
        task=Task(task), num_classes=classes, ignore_index=-100, chunks=lambda: iter([Chunk(scores, targets)])
    )
    return RunStatistics(folder, source)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------------- table


def format_coverage(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table of the documentation: the lowest coverage and the highest false positive rate over the settings."""
    seeds = list(dict.fromkeys(row["seeds"] for row in rows))
    lines = [
        "| metric | " + " | ".join(f"{number} seeds" for number in seeds) + " |",
        "|---|" + "---|" * len(seeds),
    ]
    for metric in dict.fromkeys(row["metric"] for row in rows):
        cells = []
        for number in seeds:
            some = [row for row in rows if (row["metric"], row["seeds"]) == (metric, number)]
            held, narrow = (100 * min(row[name] for row in some) for name in ("coverage", "narrowest_tenth"))
            wrong = 100 * max(row["false_positives"] for row in some)
            cells.append(f"{held:.1f}, {narrow:.0f}; {wrong:.1f}")
        lines.append(f"| {metric.replace('_', ' ')} | {' | '.join(cells)} |")
    return "\n".join(lines)
