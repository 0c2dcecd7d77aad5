r"""Region losses: one minus the overlap of the predicted and the true region of each class, for segmentation.

The Tversky index with its cases Dice and Jaccard (soft IoU), and the Lovász extension of the Jaccard loss. Each loss
is available as a function of the logits and as a module. The options are the same for all of them and documented in
``tversky_loss``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias, TypedDict, Unpack

import torch
from torch import Tensor

from equipoise._checks import (
    check_choice,
    check_ignore_index,
    check_logit_values,
    check_logits,
    check_number,
    check_softmax_targets,
    check_tensors,
    is_whole,
)
from equipoise._keywords import takes_options_of
from equipoise.distributed import all_sum, world_size
from equipoise.kernels.choice import triton_serves
from equipoise.kernels.reference.lovasz import lovasz_losses
from equipoise.kernels.reference.region import overlap_sums
from equipoise.losses.base import Loss, check_preset, retire_preset
from equipoise.losses.reduce import reduce_loss

__all__ = [
    "DiceLoss",
    "LovaszSoftmaxLoss",
    "SoftIoULoss",
    "TverskyLoss",
    "dice_loss",
    "lovasz_softmax_loss",
    "soft_iou_loss",
    "tversky_loss",
]

Classes: TypeAlias = str | Sequence[int] | Tensor

REDUCTIONS = ("mean", "sum", "none")


class _SharedOptions(TypedDict, total=False):
    ignore_index: int
    reduction: str
    sync: bool
    validate: bool


class _Options(_SharedOptions, total=False):
    per_image: bool


class _FunctionOptions(_Options, total=False):
    classes: Classes


class _ModuleOptions(_Options, total=False):
    preset: str | None


def tversky_loss(
    logits: Tensor,
    targets: Tensor,
    *,
    alpha: float = 0.5,
    beta: float = 0.5,
    smooth: float = 0.0,
    classes: Classes = "present",
    per_image: bool = False,
    ignore_index: int = -100,
    reduction: str = "mean",
    sync: bool = False,
    validate: bool = False,
) -> Tensor:
    r"""One minus the Tversky index (Salehi et al. 2017) of each class, with p = softmax(logits).

    .. math:: 1 - \frac{TP + s}{TP + \alpha FP + \beta FN + s}, \quad
              TP = \sum p t,\; FP = \sum p (1 - t),\; FN = \sum (1 - p) t

    ``alpha`` is the cost of false positives, ``beta`` that of false negatives; 0/0 is defined as 1. The sums run over
    the batch, or over each image with ``per_image=True``, without pixels whose target is ``ignore_index`` (or whose
    dense target has no mass). ``classes`` selects the (image, class) entries: "present" in the targets, "all", or a
    list of indices. ``reduction="mean"`` averages over the selected classes, per image and then over the images; "none"
    returns every entry, 0 if not selected. Without any selected entry the loss is 0 with a zero gradient. Under DDP,
    ``sync=True`` gives the gradient of the joined batch; ``validate=True`` checks the values of the targets on any
    device.

    Shape: logits (N, C, d1, ..., dk); targets (N, d1, ..., dk) indices or (N, C, d1, ..., dk) distributions; result a
    scalar, with ``reduction="none"`` (C,) or (N, C). Half logits give a float32 loss.

    >>> logits, targets = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
    >>> tversky_loss(logits, targets, alpha=0.3, beta=0.7)
    tensor(0.1958)
    """
    alpha, beta, smooth = _check_prices(alpha, beta, smooth)
    _check_inputs(logits, targets, ignore_index, validate)
    fused = triton_serves(logits)
    sums = _overlap_sums(fused, logits, targets, ignore_index, per_image)
    if sync and not per_image:
        # Global value, local gradient times the world size: DDP's averaging then gives the joined batch's gradient.
        sums = all_sum(sums.detach()) + world_size() * (sums - sums.detach())

    chosen = _check_classes(classes, logits.shape[1])

    def plain(sums: Tensor) -> Tensor:
        tp, fp, fn = sums.unbind()
        missed = alpha * fp + beta * fn  # 1 - index = errors / total: no cancellation near 0
        total = tp + missed + smooth
        # Sums of underflowed probabilities count as 0/0: dividing by them would overflow in the backward pass.
        empty = total <= torch.finfo(total.dtype).tiny / torch.finfo(total.dtype).eps  # NaN is not empty
        losses = torch.where(empty, 0.0, missed) / torch.where(empty, 1.0, total)
        return _reduce(losses, ~(tp + fn <= 0), chosen, reduction, sync=sync and per_image)

    if isinstance(chosen, str) and reduction in ("mean", "sum") and not sync and fused:
        from equipoise.kernels.triton.region import TverskyOptions, overlap_loss  # not at the top: triton is optional

        return overlap_loss(sums, plain, TverskyOptions(alpha, beta, smooth, chosen == "all", reduction == "mean"))
    return plain(sums)


@takes_options_of(tversky_loss)
def dice_loss(logits: Tensor, targets: Tensor, *, smooth: float = 0.0, **options: Unpack[_FunctionOptions]) -> Tensor:
    r"""Soft Dice loss :math:`1 - 2 \sum p t / (\sum p + \sum t)` (Drozdzal et al. 2016): Tversky(.5, .5).

    Shape and options: as ``tversky_loss``.

    >>> dice_loss(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]))
    tensor(0.1952)
    """
    return tversky_loss(logits, targets, alpha=0.5, beta=0.5, smooth=smooth, **options)


@takes_options_of(tversky_loss)
def soft_iou_loss(
    logits: Tensor, targets: Tensor, *, smooth: float = 0.0, **options: Unpack[_FunctionOptions]
) -> Tensor:
    r"""Soft Jaccard loss :math:`1 - \sum p t / \sum (p + t - p t)` (Rahman & Wang 2016): Tversky(1, 1).

    Shape and options: as ``tversky_loss``.

    >>> soft_iou_loss(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]))
    tensor(0.3263)
    """
    return tversky_loss(logits, targets, alpha=1.0, beta=1.0, smooth=smooth, **options)


def lovasz_softmax_loss(
    logits: Tensor,
    targets: Tensor,
    *,
    classes: Classes = "present",
    per_image: bool = False,
    ignore_index: int = -100,
    reduction: str = "mean",
    sync: bool = False,
    validate: bool = False,
) -> Tensor:
    r"""Lovász-softmax loss (Berman et al. 2018): surrogate of 1 - IoU of the predicted classes.

    .. math:: \sum_k e_{(k)} (J_k - J_{k-1}), \quad e = |t - p| \text{ from largest to smallest},

    where J_k is the Jaccard loss if the k pixels with the largest errors are wrong. Dense targets are replaced by their
    argmax. Equal errors keep the order of the pixels, so the gradient is deterministic.

    Shape and options: as ``tversky_loss``; ``sync=True`` needs ``per_image=True``.

    >>> lovasz_softmax_loss(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]))
    tensor(0.2315)
    """
    _check_local_sort(sync, per_image)
    _check_inputs(logits, targets, ignore_index, validate)
    losses, present = _lovasz_losses(logits, targets, ignore_index, per_image)
    return _reduce(losses, present, _check_classes(classes, logits.shape[1]), reduction, sync=sync)


def _overlap_sums(fused: bool, logits: Tensor, targets: Tensor, ignore_index: int, per_image: bool) -> Tensor:
    """TP, FP and FN of each class, (3, C) or (3, N, C), with the fused kernels or PyTorch."""
    if fused:
        from equipoise.kernels.triton import region as region_fused  # not at the top: triton is optional

        return region_fused.overlap_sums(logits, targets, ignore_index, per_image)
    return overlap_sums(logits, targets, ignore_index, per_image)


def _lovasz_losses(logits: Tensor, targets: Tensor, ignore_index: int, per_image: bool) -> tuple[Tensor, Tensor]:
    """Losses of the classes, (C,) or (N, C), and which classes are present, with the fused kernels or PyTorch."""
    if logits.numel() and not torch.compiler.is_compiling() and triton_serves(logits):  # the compiler joins what it can
        from equipoise.kernels.triton import region as region_fused  # not at the top: triton is optional

        return region_fused.lovasz_losses(logits, targets, ignore_index, per_image)
    return lovasz_losses(logits, targets, ignore_index, per_image)


def _check_inputs(logits: Tensor, targets: Tensor, ignore_index: int, validate: bool) -> None:
    check_tensors(logits, targets)
    check_logits(logits)
    if logits.ndim < 2:
        raise ValueError(
            f"logits must have shape (N, C, d1, ..., dk), got {tuple(logits.shape)}; add the batch dimension"
        )
    check_softmax_targets(logits, targets, ignore_index, validate)
    if validate:
        check_logit_values(logits, one_label=True)


def _reduce(losses: Tensor, present: Tensor, chosen: str | tuple[int, ...], reduction: str, *, sync: bool) -> Tensor:
    """Reduce (C,) or (N, C) over the selected entries; "mean" averages over classes, then over images."""
    check_choice("reduction", reduction, REDUCTIONS)
    counted = present if chosen == "present" else torch.full_like(present, chosen == "all")
    if not isinstance(chosen, str):
        for index in chosen:
            counted.select(-1, index).fill_(True)  # one by one: indexing by a list would copy it from the host
    losses = torch.where(counted, losses, 0.0)
    if losses.ndim == 2 and reduction == "mean":
        losses, counted = losses.sum(1) / counted.sum(1).clamp(min=1), counted.any(1)
    return reduce_loss(losses, reduction, lambda _: counted.sum(), sync=sync)


def _check_prices(alpha: float, beta: float, smooth: float) -> tuple[float, float, float]:
    """Check the three values and return them as floats."""
    named = (("alpha", alpha), ("beta", beta), ("smooth", smooth))
    alpha, beta, smooth = (check_number(name, value, low=0.0) for name, value in named)
    if alpha == 0 and beta == 0:
        raise ValueError(
            "alpha and beta must not both be 0, got alpha=0 and beta=0; "
            "set alpha (cost of false positives) or beta (cost of false negatives) above 0"
        )
    return alpha, beta, smooth


def _check_classes(classes: Classes, num_classes: int | None = None) -> str | tuple[int, ...]:
    """Return the string, or the list as a tuple; the upper bound is checked if the number of classes is known."""
    if isinstance(classes, str) and classes in ("present", "all"):
        return classes
    listed = classes.tolist() if hasattr(classes, "tolist") else classes  # of NumPy or a tensor
    chosen: tuple[int, ...] = tuple(listed) if isinstance(listed, (list, tuple, range)) else ()
    end = math.inf if num_classes is None else num_classes
    if chosen and all(is_whole(c) and 0 <= c < end for c in chosen):  # booleans are a mask, not indices
        return tuple(int(c) for c in chosen)
    last = "C - 1" if num_classes is None else num_classes - 1
    raise ValueError(
        f"classes must be 'present', 'all' or a list of one or more class indices in [0, {last}], got {classes!r}; "
        "pass one of the strings or the indices of the classes to include"
    )


def _check_local_sort(sync: bool, per_image: bool) -> None:
    if sync and not per_image:
        raise ValueError(
            "per_image must be True for the Lovász-softmax loss with sync=True, got False, which would sort the "
            "pixels of all processes; set per_image=True, or sync=False for one loss per process"
        )


class _RegionLoss(Loss):
    """Base class of the modules: checks and holds the options; in eval mode ``sync`` is off."""

    runs_on_cpu_backend = False

    def __init__(
        self,
        classes: Classes = "present",
        *,
        per_image: bool = False,
        ignore_index: int = -100,
        reduction: str = "mean",
        sync: bool = False,
        validate: bool = False,
        preset: str | None = None,
    ) -> None:
        super().__init__([])
        check_choice("reduction", reduction, REDUCTIONS)
        self.classes = _check_classes(classes)
        self.per_image = per_image
        self.ignore_index = check_ignore_index(ignore_index)
        self.reduction = reduction
        self.sync = sync
        self.validate = validate
        retire_preset(preset)

    def options(self) -> _FunctionOptions:
        """Keyword arguments of the function behind this loss, given train or eval mode."""
        return {
            "classes": self.classes,
            "per_image": self.per_image,
            "ignore_index": self.ignore_index,
            "reduction": self.reduction,
            "sync": self.sync and self.training,
            "validate": self.validate,
        }

    def extra_repr(self) -> str:
        """Options as ``print`` shows them."""
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self.options())


class _OverlapLoss(_RegionLoss):
    """Tversky loss with the ``alpha`` and ``beta`` of the class."""

    kernels = "fused kernels for the overlaps of the classes, the loss and the gradient"

    alpha: float = 0.5
    beta: float = 0.5

    def __init__(self, classes: Classes = "present", *, smooth: float = 0.0, **options: Unpack[_ModuleOptions]) -> None:
        super().__init__(classes, **options)
        self.smooth = check_number("smooth", smooth, low=0.0)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Loss of logits (N, C, d1, ..., dk) and their targets."""
        check_tensors(logits, targets)
        if not self.validate:
            self._look(logits)
        return tversky_loss(logits, targets, alpha=self.alpha, beta=self.beta, smooth=self.smooth, **self.options())

    def extra_repr(self) -> str:
        """Options as ``print`` shows them."""
        return f"alpha={self.alpha}, beta={self.beta}, smooth={self.smooth}, {super().extra_repr()}"


