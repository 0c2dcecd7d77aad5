"""Statistics of an epoch are those of its observed batches."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from equipoise.losses import CrossEntropyLoss
from equipoise.metrics import Accuracy, ConfidenceProfile
from equipoise.metrics.truth import ProbabilityGap, TruthProbability
from equipoise.train import statistics
from equipoise.train.statistics import Observed, Statistics

MODEL = nn.Linear(2, 3)


def watching(classes: int, steps: int = 4) -> Statistics:
    watched = Statistics({"recall": Accuracy(classes, top_k=(1,)), "profile": ConfidenceProfile()}, steps)
    watched.reset()
    return watched


def batches(*shapes: tuple[int, ...]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(0)
    made = [torch.randn(shape, generator=draw) for shape in shapes]
    return [(z, torch.randint(z.shape[1], (len(z), *z.shape[2:]), generator=draw)) for z in made]


def look(watched: Statistics, logits: torch.Tensor, targets: torch.Tensor) -> None:
    watched.add(Observed(watched.rows(logits, targets), None))


def row_of(watched: Statistics, seen: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, object]:
    for logits, targets in seen:
        look(watched, logits, targets)
    return watched.row(MODEL, CrossEntropyLoss())


@pytest.mark.parametrize("shapes", [[(6, 3), (5, 3)], [(2, 3, 4, 5), (1, 3, 7, 2)]], ids=["rows", "maps of two sizes"])
def test_an_epoch_is_all_its_batches(shapes):
    seen = batches(*shapes)
    row = row_of(watching(3), seen)
    hits, of_class = torch.zeros(3), torch.zeros(3)
    for logits, targets in seen:
        right = logits.argmax(1) == targets
        hits += torch.bincount(targets[right], minlength=3)
        of_class += torch.bincount(targets.flatten(), minlength=3)
    assert row["recall_weights"] == pytest.approx((1 - hits / of_class).tolist(), abs=1e-5)


@pytest.mark.parametrize("shapes", [[(6, 3), (5, 3)], [(2, 3, 4, 5), (1, 3, 7, 2)]], ids=["rows", "maps of two sizes"])
def test_focal_weights_are_means_of_each_class_and_ignored_targets_are_none(shapes):
    seen = batches(*shapes)
    for _, targets in seen:
        targets.view(-1)[0] = -100
    watched = Statistics({"truth": TruthProbability(4)}, steps=2)
    watched.reset()
    seen = [(torch.cat([logits, torch.full_like(logits[:, :1], -9e9)], 1), targets) for logits, targets in seen]
    weights = row_of(watched, seen)["focal_weights"]
    rows = torch.cat([logits.movedim(1, -1).reshape(-1, 4) for logits, _ in seen]).double().softmax(1)
    labels = torch.cat([targets.flatten() for _, targets in seen])
    for c in range(3):
        assert weights[c] == pytest.approx(float(1 - rows[labels == c, c].mean()), abs=1e-5)
    assert math.isnan(weights[3])  # no sample


def test_statistics_are_reset_each_epoch():
    watched = watching(3)
    first, second = batches((6, 3), (5, 3))
    row_of(watched, [first])
    watched.reset()
    assert row_of(watched, [second]) == row_of(watching(3), [second])


def test_of_large_batches_some_is_kept_from_every_image_and_all_over(monkeypatch):
    monkeypatch.setattr(statistics, "KEPT", 100)
    ((logits, targets),) = batches((2, 3, 20, 10))
    watched = watching(3)
    look(watched, logits, targets)
    ((rows, labels),) = watched.kept
    assert rows.shape == (2 * 16, 3)  # every 13th of 200 pixels: 1,200 logits are twelve times as many as are kept
    assert labels.shape == (2 * 16,)
    for image in range(2):
        for k, pixel in enumerate(range(0, 200, 13)):
            assert rows[16 * image + k].equal(logits[image, :, pixel // 10, pixel % 10])
            assert labels[16 * image + k] == targets[image, pixel // 10, pixel % 10]
    assert {pixel % 10 for pixel in range(0, 200, 13)} == set(range(10))
    assert rows.untyped_storage().nbytes() < logits.untyped_storage().nbytes()


@pytest.mark.parametrize("shape", [(6, 3), (1, 3, 4, 5)])
def test_what_is_kept_is_a_copy(shape):
    ((logits, targets),) = batches(shape)
    watched = watching(3)
    look(watched, logits, targets)
    before = row_of(watching(3), [(logits.clone(), targets.clone())])
    logits.zero_()
    targets.zero_()
    assert watched.row(MODEL, CrossEntropyLoss()) == before


def test_several_labels_are_kept_with_their_samples():
    draw = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(8, 4, generator=draw), torch.randint(2, (8, 4), generator=draw).float()
    watched = Statistics({"gap": ProbabilityGap()}, steps=2)
    watched.reset()
    look(watched, logits[:3], targets[:3])
    look(watched, logits[3:], targets[3:])
    p = logits.double().sigmoid()
    gap = p[targets == 1].mean() - (1 - p[targets == 0]).mean()
    row = watched.row(MODEL, CrossEntropyLoss())
    assert row["probability_gap"] == pytest.approx(float(gap))
    assert row["probability_positive"] == pytest.approx(float(p[targets == 1].mean()))
    assert row["probability_negative"] == pytest.approx(float((1 - p[targets == 0]).mean()))


def test_mixed_labels_are_skipped():
    watched = watching(3)
    look(watched, torch.randn(4, 3), torch.full((4, 3), 1 / 3))
    assert not watched.row(MODEL, CrossEntropyLoss()).keys() & {"recall_weights", "entropy_right"}


@pytest.mark.parametrize(("steps", "batches", "gradients"), [(3, 3, 1), (17, 17, 5), (64, 16, 4), (1000, 17, 5)])
def test_some_batches_and_gradients_of_an_epoch_are_observed(steps, batches, gradients):
    watched = watching(3, steps)
    seen = {index for index in range(steps) if watched.wanted(index).logits}
    differentiated = {index for index in range(steps) if watched.wanted(index).gradient}
    assert (len(seen), len(differentiated)) == (batches, gradients)
    assert 0 in differentiated <= seen


def test_norms_are_those_of_the_gradients_that_the_optimiser_sees():
    model = nn.Linear(2, 2, bias=False)
    watched = watching(3)
    for size in (3.0, 4.0):
        model.weight.grad = torch.full((2, 2), size)  # the norm is twice that
        watched.add(Observed(None, watched.gradient_norm(model.parameters())))
    row = watched.row(model, CrossEntropyLoss())
    assert (row["gradient_norm"], row["largest_gradient_norm"]) == pytest.approx((7.0, 8.0))
