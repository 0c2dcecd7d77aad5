"""Ignored rows: loss and gradient 0 whatever their logits are, and nothing of them in running statistics."""

import copy
import math

import pytest
import torch
from torch.testing import assert_close

from equipoise import CrossEntropyLoss, FocalLoss, RecallLoss
from equipoise.losses import SoftmaxLoss, asymmetric, cyclical, focal, logit_adjustment
from equipoise.weights import RecallWeights
from tests.losses.helpers import (
    IGNORED,
    REGION,
    SIGMOID,
    SOFTMAX,
    UNKNOWN,
    batch_of,
    dense_of,
    each,
    indices_of,
    logits_of,
    make,
    value_and_gradient,
)

C = 4
SPOILED = [math.nan, math.inf, -math.inf, 3e38, -3e38]
KINDS = ("index", "dense")


def spoil(logits, targets, value):
    """The batch with all logits of ignored rows or labels replaced, or one of them, and where."""
    if targets.shape != logits.shape:
        out = (targets == IGNORED).unsqueeze(1).expand_as(logits)
    elif (targets == UNKNOWN).any():
        out = targets == UNKNOWN
    else:
        out = (targets == 0).all(1, keepdim=True).expand_as(logits)
    assert out.any()
    bad = torch.where(out, value, logits.detach())
    one = bad.clone()
    if targets.shape != logits.shape or not (targets == UNKNOWN).any():
        one[:, 1:] = logits.detach()[:, 1:]
    return bad, one, out


def check_untouched(loss, logits, targets, value):
    expected, clean = value_and_gradient(copy.deepcopy(loss), logits, targets)
    *batches, out = spoil(logits, targets, value)
    for bad in batches:
        twin = copy.deepcopy(loss)
        actual, gradient = value_and_gradient(twin, bad, targets)
        assert_close(actual, expected, rtol=1e-12, atol=0)
        assert_close(gradient, torch.where(out, 0.0, clean), rtol=1e-12, atol=1e-15)
        assert torch.equal(gradient[out], torch.zeros_like(gradient[out]))
    return twin


@each(SOFTMAX + SIGMOID + REGION)
def test_every_loss(entry):
    logits, targets = batch_of(entry, (10, C), ignored=0.3)
    kinds = [targets] if entry.link == "sigmoid" else [targets, dense_of((10, C), ignored=0.3)]
    for targets in kinds:
        clean = make(entry, C)
        clean(logits, targets)
        for value in SPOILED:
            twin = check_untouched(make(entry, C), logits, targets, value)
            for name, buffer in twin.state_dict().items():
                assert_close(buffer, clean.state_dict()[name], equal_nan=True)


PARTS = {
    "cross-entropy": {},
    "weighted": {"weight": [1.0, 2.0, 3.0, 4.0]},
    "focal": {"modulation": focal(2.5)},
    "asymmetric": {"modulation": asymmetric(1.0, 2.5), "label_smoothing": 0.1},
    "cyclical": {"modulation": cyclical(0.5, 2.0, 2.0, 2.0), "label_smoothing": 0.1},
    "smoothed": {"label_smoothing": 0.1},
    "adjusted": {"adjustment": logit_adjustment([100, 50, 20, 1])},
    "recall": {"weight": RecallWeights(C, momentum=0.1)},
}


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_parts_and_places(parts, kind, reduction):
    """Also of pixels, and with a second derivative."""
    for shape in ((10, C), (2, C, 3, 3)):
        logits = logits_of(*shape)
        targets = indices_of(shape, ignored=0.3) if kind == "index" else dense_of(shape, ignored=0.3)
        loss = SoftmaxLoss(**copy.deepcopy(PARTS[parts]), reduction=reduction)
        check_untouched(loss, logits, targets, math.nan)
        bad, _, out = spoil(logits, targets, math.nan)
        seconds = []
        for z in (bad.requires_grad_(), logits):
            (gradient,) = torch.autograd.grad(copy.deepcopy(loss)(z, targets).sum(), z, create_graph=True)
            seconds.append(torch.autograd.grad((gradient * gradient).sum(), z)[0])
        assert_close(*seconds, rtol=1e-12, atol=1e-15)
        assert torch.equal(seconds[0][out], torch.zeros_like(seconds[0][out]))


@pytest.mark.parametrize("kind", KINDS)
def test_compiled(kind):
    for loss in (CrossEntropyLoss(), FocalLoss(2.5, label_smoothing=0.1)):
        logits = logits_of(10, C, dtype=torch.float32)
        targets = indices_of((10, C), ignored=0.3) if kind == "index" else dense_of((10, C), ignored=0.3).float()
        bad, _, out = spoil(logits, targets, math.nan)
        actual, gradient = value_and_gradient(torch.compile(loss, fullgraph=True, backend="aot_eager"), bad, targets)
        expected, clean = value_and_gradient(loss, logits, targets)
        assert_close(actual, expected)
        assert_close(gradient, torch.where(out, 0.0, clean))


def test_rows_that_sum_to_zero_count():
    """A row of dense targets is ignored where all of it is 0."""
    logits = logits_of(3, 3)
    targets = torch.tensor([[1.0, -1.0, 0.0], [0.0, 0.0, 0.0], [0.2, 0.3, 0.5]], dtype=torch.float64)
    for loss in (CrossEntropyLoss, FocalLoss):
        rows, gradient = value_and_gradient(loss(reduction="none"), logits, targets)
        assert (rows != 0).tolist() == [True, False, True]
        assert (gradient != 0).any(1).tolist() == [True, False, True]
        assert_close(loss()(logits, targets), rows.sum() / 2)
    expected = -(targets * logits.log_softmax(1)).sum(1)
    assert_close(CrossEntropyLoss(reduction="none")(logits, targets), expected)


# ---------------------------------------------------------------------------------------------------------------------
# NaN in rows that count
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"init": "published"}], ids=str)
@pytest.mark.parametrize("shape", [(12, C), (2, C, 3, 2)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_with_nan_leaves_the_running_recall_alone(bad, options, shape, kind):
    logits = logits_of(*shape, grad=False)
    targets = indices_of(shape, ignored=0.2) if kind == "index" else dense_of(shape, ignored=0.2)
    loss = RecallLoss(C, momentum=0.1, **options)
    loss(logits, targets)
    before = copy.deepcopy(loss.state_dict())
    spoiled = logits.clone()
    counted = (targets != IGNORED) if kind == "index" else targets.any(1)
    first = counted.nonzero()[0]
    spoiled[(first[0], 2, *first[1:])] = bad
    assert loss(spoiled, targets).isnan()
    for name, buffer in loss.state_dict().items():
        assert torch.equal(buffer, before[name]), name
    loss(logits.flip(0), targets)
    assert not torch.equal(loss.batch_weights[0].batches, before["batch_weights.0.batches"])


def test_a_compiled_batch_with_nan_leaves_the_running_recall_alone():
    logits, targets = logits_of(6, C, grad=False), indices_of((6, C))
    loss = RecallLoss(C, momentum=0.1)
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    compiled(logits, targets)
    before = copy.deepcopy(loss.state_dict())
    assert compiled(torch.where(logits == logits[2, 1], math.nan, logits), targets).isnan()
    for name, buffer in loss.state_dict().items():
        assert torch.equal(buffer, before[name]), name
