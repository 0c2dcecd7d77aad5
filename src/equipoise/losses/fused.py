"""The whole pipeline with its reduction on the fused kernels, which need no tensor of unreduced losses.

Where a loss asks for what they do not have, the functions here return None and the pipeline goes row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from equipoise._checks import check_num_classes
from equipoise.distributed import world_size
from equipoise.kernels.hyper import Layout, view_of
from equipoise.kernels.triton import autograd as fused
from equipoise.losses.reduce import reduce_loss
from equipoise.weights.recall import BatchRecall, RecallWeights

if TYPE_CHECKING:
    from equipoise.kernels.triton.launch.sigmoid import Seen
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
    names = {piece.name for piece in layout}
    fixed = weight = view_of(hyper, layout, "weight")
    recalls = [weights for weights in batch_weights if isinstance(weights, (RecallWeights, BatchRecall))]
    if len(recalls) < len(batch_weights) or (recalls and targets.is_floating_point()):
        return None  # predictions, or the labels of dense targets, have to be written out
    for weights in recalls:
        if isinstance(weights, RecallWeights):
            check_num_classes(weights.num_classes, logits.shape[1])
    sync = sync and world_size() > 1
    alone = normalizer is None and not sync and not torch.compiler.is_compiling()  # the compiler joins what follows

    looking = [weights.looks() for weights in recalls]  # asked here: inside an autograd function nobody trains

    def weigh(counts: Tensor | None) -> Tensor:
        product = fixed
        for weights, looks in zip(recalls, looking, strict=True):
            dynamic = weights.weigh(counts if looks else None, logits, sync_counts)  # type: ignore[arg-type]
            product = dynamic if product is None else product * dynamic
        assert product is not None
        return product

    denominators: dict[str, Tensor | float] = {"batch_mean": logits.shape[0]}
    if any(looking):
        if names & {"label_smoothing", "squared_error"}:  # the weights stand inside a sum over the classes
            weight = weigh(fused.support_and_hits(logits, targets, ignore_index))
        elif torch.compiler.is_compiling():
            rows, counts = fused.softmax_rows_and_hits(logits, targets, hyper, layout, ignore_index)
            weight = weigh(counts)
            labels = targets.long()  # first: a comparison in uint8 would take 156 for an ignore_index of -100
            labels = torch.where(labels == ignore_index, 0, labels)
            denominators["mean"], denominators["valid_mean"] = (counts[0] * weight).sum(), counts[0].sum()
            total = (rows * weight[labels]).sum()
            return reduce_loss(total, reduction, denominators.__getitem__, sync=sync, normalizer=normalizer)
        else:
            total, denominators["mean"], denominators["valid_mean"] = fused.softmax_weighed(
                logits, targets, hyper, layout, ignore_index, weigh, reduction if alone else None
            )
            if alone:
                return total
            return reduce_loss(total, reduction, denominators.__getitem__, sync=sync, normalizer=normalizer)
    elif recalls:
        weight = weigh(None)
    if alone:
        return fused.softmax_reduced(logits, targets, weight, hyper, layout, ignore_index, reduction)
    total, denominators["mean"], denominators["valid_mean"] = fused.softmax_totals(
        logits, targets, weight, hyper, layout, ignore_index
    )
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
    seen: Seen = "nothing" if asymmetry is None else "labels" if asymmetry.per_class else "all"
    if alone and reduction != "valid_mean":
        loss, sums = fused.sigmoid_reduced(*arguments, reduction, seen)
        if asymmetry is not None and sums is not None:
            asymmetry.move(sums, logits, sync)
        return loss
    total, known, sums = fused.sigmoid_totals(*arguments, seen)
    if asymmetry is not None and sums is not None:
        asymmetry.move(sums, logits, sync)
    denominators["mean"] = known
    return reduce_loss(total, reduction, denominators.__getitem__, sync=shared, normalizer=normalizer)
