"""The whole pipeline with its reduction on the fused kernels, which need no tensor of unreduced losses.

Where a loss asks for what they do not have, the functions here return None and the pipeline goes row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from equipoise._checks import check_length
from equipoise.distributed import world_size
from equipoise.kernels import fused
from equipoise.kernels.hyper import Hyper, Layout
from equipoise.losses.reduce import reduce_loss
from equipoise.weights.recall import BatchRecall, RecallWeights

if TYPE_CHECKING:
    from equipoise.kernels.sigmoid_launch import Seen
    from equipoise.losses.asymmetry import AdaptiveAsymmetry

__all__ = ["fused_sigmoid_loss", "fused_softmax_loss"]


def fused_softmax_loss(
    logits: Tensor,
    targets: Tensor,
    hyper: Tensor,
    layout: Layout,
    batch_weights: Sequence[Callable[[Tensor, Tensor, Tensor, bool], Tensor]],
    ignore_index: int,
    *,
    reduction: str,
    normalizer: Tensor | float | None,
    sync_counts: bool,
    sync: bool,
) -> Tensor | None:
    """Softmax loss of a checked batch (N, C, d1, ..., dk), reduced."""
    named = Hyper(hyper, layout)
    weight = named.get("weight")
    recalls = [weights for weights in batch_weights if isinstance(weights, (RecallWeights, BatchRecall))]
    if len(recalls) < len(batch_weights) or (recalls and targets.is_floating_point()):
        return None  # predictions, or the labels of dense targets, have to be written out
    for weights in recalls:
        if isinstance(weights, RecallWeights):
            check_length("num_classes", weights.num_classes, logits.shape[1])
    counted = any(weights.looks() for weights in recalls)
    losses = counts = None
    if counted and not named.keys() & {"label_smoothing", "squared_error"}:
        # each row counts for its own class alone, so the weights may come after the sums
        losses, counts = fused.softmax_class_totals(logits, targets, hyper, layout, ignore_index)
    elif counted:
        counts = fused.support_and_hits(logits, targets, ignore_index)
    for weights in recalls:
        dynamic = weights.weigh(counts if weights.looks() else None, logits, sync_counts)  # type: ignore[arg-type]
        weight = dynamic if weight is None else weight * dynamic
    sync = sync and world_size() > 1
    if losses is not None and counts is not None and weight is not None:
        total, support = (losses * weight).sum(), counts[0]

        def denominator(reduction: str) -> Tensor | float:
            if reduction == "batch_mean":
                return logits.shape[0]
            return (support * weight).sum() if reduction == "mean" else support.sum()

        return reduce_loss(total, reduction, denominator, sync=sync, normalizer=normalizer)
    if normalizer is None and not sync and not torch.compiler.is_compiling():
        return fused.softmax_reduced(logits, targets, weight, hyper, layout, ignore_index, reduction)
    total, mass, valid = fused.softmax_totals(logits, targets, weight, hyper, layout, ignore_index)
    denominators: dict[str, Tensor | float] = {"mean": mass, "valid_mean": valid, "batch_mean": logits.shape[0]}
    return reduce_loss(total, reduction, denominators.__getitem__, sync=sync, normalizer=normalizer)


def fused_sigmoid_loss(
    logits: Tensor,
    targets: Tensor,
    element_weight: Tensor | None,
    hyper: Tensor,
    layout: Layout,
    ignore_value: float | None,
    detach_focus: bool,
    asymmetry: AdaptiveAsymmetry | None,
    *,
    reduction: str,
    normalizer: Tensor | float | None,
    sync: bool,
) -> Tensor | None:
    """Sigmoid loss of a checked batch (N, C, d1, ..., dk), reduced; ``asymmetry`` is moved where it is given."""
    if reduction == "valid_mean" and ignore_value is not None:
        return None  # whether a sample has any known label is a question to whole rows
    arguments = (logits, targets, element_weight, hyper, layout, ignore_value, detach_focus)
    shared = sync and world_size() > 1
    samples, labels = logits.shape[:2]
    denominators: dict[str, Tensor | float] = {
        "valid_mean": logits.numel() // max(labels, 1),
        "batch_mean": samples,
    }
    alone = normalizer is None and not shared and not torch.compiler.is_compiling()  # the compiler joins what follows
    if alone and asymmetry is None and reduction != "valid_mean":
        return fused.sigmoid_reduced(*arguments, reduction)
    seen: Seen = "nothing" if asymmetry is None else "labels" if asymmetry.per_class else "all"
    total, known, sums = fused.sigmoid_totals(*arguments, seen)
    if asymmetry is not None and sums is not None:
        asymmetry.move(sums, logits, sync)
    denominators["mean"] = known
    return reduce_loss(total, reduction, denominators.__getitem__, sync=shared, normalizer=normalizer)
