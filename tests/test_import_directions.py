"""Packages import in one direction: whoever needs results knows nothing of what is made of them."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

import pytest

from docs.architecture_figures import imported_modules, package_graph

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


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """The packages that each package imports."""
    return package_graph()


def test_imports_inside_functions_count():
    source = "import os\nfrom equipoise import data\ndef f():\n    from equipoise.train.run import run\n"
    assert imported_modules(source) == {"equipoise.data", "equipoise.train.run"}


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
