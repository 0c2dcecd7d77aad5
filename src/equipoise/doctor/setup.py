"""Checks the combination of a loss, class weights and a sampler."""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.catalogue import find
from equipoise.data.samplers import SAMPLERS
from equipoise.doctor.finding import Finding

__all__ = ["REBALANCING", "SAMPLERS", "look_at_setup"]

REBALANCING = {
    "InverseFrequencyLoss": "weights by 1/n",
    "ClassBalancedLoss": "weights by effective number",
    "RecallLoss": "weights by missed recall",
    "BalancedSoftmaxLoss": "adds log n to the logits",
    "LogitAdjustedLoss": "adds tau log n to the logits",
    "LDAMLoss": "gives rare classes a wider margin",
    "DistributionBalancedLoss": "weights by how often a sample is repeated",
}
"""Losses that correct for class frequencies, and how."""
SATURATED = 5.0


def look_at_setup(
    *, loss: str | None = None, sampler: str = "none", weights: bool = False, counts: Sequence[float] | None = None
) -> list[Finding]:
    """Findings about a planned training.

    Args:
        loss: name or short name of a loss of the catalogue.
        sampler: one of ``SAMPLERS``.
        weights: whether the loss gets class weights.
        counts: training samples of each class.
    """
    if sampler not in SAMPLERS:
        raise ValueError(f"sampler must be one of {', '.join(SAMPLERS)}, got {sampler!r}; choose one of these")
    name = None if loss is None else find(loss).name
    findings = []
    ways = [f"the sampler ({sampler})"] if sampler != "none" else []
    ways += ["class weights"] if weights else []
    if name in REBALANCING and name != "LDAMLoss":  # LDAM is meant to be combined with deferred weights
        ways.append(f"{name} ({REBALANCING[name]})")
    if len(ways) > 1:
        findings.append(
            Finding(
                "warning",
                "several corrections for rare classes",
                f"{' and '.join(ways)} each correct for rare classes. Together they overcorrect: rare classes are "
                "predicted too often, and probabilities are biased by the product of the corrections.",
                "Keep one of them, or start one late (weights.Deferred) after the features have been learnt.",
            )
        )
    if len(ways) == 1:
        findings.append(
            Finding(
                "note",
                "probabilities after rebalancing",
                f"{ways[0]} changes the class prior that the model learns, so that its probabilities are those of "
                "balanced data.",
                "If the data in use are imbalanced, correct the probabilities: equipoise calibrate --method prior.",
            )
        )
    present = [count for count in counts or () if count > 0]
    if name == "ClassBalancedLoss" and present and min(present) > SATURATED / (1.0 - 0.9999):
        findings.append(
            Finding(
                "warning",
                "effective numbers are all equal",
                f"With beta = 0.9999 the effective number is at most 10,000, and the smallest class has "
                f"{min(present):,.0f} samples, so that all weights are nearly the same.",
                "Choose beta closer to 1, such as 1 - 1 / (the median count), or another weighting.",
            )
        )
    return findings
