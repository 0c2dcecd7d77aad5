r"""Adaptive asymmetry: adapts exponent and margin of the negatives to a target gap between the probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from equipoise._buffers import PreciseBuffers
from equipoise._checks import check_length, check_number, is_traced, on_host, transforms_active
from equipoise.distributed import all_sum, world_size

__all__ = ["AdaptiveAsymmetry"]


class AdaptiveAsymmetry(PreciseBuffers):
    r"""Adapts :math:`\gamma_-` after each training batch (Ridnik et al. 2021, section 2.7).

    .. math::
        \gamma_- \leftarrow \text{clamp}(\gamma_- + \lambda\,(\Delta p_{target} - \Delta p),\ 0,\ \gamma_{max}), \qquad
        \Delta p = \bar p_t(\text{positives}) - \bar p_t(\text{negatives})

    with :math:`p_t = p` for positives and :math:`1 - p` for negatives. A gap below the target raises the exponent,
    which down-weights the negatives. Equation 11 of the paper prints the opposite sign, which drives :math:`\gamma_-`
    to 0 and contradicts its table 3. The loss of a batch uses the value before the update. Batches without positives,
    without negatives or with NaN change nothing. The same rule can adapt the margin, alone (``gap_step=0``) or
    together with the exponent.

    Args:
        target_gap: target of the gap, in [-1, 1].
        start: initial exponent.
        gap_step: lambda.
        gamma_max: upper bound of the exponent.
        per_class: one exponent for each label instead of one for all.
        margin: initial margin, if ``margin_step`` is set.
        margin_step: lambda of the margin; None for a fixed margin. There is one margin for all
            labels, which follows the gap over all of them.
        margin_max: upper bound of the margin.

    Buffers, saved in ``state_dict``: ``gamma_neg`` and ``gap`` (NaN before the first update), of shape (1,) or (C,),
    and with ``margin_step`` ``margin``, (1,), in float32 (float64 after the first float64 logits). They stay on the
    device and are updated without a host sync.
    """

    gamma_neg: Tensor
    gap: Tensor
    margin: Tensor

    @on_host
    def __init__(
        self,
        target_gap: float,
        *,
        start: float = 4.0,
        gap_step: float = 0.01,
        gamma_max: float = 10.0,
        per_class: bool = False,
        margin: float = 0.0,
        margin_step: float | None = None,
        margin_max: float = 0.5,
    ) -> None:
        super().__init__()
        self.target_gap = check_number("target_gap", target_gap, low=-1.0, high=1.0)
        self.gap_step = check_number("gap_step", gap_step, low=0.0)
        self.gamma_max = check_number("gamma_max", gamma_max, low=0.0)
        self.per_class = per_class
        self.start = check_number("gamma_neg", start, low=0.0, high=gamma_max)
        self.register_buffer("gamma_neg", torch.tensor([start], dtype=torch.float32, device="cpu"))
        self.start_single = self.gamma_neg.item()  # the start, rounded to float32
        self.register_buffer("gap", torch.tensor([math.nan], dtype=torch.float32, device="cpu"))
        self.adapts_margin = margin_step is not None
        self.margin_step = check_number("margin_step", 0.0 if margin_step is None else margin_step, low=0.0)
        self.margin_max = check_number("margin_max", margin_max, low=0.0, high=1.0, open_high=True)
        if self.adapts_margin:
            self.start_margin = check_number("margin", margin, low=0.0, high=margin_max)
            self.register_buffer("margin", torch.tensor([margin], dtype=torch.float32, device="cpu"))
            self.start_margin_single = self.margin.item()

    @property
    def awaits_labels(self) -> bool:
        """Whether the number of labels is still unknown, so that the next batch sets it."""
        return self.per_class and self.gamma_neg.numel() == 1

    def exponent(self, logits: Tensor) -> Tensor:
        """The exponent for this batch, (1,) or (C,); with ``per_class`` the first batch sets the number of labels."""
        if is_traced(logits):
            gamma = self._constant("gamma_neg", logits)
            return gamma.expand(logits.shape[1]) if self.awaits_labels else gamma
        gamma = self._placed("gamma_neg", logits)
        if self.awaits_labels and logits.shape[1] != 1:
            with torch.inference_mode(False):  # a validation pass must not leave buffers that cannot be updated
                self.gamma_neg = gamma = gamma.expand(logits.shape[1]).clone()
                self.gap = self._placed("gap", logits).expand(logits.shape[1]).clone()
        if self.per_class:
            check_length("gamma_neg", gamma.numel(), logits.shape[1])
        return gamma

    def margin_of(self, logits: Tensor) -> Tensor | None:
        """The margin of this batch, (1,); None where this does not adapt it."""
        if not self.adapts_margin:
            return None
        return self._constant("margin", logits) if is_traced(logits) else self._placed("margin", logits)

    @torch.no_grad()
    def update(self, logits: Tensor, targets: Tensor, ignore_value: float | None, sync: bool) -> None:
        """Update the exponent from a batch; logits and targets (N, C, d1, ..., dk)."""
        if is_traced(logits):  # an empty batch leaves the exponent unchanged
            return
        dtype = self._placed("gamma_neg", logits).dtype
        p, t = logits.to(dtype).sigmoid(), targets.to(dtype)
        axes = [axis for axis in range(p.ndim) if axis != 1 or not self.per_class]
        known = torch.ones((), dtype=p.dtype, device=p.device).expand_as(p)
        if ignore_value is not None:
            unknown = targets == ignore_value
            p, t, known = (values.masked_fill(unknown, 0.0) for values in (p, t, known))
        sums = torch.stack([p.sum(axes), t.sum(axes), (p * t).sum(axes), known.sum(axes)]).view(4, 1, -1)
        self.move(sums, logits, sync)

    def move(self, sums: Tensor, logits: Tensor, sync: bool, *, fused: bool = False) -> None:
        """Update the exponent from partial sums of p, t, p t and 1 over the known elements, (4, parts, 1 or C).

        The sums carry no gradient. ``fused``: the kernels have computed them, and one more updates the exponent.
        """
        if not fused and transforms_active():  # with transforms no kernel runs
            raise RuntimeError(
                "an adaptive exponent cannot be updated inside a torch.func transform, got training mode with "
                f"target_gap={self.target_gap:g}; call loss.eval() first"
            )
        gamma, gap = self._placed("gamma_neg", logits), self._placed("gap", logits)
        if sync and world_size() > 1:
            sums = all_sum(sums.sum(1, keepdim=True))
        if self.adapts_margin:
            margin = self._placed("margin", logits)
            seen, usable = _gap(sums.sum((1, 2)))
            moved = (margin + self.margin_step * (self.target_gap - seen)).clamp(0.0, self.margin_max)
            margin.copy_(torch.where(usable, moved, margin))
        if fused and gamma.dtype is sums.dtype:
            from equipoise.kernels.triton.launch.statistics import steer  # Triton is optional

            steer(sums, gamma, gap, self.target_gap, self.gap_step, self.gamma_max)
            return
        seen, usable = _gap(sums.sum(1))
        moved = (gamma + self.gap_step * (self.target_gap - seen)).clamp(0.0, self.gamma_max)
        gamma.copy_(torch.where(usable, moved, gamma))
        gap.copy_(torch.where(usable, seen, gap))

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:  # noqa: ANN401
        for name in ("gamma_neg", "gap") if self.per_class else ():
            saved, buffer = state_dict.get(prefix + name), getattr(self, name)
            if isinstance(saved, Tensor) and saved.ndim == 1 and (len(saved) == 1) != (len(buffer) == 1):
                # with ``per_class`` the first batch expands one exponent to one per label, in the saved or in this loss
                setattr(self, name, buffer.new_zeros(len(saved)))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _placed(self, name: str, logits: Tensor) -> Tensor:
        before: Tensor = getattr(self, name)
        buffer = self._widen(name, logits.dtype, logits.device)
        if buffer.dtype is not before.dtype:  # the start again, in full precision
            if name == "gamma_neg":
                buffer.masked_fill_(buffer == self.start_single, self.start)
            elif name == "margin":
                buffer.masked_fill_(buffer == self.start_margin_single, self.start_margin)
        return buffer

    def extra_repr(self) -> str:
        """Arguments for ``repr``."""
        margin = f", margin_step={self.margin_step:g}, margin_max={self.margin_max:g}" if self.adapts_margin else ""
        return (
            f"target_gap={self.target_gap:g}, gap_step={self.gap_step:g}, gamma_max={self.gamma_max:g}, "
            f"per_class={self.per_class}{margin}"
        )


def _gap(sums: Tensor) -> tuple[Tensor, Tensor]:
    """The gap given sums of p, t, p t and 1, (4, ...), and whether there is one: positives, negatives and no NaN."""
    p_all, positives, p_positive, everything = sums
    negatives = everything - positives
    p_negative = negatives - (p_all - p_positive)  # the sum of 1 - p over the negatives
    both = (positives > 0) & (negatives > 0)
    seen = p_positive / torch.where(both, positives, 1.0) - p_negative / torch.where(both, negatives, 1.0)
    return seen, both & ~torch.isnan(seen)
