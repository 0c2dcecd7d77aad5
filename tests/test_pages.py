"""The code in the README and in the documentation runs, its commands exist, and its links lead somewhere."""

from __future__ import annotations

import doctest
import importlib.util
import re
import shlex
from urllib.parse import urlsplit

import pytest
import typer

from equipoise.cli.app import app
from equipoise.expressions import list_losses
from equipoise.train.rows import expand_rows
from tests.pages import PAGES, ROOT, anchors, blocks, commands, links, short, text_of

BLOCKS = [block for page in PAGES for block in blocks(page)]
PYTHON = [block for block in BLOCKS if block.language == "python" and not block.code.startswith(">>>")]
SESSIONS = [page for page in PAGES if any(block.code.startswith(">>>") for block in blocks(page))]
each_page = pytest.mark.parametrize("page", PAGES, ids=short)


def as_case(block):
    marks = [pytest.mark.skip(reason=f"the page says: {block.waived}")] if block.waived else []
    return pytest.param(block, id=block.name, marks=marks)


@pytest.mark.filterwarnings("error::equipoise.calibration.CalibrationWarning")
@pytest.mark.parametrize("block", [as_case(block) for block in PYTHON])
def test_code_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some of it writes files
    before = "import equipoise\n" if "import equipoise" not in block.code else ""
    exec(compile(before + block.code, block.name, "exec"), {"__name__": "a page"})


@pytest.mark.parametrize("page", SESSIONS, ids=short)
def test_sessions_say_what_the_page_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "\n\n".join(block.code for block in blocks(page) if block.code.startswith(">>>"))
    session = doctest.DocTestParser().get_doctest(text, {}, page.name, None, 0)
    lines: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert runner.run(session, out=lines.append).failed == 0, "".join(lines)


def test_there_is_code():
    assert sum(block.page.name == "README.md" and block.page.parent == ROOT for block in PYTHON) >= 2
    assert SESSIONS


@each_page
def test_every_block_names_its_language(page):
    """Without one a block of Python would be neither coloured nor run."""
    known = {"python", "bash", "console", "text", "yaml", "json", "toml", "csv", "math", "bibtex", "html"}
    assert {block.language for block in blocks(page)} <= known


def test_a_block_that_is_not_run_says_why():
    assert [block.name for block in BLOCKS if block.waived and len(block.waived.split()) < 3] == []


# ---------------------------------------------------------------------------------------------------------------------
# Commands
# ---------------------------------------------------------------------------------------------------------------------

TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
EXTRAS = set(
    re.findall(
        r"^(\w+) = \[",
        (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("[project.optional-dependencies]")[2],
        flags=re.MULTILINE,
    )
)


GROUP = typer.main.get_command(app)


def check_command(words):
    """Raises where a command, a flag, a target, a module or an extra does not exist; nothing is run."""
    match words:
        case ["equipoise", flag] if flag.startswith("--"):
            GROUP.make_parser(typer.Context(GROUP)).parse_args([flag])
        case ["equipoise", *arguments]:
            _, command, arguments = GROUP.resolve_command(typer.Context(GROUP), arguments)
            # a sentence may end with a flag and leave its value out
            values, _, _ = command.make_parser(typer.Context(command)).parse_args([*arguments, "value"])
            for text in list_losses(values.get("loss") or values.get("losses") or ""):
                assert expand_rows(text)
        case ["make", *targets]:
            assert {target for target in targets if "=" not in target} <= TARGETS
        case ["python", "-m", module, *_]:
            assert importlib.util.find_spec(module), module
        case ["pip", "install", *what]:
            for extras in re.findall(r"\[([\w,]+)\]", " ".join(what)):
                assert set(extras.split(",")) <= EXTRAS, extras


@each_page
def test_commands_exist_with_their_flags(page):
    for command in commands(page):
        check_command(shlex.split(command, comments=True))


@pytest.mark.parametrize(
    "command",
    [
        "equipoise trian --data x",
        "equipoise train --data x --los ce",
        "equipoise compare --data x --losses 'ce focla'",
        "make tset",
        "python -m experiments.records",
        "pip install 'equipoise[trian]'",
    ],
)
def test_a_command_that_does_not_exist_is_found(command):
    with pytest.raises((Exception, SystemExit)):
        check_command(shlex.split(command))


# ---------------------------------------------------------------------------------------------------------------------
# Links
# ---------------------------------------------------------------------------------------------------------------------


@each_page
def test_links_and_images_exist(page):
    lost = []
    for link in links(page):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        is_page = target.suffix == ".md"  # the anchor of a picture chooses between light and dark
        if not target.exists() or (anchor and is_page and anchor not in anchors(target)):
            lost.append(link)
    assert lost == []


@each_page
def test_addresses_are_well_formed(page):
    """They are not visited: a test that needs the network says little about the page."""
    addresses = [link for link in links(page) if "://" in link]
    addresses += re.findall(r"(?<!\()https?://[^\s)>\"'`]+", text_of(page))
    for address in addresses:
        parts = urlsplit(address)
        assert parts.scheme == "https", address
        assert re.fullmatch(r"[\w-]+(\.[\w-]+)+", parts.netloc), address
