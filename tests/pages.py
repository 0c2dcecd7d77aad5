"""README, docs and examples as readers meet them: their code blocks, commands, links and anchors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]

_FENCE = re.compile(r"(?P<before>[^\n]*)\n+(?P<indent> *)```(?P<language>\S*)[^\n]*\n(?P<code>.*?)\n? *```", re.DOTALL)
_WAIVER = re.compile(r"<!-- not run: (?P<reason>.+?) -->")
_LINK = re.compile(r"\]\(([^)\s]+)\)|<(?:img|a)\s[^>]*?(?:src|href)=\"([^\"]+)\"")
_HEADING = re.compile(r"^#+ +(.+?) *#*$", re.MULTILINE)
_COMMAND = re.compile(r"^(?: {4,}|\$ )?(?:\$ )?((?:equipoise|make|python -m|pip install) .+)$")


@dataclass(frozen=True)
class Block:
    """A fenced block and, if it is not run, the reason that is written above it."""

    page: Path
    number: int
    language: str
    code: str
    waived: str | None

    @property
    def name(self) -> str:
        return f"{short(self.page)}-{self.number}"


def short(page: Path) -> str:
    """The page as tests name it."""
    return page.relative_to(ROOT).with_suffix("").as_posix()


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    for number, fence in enumerate(_FENCE.finditer("\n" + text_of(page))):
        lines = [line.removeprefix(fence["indent"]) for line in fence["code"].splitlines()]
        waiver = _WAIVER.search(fence["before"])
        yield Block(page, number, fence["language"], "\n".join(lines), waiver and waiver["reason"])


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub(lambda fence: fence["before"] + "\n", "\n" + text_of(page))


def commands(page: Path) -> list[str]:
    """Commands in indented blocks and shell blocks, each on a line, and those of `equipoise` inside sentences."""
    shell = "\n".join(block.code for block in blocks(page) if block.language in ("bash", "console", "sh", "shell"))
    indented = "\n".join(line for line in prose(page).splitlines() if line.startswith("    "))
    lines = re.sub(r"\\\n\s*", "", f"{shell}\n{indented}").splitlines()
    commands_of_lines = [match[1] for line in lines if (match := _COMMAND.match(line))]
    sentences = re.sub(r"^ {4,}.*$", "", prose(page), flags=re.MULTILINE)
    return commands_of_lines + [" ".join(code.split()) for code in re.findall(r"`(equipoise [^`]+)`", sentences)]


def links(page: Path) -> list[str]:
    """Targets of links and images, outside code."""
    text = re.sub(r"`[^`\n]+`", "code", re.sub(r"^ {4,}.*$", "", prose(page), flags=re.MULTILINE))
    return [one or other for one, other in _LINK.findall(text)]


def anchors(page: Path) -> set[str]:
    """What can follow # in a link to the page, as GitHub makes it of the headings."""
    taken: set[str] = set()
    for heading in _HEADING.findall(prose(page)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        number = next((n for n in range(1, 99) if f"{slug}-{n}" not in taken), 0) if slug in taken else 0
        taken.add(f"{slug}-{number}" if number else slug)
    return taken
