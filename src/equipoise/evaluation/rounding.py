"""What rounding has taken from saved probabilities, and what is made of it."""

from __future__ import annotations

from equipoise.evaluation.split import Part
from equipoise.predictions import Predictions

__all__ = ["Rounding"]


class Rounding:
    """Looks at the chunks as they pass."""

    def __init__(self, source: Predictions) -> None:
        self.source = source
        self.divided = self.zeros = self.cases = 0

    def look(self, part: Part) -> None:
        """Look at a chunk."""
        if self.source.from_logits:
            return
        self.divided += part.rounded
        if self.source.task == "multi":
            known, positive = part.targets >= 0, part.targets == 1
            of_truth = part.scores.where(positive, 1.0 - part.scores)[known]
        else:
            known = part.targets != self.source.ignore_index
            rows = part.targets.where(known, 0).unsqueeze(1)
            of_truth = part.scores.gather(1, rows).squeeze(1)[known]
        self.cases += len(of_truth)
        self.zeros += int((of_truth <= 0).sum())

    def sentences(self, nll: bool = True) -> list[str]:
        """What to know, of the NLL too where there is one; empty if nothing."""
        what = {"single": "samples", "multi": "labels of samples", "segmentation": "pixels"}[self.source.task]
        found = []
        if self.divided:
            found.append(
                f"The probabilities of {self.divided:,} {what} did not sum to 1 to five digits, as rounding leaves "
                "them; they were divided by their sum."
            )
        if nll and self.zeros:
            found.append(
                f"{self.zeros:,} of {self.cases:,} {what} have probability 0 for the truth; the NLL takes it as 1e-12, "
                f"which adds {27.631 * self.zeros / self.cases:.4f} to it."
            )
        return found
