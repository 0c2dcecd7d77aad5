"""Packages import in one direction: whoever needs results knows nothing of what is made of them."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import equipoise

ROOT = Path(equipoise.__file__).parent
PACKAGES = (
    *("data", "predictions", "metrics", "calibration", "evaluation"),
    *("train", "comparison", "plotting", "report", "doctor", "cli"),
)
FORBIDDEN = {
    "train": {"comparison", "plotting", "report", "doctor", "cli"},
    "comparison": {"plotting", "report", "cli"},
    "evaluation": {"train", "comparison", "plotting", "report", "doctor", "cli"},
    "plotting": {"train", "report", "doctor", "cli"},
    "report": {"cli"},
}
"""What a package must not know, even where that would be no cycle."""


def imported(source: str) -> set[str]:
    """Modules of this library that a program imports, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            actual = (
                [f"equipoise.{alias.name}" for alias in node.names] if node.module == "equipoise" else [node.module]
            )
            names |= {name for name in actual if name is not None}
    return {name for name in names if name.startswith("equipoise.")}


def part_of(module: str) -> str:
    """The package, or the module beside the packages."""
    return module.split(".")[1]


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """The parts of the library that each part imports."""
    parts: dict[str, set[str]] = {}
    for file in ROOT.rglob("*.py"):
        part = file.relative_to(ROOT).parts[0].removesuffix(".py")
        if part not in ("__init__", "__main__"):  # the first one loads lazily what users name
            names = imported(file.read_text(encoding="utf-8"))
            parts.setdefault(part, set()).update({part_of(name) for name in names} - {part})
    return parts


def test_imports_inside_functions_count():
    source = "import os\nfrom equipoise import data\ndef f():\n    from equipoise.train.run import run\n"
    assert imported(source) == {"equipoise.data", "equipoise.train.run"}


def test_the_graph_is_that_of_the_sources(graph):
    assert set(PACKAGES) <= graph.keys()
    assert {"comparison", "plotting", "report"} <= graph["cli"]
    assert "plotting" in graph["report"]
    assert "train" in graph["comparison"]
    assert graph["losses"] >= {"kernels", "weights", "schedules", "distributed"}
    assert graph["weights"] >= {"kernels"}


def test_packages_import_in_one_direction(graph):
    """Also where a module beside the packages lies in between."""
    try:
        order = [*TopologicalSorter(graph).static_order()]
    except CycleError as error:
        pytest.fail(f"packages import each other: {' <- '.join(error.args[1])}")
    assert order.index("train") < order.index("comparison") < order.index("report") < order.index("cli")
    assert max(map(order.index, ("kernels", "weights", "schedules", "distributed"))) < order.index("losses")


@pytest.mark.parametrize("package", FORBIDDEN)
def test_what_a_package_must_not_know(graph, package):
    assert not graph[package] & FORBIDDEN[package]
