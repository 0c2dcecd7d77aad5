"""Results of the papers that help to choose hyper-parameters."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from equipoise._checks import check_number, check_whole

__all__ = [
    "focal_gradient_ratio",
    "focal_kl_bound",
    "focal_optimum",
    "gamma_for",
    "mislabel_point",
    "smoothing_for",
]


def focal_gradient_ratio(p: float, gamma: float) -> float:
    r"""The gradient of focal loss over that of cross-entropy at ``p`` (Mukhoti et al. 2020, proposition 1).

    .. math:: g(p, \gamma) = (1 - p)^\gamma - \gamma p (1 - p)^{\gamma - 1} \log p

    Above 1 focal loss pulls harder than cross-entropy; :func:`gamma_for` says where they are equal.

    Args:
        p: probability of the true class, in [0, 1]; the ends are limits.
        gamma: exponent of the focal loss.

    >>> round(focal_gradient_ratio(0.25, gamma=3.0), 3), round(focal_gradient_ratio(0.9, gamma=3.0), 3)
    (1.007, 0.004)
    """
    check_number("p", p, low=0.0, high=1.0)
    check_number("gamma", gamma, low=0.0)
    if p in (0.0, 1.0):
        return 1.0 if p == 0.0 or gamma == 0.0 else 0.0
    return math.exp(gamma * math.log1p(-p)) * (1.0 - gamma * p * math.log(p) / (1.0 - p))


def focal_optimum(posterior: float, gamma: float) -> float:
    r"""The probability that minimises the expected focal loss of two classes (Mukhoti et al. 2020, eq. 5 and figure 6).

    .. math:: \min_x \, -(1 - x)^\gamma q \log x - x^\gamma (1 - q) \log(1 - x)

    It lies between 1/2 and the posterior q: a model at the optimum of focal loss is underconfident.
    :func:`equipoise.calibration.focal_posterior` is the inverse. With ``gamma=0`` it is q itself.

    Args:
        posterior: q, the probability that the class is true, in [0, 1].
        gamma: exponent of the focal loss.

    >>> round(focal_optimum(0.9, gamma=1.0), 3), round(focal_optimum(0.9, gamma=3.0), 3)
    (0.774, 0.647)
    """
    from scipy.optimize import brentq

    check_number("posterior", posterior, low=0.0, high=1.0)
    check_number("gamma", gamma, low=0.0)
    if gamma == 0.0 or posterior in (0.0, 0.5, 1.0):
        return float(posterior)

    def log_ratio(z: float) -> float:
        """Logarithm of the ratio of gradients at logit z, g(p, gamma)."""
        small = math.exp(-abs(z))
        odds_times_log = math.log1p(small) / small if z > 0 else small * (math.log1p(small) - z)
        return math.log1p(gamma * odds_times_log) - gamma * (max(z, 0.0) + math.log1p(small))

    # at the optimum q g(x) / x = (1 - q) g(1 - x) / (1 - x); in logits, and symmetric in q and 1 - q
    target = abs(math.log(posterior) - math.log1p(-posterior))
    z = float(brentq(lambda z: z - log_ratio(z) + log_ratio(-z) - target, 0.0, target, xtol=1e-13))
    return 1.0 / (1.0 + math.exp(-math.copysign(z, posterior - 0.5)))


def focal_kl_bound(probs: Tensor, posterior: Tensor, gamma: float) -> Tensor:
    r"""What the focal loss is at least: a regularised divergence (Mukhoti et al. 2020, section 4 and appendix A).

    .. math::
        L_f = -\sum_k q_k (1 - p_k)^\gamma \log p_k \ge \mathrm{KL}(q \,\|\, p) + H[q] - \gamma H[p]

    Minimising focal loss keeps the entropy of the predictions up. The proof needs :math:`\gamma \ge 1` (Bernoulli's
    inequality).

    Args:
        probs: predicted probabilities p, (..., C).
        posterior: target distribution q, (..., C).
        gamma: exponent of the focal loss, at least 1.

    Returns:
        The bound, (...).

    >>> focal_kl_bound(torch.tensor([0.7, 0.3]), torch.tensor([1.0, 0.0]), gamma=1.0)
    tensor(-0.2542)
    """
    check_number("gamma", gamma, low=1.0)
    cross_entropy: Tensor = -torch.xlogy(posterior, probs).sum(-1)  # KL(q || p) + H[q]
    entropy: Tensor = torch.special.entr(probs).sum(-1)
    return cross_entropy - gamma * entropy


def gamma_for(p0: float) -> float:
    r"""The focal exponent whose gradient equals that of cross-entropy at ``p0`` (Mukhoti et al. 2020, proposition 2).

    Solves :math:`(1 - p_0)^\gamma - \gamma p_0 (1 - p_0)^{\gamma - 1} \log p_0 = 1` for its positive root by the branch
    :math:`W_{-1}` of Lambert's function. The gradient of the focal loss is then larger than that of cross-entropy for
    probabilities below ``p0`` and smaller above. There is no positive root for ``p0 >= 0.5``.

    >>> round(gamma_for(0.2), 4), round(gamma_for(0.25), 4)
    (4.8506, 3.0702)
    """
    from scipy.special import lambertw  # imported here to keep the import of equipoise fast

    if isinstance(p0, (int, float)) and p0 >= 0.5:
        raise ValueError(
            f"p0 must be below 0.5, got {p0!r}; at 0.5 and above no gamma > 0 gives the gradient of cross-entropy"
        )
    p0 = check_number("p0", p0, low=0.0, high=0.5, open_low=True, open_high=True)
    # with L = log(1 - p0), c = -p0 log(p0) / (1 - p0): e^(L g) (1 + g c) = 1, so v = (1 + g c) L / c has
    # v e^v = (L / c) e^(L / c); the branch W_0 is the trivial root g = 0
    log_q = math.log1p(-p0)
    trivial = log_q * (1.0 - p0) / (-p0 * math.log(p0))
    return float((lambertw(trivial * math.exp(trivial), k=-1).real - trivial) / log_q)


def mislabel_point(gamma: float, margin: float) -> float:
    r"""Probability p* at which the gradient of a negative peaks in the asymmetric loss (Ridnik et al. 2021, 2.5).

    The gradient of a negative (eq. 8) grows with p up to p*, where :math:`\frac{d}{dp} \frac{dL_-}{dz} = 0`.
    Negatives beyond it are likely mislabelled and get a smaller gradient. For cross-entropy, ``(0, 0)``, p* is 1.

    >>> round(mislabel_point(gamma=4.0, margin=0.05), 3)
    0.9
    """
    from scipy.optimize import brentq

    gamma = check_number("gamma", gamma, low=0.0)
    margin = check_number("margin", margin, low=0.0, high=1.0, open_high=True)
    if gamma == 0.0 and margin == 0.0:
        return 1.0

    def growth(z: float) -> float:
        """Derivative of the logarithm of eq. 8 with respect to p, at logit z."""
        p, q = 1.0 / (1.0 + math.exp(-z)), 1.0 / (1.0 + math.exp(z))
        p_m, rest = p - margin, q + margin  # rest = 1 - p_m
        log_rest = math.log(rest)
        scaled = 1.0 - gamma * rest * log_rest / p_m  # the bracket of eq. 8 times rest
        # the growth of the bracket and that of 1 - p, 1/rest - 1/q, nearly cancel and are computed together
        bracket = gamma * (1.0 + rest * log_rest / p_m + log_rest) / (p_m * scaled) - margin / (rest * q)
        return gamma / p_m + bracket + 1.0 / p

    low = math.log(margin / (1.0 - margin)) + 1e-6 if margin > 0.0 else -30.0
    high = 300.0
    if growth(high) > 0.0:  # indistinguishable from 1 in float64
        return 1.0
    if growth(low) <= 0.0:  # decreasing from the start
        return margin
    return 1.0 / (1.0 + math.exp(-float(brentq(growth, low, high, xtol=1e-12))))


def smoothing_for(alpha: float, num_classes: int) -> float:
    r"""``label_smoothing`` with which the other classes share :math:`\alpha` (Mukhoti et al. 2020, section 5).

    There a target is :math:`1 - \alpha` for the true class and :math:`\alpha / (K - 1)` for each other one. As in
    torch, ``label_smoothing`` :math:`\epsilon` spreads over all classes, the true one too, so
    :math:`\epsilon = \alpha K / (K - 1)`. A text of a loss has it as ``ce(label_smoothing=others(0.05))``.

    Args:
        alpha: in [0, (K - 1) / K], from one-hot to uniform targets.
        num_classes: K.

    >>> smoothing_for(0.05, 2), round(smoothing_for(0.05, 10), 4)
    (0.1, 0.0556)
    """
    num_classes = check_whole("num_classes", num_classes, low=2)
    alpha = check_number("alpha", alpha, low=0.0, high=(num_classes - 1) / num_classes)
    return min(1.0, alpha * num_classes / (num_classes - 1))
