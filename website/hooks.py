"""What mkdocs calls while it builds the site."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # ``mkdocs build`` does not, ``python -m mkdocs`` does

from docs.loss_groups import GROUPS
from website import commands, formulas, pages, reference, tables

__all__ = ["on_config", "on_files", "on_page_content", "on_page_markdown"]

_HIDDEN = {"cheat-sheet.md": ["navigation", "toc"], "experiments.md": ["toc"]}
"""What pages with wide tables leave out."""
_EXTRA = "elsewhere"  # where the pages from outside docs/ are kept between the events


def _in_folder(folder: str) -> list[str]:
    """The pages of a folder, its own page and that of the commands first."""
    inside = [path.relative_to(pages.DOCS).as_posix() for path in (pages.DOCS / folder).glob("*.md")]
    others = [one for one in pages.elsewhere().values() if one.uri.startswith(folder) and one.uri.endswith(".md")]
    inside += [one.uri for one in others if folder == "examples/" or not one.is_code]
    if folder == "reference/":
        inside += ["reference/index.md", "reference/commands.md", *map(reference.uri_of, reference.public_modules())]
    return sorted(inside, key=lambda uri: (not uri.endswith("/index.md"), not uri.endswith("/commands.md"), uri))


def _losses() -> list[Any]:
    """The pages of the losses by task, below their index."""
    return ["losses/index.md", *({one.short: [f"losses/{name}.md" for name in one.losses]} for one in GROUPS)]


def _filled(nav: Any) -> Any:  # noqa: ANN401
    """The navigation with ``folder/`` replaced by the pages of that folder, and by its pages alone inside a list."""
    if isinstance(nav, list):
        filled = [(entry, _filled(entry)) for entry in nav]
        return [one for entry, each in filled for one in (each if isinstance(entry, str) and entry != each else [each])]
    if isinstance(nav, dict):
        return {title: _filled(entry) for title, entry in nav.items()}
    return _losses() if nav == "losses/" else _in_folder(nav) if nav.endswith("/") else nav


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the folders of the navigation; those that are empty are left out."""
    config.nav = [entry for entry in _filled(config.nav) if not isinstance(entry, dict) or all(entry.values())]
    config.extra[_EXTRA] = pages.elsewhere()
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages of the root, examples, what pages link to, and the reference."""
    for one in config.extra[_EXTRA].values():
        if one.content is None:
            files.append(File.generated(config, one.uri, abs_src_path=str(one.source)))
        else:
            inclusion = InclusionLevel.NOT_IN_NAV  # or there: what is only linked to needs no place
            files.append(File.generated(config, one.uri, content=one.content, inclusion=inclusion))
    files.append(File.generated(config, "reference/index.md", content=reference.overview_page()))
    files.append(File.generated(config, "reference/commands.md", content=commands.commands_page()))
    for module, names in reference.public_modules().items():
        files.append(File.generated(config, reference.uri_of(module), content=reference.module_page(module, names)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links that are right in the repository become right on the site; a page alone in its tab gets the room beside."""
    if page.parent is None:
        page.meta.setdefault("hide", ["navigation", "toc"] if page.is_homepage else ["navigation"])
    page.meta.setdefault("hide", _HIDDEN.get(page.file.src_uri, []))
    uri = page.file.src_uri
    others: dict[Path, pages.Elsewhere] = config.extra[_EXTRA]
    origin = {one.uri: one.source for one in others.values()}.get(uri, pages.DOCS / uri)

    def place_of(target: Path) -> str | None:
        if target in others:
            return others[target].uri
        inside = target.is_relative_to(pages.DOCS) and target.relative_to(pages.DOCS).as_posix()
        return inside if inside and files.get_file_from_path(inside) else None

    return pages.rewrite_links(markdown, origin, uri, place_of)


def on_page_content(html: str, *, page: Page, **_: Any) -> str:  # noqa: ANN401
    """Draw the formulas, those of docstrings included, and let tables be narrow."""
    try:
        return tables.keep_spreads(tables.let_code_break(formulas.draw_formulas(html)))
    except Exception as error:
        raise ValueError(f"{page.file.src_uri}: {error}") from error
