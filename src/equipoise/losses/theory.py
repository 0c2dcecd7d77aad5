"""Results of the papers that help to choose hyper-parameters."""

from __future__ import annotations

import math

from equipoise._checks import check_number

__all__ = ["gamma_for", "mislabel_point"]


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
    check_number("p0", p0, low=0.0, high=0.5, open_low=True, open_high=True)
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

    check_number("gamma", gamma, low=0.0)
    check_number("margin", margin, low=0.0, high=1.0, open_high=True)
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
