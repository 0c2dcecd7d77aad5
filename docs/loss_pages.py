"""Generated parts of the loss pages: ``python -m docs.loss_pages`` writes them.

It also starts the page of a new loss, with TODO where text is missing. A page is written by hand except for two parts:
``<!-- facts -->`` (use, source, names) and ``<!-- arguments -->`` (the call with every default, what the arguments
mean). ``index.md`` has a table of all losses and of their shared options; ``docs/cheat-sheet.md`` and the figures in
``images`` are generated whole.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from pathlib import Path

import equipoise
from docs.loss_groups import GROUPS, Group, role_of
from equipoise.catalogue import CATALOGUE, Entry, Link, find
from equipoise.cli.describe import arguments_of, call_of, signature_of

__all__ = [
    "CHEAT_SHEET",
    "FOLDER",
    "arguments",
    "cheat_sheet",
    "facts",
    "index_tables",
    "main",
    "new_page",
    "page_of",
    "write_parts",
]

FOLDER = Path(__file__).parent / "losses"
CHEAT_SHEET = Path(__file__).parent / "cheat-sheet.md"

PAPERS = {
    "Ridnik et al. 2021": "https://arxiv.org/abs/2009.14119",
    "Berman et al. 2018": "https://arxiv.org/abs/1705.08790",
    "Cao et al. 2019": "https://arxiv.org/abs/1906.07413",
    "Cui et al. 2019": "https://arxiv.org/abs/1901.05555",
    "Drozdzal et al. 2016": "https://arxiv.org/abs/1608.04117",
    "Kumar et al. 2018": "https://proceedings.mlr.press/v80/kumar18a.html",
    "Lin et al. 2017": "https://arxiv.org/abs/1708.02002",
    "Menon et al. 2021": "https://arxiv.org/abs/2007.07314",
    "Mukhoti et al. 2020": "https://arxiv.org/abs/2002.09437",
    "Ren et al. 2020": "https://arxiv.org/abs/2007.10740",
    "Salehi et al. 2017": "https://arxiv.org/abs/1706.05721",
    "Shrivastava et al. 2016": "https://arxiv.org/abs/1604.03540",
    "Smith 2022": "https://arxiv.org/abs/2202.08978",
    "Tian et al. 2021": "https://openreview.net/forum?id=SlprFTIQP3",
    "Wu et al. 2020": "https://arxiv.org/abs/2007.09654",
}

REGION_ARGUMENTS = {
    "alpha": "weight of false positives.",
    "beta": "weight of false negatives.",
    "smooth": "added to numerator and denominator of the index.",
    "classes": "classes to include: 'present' in the targets, 'all', or a list of indices.",
    "per_image": "sum over each image instead of the whole batch and average over the images.",
    "ignore_index": "pixels with this target are ignored.",
    "reduction": '"mean" over the included classes, "sum", or "none": one value per class.',
    "sync": "under torch.distributed, the gradient of the joined batch (training mode only).",
    "validate": "check the values of the targets even if this synchronises.",
    "preset": '"published": the defaults of the published code, where they differ.',
}
"""Descriptions of the arguments that ``tversky_loss`` explains in full sentences."""

SHARED: dict[Link, str] = {"softmax": "CrossEntropyLoss", "sigmoid": "BinaryCrossEntropyLoss", "region": "DiceLoss"}
"""The loss whose options are shared by all losses of a link."""


_ROLES = {"": "", "baseline": "**Baseline.** ", "counter-example": "**A counter-example, not for training.** "}


def page_of(entry: Entry) -> Path:
    """The page of a loss."""
    return FOLDER / f"{entry.name}.md"


def facts(entry: Entry) -> str:
    """Use, source and names."""
    named = ", ".join(f"`{name}`" for name in entry.names)
    return (
        f"{_ROLES[role_of(entry.name)]}{entry.use}\n\nSource: {_linked(entry.source)}.\n\nNames in commands: {named}."
    )


def _linked(source: str) -> str:
    for paper, address in PAPERS.items():
        source = source.replace(paper, f"[{paper}]({address})")
    return source


def arguments(entry: Entry) -> str:
    """The call with every default, and the arguments that are specific to this loss."""
    call = "\n".join(
        textwrap.wrap(
            call_of(entry), width=78, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )
    )
    own = [name for name in _own_names(entry) if name not in _shared_names(entry.link)]
    table = f"\n\n{_table(entry, own)}" if own else ""
    return f"```text\n{call}\n```{table}\n\n[Shared options](index.md#{_anchor(entry.link)})."


def _own_names(entry: Entry) -> list[str]:
    _, *parameters = inspect.signature(getattr(equipoise, entry.name).__init__).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is not inspect.Parameter.VAR_KEYWORD]


def _shared_names(link: Link) -> set[str]:
    """Options with the same meaning in all losses of a link; each loss documents ``preset`` and ``epochs``."""
    return set(signature_of(find(SHARED[link])).parameters) - ({"preset", "epochs"} if link == "softmax" else set())


def _table(entry: Entry, names: list[str]) -> str:
    known = signature_of(entry).parameters
    descriptions = {"preset": "deprecated; it has no effect."}
    descriptions |= (REGION_ARGUMENTS if entry.link == "region" else {}) | arguments_of(entry)
    lines = ["| argument | default | |", "|---|---|---|"]
    for name in names:
        default = known[name].default
        shown = "required" if default is inspect.Parameter.empty else f"`{default!r}`"
        lines.append(f"| `{name}` | {shown} | {descriptions.get(name, '')} |")
    return "\n".join(lines)


def _anchor(link: Link) -> str:
    return f"options-{link}"


def index_tables() -> dict[str, str]:
    """The generated parts of ``index.md`` by name: all losses by task, and the shared options of each link."""
    tables = {group.key: _losses(group) for group in GROUPS}
    for link, name in SHARED.items():
        entry = find(name)
        shared = [name for name in signature_of(entry).parameters if name not in ("preset", "pos_weight")]
        tables[_anchor(link)] = _table(entry, shared)
    return tables


def _losses(group: Group) -> str:
    lines = [f"### {group.title}", "", "| loss | when | source |", "|---|---|---|"]
    for entry in map(find, group.losses):
        role = f" *{role_of(entry.name)}*" if role_of(entry.name) else ""
        lines.append(f"| [{entry.name}]({entry.name}.md){role} | {entry.use} | {_linked(entry.paper)} |")
    return "\n".join(lines)


MOST = 5
"""Arguments of a loss on the cheat sheet; its page has all."""


def cheat_sheet() -> str:
    """Every loss in a line, by task."""
    parts = [
        "# Cheat sheet",
        "Every loss with its own arguments and their defaults, its name in commands, and when to use it. `counts` are "
        "the training samples of each class. Baselines and counter-examples are in *italics*. All take logits first, "
        "then targets, and [shared options](losses/index.md#options-softmax) such as `ignore_index`, `reduction` and "
        "class `weight`. [Which loss?](which-loss.md) has the reasons and measurements.",
    ]
    for group in GROUPS:
        lines = [f"## {group.title}", "", "| loss | when | command | arguments |", "|---|---|---|---|"]
        lines += [_line(find(name)) for name in group.losses]
        parts.append("\n".join(lines))
    parts.append(
        "## Combine\n\n"
        "| | in Python | in commands |\n|---|---|---|\n"
        "| sum | `CrossEntropyLoss() + 0.5 * DiceLoss()` | `ce + 0.5 * dice` |\n"
        "| class weights | `FocalLoss(weight=[1.0, 2.0, 4.0])` | |\n"
        "| [schedule](schedules.md) | `FocalLoss(gamma=Linear(0, 3))` | |\n"
        "| candidates, chosen on validation data | | `focal(gamma=[1, 2, 3])` |"
    )
    return "\n\n".join(parts) + "\n"


def _line(entry: Entry) -> str:
    known = signature_of(entry).parameters
    own = [name for name in _own_names(entry) if name not in _shared_names(entry.link) and name != "preset"]
    shown = [
        name if known[name].default is inspect.Parameter.empty else f"{name}={known[name].default!r}" for name in own
    ]
    mark = "*" if role_of(entry.name) else ""
    use = re.split(r"; (?!see)|, (?=not )|, best ", entry.use.removeprefix("Use it ").removesuffix("."))[0]
    arguments = ", ".join(f"`{text}`" for text in shown[:MOST]) + (", ..." if len(shown) > MOST else "") or "–"
    return f"| {mark}[{entry.name}](losses/{entry.name}.md){mark} | {use} | `{entry.text}` | {arguments} |"


def new_page(entry: Entry) -> str:
    """A page with all sections, the marks of the generated parts, and TODO for what is written by hand."""
    return f"""# {entry.name}

