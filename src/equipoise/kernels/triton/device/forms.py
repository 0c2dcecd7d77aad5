r"""The modulations as Triton functions.

The same forms as ``reference.modulation``: factor m of a term :math:`-m \log p`, and factor h = m + m' p log p of its
gradient.
"""

from __future__ import annotations

import os

import triton
import triton.language as tl

__all__ = [
    "LOWEST",
    "at_least",
    "confidence_gamma",
    "exp",
    "exp_relative",
    "log",
    "log1p",
    "log_relative",
    "lowest",
    "of_class",
    "other_form",
    "power",
    "quick_log1p",
    "reciprocal",
    "relative",
    "row_max",
    "true_form",
    "unit_of",
]

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
TINY = tl.constexpr(1.1754943508222875e-38)  # smallest normal number of float32: lower bound of arguments of logarithms
LOWEST = tl.constexpr(-1e30)  # replaces log 0 where it is multiplied by p = 0


@triton.jit
def _is_far(peak):
    """Whether the rounding error of the peak in units of log 2 is too large for powers of exponentials."""
    if peak.dtype == tl.float32:
        far = tl.abs(peak) >= 268435456.0  # 2**28
    else:
        far = tl.abs(peak) >= 144115188075855872.0  # 2**57
    return far


@triton.jit
def _unit(peak, NEAR: tl.constexpr):
    """1 where the peak is far from 0, NEAR elsewhere, in the type of the peak; Python numbers would give float32."""
    return tl.where(_is_far(peak), tl.full(peak.shape, 1.0, peak.dtype), tl.full(peak.shape, NEAR, peak.dtype))


if os.environ.get("TRITON_INTERPRET") == "1":  # it supports neither fma nor inline assembly

    @triton.jit
    def _exp2(x):
        return tl.exp2(x)

    @triton.jit
    def _log2(x):
        return tl.log2(x)

    @triton.jit
    def reciprocal(x):
        return 1.0 / x

    @triton.jit
    def _scaled(z, peak):
        return (z - peak) * _unit(peak, LOG2E)

    @triton.jit
    def at_least(x, bound):
        return tl.where(x >= bound, x, bound)

    @triton.jit
    def row_max(z):
        return tl.max(z, 1) + tl.sum(tl.where(z == z, 0.0, z), 1)

else:

    @triton.jit
    def _exp2(x):
        """Flushes denormal results to 0; handling them costs twice the exponential itself."""
        if x.dtype == tl.float32:
            y = tl.inline_asm_elementwise(
                "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
            )
        else:
            y = tl.exp2(x)
        return y

    @triton.jit
    def _log2(x):
        """Absolute error of about 1e-7 around 1, which is enough for an exponent."""
        if x.dtype == tl.float32:
            y = tl.inline_asm_elementwise(
                "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
            )
        else:
            y = tl.log2(x)
        return y

    @triton.jit
    def reciprocal(x):
        """1 / x to one unit in the last place, of a normal number."""
        if x.dtype == tl.float32:
            y = tl.inline_asm_elementwise(
                "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
            )
        else:
            y = 1.0 / x
        return y

    @triton.jit
    def _scaled(z, peak):
        """Rounded once, at the end; the rounding of the peak is the same for all classes of a row."""
        unit = _unit(peak, LOG2E)
        return tl.fma(z, unit + tl.zeros_like(z), -(peak * unit) + tl.zeros_like(z))

    @triton.jit
    def at_least(x, bound):
        """The larger of x and the bound; the bound where x is NaN. One instruction."""
        return tl.maximum(x, bound)

    @triton.jit
    def _larger(a, b):
        return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)

    @triton.jit
    def row_max(z):
        """The largest number of each row, NaN if it contains NaN: the compiler may then skip padding with -inf."""
        return tl.reduce(z, 1, _larger)


@triton.jit
def of_class(start: tl.constexpr, STEP: tl.constexpr, k, hyper, C):
    """The number for all classes or labels, or one per class of a tile, with 1 in the padding."""
    if STEP == 1:
        number = tl.load(hyper + start + k, mask=k < C, other=1.0)[None, :]
    else:
        number = tl.load(hyper + start)
    return number


@triton.jit
def relative(z, peak):
    """Logits relative to the peak of their row, in units of log 2, up to one shift for the whole row.

    If the peak is far from 0, they are in natural units: there adjacent floats differ by at least 16, so smaller
    exponentials are negligible beside 1, while the peak times log2(e) would have a rounding error as large. See
    ``unit_of``.
    """
    return _scaled(z, peak)


@triton.jit
def unit_of(peak):
    """The natural logarithm of one unit of ``relative``, for each row."""
    return _unit(peak, LN2)


