"""What the papers derive about their losses, checked against the equations the numbers are said to solve."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from torch.testing import assert_close

import equipoise as eq

P0 = [1e-9, 1e-4, 0.001, 0.01, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 1 / math.e, 0.4, 0.45, 0.48, 0.49, 0.499, 0.4999]


def exact_gamma(p0):
    """The root above 0 of (1 - p)^g - g p (1 - p)^(g - 1) log p = 1, by bisection with 60 digits."""
    with mpmath.workdps(60):
        p = mpmath.mpf(p0)

        def excess(g):
            return (1 - p) ** g - g * p * (1 - p) ** (g - 1) * mpmath.log(p) - 1

        high = mpmath.mpf(1)
        while excess(high) > 0:
            high *= 2
        low = high
        while excess(low) <= 0:
            low /= 2
        for _ in range(180):
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) > 0 else (low, middle)
        return low


@pytest.mark.parametrize("p0", P0)
def test_gamma_for_solves_its_equation(p0):
    gamma = eq.gamma_for(p0)
    assert gamma > 0
    with mpmath.workdps(40):
        g, p = mpmath.mpf(gamma), mpmath.mpf(p0)
        residual = (1 - p) ** g - g * p * (1 - p) ** (g - 1) * mpmath.log(p) - 1
    assert abs(residual) < 1e-13
    # towards 1/2 the root runs into the trivial root 0, and its relative error grows as 1 / (1/2 - p0)
    assert gamma == pytest.approx(float(exact_gamma(p0)), rel=1e-12 + 1e-14 / (0.5 - p0))


def test_gamma_for_the_numbers_of_the_paper():
    actual = [round(eq.gamma_for(p0), 4) for p0 in (0.2, 0.25, 0.4)]
    assert actual == [4.8506, 3.0702, 0.6805]
    assert eq.gamma_for(1 / math.e) == pytest.approx(1.0, rel=1e-13)


def test_focal_gradient_crosses_that_of_cross_entropy_at_p0():
    for p0 in (0.1, 0.25, 0.4):
        loss, plain = eq.FocalLoss(eq.gamma_for(p0)), eq.CrossEntropyLoss()
        strength = []
        for p in (p0 * 0.8, p0, p0 * 1.1):
            logits = torch.tensor([[math.log(p / (1 - p)), 0.0]], dtype=torch.float64, requires_grad=True)
            grads = [torch.autograd.grad(some(logits, torch.tensor([0])), logits)[0][0, 0] for some in (loss, plain)]
            strength.append((grads[0] / grads[1]).item())
        assert strength[0] > 1 + 1e-3
        assert strength[1] == pytest.approx(1, abs=1e-13)
        assert strength[2] < 1 - 1e-3


@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0, 2.0, 3.0, 5.5])
def test_the_ratio_is_that_of_the_gradients_of_both_losses(gamma):
    """Proposition 1, against automatic differentiation of the losses in float64."""
    p = torch.tensor([1e-6, 0.01, 0.1, 0.3, 0.5, 0.8, 0.99, 1 - 1e-6], dtype=torch.float64)
    logits = torch.stack([torch.logit(p), torch.zeros_like(p)], dim=1).requires_grad_()
    targets = torch.zeros(len(p), dtype=torch.int64)
    focal, plain = (
        torch.autograd.grad(loss(logits, targets), logits)[0][:, 0]
        for loss in (eq.FocalLoss(gamma, reduction="sum"), eq.CrossEntropyLoss(reduction="sum"))
    )
    found = torch.tensor([eq.focal_gradient_ratio(each, gamma) for each in p.tolist()], dtype=torch.float64)
    assert_close(found, focal / plain, rtol=1e-9, atol=1e-14)
    for value in p.tolist():
        with mpmath.workdps(40):
            x, g = mpmath.mpf(value), mpmath.mpf(gamma)
            expected = (1 - x) ** g - g * x * (1 - x) ** (g - 1) * mpmath.log(x)
        assert eq.focal_gradient_ratio(value, gamma) == pytest.approx(float(expected), rel=1e-13)
    ends = [eq.focal_gradient_ratio(end, gamma) for end in (0, 1)]
    assert ends == [1.0, 1.0 if gamma == 0 else 0.0]
    if gamma > 0:
        assert eq.focal_gradient_ratio(1e-300, gamma) == pytest.approx(1.0)
        assert eq.focal_gradient_ratio(1 - 1e-16, gamma) < 1e-4


@pytest.mark.parametrize("p0", [0.05, 0.2, 0.4])
def test_the_ratio_is_one_at_gamma_for(p0):
    assert eq.focal_gradient_ratio(p0, eq.gamma_for(p0)) == pytest.approx(1.0, abs=1e-13)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0, 5.0, 20.0])
@pytest.mark.parametrize("posterior", [0.0, 1e-200, 1e-6, 0.1, 0.3, 0.5, 0.64, 0.9, 0.999, 1.0])
def test_the_optimum_minimises_equation_5(posterior, gamma):
    optimum = eq.focal_optimum(posterior, gamma)
    if gamma == 0.0 or posterior in (0.0, 0.5, 1.0):
        assert optimum == posterior
        return
    assert min(posterior, 0.5) <= optimum <= max(posterior, 0.5)  # figure 6: closer to one half
    if posterior > 1e-9:  # otherwise 1 - posterior is 1
        assert eq.focal_optimum(1 - posterior, gamma) == pytest.approx(1 - optimum, abs=1e-11)
    with mpmath.workdps(300):
        q, g, x = mpmath.mpf(posterior), mpmath.mpf(gamma), mpmath.mpf(optimum)

        def expected_loss(x):
            return -((1 - x) ** g) * q * mpmath.log(x) - x**g * (1 - q) * mpmath.log(1 - x)

        here = expected_loss(x)
        for step in (mpmath.mpf("1e-4"), mpmath.mpf("-1e-4")):
            assert here < expected_loss(x * (1 + step))


@pytest.mark.parametrize("gamma", [0.5, 2.0, 5.0])
def test_the_posterior_undoes_the_optimum(gamma):
    posteriors = [0.02, 0.3, 0.5, 0.71, 0.97]
    optima = torch.tensor([[eq.focal_optimum(q, gamma)] for q in posteriors], dtype=torch.float64)
    found = eq.calibration.focal_posterior(optima, gamma, task="multilabel")
    assert_close(found[:, 0], torch.tensor(posteriors, dtype=torch.float64), rtol=1e-11, atol=0)


def distributions(count, classes, seed):
    draw = torch.Generator().manual_seed(seed)
    scores = torch.randn(count, classes, generator=draw, dtype=torch.float64)
    return (4 * scores).softmax(1)


@pytest.mark.parametrize("gamma", [1.0, 1.5, 3.0, 7.0])
def test_focal_loss_is_above_its_bound(gamma):
    """Appendix A: for any prediction and any target distribution; the bound by its definition."""
    p, q = distributions(2000, 5, 0), distributions(2000, 5, 1)
    q[:1000] = torch.nn.functional.one_hot(q[:1000].argmax(1), 5).double()
    focal = -(q * (1 - p) ** gamma * p.log()).sum(1)
    bound = eq.focal_kl_bound(p, q, gamma)
    divergence = torch.distributions.kl_divergence(
        torch.distributions.Categorical(q), torch.distributions.Categorical(p)
    )
    entropy = [torch.distributions.Categorical(each).entropy() for each in (q, p)]
    assert_close(bound, divergence + entropy[0] - gamma * entropy[1])
    assert (focal >= bound - 1e-12).all()
    assert_close(focal[:1000], eq.FocalLoss(gamma, reduction="none")(p.log()[:1000], q[:1000].argmax(1)))


def test_the_bound_is_reached_and_fails_below_one():
    sure = torch.tensor([1.0, 0.0], dtype=torch.float64)
    assert eq.focal_kl_bound(sure, sure, 2.0) == 0.0
    p = torch.tensor([0.5, 0.5], dtype=torch.float64)
    focal = -(0.5**0.5) * math.log(0.5)
    assert focal > eq.focal_kl_bound(p, sure, 1.0)
    with pytest.raises(ValueError, match="gamma"):
        eq.focal_kl_bound(p, sure, 0.5)


def slope(p, gamma, margin):
    """Equation 8: dL-/dz at probability p."""
    p_m = max(p - margin, 0.0)
    if p_m == 0.0 and (gamma > 0 or p < margin):
        return 0.0
    through = gamma * p_m ** (gamma - 1) * math.log1p(-p_m) if gamma else 0.0
    return p_m**gamma * p * (1 - p) * (1 / (1 - p_m)) - through * p * (1 - p)


GAMMAS = [0.0, 0.1, 0.5, 1.0, 2.0, 4.0, 7.5]
MARGINS = [0.0, 0.05, 0.2, 0.5, 0.9]


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("margin", MARGINS)
def test_mislabel_point_is_where_the_gradient_is_largest(gamma, margin):
    point = eq.mislabel_point(gamma, margin)
    if (gamma, margin) == (0.0, 0.0):
        assert point == 1.0  # p itself: it never lets go
        return
    assert margin <= point <= 1
    grid = [k / 20000 for k in range(1, 20000)]
    values = [slope(p, gamma, margin) for p in grid]
    best = max(range(len(grid)), key=values.__getitem__)
    assert point == pytest.approx(grid[best], abs=1.5 / 20000)
    top = slope(min(point, 1 - 1e-12), gamma, margin)
    assert top >= values[best] * (1 - 1e-12)  # no point of the grid is higher
    if margin < point < 1 - 1e-4:
        for step in (-1e-4, 1e-4):  # the curve is about quadratic at its top, and falls on either side
            assert slope(point + step, gamma, margin) < top


@pytest.mark.parametrize(("gamma", "margin"), [(4.0, 0.05), (2.0, 0.2), (0.5, 0.05), (0.0, 0.2)])
def test_equation_8_is_the_gradient_of_the_loss(gamma, margin):
    p = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)
    logits = torch.logit(p).unsqueeze(1).requires_grad_()
    loss = eq.AsymmetricLoss(gamma_neg=gamma, margin=margin, reduction="sum")
    (grad,) = torch.autograd.grad(loss(logits, torch.zeros(99, 1)), logits)
    clear = (p - margin).abs() > 1e-9  # on the margin itself the gradient may jump
    expected = torch.tensor([slope(value, gamma, margin) for value in p.tolist()], dtype=torch.float64)
    assert_close(grad[:, 0][clear], expected[clear], rtol=1e-12, atol=1e-15)
    assert grad[:, 0].argmax().item() == pytest.approx(99 * (eq.mislabel_point(gamma, margin) - 0.01) / 0.99, abs=1.1)


@pytest.mark.parametrize("gamma", [1e-6, 1e-3, 1 / 320])
def test_mislabel_points_closer_to_one_than_float64_can_tell(gamma):
    """Without a margin the gradient peaks where 1 - p is about exp(-1/gamma)."""
    assert eq.mislabel_point(gamma, 0.0) == 1.0


def test_a_margin_lowers_the_mislabel_point():
    for gamma in (0.0, 0.5, 2.0, 4.0):
        assert eq.mislabel_point(gamma, 0.05) < eq.mislabel_point(gamma, 0.0) - 1e-3
    assert round(eq.mislabel_point(4.0, 0.05), 3) == 0.9


@pytest.mark.parametrize("classes", [2, 3, 10, 1000])
@pytest.mark.parametrize("alpha", [0.0, 0.05, 0.1, 0.5])
def test_label_smoothing_shared_by_the_other_classes(alpha, classes):
    """s = (1 - alpha) q + alpha (1 - q) / (K - 1), as section 5 of Mukhoti et al. has it."""
    draw = torch.Generator().manual_seed(classes)
    logits = 3 * torch.randn(20, classes, generator=draw, dtype=torch.float64)
    targets = torch.randint(classes, (20,), generator=draw)
    one_hot = torch.eye(classes, dtype=torch.float64)[targets]
    smoothed = (1 - alpha) * one_hot + alpha * (1 - one_hot) / (classes - 1)
    expected = -(smoothed * logits.log_softmax(1)).sum(1).mean()
    smoothing = eq.smoothing_for(alpha, classes)
    assert_close(eq.CrossEntropyLoss(label_smoothing=smoothing)(logits, targets), expected, rtol=1e-12, atol=0)


def test_most_label_smoothing_gives_uniform_targets():
    assert [eq.smoothing_for((k - 1) / k, k) for k in (2, 3, 7, 10, 1000)] == [1.0] * 5
    with pytest.raises(ValueError, match=r"alpha must be a finite number in \[0, 0.9\], got 0.95"):
        eq.smoothing_for(0.95, 10)
    with pytest.raises(ValueError, match="num_classes must be an integer of at least 2, got 1"):
        eq.smoothing_for(0.05, 1)


@pytest.mark.parametrize("kind", [np.float32, np.float64, Fraction], ids=lambda kind: kind.__name__)
def test_any_kind_of_real_number_is_taken(kind):
    assert eq.gamma_for(kind(0.25)) == eq.gamma_for(0.25)
    assert eq.mislabel_point(kind(4.0), kind(0.0625)) == eq.mislabel_point(4.0, 0.0625)
    for p0 in (0.0, 0.5, 0.75, 1.0):
        with pytest.raises(ValueError, match=r"^p0 must be "):
            eq.gamma_for(kind(p0))
