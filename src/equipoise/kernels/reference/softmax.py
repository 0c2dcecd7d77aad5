r"""Softmax link: rows and their gradient in closed form.

With :math:`z' = \text{scale}\,(z + a - t\,\Delta)`, :math:`p = \text{softmax}(z')`:

.. math:: L = \sum_k w_k \big[t_k (1 - \epsilon + \epsilon/C)\, m_{true}(p_k)
          + (1 - t_k)(\epsilon/C)\, m_{other}(p_k)\big](-\log p_k)

and, with :math:`u_k = -w_k s_k (m_k + m_k' p_k \log p_k)`, s the weight of the term in the brackets,
:math:`dL/dz'_k = u_k - p_k \sum_j u_j`.

Near p = 1 the probability q = 1 - p is computed as the sum over the other classes, not as ``1 - p``, and log p from q;
elsewhere log p comes from the logits. So both keep their relative precision at both ends.

A logit of minus infinity masks a class: p = 0, and every form takes its limit. Its term is 0 if its weight is 0
(:math:`0 \cdot \log 0 = 0`) and infinite otherwise, with a finite gradient, as in PyTorch. The loss and gradient of an
ignored row are 0 for any logits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from equipoise.kernels.hyper import Hyper, accumulation_dtype
from equipoise.kernels.reference.modulation import (
    along_classes,
    gamma_of_classes,
    gamma_of_rows,
    other_form,
    product,
    true_form,
)
from equipoise.kernels.spec import SoftmaxSpec

__all__ = ["brier_terms", "distribution", "has_target", "labels_of", "softmax_terms", "valid_rows", "without_ignored"]


def softmax_terms(
    logits: Tensor, targets: Tensor, weight: Tensor | None, values: Tensor, spec: SoftmaxSpec
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows (N, d1, ..., dk), and two factors of their gradient with respect to the logits, in accumulation type.

    The factors are a direction (N, C, d1, ..., dk) and its length, (N, 1, d1, ..., dk) or a scalar. Backward multiplies
    the length by the incoming gradient first, so one pass over the direction is enough.
    """
    z, hyper = logits.to(accumulation_dtype(logits)), Hyper(values, spec.layout)
    if not targets.is_floating_point() and not hyper.keys() & {"label_smoothing", "squared_error"}:
        return _index_terms(z, targets, weight, hyper, spec)
    terms = brier_terms if "squared_error" in hyper else _distribution_terms
    rows, direction = terms(z, distribution(targets, z, spec), weight, hyper)
    return rows, direction, torch.ones((), dtype=z.dtype, device=z.device)


def _index_terms(
    z: Tensor, targets: Tensor, weight: Tensor | None, hyper: Hyper, spec: SoftmaxSpec
) -> tuple[Tensor, Tensor, Tensor]:
    """One true class per row; the others enter through the sum q of their probabilities."""
    labels, valid = labels_of(targets, spec)
    z = _adjusted(without_ignored(z, valid, hyper), labels, hyper)
    probs = z.softmax(1)
    p = probs.gather(1, labels)
    others = probs.scatter(1, labels, torch.zeros_like(p))
    q = others.sum(1, keepdim=True)
    log_p = torch.where(q < 0.5, (-q.clamp(max=0.5)).log1p(), z.log_softmax(1).gather(1, labels))
    m, h = true_form(log_p, p, q, hyper, gamma_of_rows(hyper, labels, p))
    mass = valid.to(z.dtype) if weight is None else weight[labels] * valid
    rows = valid_rows(-product(mass * m, log_p), valid)
    return rows, others.scatter(1, labels, -q), mass * h * hyper.get("scale", 1.0)


