"""What the training samples of each class tell before anything is trained."""

from __future__ import annotations

import math
from collections.abc import Sequence

from equipoise.doctor.finding import Finding, listed
from equipoise.tasks import Task

__all__ = ["look_at_counts"]

LONG_TAIL = 10.0
"""Ratio of the largest to the smallest class from which plain cross-entropy visibly neglects classes."""
FEW = 20


def look_at_counts(counts: Sequence[float], names: Sequence[str], task: str = "multiclass") -> list[Finding]:
    """Findings about training samples of each class, about positives of each label where the task is multi-label."""
    findings = []
    kind = Task(task)
    several, kinds = kind.multilabel, kind.many
    largest, smallest = ("most frequent label", "rarest") if several else ("largest class", "smallest")
    absent = [name for name, count in zip(names, counts, strict=True) if count == 0]
    if absent:
        findings.append(
            Finding(
                "problem",
                f"{kinds} without training samples",
                f"{len(absent)} of {len(counts)} {kinds} have none: {listed(absent)}. No loss can teach them; "
                f"losses that go by counts take 0 for 1, and weights leave such {kinds} out.",
                "Drop them, merge them with others, or collect samples.",
            )
        )
        smallest += " that has any"
    present = [count for count in counts if count > 0]
    if not present:
        return findings
    findings += _imbalance(present, largest, smallest, several)
    if not several:  # a label is in a sample beside others
        findings += _dominant_class(counts, names)
    return findings + _few_samples(counts, names, kinds)


def _imbalance(present: Sequence[float], largest: str, smallest: str, several: bool) -> list[Finding]:
    findings = []
    ratio = max(present) / min(present)
    if ratio >= LONG_TAIL:
        findings.append(
            Finding(
                "warning",
                "long tail",
                f"The {largest} has {ratio:,.0f} times the samples of the {smallest} ({max(present):,.0f} to "
                f"{min(present):,.0f}). "
                + (
                    "Numbers over all decisions (OP, OR, OF1) are then mostly those of the frequent labels."
                    if several
                    else "Plain accuracy is then mostly that of the large classes."
                ),
                f"Report {'mAP and CF1' if several else 'mean class accuracy'} and many/medium/few beside "
                f"{'them' if several else 'accuracy'}, and compare a loss that rebalances.",
            )
        )
    else:
        findings.append(
            Finding(
                "note",
                "balance",
                f"The {largest} has {ratio:,.1f} times the samples of the {smallest}, which is mild: counts alone "
                f"set the {smallest} back by log {ratio:,.1f} = {math.log(ratio):.1f} in log-odds, which what a sample "
                f"shows easily outweighs. A tail is called long from {LONG_TAIL:g} times on "
                f"({math.log(LONG_TAIL):.1f}).",
                "Rebalancing has little to gain; look at calibration and at the hard ones first. Where predictions "
                "show one that is hardly found, or a miss of it costs more, compare a loss that rebalances.",
            )
        )
    return findings


def _dominant_class(counts: Sequence[float], names: Sequence[str]) -> list[Finding]:
    findings = []
    present = [count for count in counts if count > 0]
    share = max(present) / sum(present)
    if share > 0.9 and len(present) > 1:
        biggest = names[list(counts).index(max(present))]
        findings.append(
            Finding(
                "warning",
                "one class is nearly everything",
                f"{biggest} makes up {100 * share:.1f} % of the samples, so that always answering it scores as much.",
                "Judge by recall, IoU or F1 of the other classes; a background class should not be in the mean.",
            )
        )
    return findings


def _few_samples(counts: Sequence[float], names: Sequence[str], kinds: str) -> list[Finding]:
    findings = []
    few = [name for name, count in zip(names, counts, strict=True) if 0 < count < FEW]
    if few:
        findings.append(
            Finding(
                "warning",
                f"{kinds} with few training samples",
                f"{len(few)} of {len(counts)} {kinds} have fewer than {FEW}: {listed(few)}. Weights of 1/n make single "
                "samples of them dominate a batch.",
                "Prefer effective-number weights, logit adjustment or margins to 1/n, and train with several seeds.",
            )
        )
    return findings
