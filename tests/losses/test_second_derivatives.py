"""Second derivatives at confident logits, and gradients at the largest logits that there are: finite and right."""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from equipoise import AsymmetricLoss, FocalLoss, SigmoidLoss, SoftmaxLoss
from equipoise.catalogue import CATALOGUE
from equipoise.losses import ByConfidence, asymmetric, cyclical, focal
from equipoise.schedules import Steps
from tests.losses.helpers import (
    REGION,
    SOFTMAX,
    batch_of,
    dense_of,
    each,
    make,
    sigmoid_reference,
    softmax_reference,
    value_and_gradient,
)

C = 3
gammas = pytest.mark.parametrize("gamma", [0.1, 0.5, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0])
SIZES = [-200.0, -60.0, -8.0, 0.0, 8.0, 60.0, 200.0]


def grid(sizes, dtype=torch.float32):
    rows = torch.tensor(list(itertools.product(sizes, repeat=C)), dtype=dtype)
    return rows.repeat(C, 1), torch.arange(C).repeat_interleave(len(rows))


def hessian_product(loss, logits, *targets):
    """H v of the sum of the losses, with one v for all rows."""
    logits = logits.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(logits, *targets).sum(), logits, create_graph=True)
    direction = torch.linspace(-1.0, 2.0, logits.shape[1], dtype=logits.dtype)
    return torch.autograd.grad((gradient * direction).sum(), logits)[0]


def changes(loss, logits, *targets):
    """The same in float64, by differences of the gradient."""
    wide = [t.double() if t.is_floating_point() else t for t in targets]
    logits, step = logits.double(), 1e-5
    direction = step * torch.linspace(-1.0, 2.0, logits.shape[1], dtype=torch.float64)
    up, down = (value_and_gradient(loss, logits + sign * direction, *wide)[1] for sign in (1, -1))
    return (up - down) / (2 * step)


def summed(function):
    return lambda *args: function(*args)[0].sum()


@gammas
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_softmax_losses_at_confident_logits(gamma, smoothing):
    logits, targets = grid(SIZES)
    dense = dense_of(logits.shape, ignored=0.1).float()
    for modulation, parts in (
        (focal(gamma), {"gamma_pos": gamma}),
        (asymmetric(gamma, gamma), {"gamma_pos": gamma, "gamma_neg": gamma}),
        (cyclical(0.3, 2.0, gamma, gamma), {"gamma_pos": gamma, "gamma_neg": gamma, "xi": 0.3, "gamma_hc": 2.0}),
    ):
        loss = SoftmaxLoss(modulation, label_smoothing=smoothing, reduction="sum")
        truth = summed(lambda z, t, parts=parts: softmax_reference(z, t, smoothing=smoothing, **parts))
        for given in (targets, F.one_hot(targets, C).float(), dense):
            second = hessian_product(loss, logits, given)
            assert second.isfinite().all()
            assert_close(second.double(), changes(truth, logits, given), rtol=1e-3, atol=1e-4)


@gammas
@pytest.mark.parametrize("margin", [0.0, 0.05])
def test_sigmoid_losses_at_confident_logits(gamma, margin):
    logits = torch.tensor([*SIZES, 20.0, -20.0, 90.0, -90.0]).repeat(3, 1)
    targets = torch.tensor([[0.0], [1.0], [0.3]]).expand_as(logits)
    for modulation, parts in (
        (focal(gamma), {"gamma_pos": gamma}),
        (asymmetric(gamma, gamma), {"gamma_pos": gamma, "gamma_neg": gamma}),
        (cyclical(0.3, 2.0, gamma, gamma), {"gamma_pos": gamma, "gamma_neg": gamma, "xi": 0.3, "gamma_hc": 2.0}),
    ):
        second = hessian_product(SigmoidLoss(modulation, margin=margin, reduction="sum"), logits, targets)
        assert second.isfinite().all()
        truth = summed(lambda z, t, parts=parts: sigmoid_reference(z, t, margin=margin, **parts))
        assert_close(second.double(), changes(truth, logits, targets), rtol=1e-3, atol=1e-4)


def test_a_margin_that_is_scheduled_to_vanish():
    logits = torch.tensor([[-200.0, -60.0, -8.0, 8.0, 60.0, 200.0]])
    for gamma in (0.5, 2.0, 5.0):
        loss = AsymmetricLoss(gamma, gamma_neg=gamma, margin=Steps([0.0, 0.1], [1]), epochs=2)
        loss.set_epoch(0)
        for target in (0.0, 1.0):
            assert hessian_product(loss, logits, torch.full_like(logits, target)).isfinite().all()


