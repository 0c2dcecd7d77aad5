"""Pages that live elsewhere in the repository, and links that lead to the same place there and on the site."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from website.docstrings import as_markdown

__all__ = ["DOCS", "ROOT", "Elsewhere", "elsewhere", "rewrite_links"]

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"

# Code is shown, everything else is copied.
_CODE = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".sh": "bash", ".toml": "toml"}
_AS_PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
# Code stays as it is; group 2 is the target of a link or an image.
_LINK = re.compile(r"(```.*?```|~~~.*?~~~|`[^`\n]+`)|(?<=\]\()([^)\s]+)", re.DOTALL)


@dataclass(frozen=True)
class Elsewhere:
    """A file that is no page of docs/ and that the site shows.

    Args:
        source: the file.
        uri: its place among the sources of the site.
        content: what is written there; None to copy the file.
    """

    source: Path
    uri: str
    content: str | None

    @property
    def is_code(self) -> bool:
        """Whether it is shown as code."""
        return self.source.suffix in _CODE


def _place(source: Path) -> str:
    inside = source.relative_to(DOCS if source.is_relative_to(DOCS) else ROOT).as_posix()
    if inside in _AS_PAGES:
        return _AS_PAGES[inside]
    if source.name == "README.md":
        return inside.replace("README.md", "index.md")
    return f"{inside}.md" if source.suffix in _CODE else inside


def _code_page(source: Path) -> str:
    """A file of code under its name; what a script says of itself stands above the code."""
    text, said = source.read_text(encoding="utf-8").rstrip(), ""
    if source.suffix == ".py" and (docstring := ast.get_docstring(ast.parse(text))):
        said = f"{as_markdown(docstring)}\n\n"
        text = text.split('"""', 2)[2].lstrip()
    return f"# {source.name}\n\n{said}```{_CODE[source.suffix]}\n{text}\n```\n"


def _shown(source: Path) -> Elsewhere:
    if source.suffix == ".md":
        return Elsewhere(source, _place(source), source.read_text(encoding="utf-8"))
    return Elsewhere(source, _place(source), _code_page(source) if source.suffix in _CODE else None)


def _targets(page: Path) -> list[Path]:
    """The files that a page links to."""
    links = [found[2] for found in _LINK.finditer(page.read_text(encoding="utf-8")) if found[2]]
    files = [(page.parent / link.partition("#")[0]).resolve() for link in links if "://" not in link and link[0] != "#"]
    return [file for file in files if file.is_file()]


def elsewhere() -> dict[Path, Elsewhere]:
    """Pages of the root, all examples, and whatever a page links to that mkdocs would not find in docs/."""
    waiting = [ROOT / name for name in _AS_PAGES]
    waiting += [path for path in sorted((ROOT / "examples").glob("*")) if path.suffix in (".md", ".py")]
    for page in sorted(DOCS.rglob("*.md")):
        waiting += _targets(page)
    found: dict[Path, Elsewhere] = {}
    while waiting:
        source = waiting.pop(0)
        known = source in found or (source.is_relative_to(DOCS) and source.suffix not in _CODE)
        if known or not source.is_relative_to(ROOT) or source.name == "__init__.py":
            continue
        found[source] = _shown(source)
        if source.suffix == ".md":
            waiting += _targets(source)
    return found


def rewrite_links(markdown: str, source: Path, uri: str, place_of: Callable[[Path], str | None]) -> str:
    """Links of a page, written for its place in the repository, as its place on the site needs them.

    Args:
        markdown: the page.
        source: the file it comes from.
        uri: its place among the sources of the site.
        place_of: the same for any file, None for what the site does not show.
    """

    def rewritten(found: re.Match[str]) -> str:
        if found[1] or "://" in found[2] or found[2].startswith(("#", "mailto:")):
            return found[0]
        path, _, anchor = found[2].partition("#")
        place = place_of((source.parent / path).resolve())
        if place is None:
            return found[0]  # mkdocs reports it
        relative = os.path.relpath(place, PurePosixPath(uri).parent.as_posix()).replace(os.sep, "/")
        return f"{relative}#{anchor}" if anchor else relative

    return _LINK.sub(rewritten, markdown)