@triton.jit
def lowest(like, SIZE: tl.constexpr):
    """The peak before the first tile: the smallest finite number."""
    if like.dtype.element_ty == tl.float32:
        peak = tl.full([SIZE], -3.4028234663852886e38, tl.float32)
    else:
        peak = tl.full([SIZE], -1.7976931348623157e308, tl.float64)
    return peak


@triton.jit
def exp(x):
    """E to the power of x."""
    return _exp2(x * LOG2E)


@triton.jit
def exp_relative(x):
    """Exponential of what ``relative`` returns."""
    return _exp2(x)


@triton.jit
def log_relative(x, unit):
    """The result of ``relative`` in natural units; ``unit`` is that of the peak."""
    return x * unit


@triton.jit
def log(x):
    """Logarithm, to about 1e-7 around 1."""
    return _log2(x) * LN2


@triton.jit
def log1p(x):
    """Log(1 + x) for x > -1 with full relative precision: log(u) is corrected for the rounding of u = 1 + x."""
    u = 1.0 + x
    gained = tl.where(u == 1.0, 1.0, u - 1.0)
    return tl.where(u == 1.0, x, tl.log(u) * (x / gained))


@triton.jit
def quick_log1p(x):
    """Log(1 + x) for x in (-1, 1]: error of a few ulp near 0, about 1e-7 elsewhere; float64 as ``log1p``."""
    if x.dtype == tl.float32:
        series = x * (1.0 - x * (0.5 - x * (0.3333333333 - x * 0.25)))
        y = tl.where(tl.abs(x) < 0.03125, series, log(1.0 + x))
    else:
        y = log1p(x)
    return y


@triton.jit
def power(base, gamma, WHOLE: tl.constexpr):
    """``base ** gamma`` of a probability that has full relative precision."""
    if WHOLE == 0:
        result = _exp2(gamma * _log2(tl.maximum(base, TINY)))
    elif WHOLE == 1:
        result = base
    else:
        result = base * base
        if WHOLE == 3:
            result = result * base
        elif WHOLE == 4:
            result = result * result
    return result


@triton.jit
def confidence_gamma(p, hyper, PLAN: tl.constexpr):
    """The exponent of the first bound above p, the last one at p = 1."""
    gamma = tl.load(hyper + PLAN.confidence_gammas + PLAN.bounds - 1) + tl.zeros_like(p)
    bounds: tl.constexpr = PLAN.bounds
    for i in tl.static_range(1, bounds):
        place = PLAN.bounds - 1 - i
        below = p < tl.load(hyper + PLAN.confidence_bounds + place)
        gamma = tl.where(below, tl.load(hyper + PLAN.confidence_gammas + place), gamma)
    return gamma


@triton.jit
def true_form(log_p, p, q, gamma, hyper, PLAN: tl.constexpr):
    r""":math:`m = \xi (1 + p)^{g_{hc}} + (1 - \xi) q^{\gamma}` and h; ``gamma`` is unused without an exponent."""
    m = tl.full(p.shape, 1.0, p.dtype)
    h = m
    log_p = tl.maximum(log_p, LOWEST)  # p log p is 0 for p = 0
    if PLAN.focal:
        if PLAN.gamma_pos_whole == 0:
            m = power(q, gamma, 0)
            lowered = m / tl.maximum(q, TINY)  # q^(gamma - 1); where q = 0, p log p is 0 too
            h = m - gamma * p * log_p * lowered
        elif PLAN.gamma_pos_whole == 1:
            m = q
            h = q - gamma * p * log_p
        else:
            lowered = power(q, gamma, PLAN.gamma_pos_whole - 1)
            m = lowered * q
            h = lowered * (q - gamma * p * log_p)
    if PLAN.xi >= 0:
        xi = tl.load(hyper + PLAN.xi)
        gamma_hc = tl.load(hyper + PLAN.gamma_hc)
        high = _exp2(gamma_hc * _log2(1.0 + p))
        m = xi * high + (1.0 - xi) * m
        h = xi * high * (1.0 + gamma_hc * p / (1.0 + p) * log_p) + (1.0 - xi) * h
    return m, h


@triton.jit
def other_form(log_p, p, gamma, hyper, PLAN: tl.constexpr):
    r""":math:`m = \xi + (1 - \xi) p^{g_{neg}}` and h."""
    log_p = tl.maximum(log_p, LOWEST)
    # from log p: -log p is large where p underflows, so a lower bound of p would change the result
    if PLAN.gamma_neg_whole == 0:
        m = exp(gamma * log_p)
    else:
        m = power(p, gamma, PLAN.gamma_neg_whole)
    h = m * (1.0 + gamma * log_p)
    if PLAN.xi >= 0:
        xi = tl.load(hyper + PLAN.xi)
        m = xi + (1.0 - xi) * m
        h = xi + (1.0 - xi) * h
    return m, h
