"""Appendix B of Mukhoti et al. 2020: a linear model on two Gaussian clusters per class, figures 7 and 8.

    python -m experiments.linear_model OUT

The same logistic regression is trained by gradient descent with cross-entropy and with focal loss, gamma 1. OUT gets
``norms.svg`` (figure 7: norms of logits and weights) and ``mistakes.svg`` (figure 8: confidence of misclassified test
points, and the two decision boundaries).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import equipoise

__all__ = ["Points", "Trained", "draw", "main", "points", "train"]

LOSSES = {"cross-entropy": equipoise.BinaryCrossEntropyLoss(), "focal": equipoise.BinaryFocalLoss(gamma=1.0)}
STEPS, LEARNING_RATE = 500, 1.0
"""Not in the paper."""


@dataclass(frozen=True)
class Points:
    """Points (N, 2) and their classes (N,), 0 or 1, of which a tenth are flipped; true classes without flips."""

    x: Tensor
    y: Tensor
    true: Tensor


@dataclass(frozen=True)
class Trained:
    """The weights (2,), and after each step the mean size of the logits and the norm of the weights."""

    weight: Tensor
    logits: Tensor
    norms: Tensor

    def mistakes(self, test: Points) -> Tensor:
        """Confidences of misclassified points."""
        z = test.x @ self.weight
        return z.abs().sigmoid()[(z > 0) != (test.y > 0)]


def points(count: int, *, seed: int) -> Points:
    """Gaussian clusters around the corners of a square of side 4; each class has two of them.

    Within each cluster standard normal coordinates are combined linearly at random, as scikit-learn's
    ``make_classification`` does.
    """
    draw = torch.Generator().manual_seed(seed)
    mixing = torch.rand(4, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 - 1
    corners = torch.tensor([[-2, -2], [-2, 2], [2, -2], [2, 2]], dtype=torch.float64)
    cluster = torch.arange(count) % 4
    noise = torch.randn(count, 2, generator=draw, dtype=torch.float64)
    x = corners[cluster] + (noise.unsqueeze(1) @ mixing[cluster]).squeeze(1)
    true = (cluster >= 2).double()
    flipped = torch.rand(count, generator=draw) < 0.1
    return Points(x, torch.where(flipped, 1 - true, true), true)


def train(loss: torch.nn.Module, data: Points, steps: int = STEPS) -> Trained:
    """Logistic regression without a bias, by gradient descent from 0."""
    weight = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    logits, norms = [], []
    for _ in range(steps):
        z = data.x @ weight
        (gradient,) = torch.autograd.grad(loss(z, data.y), weight)
        with torch.no_grad():
            weight -= LEARNING_RATE * gradient
        logits.append(z.detach().abs().mean())
        norms.append(weight.detach().norm())
    return Trained(weight.detach(), torch.stack(logits), torch.stack(norms))


def draw(trained: Mapping[str, Trained], test: Points, out: Path) -> None:
    """Both figures."""
    from matplotlib.figure import Figure

    norms = Figure(figsize=(8, 3), layout="constrained")
    for axes, name in zip(norms.subplots(1, 2), ("logits", "norms"), strict=True):
        for loss, run in trained.items():
            axes.plot(getattr(run, name), label=loss)
        axes.set(xlabel="step", ylabel="mean size of the logits" if name == "logits" else "norm of the weights")
        axes.legend()
    mistakes = Figure(figsize=(11, 3), layout="constrained")
    first, *others = mistakes.subplots(1, 1 + len(trained))
    for (loss, run), axes in zip(trained.items(), others, strict=True):
        first.hist(run.mistakes(test), bins=20, range=(0.5, 1.0), alpha=0.6, label=loss)
        axes.scatter(*test.x.T, c=test.y, s=2, cmap="coolwarm")
        axes.axline((0, 0), tuple((run.weight / run.weight.norm()).flip(0) * torch.tensor([-1.0, 1.0])), color="black")
        axes.set(title=loss)
    first.set(xlabel="confidence", ylabel="misclassified points")
    first.legend()
    out.mkdir(parents=True, exist_ok=True)
    for name, figure in (("norms", norms), ("mistakes", mistakes)):
        figure.savefig(out / f"{name}.svg")


def main(arguments: list[str] | None = None) -> None:
    """Train, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    given = parser.parse_args(arguments)
    data, test = points(4_000, seed=1), points(1_000, seed=2)
    trained = {name: train(loss, data) for name, loss in LOSSES.items()}
    for name, run in trained.items():
        confidence = run.mistakes(test).mean()
        print(f"{name}: norm of the weights {run.norms[-1]:.2f}, confidence of mistakes {confidence:.3f}")
    draw(trained, test, given.out)


if __name__ == "__main__":
    main()