def _distribution_terms(z: Tensor, t: Tensor, weight: Tensor | None, hyper: Hyper) -> tuple[Tensor, Tensor]:
    """Dense targets: every class has a target term and, with smoothing, an off-target term."""
    valid = has_target(t)
    z = _adjusted_by_targets(without_ignored(z, valid, hyper), t, hyper)
    p = z.softmax(1)
    likely = p > 0.5  # at most one class of a row: its q is the sum of the others
    q_likely = torch.where(likely, 0.0, p).sum(1, keepdim=True)
    q = torch.where(likely, q_likely, 1.0 - p)
    log_p = torch.where(likely, (-q_likely.clamp(max=0.5)).log1p(), z.log_softmax(1))
    m, h = true_form(log_p, p, q, hyper, gamma_of_classes(hyper, "gamma_pos", p))
    # focal losses use the form of the true class for every class (Mukhoti et al. 2020, appendix A)
    other_m, other_h = other_form(log_p, p, hyper) if "gamma_neg" in hyper else (m, h)
    smoothing = hyper.get("label_smoothing", 0.0)
    uniform = (smoothing / z.shape[1]) * valid.to(z.dtype)
    mass, other_mass = t * (1.0 - smoothing + uniform), (1.0 - t) * uniform
    by_class = 1.0 if weight is None else along_classes(weight, z)
    factor, slope = (mass * m + other_mass * other_m) * by_class, (mass * h + other_mass * other_h) * by_class
    rows = valid_rows(-product(factor, log_p).sum(1, keepdim=True), valid)
    # p S - slope, written without cancellation at p = 1
    direction = p * (slope.sum(1, keepdim=True) - slope) - slope * q
    return rows, direction * hyper.get("scale", 1.0)


def brier_terms(z: Tensor, t: Tensor, weight: Tensor | None, hyper: Hyper) -> tuple[Tensor, Tensor]:
    r"""Brier score :math:`(\sum_k w_k t_k) \sum_k d_k^2` with d = p - t.

    Direction :math:`p_k (d_k - \sum_j p_j d_j)`, times twice the weight.
    """
    valid = has_target(t)
    p = _adjusted_by_targets(without_ignored(z, valid, hyper), t, hyper).softmax(1)
    mass = valid.to(z.dtype) if weight is None else (t * along_classes(weight, z)).sum(1, keepdim=True)
    smoothing = hyper.get("label_smoothing", 0.0)
    difference = p - (t * (1.0 - smoothing) + smoothing / z.shape[1])
    rows = mass * difference.square().sum(1, keepdim=True)
    direction = (difference - (p * difference).sum(1, keepdim=True)) * p
    return valid_rows(rows, valid), direction * (2.0 * mass * hyper.get("scale", 1.0))


def labels_of(targets: Tensor, spec: SoftmaxSpec) -> tuple[Tensor, Tensor]:
    """Class of each row (0 if ignored), and whether it is valid; both (N, 1, d1, ..., dk)."""
    targets = targets.unsqueeze(1)
    valid = targets != spec.ignore_index
    return torch.where(valid, targets, 0), valid


def distribution(targets: Tensor, z: Tensor, spec: SoftmaxSpec) -> Tensor:
    """Dense targets with the type of ``z``; class indices become one-hot, or zeros if ignored."""
    if targets.is_floating_point():
        return targets.to(z.dtype)
    labels, valid = labels_of(targets, spec)
    return torch.zeros_like(z).scatter(1, labels, valid.to(z.dtype))


def has_target(targets: Tensor) -> Tensor:
    """Which rows of dense targets (N, C, d1, ..., dk) are not all zeros; (N, 1, d1, ..., dk)."""
    return targets.abs().sum(1, keepdim=True) != 0


def without_ignored(z: Tensor, valid: Tensor, hyper: Hyper) -> Tensor:
    """Logits with ignored rows set to 0, so that they reach no derivative; shifted if a scale could overflow."""
    z = torch.where(valid, z, 0.0)
    return z - z.amax(1, keepdim=True) if "scale" in hyper else z


def valid_rows(rows: Tensor, valid: Tensor) -> Tensor:
    """Rows (N, d1, ..., dk), 0 where ignored; not a view, so users may change them in place."""
    return rows.squeeze(1).masked_fill(~valid.squeeze(1), 0.0)


def _adjusted(z: Tensor, labels: Tensor, hyper: Hyper) -> Tensor:
    """``scale * (z + offset - margin of the true class)``."""
    if "true_margin" in hyper:
        z = z.scatter(1, labels, z.gather(1, labels) - hyper["true_margin"][labels])
    return _shifted_and_scaled(z, hyper)


def _adjusted_by_targets(z: Tensor, t: Tensor, hyper: Hyper) -> Tensor:
    """The same for dense targets: the margin of each class is multiplied by its target."""
    if "true_margin" in hyper:
        z = z - t * along_classes(hyper["true_margin"], z)
    return _shifted_and_scaled(z, hyper)


def _shifted_and_scaled(z: Tensor, hyper: Hyper) -> Tensor:
    if "offset" in hyper:
        z = z + along_classes(hyper["offset"], z)
    return z * hyper["scale"] if "scale" in hyper else z