def test_exponents_by_confidence_and_by_class():
    logits, targets = grid(SIZES)
    for gamma in (ByConfidence(((0.2, 5.0), (1.0, 3.0))), [0.5, 2.5, 0.0]):
        for given in (targets, F.one_hot(targets, C).float()):
            assert hessian_product(FocalLoss(gamma=gamma), logits, given).isfinite().all()


@each(CATALOGUE)
def test_every_loss_at_confident_logits(entry):
    logits, targets = batch_of(entry, (8, C), dtype=torch.float32, size=100.0)
    loss = make(entry, C)
    assert hessian_product(loss, logits, targets).isfinite().all()
    if entry.link != "sigmoid":
        assert hessian_product(loss, logits, dense_of((8, C)).float()).isfinite().all()


# ---------------------------------------------------------------------------------------------------------------------
# The ends of float32
# ---------------------------------------------------------------------------------------------------------------------

LARGE = [-3e38, -1e31, -1.5e9, 0.0, 1.5e9, 1e31, 3e38]


@each(SOFTMAX + REGION)
def test_gradients_at_the_largest_logits(entry):
    logits, targets = grid(LARGE)
    if entry.name == "LDAMLoss":  # with its scale all but the largest is far away
        logits = logits.unique(dim=0)
        targets = torch.arange(len(logits)) % C
    for given in (targets, F.one_hot(targets, C).float(), dense_of(logits.shape).float()):
        loss = make(entry, C)
        value, gradient = value_and_gradient(copy.deepcopy(loss), logits, given)
        assert not value.isnan()
        assert gradient.isfinite().all()
        assert hessian_product(loss, logits, given).isfinite().all()


def test_gradients_at_the_largest_logits_are_those_of_torch():
    logits, targets = grid(LARGE)
    for given in (targets, F.one_hot(targets, C).float(), dense_of(logits.shape).float()):
        actual = value_and_gradient(FocalLoss(0.0, reduction="none"), logits, given)
        expected = value_and_gradient(torch.nn.CrossEntropyLoss(reduction="none"), logits, given)
        assert_close(actual[1], expected[1])
        finite = expected[0].isfinite()
        assert_close(actual[0][finite], expected[0][finite])


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0, 4.0])
def test_sigmoid_gradients_at_the_largest_logits(gamma):
    logits = torch.tensor(LARGE).repeat(3, 1)
    targets = torch.tensor([[0.0], [1.0], [0.4]]).expand_as(logits)
    for loss in (SigmoidLoss(focal(gamma), pos_weight=[4.0] * 7), AsymmetricLoss(gamma, gamma_neg=gamma)):
        value, gradient = value_and_gradient(loss, logits, targets)
        assert not value.isnan()
        assert gradient.isfinite().all()
        assert hessian_product(loss, logits, targets).isfinite().all()


@pytest.mark.parametrize("gamma", [0.5, 1.5, 2.5, 3.7])
@pytest.mark.parametrize("xi", [0.0, 0.3])
def test_gradients_of_nearly_sure_rows_are_the_same_under_transforms(gamma, xi):
    """Where 1 - p is below 0.001, transforms take a series, whose derivative does not overflow."""
    rest = torch.logspace(-14, -1, 27, dtype=torch.float64)
    logits = torch.stack([(1 - rest).log() - rest.log(), torch.zeros_like(rest)], 1)
    targets = torch.zeros(len(rest), dtype=torch.int64)
    loss = SoftmaxLoss(cyclical(xi, 2.0, gamma, gamma) if xi else focal(gamma), reduction="sum")
    expected = value_and_gradient(loss, logits, targets)[1]
    found = torch.func.grad(lambda z: loss(z, targets))(logits)
    assert_close(found, expected, rtol=1e-10, atol=0.0)
    # the gradient by the definition, from 1 - p itself: d(-m log p)/dz with dp/dz = p q
    p, q = 1 - rest, rest
    m = xi * (1 + p) ** 2 + (1 - xi) * q**gamma
    slope = xi * 2 * (1 + p) - (1 - xi) * gamma * q ** (gamma - 1)
    by_hand = -(slope * torch.log1p(-q) + m / p) * p * q
    assert_close(found[:, 0], by_hand, rtol=1e-8, atol=0.0)
