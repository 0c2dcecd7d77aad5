"""What makes the site of README, docs and docstrings."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.pages import ROOT
from website.docstrings import as_markdown
from website.formulas import as_mathml, draw_formulas
from website.pages import rewrite_links
from website.screenshots import PAGES, main, readme_page
from website.tables import keep_spreads, let_code_break


def test_hooks_are_found_from_anywhere(tmp_path):
    """As ``mkdocs build`` loads them: by their file, with no folder of the project to import from."""
    code = "import runpy, sys; runpy.run_path(sys.argv[1])"
    hooks = str(ROOT / "website" / "hooks.py")
    ran = subprocess.run([sys.executable, "-I", "-c", code, hooks], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_docstrings_become_markdown():
    text = "\n".join(
        [
            r"Loss :math:`-\log p_y`, see :func:`~equipoise.calibration.fit_temperature` and :meth:`nowhere`.",
            "",
            ".. math::",
            r"    a = b",
            r"        + c",
            "",
            "Shape: (N, C).",
            "",
            ">>> 1 +\\",
            "... 1",
            "2",
            "",
            "End.",
        ]
    )
    assert as_markdown(text).splitlines() == [
        r"Loss $-\log p_y$, see [`fit_temperature`][equipoise.calibration.fit_temperature] and `nowhere`.",
        "",
        "$$a = b + c$$",
        "",
        "**Shape:** (N, C).",
        "",
        "```pycon",
        ">>> 1 +\\",
        "... 1",
        "2",
        "```",
        "",
        "End.",
    ]


def test_formulas_become_mathml():
    assert as_mathml("p_y").startswith("<math")
    assert "<msub><mi>p</mi><mi>y</mi></msub>" in as_mathml("p_y")
    thin, log = '<mspace width="0.1667em"></mspace>', "<mi>log</mi>"
    assert f"<mi>t</mi>{thin}{log}{thin}<mi>p</mi>" in as_mathml(r"t \log p")
    assert f"<mo>&#x02212;</mo>{log}<mo" in as_mathml(r"-\log(p)")
    with pytest.raises(ValueError, match=r"\\nosuch cannot be drawn"):
        as_mathml(r"\nosuch{x}")
    page = '<span class="arithmatex">\\(a &lt; b\\)</span> <div class="arithmatex">\\[a\\]</div>'
    drawn = draw_formulas(page)
    assert "&lt;" in drawn or "&#x0003C;" in drawn
    assert drawn.count("<math") == 2
    assert "arithmatex" not in drawn


def test_links_follow_their_page():
    places = {ROOT / "docs/a.md": "a.md", ROOT / "x.json": "x.json"}
    text = "[a](docs/a.md#b) ![](x.json) [c](#d) [e](https://e.org) `[f](docs/a.md)` [g](nowhere.md)"
    message = rewrite_links(text, ROOT / "README.md", "deep/index.md", places.get)
    assert message == "[a](../a.md#b) ![](../x.json) [c](#d) [e](https://e.org) `[f](docs/a.md)` [g](nowhere.md)"


def test_code_in_tables_breaks_at_signs():
    text = let_code_break(
        "<p><code>a.b(c=d, e=f.g.h)</code></p><td><code>a.b(c=d, e=f.g.hi)</code> <code>a.b</code></td>"
    )
    assert text == (
        "<p><code>a.b(c=d, e=f.g.h)</code></p>"
        "<td><code>a.<wbr>b(<wbr>c=<wbr>d, e=<wbr>f.<wbr>g.<wbr>hi)</code> <code>a.b</code></td>"
    )


def test_a_mean_stays_with_its_spread_in_tables():
    page = keep_spreads("<p>1.5 ± 0.2</p><td>87.1 ± 2.0 ▲ a ± b</td>")
    assert page == "<p>1.5 ± 0.2</p><td>87.1\u00a0±\u00a02.0 ▲ a ± b</td>"


def test_screenshots_are_of_pages_that_exist():
    for name, page in PAGES.items():
        if name != "readme":
            sources = [ROOT / page, ROOT / "docs" / page.replace(".html", ".md")]
            assert any(source.exists() for source in sources), page


def test_the_readme_is_rendered_with_its_figure_and_tables():
    page = readme_page()
    assert 'srcset="docs/images/rare-classes-dark.svg"' in page
    assert page.count("<table>") == 1
    assert "<code>make demo" in page
    assert not re.search(r"^(#|\||```)", page.partition("<body>")[2], re.MULTILINE)


def test_an_unknown_screenshot_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["screenshots", "nowhere"])
    with pytest.raises(SystemExit):
        main()
    assert "names must be among readme, home" in capsys.readouterr().err
