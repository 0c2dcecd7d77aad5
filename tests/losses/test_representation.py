"""Losses of embeddings against loops, a peer, and what must be true."""

import math
from itertools import combinations

import pytest
import torch
from torch.testing import assert_close

from equipoise.losses import LiftedStructureLoss, RangeLoss
from tests.models.cases import says


def embeddings(count=12, classes=4, width=3, seed=0):
    draw = torch.Generator().manual_seed(seed)
    points = torch.randn(count, width, generator=draw, dtype=torch.float64)
    return points, torch.randint(0, classes, (count,), generator=draw)


def slow_lifted(points, labels, margin):
    total, pairs = 0.0, 0
    for i, j in combinations(range(len(points)), 2):
        if labels[i] != labels[j]:
            continue
        negatives = sum(
            torch.exp(margin - (points[end] - points[k]).norm())
            for end in (i, j)
            for k in range(len(points))
            if labels[k] != labels[end]
        )
        total += torch.relu((points[i] - points[j]).norm() + torch.log(negatives)) ** 2
        pairs += 1
    return total / (2 * pairs)


def slow_range(points, labels, k, margin, intra, inter):
    ranges, centres = 0.0, []
    for c in labels.unique():
        own = points[labels == c]
        centres.append(own.mean(0))
        squares = sorted((((a - b) ** 2).sum() for a, b in combinations(own, 2)), reverse=True)[:k]
        if squares:
            ranges += len(squares) / sum(1 / square for square in squares)
    nearest = min(((a - b) ** 2).sum() for a, b in combinations(centres, 2))
    return intra * ranges + inter * torch.relu(margin - nearest)


@pytest.mark.parametrize("margin", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_lifted_structure_matches_a_loop(margin, seed):
    points, labels = embeddings(seed=seed)
    points.requires_grad_()
    actual, expected = LiftedStructureLoss(margin)(points, labels), slow_lifted(points, labels, margin)
    assert_close(actual, expected)
    assert float(actual) > 0
    for one, other in zip(torch.autograd.grad(actual, points), torch.autograd.grad(expected, points), strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("k", [1, 2, 3, 50])
@pytest.mark.parametrize("margin", [0.01, 5.0])
def test_range_loss_matches_a_loop(k, margin):
    points, labels = embeddings(count=14)
    labels[0] = 9  # alone in its class
    points.requires_grad_()
    options = {"margin": margin, "intra": 0.7, "inter": 1.3}
    actual, expected = RangeLoss(k, **options)(points, labels), slow_range(points, labels, k, **options)
    assert_close(actual, expected)
    for one, other in zip(torch.autograd.grad(actual, points), torch.autograd.grad(expected, points), strict=True):
        assert_close(one, other)


def test_lifted_structure_matches_pytorch_metric_learning():
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    distances = pytest.importorskip("pytorch_metric_learning.distances")
    peer = losses.LiftedStructureLoss(
        neg_margin=1.0, pos_margin=0.0, distance=distances.LpDistance(normalize_embeddings=False)
    )
    for seed in range(3):
        points, labels = embeddings(count=20, seed=seed)
        assert_close(LiftedStructureLoss()(points, labels), peer(points, labels), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("loss", [LiftedStructureLoss(), RangeLoss(), RangeLoss(3, margin=100.0)], ids=str)
def test_gradients(loss):
    points, labels = embeddings(count=8, classes=3)
    assert torch.autograd.gradcheck(lambda z: loss(z, labels), points.requires_grad_())


@pytest.mark.parametrize("loss", [LiftedStructureLoss(), RangeLoss()], ids=str)
@pytest.mark.parametrize(
    "labels",
    [[], [0], [0, 0, 0], [0, 1, 2], [-100, -100, -100], [0, 0, -100]],
    ids=["empty", "one", "one class", "all different", "ignored", "one class and ignored"],
)
def test_few_samples_give_a_finite_loss_on_the_graph(loss, labels):
    points = torch.randn(len(labels), 3, requires_grad=True)
    value = loss(points, torch.tensor(labels, dtype=torch.long))
    assert value.isfinite()
    value.backward()
    assert points.grad.isfinite().all()


@pytest.mark.parametrize("loss", [LiftedStructureLoss(), RangeLoss(margin=50.0)], ids=str)
def test_equal_samples_have_finite_gradients(loss):
    points = torch.tensor([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [0.0, 1.0]], requires_grad=True)
    value = loss(points, torch.tensor([0, 0, 1, 1]))
    assert value.isfinite()
    value.backward()
    assert points.grad.isfinite().all()


@pytest.mark.parametrize("loss", [LiftedStructureLoss(), RangeLoss(margin=50.0)], ids=str)
def test_ignored_samples_have_no_effect(loss):
    points, labels = embeddings()
    some = labels.clone()
    some[::4] = -100
    assert_close(loss(points, some), loss(points[some >= 0], some[some >= 0]))
    assert_close(loss(points, some.to(torch.int16)), loss(points, some))
    points[::4] = math.nan
    points.requires_grad_()
    value = loss(points, some)
    (gradient,) = torch.autograd.grad(value, points)
    assert_close(value, loss(points[some >= 0], some[some >= 0]))
    assert gradient.isfinite().all()
    assert gradient.any()
    assert not gradient[::4].any()


@pytest.mark.parametrize("loss", [LiftedStructureLoss(), RangeLoss(margin=50.0)], ids=str)
def test_training_separates_the_classes(loss):
    points, labels = embeddings(count=30, classes=3)
    points.requires_grad_()

    def ratio():
        distances = torch.cdist(points, points).detach()
        same = labels.unsqueeze(1) == labels
        return float(distances[same].mean() / distances[~same].mean())

    before = ratio()
    optimizer = torch.optim.SGD([points], lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        loss(points, labels).backward()
        optimizer.step()
    assert ratio() < before / 2


def test_half_precision_is_worked_out_in_float32():
    points, labels = embeddings()
    for loss in (LiftedStructureLoss(), RangeLoss()):
        value = loss(points.half(), labels)
        assert value.dtype is torch.float32
        assert_close(value, loss(points.half().float(), labels))


@pytest.mark.parametrize("loss", [LiftedStructureLoss(), RangeLoss(margin=50.0)], ids=str)
def test_mixed_precision_changes_nothing(loss):
    points, labels = embeddings(width=8)
    with torch.autocast("cpu", torch.bfloat16):
        value = loss(points.float(), labels)
    assert torch.equal(value, loss(points.float(), labels))


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda: LiftedStructureLoss(float("nan")), ("margin",)),
        (lambda: RangeLoss(0), ("k", "at least 1")),
        (lambda: RangeLoss(margin=-1.0), ("margin",)),
        (lambda: RangeLoss(intra=-1.0), ("intra",)),
        (lambda: RangeLoss()(torch.randn(3), torch.tensor([0, 1, 2])), ("embeddings", "(N, D)")),
        (lambda: LiftedStructureLoss()(torch.randn(3, 2), torch.tensor([0, 1])), ("labels", "(3,)", "(2,)")),
        (lambda: LiftedStructureLoss()(torch.randn(2, 2), torch.tensor([0.0, 1.0])), ("labels", "integers")),
    ],
)
def test_errors(call, parts):
    with pytest.raises(ValueError, match=says(*parts)):
        call()
