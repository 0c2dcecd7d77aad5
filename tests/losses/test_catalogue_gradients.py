"""Every loss of the catalogue has the gradient of its own value, in every form of targets it takes."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from equipoise import AsymmetricLoss
from equipoise.catalogue import CATALOGUE
from equipoise.kernels.cpu import blocks
from tests.losses.helpers import (
    REDUCTIONS,
    REGION,
    SIGMOID,
    SOFTMAX,
    UNKNOWN,
    batch_of,
    dense_of,
    each,
    logits_of,
    make,
    multilabel_of,
    value_and_gradient,
)

C = 3
shapes = pytest.mark.parametrize("shape", [(5, C), (2, C, 2, 2)], ids=str)


@each(CATALOGUE)
@shapes
@pytest.mark.parametrize("ignored", [0.0, 0.4], ids=["all rows", "ignored rows"])
def test_gradient_is_that_of_finite_differences(entry, shape, ignored):
    loss = entry.build(C).eval()
    logits, targets = batch_of(entry, shape, ignored=ignored, seed=3)
    assert gradcheck(lambda z: loss(z, targets), logits)


@each(SOFTMAX + REGION)
@shapes
def test_gradient_with_dense_targets(entry, shape):
    loss = entry.build(C).eval()
    logits, _ = batch_of(entry, shape, seed=3)
    targets = dense_of(shape, ignored=0.3, seed=4)
    assert (targets.sum(1) == 0).any()
    assert gradcheck(lambda z: loss(z, targets), logits)


@each(SIGMOID)
def test_gradient_with_soft_multilabel_targets_and_element_weights(entry):
    loss = make(entry, C, weight=[0.5, 1.0, 2.0]).eval()
    logits = logits_of(5, C)
    targets = multilabel_of((5, C), soft=True, ignored=0.2)
    weights = torch.linspace(0.1, 2.0, 5 * C, dtype=torch.float64).view(5, C)
    assert gradcheck(lambda z: loss(z, targets, element_weight=weights), logits)


@each(SOFTMAX)
@pytest.mark.parametrize("dense", [False, True], ids=["index", "dense"])
def test_gradient_with_smoothing_and_weights(entry, dense):
    loss = make(entry, C, label_smoothing=0.2, weight=[0.5, 1.0, 2.0]).eval()
    logits, targets = batch_of(entry, (6, C), ignored=0.3, seed=5)
    targets = dense_of((6, C), ignored=0.3, seed=5) if dense else targets
    assert gradcheck(lambda z: loss(z, targets), logits)


@each(SOFTMAX + SIGMOID)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_gradient_of_every_reduction(entry, reduction):
    loss = make(entry, C, reduction=reduction).eval()
    logits, targets = batch_of(entry, (4, C), ignored=0.3, seed=6)
    assert gradcheck(lambda z: loss(z, targets), logits)


@each(SOFTMAX + SIGMOID)
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("shape", [(6, C), (4, C, 5)], ids=str)
@pytest.mark.parametrize("in_blocks", [False, True], ids=["whole", "blocks"])
def test_unreduced_losses_may_be_overwritten(entry, smoothing, shape, in_blocks, monkeypatch):
    """As those of torch: what comes back is no view of something else."""
    if in_blocks:
        monkeypatch.setattr(blocks, "ELEMENTS_PER_THREAD", 2)
    options = {"label_smoothing": smoothing} if entry.link == "softmax" else {}
    loss = make(entry, C, reduction="none", **options).eval()
    logits, targets = batch_of(entry, shape, ignored=0.3, seed=8)
    (expected,) = torch.autograd.grad(loss(logits, targets).sum(), logits)
    doubled = loss(logits, targets)
    doubled *= 2
    (gradient,) = torch.autograd.grad(doubled.sum(), logits)
    assert_close(gradient, 2 * expected)


@each(SOFTMAX + SIGMOID)
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_second_derivative(entry, smoothing):
    options = {"label_smoothing": smoothing} if entry.link == "softmax" else {}
    loss = make(entry, C, **options).eval()
    logits, targets = batch_of(entry, (4, C), ignored=0.3, seed=7)
    assert gradgradcheck(lambda z: loss(z, targets), logits)


@each(SOFTMAX)
def test_second_derivative_with_dense_targets(entry):
    loss = make(entry, C, label_smoothing=0.1).eval()
    logits, _ = batch_of(entry, (4, C), seed=8)
    targets = dense_of((4, C), ignored=0.3, seed=10)
    assert gradgradcheck(lambda z: loss(z, targets), logits)


@pytest.mark.parametrize("gamma_pos", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("gamma_neg", [0.0, 1.0, 2.5, 4.0])
@pytest.mark.parametrize("margin", [0.0, 0.005, 0.05, 0.3])
def test_detached_focus_has_its_own_closed_form(gamma_pos, gamma_neg, margin):
    options = {"gamma_pos": gamma_pos, "gamma_neg": gamma_neg, "margin": margin, "reduction": "sum"}
    logits = logits_of(7, C, size=2.5, seed=9)
    targets = multilabel_of((7, C), ignored=0.2, seed=9)
    value, gradient = value_and_gradient(AsymmetricLoss(detach_focus=True, **options), logits, targets)
    p = logits.detach().sigmoid()
    p_m = (p - margin).clamp(min=0)
    negative = torch.where(p > margin, p_m**gamma_neg / (1 - p_m) * p * (1 - p), 0.0)
    positive = -((1 - p) ** gamma_pos) * (1 - p)
    expected = torch.where(targets == UNKNOWN, 0.0, torch.where(targets == 1, positive, negative))
    assert_close(gradient, expected, rtol=1e-11, atol=1e-14)
    through, full = value_and_gradient(AsymmetricLoss(**options), logits, targets)
    assert_close(value, through, rtol=0, atol=0)  # only the gradient differs
    assert torch.equal(full, gradient) == (gamma_pos == gamma_neg == 0)


@each(SOFTMAX + REGION)
@shapes
@pytest.mark.parametrize("dense", [False, True], ids=["index", "dense"])
def test_softmax_gradients_sum_to_zero_over_the_classes(entry, shape, dense):
    logits, targets = batch_of(entry, shape, ignored=0.2)
    targets = dense_of(shape, ignored=0.2) if dense else targets
    _, gradient = value_and_gradient(entry.build(C), logits, targets)
    assert gradient.abs().max() > 1e-3
    assert_close(gradient.sum(1), torch.zeros_like(gradient.sum(1)), rtol=0, atol=1e-14)


@each(CATALOGUE)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dense", [False, True], ids=["index", "dense"])
def test_logits_and_targets_are_never_written(entry, dtype, dense):
    logits, targets = batch_of(entry, (2, C, 3, 3), ignored=0.2, dtype=dtype)
    if dense and entry.link == "sigmoid":
        targets = multilabel_of(logits.shape, soft=True, ignored=0.2).to(dtype)
    elif dense:
        targets = dense_of(logits.shape, ignored=0.2).to(dtype)
    copies = logits.detach().clone(), targets.clone()
    versions = logits._version, targets._version
    for mode in (True, False):
        loss = entry.build(C).train(mode)
        loss(logits, targets).backward()
        with torch.no_grad():
            loss(logits, targets)
    assert (logits._version, targets._version) == versions
    assert torch.equal(logits, copies[0])
    assert torch.equal(targets, copies[1])


@each(CATALOGUE)
@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
def test_no_grad_gives_the_same_value(entry, mode):
    loss = entry.build(C).train(mode)
    logits, targets = batch_of(entry, (2, C, 3, 3), ignored=0.2)
    with torch.no_grad():
        silent = loss(logits, targets)
    assert not silent.requires_grad
    value = loss(logits, targets)
    assert value.requires_grad
    assert_close(silent, value.detach(), rtol=1e-14, atol=0)  # in place or not: the same operations
