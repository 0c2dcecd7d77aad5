"""What the papers derive about their losses, checked against the equations the numbers are said to solve."""

import math

import mpmath
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


def test_a_margin_lowers_the_mislabel_point():
    for gamma in (0.0, 0.5, 2.0, 4.0):
        assert eq.mislabel_point(gamma, 0.05) < eq.mislabel_point(gamma, 0.0) - 1e-3
    assert round(eq.mislabel_point(4.0, 0.05), 3) == 0.9
