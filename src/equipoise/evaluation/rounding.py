"""Notes on targets with probability 0, from rounding of saved probabilities or infinite logits."""

from __future__ import annotations

import math

import torch

from equipoise.evaluation.split import SplitChunk
from equipoise.predictions import Predictions

__all__ = ["Rounding"]


class Rounding:
    """Counts rounded probabilities and targets with probability 0 over all chunks."""

    def __init__(self, source: Predictions) -> None:
        self.source = source
        self.divided = self.zeros = self.cases = 0

    def look(self, part: SplitChunk) -> None:
        """Add a chunk."""
        self.divided += part.rounded
        impossible, certain = (-math.inf, math.inf) if self.source.from_logits else (0.0, 1.0)
        if self.source.task.multilabel:
            known, positive = part.targets >= 0, part.targets == 1
            ruled_out = torch.where(positive, part.scores <= impossible, part.scores >= certain)[known]
        else:
            known = part.targets != self.source.ignore_index
            rows = part.targets.where(known, 0).unsqueeze(1)
            ruled_out = part.scores.gather(1, rows).squeeze(1)[known] <= impossible
        self.cases += len(ruled_out)
        self.zeros += int(ruled_out.sum())

    def sentences(self, nll: bool = True) -> list[str]:
        """The notes, with those on the NLL if ``nll``; possibly empty."""
        noun = self.source.task.decisions
        sentences = []
        if self.divided:
            sentences.append(
                f"The probabilities of {self.divided:,} {noun} did not sum to 1 to five digits, as rounding leaves "
                "them; they were divided by their sum."
            )
        if nll and self.zeros and self.source.from_logits:
            sentences.append(
                f"{self.zeros:,} of {self.cases:,} {noun} have an infinite logit against the truth, which is a "
                "probability of 0: the NLL is infinite."
            )
        elif nll and self.zeros:
            sentences.append(
                f"{self.zeros:,} of {self.cases:,} {noun} have probability 0 for the truth; the NLL takes it as 1e-12, "
                f"which adds {27.631 * self.zeros / self.cases:.4f} to it."
            )
        return sentences
