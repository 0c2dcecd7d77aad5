"""The Python in the README and in the documentation runs, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_code_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some of it writes files
    before = "import equipoise\n" if "import equipoise" not in block else ""
    exec(compile(before + block, "a page", "exec"), {})


def test_there_is_code():
    assert sum("README" in block.id for block in BLOCKS) == 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_images_exist(page):
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (page.parent / target).exists()] == []
