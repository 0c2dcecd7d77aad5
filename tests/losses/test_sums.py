"""Sums of losses: one module with the state, schedules and logs of its losses."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.catalogue import CATALOGUE
from equipoise.losses import Loss, SumOfLosses, current_settings
from equipoise.schedules import Linear

CLASSES = 3


def batch(link="softmax"):
    draw = torch.Generator().manual_seed(0)
    logits = (
        torch.randn(6, CLASSES, 2, 2, generator=draw) if link == "region" else torch.randn(6, CLASSES, generator=draw)
    )
    logits.requires_grad_()
    if link == "sigmoid":
        return logits, (torch.rand(6, CLASSES, generator=draw) < 0.4).float()
    return logits, torch.randint(CLASSES, (6, *logits.shape[2:]), generator=draw)


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_every_loss_of_the_catalogue(entry):
    logits, targets = batch(entry.link)
    loss, plain = (
        entry.build(CLASSES),
        eq.BinaryCrossEntropyLoss() if entry.link == "sigmoid" else eq.CrossEntropyLoss(),
    )
    assert isinstance(loss, Loss)
    alone = copy.deepcopy(loss)
    both = plain + 0.5 * loss
    assert isinstance(both, SumOfLosses)
    value = both(logits, targets)
    expected = plain(logits, targets) + 0.5 * alone(logits, targets)
    torch.testing.assert_close(value, expected)
    (gradients,), (wanted,) = torch.autograd.grad(value, logits), torch.autograd.grad(expected, logits)
    torch.testing.assert_close(gradients, wanted)


def test_sums_flatten_and_products_distribute():
    a, b, c = eq.FocalLoss(1.0), eq.CrossEntropyLoss(), eq.BrierLoss()
    loss = 2 * (a + b) + (c + 0.5 * (b * 4)) * np.float64(0.25)
    assert list(loss.losses) == [a, b, c]
    assert loss.factors == (2.0, 2.5, 0.25)
    assert list(sum([a, b, c]).losses) == [a, b, c]
    assert sum([a]) is a
    assert (np.float32(0.5) * a).factors == (0.5,)


def test_the_same_loss_twice_is_computed_once():
    loss = eq.RecallLoss(CLASSES, momentum=0.1)
    alone = copy.deepcopy(loss)
    logits, targets = batch()
    twice = loss + loss
    assert (len(twice.losses), twice.factors) == (1, (2.0,))
    for _ in range(2):
        torch.testing.assert_close(twice(logits, targets), 2 * alone(logits, targets))
    for one, other in zip(loss.buffers(), alone.buffers(), strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


def scheduled():
    return eq.RecallLoss(CLASSES, momentum=0.1) + 0.5 * eq.FocalLoss(Linear(5.0, 1.0), epochs=4)


def test_schedules_and_logs():
    loss, focal = scheduled(), eq.FocalLoss(Linear(5.0, 1.0), epochs=4)
    logits, targets = batch()
    for epoch in (0, 3):
        loss.set_epoch(epoch)
        focal.set_epoch(epoch)
        recall = eq.RecallLoss(CLASSES, momentum=0.1)
        recall.load_state_dict(loss.losses[0].state_dict())
        torch.testing.assert_close(loss(logits, targets), recall(logits, targets) + 0.5 * focal(logits, targets))
    assert current_settings(loss)["gamma"] == 2.0
    assert len(current_settings(loss)["recall_weights"]) == CLASSES
    loss.set_progress(1.0)
    assert current_settings(loss)["gamma"] == 1.0


@pytest.mark.parametrize("again", [lambda loss: pickle.loads(pickle.dumps(loss)), copy.deepcopy, "state"])
def test_state_is_kept(again):
    loss, (logits, targets) = scheduled(), batch()
    loss.set_epoch(2)
    loss(logits, targets)
    if again == "state":
        other = scheduled()
        other.load_state_dict(loss.state_dict())
    else:
        other = again(loss)
    assert other(logits, targets).item() == loss(logits, targets).item()
    assert current_settings(other) == current_settings(loss)


def test_it_shows_its_losses():
    text = repr(eq.CrossEntropyLoss() + 0.5 * eq.FocalLoss(3.0))
    assert "factors=(1.0, 0.5)" in text
    assert "FocalLoss(gamma=3.0" in text


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda loss: loss + 1, TypeError, "added to a loss of equipoise, got int; for anything else add the values"),
        (lambda loss: 1 + loss, TypeError, "got int"),
        (lambda loss: loss + nn.CrossEntropyLoss(), TypeError, "got CrossEntropyLoss"),
        (lambda loss: loss + "focal", TypeError, "got str"),
        (lambda loss: sum([loss, None]), TypeError, "got NoneType"),
        (lambda loss: loss * loss, TypeError, "FocalLoss can be multiplied by a number, got FocalLoss"),
        (lambda loss: True * loss, TypeError, "got bool"),
        (lambda loss: Linear(0.0, 1.0) * loss, TypeError, "got Linear"),
        (lambda loss: -1 * loss, ValueError, "factor must be"),
        (lambda loss: loss * float("nan"), ValueError, "factor must be"),
        (lambda loss: SumOfLosses([loss], [1.0, 2.0]), ValueError, "got 1 and 2; pass one factor per loss"),
        (lambda loss: SumOfLosses([]), ValueError, "at least 1, got 0"),
        (
            lambda loss: (loss + eq.BrierLoss(reduction="none"))(*batch()),
            ValueError,
            r"got shape \(6,\) from BrierLoss",
        ),
    ],
)
def test_invalid_sums_raise(make, error, words):
    with pytest.raises(error, match=words):
        make(eq.FocalLoss())
