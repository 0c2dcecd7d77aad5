r"""Softmax link in plain PyTorch: rows and their gradient in closed form.

With :math:`z' = \text{scale}\,(z + a - t\,\Delta)`, :math:`p = \text{softmax}(z')`:

.. math:: L = \sum_k w_k \big[t_k (1 - \epsilon + \epsilon/C)\, m_{true}(p_k)
          + (1 - t_k)(\epsilon/C)\, m_{other}(p_k)\big](-\log p_k)

and, with :math:`u_k = -w_k s_k (m_k + m_k' p_k \log p_k)`, s the mass of the term,
:math:`dL/dz'_k = u_k - p_k \sum_j u_j`.

The probability q of "not this class" is a sum over the other classes, never ``1 - p`` near p = 1, and log p comes from
q there and from the logits elsewhere, so that both keep their relative precision at either end.

A class is masked by a logit of minus infinity: p = 0, and every form is what it tends to there. Its term is 0 where its
weight is (:math:`0 \cdot \log 0 = 0`) and else infinite, with a finite gradient, as in torch. An ignored row has loss
and gradient 0 whatever its logits are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.kernels.cpu.blocks import in_blocks
from equipoise.kernels.cpu.inplace import looking_is_free, minus, plus, plus_product, put, softmax, times
from equipoise.kernels.hyper import Hyper, accumulation_dtype
from equipoise.kernels.reference.modulation import (
    along_classes,
    gamma_of_classes,
    gamma_of_rows,
    is_plain,
    other_form,
    product,
    select,
    true_form,
)

__all__ = ["has_target", "index_terms", "softmax_terms"]


def softmax_terms(
    logits: Tensor, targets: Tensor, weight: Tensor | None, hyper: Hyper, ignore_index: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows (N, d1, ..., dk), and in two factors their gradient with respect to the logits, in accumulation type.

    The direction is (N, C, d1, ..., dk), its length (N, 1, d1, ..., dk) or a scalar: who multiplies by what comes in
    from above has to go over all logits anyway.
    """
    dtype = accumulation_dtype(logits)

    def block(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        z = logits.to(dtype)
        if "squared_error" in hyper:
            return _dense_brier(z, targets, weight, hyper, ignore_index)
        if targets.is_floating_point():
            return _dense(z, targets.to(dtype), weight, hyper)
        return _smoothed(z, targets, weight, hyper, ignore_index)

    if targets.is_floating_point() or "label_smoothing" in hyper:
        rows, direction = in_blocks(block, logits, targets, dtype)
        return rows, direction, torch.ones((), dtype=dtype, device=logits.device)
    # few passes over the logits, so that blocks would not pay
    if "squared_error" in hyper:
        return _brier(logits.to(dtype), targets, weight, hyper, ignore_index)
    return index_terms(logits, targets, weight, hyper, ignore_index)[:3]


def _labels(targets: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Class of each row, 0 where it is ignored, and whether it counts; both (N, 1, d1, ..., dk)."""
    targets = targets.unsqueeze(1)
    valid = targets != ignore_index
    return torch.where(valid, targets, 0), valid


def has_target(targets: Tensor) -> Tensor:
    """Which rows of dense targets (N, C, d1, ..., dk) count: those with anything but zeros; (N, 1, d1, ..., dk)."""
    return targets.abs().sum(1, keepdim=True) != 0


def index_terms(
    logits: Tensor, targets: Tensor, weight: Tensor | None, hyper: Hyper, ignore_index: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``softmax_terms`` of index targets without smoothing, and the probability of the true class (N, 1, d1, ..., dk).

    The true class is a per-row affair, the others matter through their sum. The direction holds their probabilities.
    """
    z = logits.to(accumulation_dtype(logits))
    labels, valid = _labels(targets, ignore_index)
    probs, p, adjusted = _true_softmax(z, labels, valid, hyper)
    if looking_is_free(z):
        log_p = _log_with_vanished(p, z, labels, hyper)
    else:
        z_max, log_p_max = _largest(adjusted, probs)
        log_p = adjusted.gather(1, labels) - z_max + log_p_max
    log_p, others, q = _true_class(p, log_p, probs, labels)
    m, h = true_form(log_p, p, q, hyper, gamma_of_rows(hyper, labels, p))
    mass = valid.to(z.dtype) if weight is None else weight[labels] * valid
    rows = _counted(-product(mass if m is None else mass * m, log_p), valid)
    slope = mass if h is None else mass * h
    return rows, put(others, labels, -q), slope * hyper["scale"] if "scale" in hyper else slope, p


def _true_softmax(z: Tensor, labels: Tensor, valid: Tensor, hyper: Hyper) -> tuple[Tensor, Tensor, Tensor]:
    """Softmax, the probability of the true class, and the adjusted logits, whose memory the softmax may have taken."""
    if looking_is_free(z):
        adjusted = _adjusted(z, labels, hyper)
        probs = softmax(adjusted) if adjusted is not z else adjusted.softmax(1)  # fresh memory is slow
        p = probs.gather(1, labels)
        if not bool(p.sum().isnan()):
            return probs, p, adjusted
    adjusted = _adjusted(_cleaned(z, valid, hyper), labels, hyper)
    probs = adjusted.softmax(1)
    return probs, probs.gather(1, labels), adjusted


def _cleaned(z: Tensor, valid: Tensor, hyper: Hyper) -> Tensor:
    """Logits of which those of ignored rows cannot come back through a derivative, and none overflows when scaled."""
    z = torch.where(valid, z, 0.0)
    return z - z.amax(1, keepdim=True) if "scale" in hyper else z


def _true_class(p: Tensor, log_p: Tensor, probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log p of the true class from q where p is large, the softmax without it (in place of ``probs``), its sum q."""
    others = put(probs, labels, torch.zeros_like(p))
    q = others.sum(1, keepdim=True)
    return torch.where(q < 0.5, (-q.clamp(max=0.5)).log1p(), log_p), others, q


def _log_with_vanished(p: Tensor, z: Tensor, labels: Tensor, hyper: Hyper) -> Tensor:
    """Logarithm of the probability of the true class; from the logits in the rows where it has all but vanished."""
    log_p = p.log()
    vanished = (p < 1e-30).squeeze(1)
    if vanished.any():
        labels = labels.squeeze(1)[vanished].unsqueeze(1)
        few = z.movedim(1, -1)[vanished]
        few = _adjusted(_cleaned(few, torch.ones_like(labels, dtype=torch.bool), hyper), labels, hyper)
        log_p.squeeze(1)[vanished] = few.log_softmax(1).gather(1, labels).squeeze(1)
    return log_p


def _smoothed(
    z: Tensor, targets: Tensor, weight: Tensor | None, hyper: Hyper, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """Index targets with smoothing: every class has a term."""
    labels, valid = _labels(targets, ignore_index)
    plain = is_plain(z)
    z = z if plain else _cleaned(z, valid, hyper)
    log_probs, probs = _both_softmax(_adjusted(z, labels, hyper))
    p = probs.gather(1, labels)
    log_p, others, q = _true_class(p, log_probs.gather(1, labels), probs, labels)
    m, h = true_form(log_p, p, q, hyper, gamma_of_rows(hyper, labels, p))
    share = hyper["label_smoothing"] / z.shape[1]
    mass = valid.to(z.dtype) if weight is None else weight[labels] * valid
    mass = mass * (1.0 - hyper["label_smoothing"] + share)
    other_cost, other_h = _other_terms(log_probs, others, labels, weight, hyper, plain)

    share = share * valid
    rows = -product(mass if m is None else mass * m, log_p) - product(share, other_cost)
    slope = mass if h is None else mass * h
    if other_h is None:
        total = share * (z.shape[1] - 1)
        direction = minus(times(others, slope + total), share)
    else:
        total = share * other_h.sum(1, keepdim=True)
        direction = plus_product(times(others, slope + total), other_h, -share)
    direction = put(direction, labels, p * total - slope * q)
    return _counted(rows, valid), times(direction, hyper["scale"]) if "scale" in hyper else direction


def _largest(z: Tensor, probs: Tensor) -> tuple[Tensor, Tensor]:
    """Largest logit of each row and its log-probability, which tell those of all others; (N, 1, d1, ..., dk)."""
    return z.amax(1, keepdim=True), probs.amax(1, keepdim=True).log()


def _both_softmax(z: Tensor) -> tuple[Tensor, Tensor]:
    """Log-softmax and softmax over dimension 1, by whichever costs less given the other."""
    if z.ndim > 2:
        log_probs = z.log_softmax(1)
        return log_probs, log_probs.exp()
    probs = z.softmax(1)
    z_max, log_p_max = _largest(z, probs)
    return plus(z - z_max, log_p_max), probs


def _other_terms(
    log_p: Tensor, p: Tensor, labels: Tensor, weight: Tensor | None, hyper: Hyper, plain: bool
) -> tuple[Tensor, Tensor | None]:
    r"""What smoothing adds over :math:`-\epsilon/C`, :math:`\sum_{k \ne y} w_k m_{other} \log p_k`, and w h."""
    if "gamma_neg" in hyper or not hyper.keys() & {"gamma_pos", "confidence_bounds", "xi"}:
        m, h = other_form(log_p, p, hyper)
    else:  # a focal loss takes the form of the true class for every class (Mukhoti et al. 2020, appendix A)
        m, h = true_form(log_p, p, 1.0 - p, hyper, gamma_of_classes(hyper, "gamma_pos", p))
    if weight is not None:
        by_class = along_classes(weight, log_p)
        m = by_class.expand_as(log_p).clone() if m is None else times(m, by_class)
        h = by_class.expand_as(log_p).clone() if h is None else times(h, by_class)
    nothing = torch.zeros_like(labels, dtype=log_p.dtype)
    cost = times(m, log_p) if plain and m is not None else product(m, log_p)
    cost = put(cost, labels, nothing).sum(1, keepdim=True)
    return cost, None if h is None else put(h, labels, nothing)


def _dense(z: Tensor, targets: Tensor, weight: Tensor | None, hyper: Hyper) -> tuple[Tensor, Tensor]:
    """A distribution over the classes as target: every class has a true and, where smoothed, an other term."""
    valid = has_target(targets)
    plain = is_plain(z)
    z = _adjusted_densely(z if plain else _cleaned(z, valid, hyper), targets, hyper)
    log_p, p = _both_softmax(z)
    # only one class of a row can have p > 1/2: its q is the sum of the others
    likely = (p > 0.5).to(p.dtype)
    q_likely = (p - p * likely).sum(1, keepdim=True)
    log_p = select(likely, (-q_likely.clamp(max=0.5)).log1p().expand_as(p), log_p, plain=plain)

    smoothing: Tensor | float = hyper.get("label_smoothing", 0.0)
    share = (smoothing / z.shape[1]) * valid.to(z.dtype)
    q = torch.lerp(1.0 - p, q_likely.expand_as(p), likely)
    m, h = true_form(log_p, p, q, hyper, gamma_of_classes(hyper, "gamma_pos", p))
    other_m, other_h = other_form(log_p, p, hyper)
    if other_m is not None and other_h is not None:
        true_mass, other_mass = targets * (1.0 - smoothing + share), (1.0 - targets) * share
        factor = true_mass * (1.0 if m is None else m) + other_mass * other_m
        slope = true_mass * (1.0 if h is None else h) + other_mass * other_h
    else:
        mass = targets * (1.0 - smoothing) + share if "label_smoothing" in hyper else targets
        factor, slope = mass if m is None else mass * m, mass if h is None else mass * h
    if weight is not None:
        by_class = along_classes(weight, z)
        factor, slope = factor * by_class, slope * by_class
    rows = _counted(-product(factor, log_p).sum(1, keepdim=True), valid)
    # p S - slope, written so that nothing cancels at p = 1
    direction = minus(times(p, slope.sum(1, keepdim=True) - slope), slope * q)
    return rows, times(direction, hyper["scale"]) if "scale" in hyper else direction


def _brier(
    z: Tensor, targets: Tensor, weight: Tensor | None, hyper: Hyper, ignore_index: int
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Brier score :math:`w_y \sum_k (p_k - t_k)^2` of index targets without smoothing.

    Direction :math:`p_k (d_k - \sum_j p_j d_j)` with d = p - t, length :math:`2 w_y`.
    """
    labels, valid = _labels(targets, ignore_index)
    probs, p, _ = _true_softmax(z, labels, valid, hyper)
    others = put(probs, labels, torch.zeros_like(p))
    q = others.sum(1, keepdim=True)  # minus the difference of the true class
    squared = others * others
    squares = squared.sum(1, keepdim=True)
    pull = squares - p * q
    mass = valid.to(z.dtype) if weight is None else weight[labels] * valid
    rows = _counted(mass * (squares + q.square()), valid)
    direction = put(plus_product(squared, others, -pull), labels, -p * (q + pull))
    return rows, direction, 2.0 * mass * hyper["scale"] if "scale" in hyper else 2.0 * mass


def _dense_brier(
    z: Tensor, targets: Tensor, weight: Tensor | None, hyper: Hyper, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """The same for dense or smoothed targets."""
    t = targets.to(z.dtype)
    if not targets.is_floating_point():
        labels, valid = _labels(targets, ignore_index)
        t = torch.zeros_like(z).scatter(1, labels, valid.to(z.dtype))
    valid = has_target(t)
    z = z if is_plain(z) else _cleaned(z, valid, hyper)
    probs = _adjusted_densely(z, t, hyper).softmax(1)
    mass = valid.to(z.dtype) if weight is None else (t * along_classes(weight, z)).sum(1, keepdim=True)
    smoothing: Tensor | float = hyper.get("label_smoothing", 0.0)
    difference = probs - (t * (1.0 - smoothing) + smoothing / z.shape[1])
    rows = mass * difference.square().sum(1, keepdim=True)
    direction = times(difference - (probs * difference).sum(1, keepdim=True), probs)
    return _counted(rows, valid), times(direction, 2.0 * mass * hyper["scale"] if "scale" in hyper else 2.0 * mass)


def _counted(rows: Tensor, valid: Tensor) -> Tensor:
    """Rows (N, d1, ..., dk), 0 where they do not count; in memory of their own, so that users may overwrite them."""
    return rows.squeeze(1).masked_fill(~valid.squeeze(1), 0.0)


def _adjusted(z: Tensor, labels: Tensor | None, hyper: Hyper) -> Tensor:
    """``scale * (z + offset - margin of the true class)``; the margin only where labels are given."""
    fresh = "offset" in hyper or "scale" in hyper
    if "offset" in hyper:
        z = z + along_classes(hyper["offset"], z)
    if "scale" in hyper:
        z = z * hyper["scale"]
    if labels is None or "true_margin" not in hyper:
        return z
    margin = hyper["true_margin"][labels]
    z_true = z.gather(1, labels) - (margin * hyper["scale"] if "scale" in hyper else margin)
    return put(z, labels, z_true) if fresh else z.scatter(1, labels, z_true)


def _adjusted_densely(z: Tensor, targets: Tensor, hyper: Hyper) -> Tensor:
    """The same for targets of several classes, each of which has its share of a margin."""
    if "true_margin" in hyper:
        z = z - targets * along_classes(hyper["true_margin"], z)
    return _adjusted(z, None, hyper)