class TverskyLoss(_OverlapLoss):
    """One minus the Tversky index, ``tversky_loss`` as a module.

    Shape and options: as ``tversky_loss``; ``preset`` is deprecated, as the published code is the same.

    >>> TverskyLoss(alpha=0.3, beta=0.7)(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]))
    tensor(0.1958)
    """

    def __init__(
        self,
        alpha: float = 0.5,
        beta: float = 0.5,
        *,
        classes: Classes = "present",
        smooth: float = 0.0,
        **options: Unpack[_ModuleOptions],
    ) -> None:
        super().__init__(classes, smooth=smooth, **options)
        self.alpha, self.beta, _ = _check_prices(alpha, beta, smooth)


class DiceLoss(_OverlapLoss):
    """Soft Dice loss, ``dice_loss`` as a module.

    Shape and options: as ``tversky_loss``; ``preset`` is deprecated, as the published code is the same.

    >>> DiceLoss()(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]))
    tensor(0.1952)
    """

    alpha = beta = 0.5


class SoftIoULoss(_OverlapLoss):
    """Soft Jaccard loss, ``soft_iou_loss`` as a module.

    Shape and options: as ``tversky_loss``. ``preset="published"`` sets ``classes="all"`` and ``per_image=True``, as the
    published code of the recall loss does (which returns this value minus 1 and keeps ignored pixels in the union).
    Arguments that you pass take precedence.

    >>> SoftIoULoss(classes=[1])(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]))
    tensor(0.3468)
    """

    alpha = beta = 1.0

    def __init__(
        self,
        classes: Classes | None = None,
        *,
        smooth: float = 0.0,
        per_image: bool | None = None,
        preset: str | None = None,
        **options: Unpack[_SharedOptions],
    ) -> None:
        published = check_preset(preset)
        chosen: Classes = "all" if published else "present"
        super().__init__(
            chosen if classes is None else classes,
            smooth=smooth,
            per_image=published if per_image is None else per_image,
            **options,
        )


class LovaszSoftmaxLoss(_RegionLoss):
    """Lovász-softmax loss, ``lovasz_softmax_loss`` as a module.

    Shape and options: as ``lovasz_softmax_loss``; ``preset`` is deprecated, as the published code is the same.

    >>> LovaszSoftmaxLoss()(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]))
    tensor(0.2315)
    """

    kernels = (
        "fused kernels for the errors of the classes, the loss of the sorted errors and the gradient; PyTorch's sort "
        "between them"
    )

    def __init__(self, classes: Classes = "present", **options: Unpack[_ModuleOptions]) -> None:
        super().__init__(classes, **options)
        _check_local_sort(self.sync, self.per_image)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Loss of logits (N, C, d1, ..., dk) and their targets."""
        check_tensors(logits, targets)
        if not self.validate:
            self._look(logits)
        return lovasz_softmax_loss(logits, targets, **self.options())
