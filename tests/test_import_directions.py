"""Losses import weights and kernels, and nothing of these imports losses: the packages of the losses have no cycle."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import equipoise

SOURCE = Path(equipoise.__file__).parent
PARTS = ("_buffers", "_checks", "_keywords", "distributed", "kernels", "losses", "schedules", "weights")


def imported(part):
    """The other parts that a part imports, also inside functions, but for type checkers."""
    files = [SOURCE / f"{part}.py"] if (SOURCE / f"{part}.py").exists() else sorted((SOURCE / part).glob("*.py"))
    found = set()
    for file in files:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        hidden = {
            id(inside)
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            for inside in ast.walk(node)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and id(node) not in hidden:
                module = node.module or ""
                named = [module, *(f"{module}.{alias.name}" for alias in node.names)]
                found |= {name.split(".")[1] for name in named if name.startswith("equipoise.")}
    return (found & set(PARTS)) - {part}


def test_parts_of_the_losses_have_no_cycle():
    graph = {part: imported(part) for part in PARTS}
    assert graph["losses"] >= {"kernels", "weights", "schedules", "distributed"}
    assert graph["weights"] >= {"kernels"}
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError, which names the cycle
    assert order[-1] == "losses"