<!-- facts -->
<!-- end -->

## Formula

$$TODO$$

## Curves

![Curves of {entry.name}](images/{entry.name}.svg)

## Defaults

<!-- arguments -->
<!-- end -->

## Example

TODO: a session that shows a value

## When to use it

TODO

## Differences from the published code

TODO
"""


def write_parts(page: str, parts: dict[str, str]) -> str:
    """The page with each part between ``<!-- name -->`` and ``<!-- end -->``."""
    for name, text in parts.items():
        place = re.compile(rf"<!-- {name} -->\n.*?<!-- end -->", flags=re.DOTALL)
        if len(place.findall(page)) != 1:
            raise ValueError(f"the page must have one part <!-- {name} -->, got {len(place.findall(page))}; mark it")
        filled = f"<!-- {name} -->\n{text}\n<!-- end -->"
        page = place.sub(lambda _, filled=filled: filled, page)
    return page


def main() -> None:
    """Write all generated parts and figures."""
    from equipoise.plotting.loss_figures import figure_of  # matplotlib is slow to import and not needed by tests
    from equipoise.plotting.panels import draw
    from equipoise.plotting.rendering import svg_file

    (FOLDER / "images").mkdir(exist_ok=True)
    for entry in CATALOGUE:
        page = page_of(entry)
        parts = {"facts": facts(entry), "arguments": arguments(entry)}
        text = page.read_text("utf-8") if page.is_file() else new_page(entry)
        page.write_text(write_parts(text, parts), encoding="utf-8")
        figure = figure_of(entry)
        svg = svg_file(draw(figure), figure.description)
        (FOLDER / "images" / f"{entry.name}.svg").write_text(svg, encoding="utf-8")
    CHEAT_SHEET.write_text(cheat_sheet(), encoding="utf-8")
    index = FOLDER / "index.md"
    index.write_text(write_parts(index.read_text("utf-8"), index_tables()), encoding="utf-8")


if __name__ == "__main__":
    main()
