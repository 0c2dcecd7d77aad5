"""The README's Python runs, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_code_runs(number):
    before = "import equipoise\n" if "import equipoise" not in BLOCKS[number] else ""
    exec(compile(before + BLOCKS[number], f"README block {number}", "exec"), {})


def test_there_is_code():
    assert len(BLOCKS) == 3


def test_links_and_images_exist():
    targets = [target for target in re.findall(r"\]\(([^)]+)\)", TEXT) if "://" not in target]
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []
