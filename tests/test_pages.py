"""The Python in the README and in the documentation runs, and their links lead somewhere."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, block in enumerate(
        re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    )
    if not block.startswith(">>>")
]
SESSIONS = [page for page in PAGES if "\n>>> " in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("block", BLOCKS)
def test_code_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some of it writes files
    before = "import equipoise\n" if "import equipoise" not in block else ""
    exec(compile(before + block, "a page", "exec"), {})


@pytest.mark.parametrize("page", SESSIONS, ids=lambda page: page.name)
def test_sessions_say_what_the_page_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8").replace("```", "")
    session = doctest.DocTestParser().get_doctest(text, {}, page.name, None, 0)
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert runner.run(session, out=said.append).failed == 0, "".join(said)


def test_there_is_code():
    assert sum("README" in block.id for block in BLOCKS) == 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_images_exist(page):
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []
