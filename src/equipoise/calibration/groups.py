r"""One temperature per group of classes, such as many, medium and few: :math:`z' = z / T_{g(\hat y)}`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from equipoise._checks import check_length, check_number
from equipoise._keywords import checks_keywords
from equipoise.calibration.fitted import Fitted, announce, as_floats
from equipoise.calibration.inputs import SingleRows, join_notes, single_rows
from equipoise.calibration.temperature import BOUNDS, check_bounds, slope_by_nll

__all__ = ["GroupTemperatures", "fit_group_temperatures"]


@dataclass(frozen=True, repr=False)
class GroupTemperatures(Fitted):
    r""":math:`z' = z / T_g`, g the group of the predicted class, because the true one is unknown. Keeps predictions.

    Args:
        temperatures: one per group.
        groups: group index of each class.
        names: names of the groups.

    >>> GroupTemperatures((1.0, 2.0), groups=(0, 1), names=("head", "tail"))(torch.tensor([[2.0, 0.0], [0.0, 2.0]]))
    tensor([[2., 0.],
            [0., 1.]])
    """

    kind: ClassVar[str] = "group-temperatures"

    temperatures: tuple[float, ...]
    groups: tuple[int, ...]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        temperatures = as_floats("temperatures", self.temperatures, positive=True)
        groups, names = tuple(self.groups), tuple(self.names)
        count = len(temperatures)
        if len(names) != count or not all(isinstance(name, str) for name in names):
            raise ValueError(f"names must be one str for each of the {count} groups, got {names!r}; fit again")
        if not groups or any(type(group) is not int or not 0 <= group < count for group in groups):
            raise ValueError(f"groups must be indices of the {count} temperatures, got {groups!r}; fit again")
        self._set(temperatures=temperatures, groups=groups, names=names, num_classes=len(groups))

    def _apply(self, logits: Tensor) -> Tensor:
        by_group = torch.tensor(self.temperatures, dtype=logits.dtype, device=logits.device)
        by_class = by_group[torch.tensor(self.groups, device=logits.device)]
        return logits / by_class[logits.argmax(1, keepdim=True)]

    def describe(self) -> str:
        """One-line description."""
        listed = ", ".join(f"{name} {t:.4g}" for name, t in zip(self.names, self.temperatures, strict=True))
        return f"temperature by group of the predicted class: {listed}; same predictions{self._origin()}"


@checks_keywords
def fit_group_temperatures(
    logits: Tensor,
    targets: Tensor,
    *,
    groups: Sequence[int] | Sequence[str] | Tensor,
    shrinkage: float = 10.0,
    bounds: tuple[float, float] = BOUNDS,
    ignore_index: int = -100,
) -> GroupTemperatures:
    r"""One temperature for the rows predicted in each group, shrunk to the common one. Keeps the predicted class.

    For group g the minimum of :math:`\sum_i \text{NLL}_i + \frac{\lambda}{2} (T_0 / T_g - 1)^2` over the rows whose
    predicted class is in g, :math:`T_0` the common temperature: groups with few rows stay near it, and a group that is
    never predicted uses it.

    Args:
        logits: (N, C, d1, ..., dk).
        targets: class indices (N, d1, ..., dk).
        groups: group of each class, a name or a number.
        shrinkage: lambda; 0 for independent groups.
        bounds: minimum and maximum temperature.
        ignore_index: targets to ignore.

    >>> logits = torch.tensor([[2.0, 0.0, 0.0]] * 30 + [[0.0, 0.0, 2.0]] * 30)
    >>> targets = torch.tensor([0] * 25 + [1] * 5 + [2] * 15 + [1] * 15)
    >>> print(fit_group_temperatures(logits, targets, groups=["many", "many", "few"]).describe())
    temperature by group of the predicted class: many 1.094, few 2.045; same predictions (3 classes, fitted on 60 rows)
    """
    check_number("shrinkage", shrinkage, low=0.0)
    low, high = check_bounds(bounds)
    rows = single_rows(logits, targets, ignore_index, likelihood=True)
    names, members = _named(groups)
    check_length("groups", len(members), rows.logits.shape[1])
    common = slope_by_nll(rows, low, high)
    predicted = torch.tensor(members, device=rows.logits.device)[rows.logits.argmax(1)]
    temperatures, notes = [], [common.note]
    for group, name in enumerate(names):
        chosen = predicted == group
        if not bool(chosen.any()):
            temperatures.append(common.temperature)
            notes.append(f"group {name} is never predicted and uses the common temperature")
            continue
        part = SingleRows(rows.logits[chosen], rows.labels[chosen])
        fitted = slope_by_nll(part, low, high, anchor=common.temperature, shrinkage=shrinkage)
        temperatures.append(fitted.temperature)
        notes.append(f"group {name}: {fitted.note}" if fitted.note and not common.note else "")
    return announce(
        GroupTemperatures(
            tuple(temperatures),
            members,
            names,
            samples=len(rows.labels),
            converged=common.inside and not any(":" in note for note in notes),
            note=join_notes(*notes, rows.note),
        )
    )


def _named(groups: Sequence[int] | Sequence[str] | Tensor) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Names in order of appearance, and the index of each class's group."""
    values = groups.tolist() if isinstance(groups, Tensor) else groups
    if isinstance(values, str) or not isinstance(values, Sequence) or not len(values):
        raise TypeError(f"groups must name the group of each class, got {groups!r}; pass e.g. ['many', 'few', 'few']")
    if any(isinstance(value, bool) or not isinstance(value, (int, str)) for value in values):
        raise TypeError(f"groups must be names or integers, got {list(values)!r}; pass e.g. ['many', 'few', 'few']")
    words = [str(value) for value in values]
    names = tuple(dict.fromkeys(words))
    return names, tuple(names.index(word) for word in words)
