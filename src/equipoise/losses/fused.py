"""Losses with their reduction in fused kernels, without a tensor of unreduced losses.

The functions return None if the kernels do not support a loss; the caller then computes and reduces unreduced losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from equipoise.distributed import world_size
from equipoise.kernels.autograd import has_terms_of_all_classes
from equipoise.kernels.hyper import view_of
from equipoise.kernels.spec import SigmoidSpec, SoftmaxSpec
from equipoise.kernels.triton import autograd as fused
from equipoise.losses.reduce import reduce_loss
from equipoise.weights.recall import Recalls

if TYPE_CHECKING:
    from equipoise.kernels.triton.launch.sigmoid import Observed
    from equipoise.losses.asymmetry import AdaptiveAsymmetry

__all__ = ["fused_sigmoid_loss", "fused_softmax_loss"]


def fused_softmax_loss(
    logits: Tensor,
    targets: Tensor,
    hyper: Tensor,
    spec: SoftmaxSpec,
    batch_weights: Sequence[object],
    *,
    reduction: str,
    normalizer: Tensor | float | None,
    sync_counts: bool,
    sync: bool,
) -> Tensor | None:
    """Softmax loss of a checked batch (N, C, d1, ..., dk), reduced."""
    recalls = Recalls.among(batch_weights, logits.shape[1])
    if recalls is None or (recalls.weights and targets.is_floating_point()):
        return None  # unsupported batch weights, or recall weights of dense targets: need unreduced losses
    fixed = view_of(hyper, spec.layout, "weight")
    sync = sync and world_size() > 1
    compiling = torch.compiler.is_compiling()
    in_kernel = normalizer is None and not sync and not compiling  # the compiler fuses the reduction

    def weigh(counts: Tensor | None) -> Tensor:
        return recalls.weigh(fixed, counts, logits, sync_counts, fused=not compiling)

    if any(recalls.looking) and not has_terms_of_all_classes(spec):
        if compiling:
            return None  # the compiler applies weights and reduction to unreduced losses with counts
        loss, mass, valid = fused.softmax_weighed(logits, targets, hyper, spec, weigh, reduction if in_kernel else None)
        if in_kernel:
            return loss
    else:
        weight = fixed
        if recalls.weights:  # a sum over the classes needs the weights beforehand
            needs_counts = any(recalls.looking)
            weight = weigh(fused.support_and_hits(logits, targets, spec.ignore_index) if needs_counts else None)
        if in_kernel:
            return fused.softmax_reduced(logits, targets, weight, hyper, spec, reduction)
        loss, mass, valid = fused.softmax_totals(logits, targets, weight, hyper, spec)
    denominators: dict[str, Tensor | float] = {"mean": mass, "valid_mean": valid, "batch_mean": logits.shape[0]}
    return reduce_loss(loss, reduction, denominators.__getitem__, sync=sync, normalizer=normalizer)


def fused_sigmoid_loss(
    logits: Tensor,
    targets: Tensor,
    element_weight: Tensor | None,
    hyper: Tensor,
    spec: SigmoidSpec,
    asymmetry: AdaptiveAsymmetry | None,
    *,
    reduction: str,
    normalizer: Tensor | float | None,
    sync: bool,
) -> Tensor | None:
    """Sigmoid loss of a checked batch (N, C, d1, ..., dk), reduced; updates ``asymmetry`` if given."""
    if reduction == "valid_mean" and spec.ignore_value is not None:
        return None  # needs whole rows: whether a sample has any known label
    arguments = (logits, targets, element_weight, hyper, spec)
    shared = sync and world_size() > 1
    compiling = torch.compiler.is_compiling()
    in_kernel = normalizer is None and not shared and not compiling  # the compiler fuses the reduction
    observed: Observed = "nothing" if asymmetry is None else "labels" if asymmetry.per_class else "all"
    known: Tensor | None = None
    if in_kernel and reduction != "valid_mean":
        loss, sums = fused.sigmoid_reduced(*arguments, reduction, observed)
    else:
        loss, known, sums = fused.sigmoid_totals(*arguments, observed)
    if asymmetry is not None and sums is not None:
        asymmetry.move(sums, logits, shared, fused=not compiling)
    if known is None:
        return loss
    samples, labels = logits.shape[:2]
    denominators: dict[str, Tensor | float] = {
        "mean": known,
        "valid_mean": logits.numel() // max(labels, 1),
        "batch_mean": samples,
    }
    return reduce_loss(loss, reduction, denominators.__getitem__, sync=shared, normalizer=normalizer)
