"""The site: it builds without a warning, shows every public name and formula, and loads nothing from the network."""

from __future__ import annotations

import functools
import http.server
import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import equipoise
import equipoise.integrations
from tests.pages import PAGES, ROOT, anchors
from tests.report.browser import visit
from website.reference import public_path

pytestmark = pytest.mark.slow

LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "embed": "src", "object": "data"}
LOADING_LINKS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload", "manifest"}


@dataclass
class Built(HTMLParser):
    """A page of the site, read once."""

    path: Path
    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    prose: list[str] = field(default_factory=list)
    inside: list[str] = field(default_factory=list)

    def __post_init__(self):
        super().__init__()
        self.text = self.path.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append(tag)
        if tag not in ("meta", "link", "input", "img", "br", "hr", "source", "path", "wbr", "area", "base", "col"):
            self.inside.append(tag)
        self.ids |= {given[key] for key in ("id", "name") if given.get(key)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag in LOADING and given.get(LOADING[tag]):
            self.loaded.append(given[LOADING[tag]])
        if tag == "link" and LOADING_LINKS & set((given.get("rel") or "").split()):
            self.loaded.append(given["href"])

    def handle_endtag(self, tag):
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data):
        if not {"code", "pre", "script", "style", "title"} & set(self.inside) and "article" in self.inside:
            self.prose.append(data)


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    built = build(folder)
    assert built.returncode == 0, built.stdout + built.stderr
    assert "WARNING" not in built.stdout + built.stderr
    return folder


@pytest.fixture(scope="module")
def built(site):
    return {path.relative_to(site).as_posix(): Built(path) for path in sorted(site.rglob("*.html"))}


def test_the_build_sees_its_warnings():
    """mkdocs takes ``--quiet`` to mean that ``--strict`` shall see none."""
    (command,) = re.findall(r"mkdocs build.*", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert command == "mkdocs build --strict"
    assert "make docs" in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def test_every_page_is_there(built):
    """With its headings, under the anchors that GitHub gives them."""
    for page in PAGES:
        if page == ROOT / "README.md":  # the site has a landing page of its own
            continue
        inside = page.relative_to(ROOT / "docs" if page.is_relative_to(ROOT / "docs") else ROOT).as_posix()
        names = {"CHANGELOG.md": "changelog.html", "CONTRIBUTING.md": "contributing.html"}
        name = names.get(inside) or inside.replace("README.md", "index.md").replace(".md", ".html")
        lost = {re.sub(r"-(\d+)$", r"_\1", anchor) for anchor in anchors(page)} - built[name].ids
        assert {anchor for anchor in lost if anchor.replace("_", "-") not in built[name].ids} == set(), name


def test_every_public_name_is_in_the_reference(built):
    shown = set().union(*(page.ids for name, page in built.items() if name.startswith("reference/")))
    modules = [name for _, name, _ in pkgutil.iter_modules(equipoise.__path__) if name[0] != "_" and name != "cli"]
    modules += [f"integrations.{name}" for _, name, _ in pkgutil.iter_modules(equipoise.integrations.__path__)]
    promised = {
        f"equipoise.{module}.{name}"
        for module in modules
        for name in getattr(importlib.import_module(f"equipoise.{module}"), "__all__", [])
    }
    assert len(promised) > 200
    assert "equipoise.integrations.lightning.LossSchedule" in promised
    whole = "doc doc-object doc-module"  # a module with all that is in it, where a name was meant
    assert {name: page.text.count(whole) for name, page in built.items() if page.text.count(whole) > 2} == {}
    assert promised - shown == set()
    own = {name for name in equipoise.__all__ if name not in modules and name != "__version__"}
    assert {name for name in own if public_path(name) is None} == {"load_exported"}
    assert "equipoise.load_exported" in shown


def test_nothing_comes_from_the_network(site, built):
    assert {
        address for page in built.values() for address in page.loaded if "://" in address or address.startswith("//")
    } == set()
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet
    # the theme's script would fetch these two where a page has them
    for name, page in built.items():
        assert 'class="mermaid"' not in page.text, name
        assert 'class="arithmatex"' not in page.text, name


def test_links_lead_somewhere(site, built):
    lost = []
    for name, page in built.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or name == "404.html":
                continue
            target = ((site / name).parent / unquote(parts.path)).resolve() if parts.path else site / name
            target = target / "index.html" if target.is_dir() else target
            where = target.relative_to(site).as_posix()
            if not target.exists() or (parts.fragment and unquote(parts.fragment) not in built[where].ids):
                lost.append((name, link))
    assert lost == []


def test_markup_is_understood(built):
    """Nothing of Markdown, Sphinx or TeX reaches the reader unconverted."""
    sphinx = r":(math|class|func|meth|data):|\.\. math|``|^ *(Args|Raises|Shape|Returns):\s+\S"
    markdown = r"^>>> |^\|.*\|$|\S\n+ *([-*] |\d\. )|\]\("
    left = re.compile(rf"{sphinx}|{markdown}|\\[a-zA-Z]{{2,}}", re.MULTILINE)
    assert [(name, text) for name, page in built.items() for text in page.prose if left.search(text)] == []


def test_formulas_are_drawn(built):
    source = (ROOT / "src" / "equipoise" / "losses" / "named.py").read_text(encoding="utf-8")
    assert built["reference/losses.html"].tags.count("math") >= source.count(":math:")


@pytest.fixture(scope="module")
def address(site):
    """The site behind a server: a browser searches no files."""
    handler = functools.partial(QuietHandler, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_the_search_knows_the_losses(site):
    known = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    titles = " ".join(entry["title"] for entry in known)
    assert [name for name in equipoise.__all__ if name.endswith("Loss") and name not in titles] == []


@pytest.mark.parametrize("page", ["index.html", "reference/losses.html"])
def test_in_a_browser(page, address, tmp_path):
    """Everything comes from the site itself, and no script fails."""
    seen = visit(f"{address}/{page}", tmp_path, "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
    assert [line for line in seen.console if "error" in line.lower()] == []
    assert [asked for asked in seen.requests if not asked.startswith((address, "data:", "blob:"))] == []
    assert any(asked.startswith(address) for asked in seen.requests)
