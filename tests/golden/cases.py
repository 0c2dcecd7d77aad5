"""Read the golden cases: results of the published code of the papers on fixed inputs (see INDEX.md)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Case:
    group: str
    id: str
    input: str | None
    params: dict[str, Any]
    arrays: dict[str, np.ndarray]  # inputs
    outputs: dict[str, Any]
    nonfinite: tuple[str, ...]
    official_error: str | None

    def __str__(self) -> str:
        return f"{self.group}-{self.id}-{self.input}"


def load(group: str) -> list[Case]:
    """All cases of a group, in file order."""
    archive = np.load(HERE / f"{group}.npz", allow_pickle=False)
    meta = json.loads(str(archive["meta"]))
    cases = []
    for case in meta["cases"]:
        names = meta["inputs"][case["input"]]["arrays"] if case["input"] else []
        outputs = {**case["values"], **{name: archive[entry][i] for name, (entry, i) in case["arrays"].items()}}
        cases.append(
            Case(
                group,
                case["id"],
                case["input"],
                case["params"],
                {name: archive[f"{case['input']}.{name}"] for name in names},
                outputs,
                tuple(case.get("nonfinite") or ()),
                case.get("official_error"),
            )
        )
    return cases
