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
ROW_GAP, MARGIN = 16, 12
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
        column: from the left.
        row: from the top; a fraction places the box between two rows.
    """

    title: str
    files: tuple[str, ...]
    column: int
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
    for column in sorted(set(layer.values()), reverse=True):  # each layer in the order of what imports it
        names = [name for name in edges if layer[name] == column]
        centre = {n: sum(order[p] for p in parents[n]) / len(parents[n]) if parents[n] else 0.5 for n in names}
        for position, name in enumerate(sorted(names, key=lambda name: (centre[name], name))):
            order[name] = (position + 0.5) / len(names)
    tallest = max([*layer.values()].count(column) for column in layer.values())
    boxes = {name: Box(name, (), layer[name], order[name] * tallest - 0.5) for name in edges}
    return boxes, [(child, name) for name, children in edges.items() for child in sorted(children)]


# ------------------------------------------------------------------------------------------------------------ drawing


def svg(boxes: Mapping[str, Box], arrows: Iterable[tuple[str, str]], description: str) -> str:
    """Boxes and arrows as SVG; the arrows run between the facing sides of two boxes."""
    columns = sorted({box.column for box in boxes.values()})
    width = {
        c: max(LETTER * len(line) for b in boxes.values() if b.column == c for line in (b.title, *b.files)) + 16
        for c in columns
    }
    gap = 46
    left = {c: MARGIN + sum(width[other] + gap for other in columns if other < c) for c in columns}
    height = {name: LINE * (1 + len(box.files)) + 10 for name, box in boxes.items()}
    step = max(height.values()) + ROW_GAP
    centre = {name: MARGIN + (box.row + 0.5) * step for name, box in boxes.items()}
    total = max(left[c] + width[c] for c in columns) + MARGIN
    bottom = max(centre[name] + height[name] / 2 for name in boxes) + MARGIN
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
        x1, y1, x2, y2 = left[boxes[start].column] + width[boxes[start].column], centre[start], 0.0, centre[end]
        if boxes[start].column == boxes[end].column:
            x = left[boxes[start].column] + width[boxes[start].column] / 2
            side = 1 if y2 > y1 else -1
            y1, y2 = y1 + side * height[start] / 2, y2 - side * height[end] / 2
            lines.append(f'<path d="M{x:.0f} {y1:.0f}V{y2:.0f}" marker-end="url(#head)"/>')
            continue
        x2 = left[boxes[end].column]
        if x2 < x1:  # to the left
            x1, x2 = left[boxes[start].column], left[boxes[end].column] + width[boxes[end].column]
        middle = (x1 + x2) / 2
        lines.append(
            f'<path d="M{x1:.0f} {y1:.0f}C{middle:.0f} {y1:.0f} {middle:.0f} {y2:.0f} {x2:.0f} {y2:.0f}" '
            'marker-end="url(#head)"/>'
        )
    for name, box in boxes.items():
        x, y = left[box.column], centre[name] - height[name] / 2
        lines.append(f'<rect x="{x:.0f}" y="{y:.0f}" width="{width[box.column]:.0f}" height="{height[name]:.0f}"/>')
        for number, line in enumerate((box.title, *box.files)):
            kind = ' class="file"' if number else ""
            lines.append(f'<text x="{x + 8:.0f}" y="{y + LINE * (number + 1):.0f}"{kind}>{escape(line)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def packages_figure() -> str:
    """Which package imports which."""
    boxes, arrows = _packages()
    return svg(boxes, arrows, "Packages of equipoise; an arrow leads from a package to one that imports it")


# ------------------------------------------------------------------------------------------------------------- flows

BATCH = {
    "batch": Box("logits, targets", (), 0, 1),
    "schedules": Box("schedules, options", ("schedules.py", "losses/base.py"), 0, 2.5),
    "check": Box("check the batch, once", ("losses/softmax.py", "losses/sigmoid.py", "_checks.py"), 1, 1),
    "hyper": Box("hyper-parameters, one tensor", ("kernels/hyper.py", "kernels/spec.py"), 1, 2.5),
    "weights": Box("class weights", ("weights/recall.py", "losses/class_weights.py"), 2, 2.5),
    "backend": Box("choose the backend, once", ("kernels/choice.py", "kernels/autograd.py"), 2, 1),
    "reference": Box("reference: the definition", ("kernels/reference/",), 3, 0),
    "cpu": Box("CPU", ("kernels/cpu/",), 3, 1),
    "triton": Box("Triton, forward and backward fused", ("kernels/triton/", "losses/fused.py"), 3, 2),
    "reduce": Box("reduce", ("losses/reduce.py",), 4, 1),
    "loss": Box("loss", (), 5, 1),
}
BATCH_ARROWS = (
    *(("batch", "check"), ("schedules", "hyper"), ("check", "backend"), ("check", "weights"), ("hyper", "backend")),
    *(("backend", "reference"), ("backend", "cpu"), ("backend", "triton"), ("weights", "backend")),
    *(("reference", "reduce"), ("cpu", "reduce"), ("triton", "reduce"), ("reduce", "loss")),
)

COMPARISON = {
    "settings": Box("settings", ("cli/compare.py", "comparison/spec.py"), 0, 0),
    "data": Box("data", ("data/opening.py",), 0, 1),
    "plan": Box("plan: losses x seeds", ("comparison/plan.py", "expressions.py"), 1, 0),
    "jobs": Box("jobs: processes or Ray", ("comparison/compare.py", "comparison/jobs.py"), 2, 0),
    "train": Box("train a run", ("train/run.py", "train/module.py"), 2, 1),
    "folder": Box("run folder", ("train/folder.py", "train/record.py"), 3, 1),
    "evaluation": Box("evaluation, calibration", ("evaluation/closed_set.py", "train/outcome.py"), 3, 0),
    "resampling": Box(
        "metrics of resampled test data", ("comparison/resampling.py", "evaluation/sample_statistics.py"), 4, 1
    ),
    "verdict": Box("verdict", ("comparison/judge.py", "comparison/verdict.py"), 4, 0),
    "report": Box("report", ("report/comparison.py", "plotting/"), 5, 0),
    "table": Box("terminal", ("cli/comparison_table.py",), 5, 1),
}
COMPARISON_ARROWS = (
    *(("settings", "plan"), ("data", "plan"), ("plan", "jobs"), ("jobs", "train"), ("train", "folder")),
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
