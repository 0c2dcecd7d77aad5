"""Data for fits, and a function that fits any method."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from equipoise.calibration import METHODS, Fitted

SINGLE = [name for name, method in METHODS.items() if "multiclass" in method.tasks]
MULTI = [name for name, method in METHODS.items() if "multilabel" in method.tasks]
EVERY = [(name, "multiclass") for name in SINGLE] + [(name, "multilabel") for name in MULTI]


def single(rows=400, classes=4, scale=2.0, seed=0, size=()):
    """Overconfident logits: labels are drawn from half of them."""
    draw = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, classes, *size, generator=draw, dtype=torch.float64)
    flat = (0.5 * logits).softmax(1).movedim(1, -1).reshape(-1, classes)
    labels = torch.multinomial(flat, 1, generator=draw).squeeze(1).view(rows, *size)
    return logits, labels


def multi(rows=400, labels=3, scale=2.0, seed=0, size=()):
    draw = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(rows, labels, *size, generator=draw, dtype=torch.float64) - 1.0
    return logits, torch.bernoulli((0.5 * logits).sigmoid(), generator=draw).long()


def of(task, **options):
    return single(**options) if task == "multiclass" else multi(**options)


def fit(name: str, logits: Tensor, targets: Tensor, *, quiet: bool = True, **options: object) -> Fitted:
    """Fit a method of the registry with its required arguments, by default without warnings."""
    needs = {"groups": [c % 2 for c in range(logits.shape[1])], "train_counts": list(range(1, logits.shape[1] + 1))}
    given = {key: needs[key] for key in METHODS[name].needs} | options
    with warnings.catch_warnings():
        if quiet:
            warnings.simplefilter("ignore")
        return METHODS[name].fit(logits, targets, **given)


def nll(logits: Tensor, targets: Tensor) -> float:
    if targets.shape == logits.shape:
        return float(torch.nn.functional.binary_cross_entropy_with_logits(logits.double(), targets.double()))
    return float(torch.nn.functional.cross_entropy(logits.double(), targets))
