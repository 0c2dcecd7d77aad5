"""The figures of ``docs/architecture.md``: ``python -m docs.architecture_figures`` writes them into ``docs/images``.

The graph of the packages is read from their import statements, so the figure cannot differ from the code;
``tests/test_architecture.py`` checks that the committed files are up to date.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

__all__ = ["FIGURES", "Box", "layers", "package_graph", "reduced", "svg"]

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
SOURCE = ROOT / "src" / "equipoise"

LINE, LETTER = 15, 6.7  # height of a line of text and width of a letter, in pixels
COLUMN_GAP, ROW_GAP, MARGIN = 12, 26, 12
STYLE = """
  rect { fill: #f4f6fa; stroke: #5b6b8c; rx: 5 }
  path { fill: none; stroke: #8a94a8; stroke-width: 1.2 }
  marker path { fill: #8a94a8; stroke: none }
  text { font: 12px system-ui, sans-serif; fill: #1c2433 }
  .file { font: 11px ui-monospace, monospace; fill: #51607d }
  .page { fill: #ffffff; stroke: none }
  @media (prefers-color-scheme: dark) {
    rect { fill: #232a3a; stroke: #7f8fb3 } text { fill: #e6eaf2 } .file { fill: #a9b6d3 } .page { fill: #12161f }
  }
"""


@dataclass(frozen=True)
class Box:
    """A box of a figure.

    Args:
        title: the first line.
        files: further lines, in a monospaced font.
        column: from the left; a fraction places the box between two columns.
        row: from the top.
    """

    title: str
    files: tuple[str, ...]
    column: float
    row: float


# --------------------------------------------------------------------------------------------------------- packages


def imported_modules(source: str) -> set[str]:
    """Modules of this library that a program imports, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"imports must be absolute, got a relative one in line {node.lineno}")
            module = node.module or ""
            names |= {f"equipoise.{alias.name}" for alias in node.names} if module == "equipoise" else {module}
    return {name for name in names if name.startswith("equipoise.")}


def package_graph() -> dict[str, set[str]]:
    """For each package, or module beside the packages, those that it imports."""
    graph: dict[str, set[str]] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        package = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        if package not in ("__init__", "__main__"):  # __init__ loads public names on first use
            imports = {name.split(".")[1] for name in imported_modules(file.read_text(encoding="utf-8"))}
            graph.setdefault(package, set()).update(imports - {package})
    return graph


def reduced(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The transitive reduction of an acyclic graph: edges that no longer path implies."""

    def reachable(node: str) -> set[str]:
        return graph[node].union(*(reachable(child) for child in graph[node]))

    return {
        node: {child for child in children if not any(child in reachable(other) for other in children - {child})}
        for node, children in graph.items()
    }


def layers(graph: Mapping[str, set[str]]) -> dict[str, int]:
    """The length of the longest path from each node of an acyclic graph to one without children."""
    known: dict[str, int] = {}

    def layer(node: str) -> int:
        if node not in known:
            known[node] = max((layer(child) + 1 for child in graph[node]), default=0)
        return known[node]

    return {node: layer(node) for node in sorted(graph)}


def _packages() -> tuple[dict[str, Box], list[tuple[str, str]]]:
    """The packages by layer, without the private helpers that nearly all of them use."""
    public = {
        name: {child for child in children if not child.startswith("_")}
        for name, children in package_graph().items()
        if not name.startswith("_")
    }
    edges, layer = reduced(public), layers(public)
    parents = {name: [other for other in edges if name in edges[other]] for name in edges}
    order: dict[str, float] = {}
    for row in sorted(set(layer.values()), reverse=True):  # each layer in the order of what imports it
        names = [name for name in edges if layer[name] == row]
        centre = {n: sum(order[p] for p in parents[n]) / len(parents[n]) if parents[n] else 0.5 for n in names}
        for position, name in enumerate(sorted(names, key=lambda name: (centre[name], name))):
            order[name] = (position + 0.5) / len(names)
    widest = max([*layer.values()].count(row) for row in layer.values())
    boxes = {name: Box(name, (), order[name] * widest - 0.5, layer[name]) for name in edges}
    return boxes, [(child, name) for name, children in edges.items() for child in sorted(children)]


# ------------------------------------------------------------------------------------------------------------ drawing


def svg(boxes: Mapping[str, Box], arrows: Iterable[tuple[str, str]], description: str) -> str:
    """Boxes and arrows as SVG: arrows run sideways between boxes of a row, and from row to row otherwise."""
    width = {name: max(LETTER * len(line) for line in (box.title, *box.files)) + 16 for name, box in boxes.items()}
    height = {name: LINE * (1 + len(box.files)) + 10 for name, box in boxes.items()}
    cell, step = max(width.values()) + COLUMN_GAP, max(height.values()) + ROW_GAP
    x = {name: MARGIN + (box.column + 0.5) * cell for name, box in boxes.items()}
    y = {name: MARGIN + (box.row + 0.5) * step for name, box in boxes.items()}
    total = max(x[name] + width[name] / 2 for name in boxes) + MARGIN
    bottom = max(y[name] + height[name] / 2 for name in boxes) + MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total:.0f} {bottom:.0f}" width="{total:.0f}" '
        'role="img">',
        f"<title>{escape(description)}</title>",
        f"<style>{STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z"/></marker></defs>',
        '<rect class="page" width="100%" height="100%"/>',
    ]
    for start, end in arrows:
        if boxes[start].row == boxes[end].row:
            side = 1 if x[end] > x[start] else -1
            x1, x2 = x[start] + side * width[start] / 2, x[end] - side * width[end] / 2
            path = f"M{x1:.0f} {y[start]:.0f}H{x2:.0f}"
        else:
            side = 1 if y[end] > y[start] else -1
            y1, y2 = y[start] + side * height[start] / 2, y[end] - side * height[end] / 2
            middle = (y1 + y2) / 2
            path = (
                f"M{x[start]:.0f} {y1:.0f}C{x[start]:.0f} {middle:.0f} {x[end]:.0f} {middle:.0f} {x[end]:.0f} {y2:.0f}"
            )
        lines.append(f'<path d="{path}" marker-end="url(#head)"/>')
    for name, box in boxes.items():
        left, top = x[name] - width[name] / 2, y[name] - height[name] / 2
        lines.append(f'<rect x="{left:.0f}" y="{top:.0f}" width="{width[name]:.0f}" height="{height[name]:.0f}"/>')
        for number, line in enumerate((box.title, *box.files)):
            kind = ' class="file"' if number else ""
            lines.append(f'<text x="{left + 8:.0f}" y="{top + LINE * (number + 1):.0f}"{kind}>{escape(line)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def packages_figure() -> str:
    """Which package imports which."""
    boxes, arrows = _packages()
    return svg(boxes, arrows, "Packages of equipoise; an arrow leads from a package to one that imports it")


# ------------------------------------------------------------------------------------------------------------- flows

BATCH = {
    "batch": Box("logits, targets", (), 0, 0),
    "schedules": Box("schedules, options", ("schedules.py", "losses/base.py"), 1, 0),
    "check": Box("check the batch, once", ("losses/softmax.py", "losses/sigmoid.py", "_checks.py"), 0, 1),
    "hyper": Box("hyper-parameters, one tensor", ("kernels/hyper.py", "kernels/spec.py"), 1, 1),
    "weights": Box("class weights", ("weights/recall.py", "losses/class_weights.py"), 2, 1),
    "backend": Box("choose the backend, once", ("kernels/choice.py", "kernels/autograd.py"), 1, 2),
    "reference": Box("reference: the definition", ("kernels/reference/",), 0, 3),
    "cpu": Box("CPU", ("kernels/cpu/",), 1, 3),
    "triton": Box("Triton, forward and backward fused", ("kernels/triton/", "losses/fused.py"), 2, 3),
    "reduce": Box("reduce to the loss", ("losses/reduce.py",), 1, 4),
}
BATCH_ARROWS = (
    *(("batch", "check"), ("schedules", "hyper"), ("check", "backend"), ("hyper", "backend"), ("weights", "backend")),
    *(("backend", "reference"), ("backend", "cpu"), ("backend", "triton")),
    *(("reference", "reduce"), ("cpu", "reduce"), ("triton", "reduce")),
)

COMPARISON = {
    "settings": Box("settings", ("cli/compare.py", "comparison/spec.py"), 0, 0),
    "data": Box("data", ("data/opening.py",), 1, 0),
    "plan": Box("plan: losses x seeds", ("comparison/plan.py", "expressions.py"), 0, 1),
    "jobs": Box("jobs: processes or Ray", ("comparison/compare.py", "comparison/jobs.py"), 1, 1),
    "train": Box("train a run", ("train/run.py", "train/loop.py"), 2, 1),
    "evaluation": Box("evaluate and calibrate it", ("train/outcome.py", "evaluation/closed_set.py"), 2, 2),
    "folder": Box("run folder", ("train/folder.py", "train/record.py"), 1, 2),
    "resampling": Box("resample its test data", ("comparison/resampling.py", "evaluation/sample_statistics.py"), 0, 2),
    "verdict": Box("verdict", ("comparison/judge.py", "comparison/verdict.py"), 0, 3),
    "report": Box("report", ("report/comparison.py", "plotting/"), 1, 3),
    "table": Box("terminal", ("cli/comparison_table.py",), 1, 4),
}
COMPARISON_ARROWS = (
    *(("settings", "plan"), ("data", "plan"), ("plan", "jobs"), ("jobs", "train"), ("train", "evaluation")),
    *(("evaluation", "folder"), ("folder", "resampling"), ("resampling", "verdict")),
    *(("verdict", "report"), ("verdict", "table")),
)

FIGURES = {
    "batch-flow.svg": lambda: svg(BATCH, BATCH_ARROWS, "One batch: from logits and targets to the loss"),
    "comparison-flow.svg": lambda: svg(COMPARISON, COMPARISON_ARROWS, "One comparison: from settings to the report"),
    "packages.svg": packages_figure,
}
"""The figures by file name."""

if __name__ == "__main__":
    for file_name, figure in FIGURES.items():
        (IMAGES / file_name).write_text(figure(), encoding="utf-8")
