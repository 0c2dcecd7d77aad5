"""The plan that tells a kernel at compile time which parts a loss has and where their values are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from equipoise.kernels.hyper import Layout

__all__ = ["Plan", "plan_of"]

ABSENT = -1


@dataclass(frozen=True, eq=False)  # one for each layout: compared by identity, which costs a launch nothing
class Plan:
    """Where each hyper-parameter starts in the flat tensor, -1 where the loss does not have that part.

    A step is 1 where there is one number for each class and 0 where there is one for all; ``whole`` is an exponent
    that is a small whole number for good, 0 otherwise; ``bounds`` is the number of bounds of gamma by confidence.
    """

    xi: int = ABSENT
    gamma_hc: int = ABSENT
    gamma_pos: int = ABSENT
    gamma_pos_step: int = 0
    gamma_pos_whole: int = 0
    gamma_neg: int = ABSENT
    gamma_neg_step: int = 0
    gamma_neg_whole: int = 0
    confidence_bounds: int = ABSENT
    confidence_gammas: int = ABSENT
    bounds: int = 0
    label_smoothing: int = ABSENT
    offset: int = ABSENT
    offset_step: int = 0
    true_margin: int = ABSENT
    true_margin_step: int = 0
    scale: int = ABSENT
    squared_error: int = ABSENT
    neg_scale: int = ABSENT
    margin: int = ABSENT
    thin_margin: int = ABSENT
    alpha: int = ABSENT
    pos_weight: int = ABSENT
    pos_weight_step: int = 0
    weight: int = ABSENT
    weight_step: int = 0

    @property
    def focal(self) -> bool:
        """Whether the true class has an exponent."""
        return self.gamma_pos >= 0 or self.confidence_bounds >= 0

    @property
    def fractional(self) -> bool:
        """Whether that exponent may be any number."""
        return self.focal and self.gamma_pos_whole == 0

    @property
    def modulated(self) -> bool:
        """Whether the true class has a factor at all."""
        return self.focal or self.xi >= 0

    @property
    def plain(self) -> bool:
        """Whether a term is the logarithm of a probability and nothing else."""
        return not self.modulated and self.gamma_neg < 0 and self.squared_error < 0

    @property
    def has_costly_off_target_terms(self) -> bool:
        """Whether a class of index targets that is not the label's takes much more than its exponential."""
        return self.label_smoothing >= 0 and self.squared_error < 0

    @property
    def power_0(self) -> bool:
        """Whether the factor of a class that is not the label's has a constant part, see ``in_powers``."""
        return self.squared_error < 0 and (self.gamma_neg < 0 or self.xi >= 0)

    @property
    def power_a(self) -> int:
        """The power of p in that factor, 0 where there is none."""
        if self.squared_error >= 0:
            return 2
        return self.gamma_neg_whole if self.gamma_neg >= 0 else min(self.gamma_pos_whole, 1)

    @property
    def power_b(self) -> int:
        """One more power of p, 0 where there is none."""
        return 2 if self.gamma_neg < 0 and self.gamma_pos_whole == 2 and self.squared_error < 0 else 0

    @property
    def in_powers(self) -> bool:
        """Whether that factor is a sum of these powers, so that a row can be summed up in one pass."""
        if self.squared_error >= 0:
            return self.label_smoothing < 0
        if self.gamma_neg >= 0:
            return self.gamma_neg_whole > 0
        return self.xi < 0 and (not self.focal or self.gamma_pos_whole in (1, 2))


@lru_cache(maxsize=1024)
def plan_of(layout: Layout) -> Plan:
    """The plan of a layout; pieces that never reach a kernel are left out."""
    fields: dict[str, int] = {}
    for piece in layout:
        if piece.name not in Plan.__dataclass_fields__:
            continue
        fields[piece.name] = piece.start
        if f"{piece.name}_step" in Plan.__dataclass_fields__:
            fields[f"{piece.name}_step"] = int(piece.stop - piece.start > 1)
        if piece.whole is not None:
            fields[f"{piece.name}_whole"] = piece.whole
        if piece.name == "confidence_bounds":
            fields["bounds"] = piece.stop - piece.start
    return Plan(**fields)
