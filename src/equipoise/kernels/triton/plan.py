"""The compile-time plan of a kernel: which terms a loss has, and where their values are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from equipoise.kernels.hyper import Layout

__all__ = ["Plan", "plan_of"]

ABSENT = -1


@dataclass(frozen=True, eq=False)  # one per layout: compared by identity, which is free at launch
class Plan:
    """Start of each hyper-parameter in the flat tensor, -1 if the loss does not have it.

    A ``step`` is 1 for one number per class and 0 for one number for all. ``whole`` is a fixed exponent that is a small
    integer, or 0. ``bounds`` is the number of confidence bounds of gamma.
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
        """Whether that exponent is not a fixed small integer."""
        return self.focal and self.gamma_pos_whole == 0

    @property
    def modulated(self) -> bool:
        """Whether the true class has a modulating factor."""
        return self.focal or self.xi >= 0

    @property
    def plain(self) -> bool:
        """Whether a term is only the logarithm of a probability."""
        return not self.modulated and self.gamma_neg < 0 and self.squared_error < 0

    @property
    def has_costly_off_target_terms(self) -> bool:
        """Whether off-target classes of index targets need much more than their exponential."""
        return self.label_smoothing >= 0 and self.squared_error < 0

    @property
    def power_0(self) -> bool:
        """Whether the factor of an off-target class has a constant term, see ``in_powers``."""
        return self.squared_error < 0 and (self.gamma_neg < 0 or self.xi >= 0)

    @property
    def power_a(self) -> int:
        """The power of p in that factor, 0 for none."""
        if self.squared_error >= 0:
            return 2
        return self.gamma_neg_whole if self.gamma_neg >= 0 else min(self.gamma_pos_whole, 1)

    @property
    def power_b(self) -> int:
        """A second power of p in that factor, 0 for none."""
        return 2 if self.gamma_neg < 0 and self.gamma_pos_whole == 2 and self.squared_error < 0 else 0

    @property
    def in_powers(self) -> bool:
        """Whether that factor is a polynomial in p, so that one pass sums up a row."""
        if self.squared_error >= 0:
            return self.label_smoothing < 0
        if self.gamma_neg >= 0:
            return self.gamma_neg_whole > 0
        return self.xi < 0 and (not self.focal or self.gamma_pos_whole in (1, 2))


@lru_cache(maxsize=1024)
def plan_of(layout: Layout) -> Plan:
    """The plan of a layout; pieces that no kernel uses are skipped."""
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
