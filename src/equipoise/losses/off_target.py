r"""Softmax losses with a term for every class that is not the target.

The published code gives such classes a term through label smoothing, :math:`\frac{\epsilon}{C} p_k^{g_{neg}} (-\log
p_k)`. The text of Ridnik et al. 2021 (eq. 1 to 3) and Smith 2022 (eq. 7 and 10) has :math:`p_k^{g_{neg}} (-\log(1 -
p_k))`, as if each of them were the negative of a binary problem whose probability is that of the softmax.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Unpack

import torch
from torch import Tensor

from equipoise._checks import check_choice
from equipoise.kernels.autograd import sigmoid_elements
from equipoise.kernels.choice import backend
from equipoise.kernels.hyper import Layout, view_of
from equipoise.kernels.spec import SigmoidSpec
from equipoise.losses.modulate import Modulation
from equipoise.losses.softmax import RowLoss, Rows, SoftmaxLoss
from equipoise.losses.typed_kwargs import SoftmaxOptions
from equipoise.schedules import Number

__all__ = ["Negatives", "OffTargetLoss", "negative_rows", "off_target_smoothing", "softmax_log_odds"]

Negatives = Literal["smoothing", "one-vs-rest"]
SMOOTHING = 0.1
"""Label smoothing of the published code."""
UNKNOWN = -1.0
"""Target of the elements that are no negatives."""


class OffTargetLoss(RowLoss):
    """A softmax loss in one of the two forms above.

    Args:
        modulation: its ``gamma_neg`` is the exponent of the other classes, and 1 - xi the weight of their terms in the
            form of the text.
        negatives: ``"smoothing"`` (published code), or ``"one-vs-rest"`` (text), which does without smoothing.
        options: those of ``SoftmaxLoss``.
    """

    kernels = SoftmaxLoss.kernels
    option_defaults: ClassVar[SoftmaxOptions] = {"label_smoothing": SMOOTHING}

    def __init__(self, modulation: Modulation, *, negatives: Negatives, **options: Unpack[SoftmaxOptions]) -> None:
        options["label_smoothing"] = off_target_smoothing(negatives, options.get("label_smoothing"))
        self.negatives = negatives
        if self._separate:
            self.kernels = "fused kernels for the terms of the target and of the other classes, PyTorch between them"
        super().__init__(modulation, **options)

    @property
    def _separate(self) -> bool:
        return self.negatives == "one-vs-rest"

    def forward(self, logits: Tensor, targets: Tensor, *, normalizer: Tensor | float | None = None) -> Tensor:
        """Loss of a batch; ``normalizer`` replaces the denominator (gradient accumulation)."""
        if self._separate:
            return super().forward(logits, targets, normalizer=normalizer)
        return SoftmaxLoss.forward(self, logits, targets, normalizer=normalizer)

    def rows(self, logits: Tensor, targets: Tensor) -> Rows:
        """The pipeline up to the reduction."""
        rows = super().rows(logits, targets)
        if not self._separate:
            return rows
        return rows._replace(loss=rows.loss + negative_rows(rows, self.hyper(logits), self.layout))

    def extra_repr(self) -> str:
        """Parts and options for ``repr``."""
        return f"{super().extra_repr()}, negatives={self.negatives!r}"


def off_target_smoothing(negatives: Negatives, given: Number | None) -> Number:
    """The label smoothing of a form: the given one, or its default; raise if the form does without."""
    check_choice("negatives", negatives, ("smoothing", "one-vs-rest"))
    if negatives == "smoothing":
        return SMOOTHING if given is None else given
    if given not in (None, 0.0):
        raise ValueError(
            f"label_smoothing must be 0 with negatives='one-vs-rest', got {given!r}; omit it, or take "
            "negatives='smoothing'"
        )
    return 0.0


def negative_rows(rows: Rows, hyper: Tensor, layout: Layout) -> Tensor:
    r""":math:`(1 - \xi) \sum_k w_k (1 - t_k)\, p_k^{g_{neg}} (-\log(1 - p_k))` of each row, 0 where it is ignored."""
    inputs, dtype = rows.inputs, rows.loss.dtype
    logits = inputs.logits.to(dtype).masked_fill(~inputs.valid.unsqueeze(1), 0.0)
    along = (1, -1, *(1 for _ in logits.shape[2:]))
    weight = None if rows.weight is None else rows.weight.to(dtype).view(along)
    if inputs.dense:
        share = 1.0 - inputs.targets.to(dtype)
        is_target = share <= 0.0
        weight = share if weight is None else share * weight
    else:
        is_target = torch.arange(logits.shape[1], device=logits.device).view(along) == inputs.labels.unsqueeze(1)
    no_negative = (is_target | ~inputs.valid.unsqueeze(1)).to(dtype)
    spec = SigmoidSpec(tuple(piece for piece in layout if piece.name == "gamma_neg"), UNKNOWN)
    odds = softmax_log_odds(logits)
    elements = sigmoid_elements(backend(odds), odds, UNKNOWN * no_negative, weight, hyper, spec)
    xi = view_of(hyper, layout, "xi")
    return elements.sum(1) if xi is None else (1.0 - xi) * elements.sum(1)


def softmax_log_odds(logits: Tensor) -> Tensor:
    r""":math:`\log p_c - \log(1 - p_c)` of a softmax over dimension 1, accurate for p near 0 or 1.

    The log-odds of the only class that is not masked by minus infinity are infinite.
    """
    log_p = logits.log_softmax(1)
    top, at = logits.max(1, keepdim=True)
    rest = logits.scatter(1, at, -torch.inf)
    lonely = (rest == -torch.inf).all(1, keepdim=True)  # of which logsumexp has no gradient
    others = torch.where(lonely, 0.0, rest).logsumexp(1, keepdim=True)
    # at most one class, the largest, has p > 1/2; for the others log(1 - p) is accurate
    odds = log_p - torch.log1p(-log_p.exp().clamp(max=0.5))
    return odds.scatter(1, at, torch.where(lonely, torch.inf, top - others))
