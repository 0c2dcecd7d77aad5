"""Pictures of README, site and reports, to look at before a release: ``python -m website.screenshots [NAME ...]``.

Builds the site, serves it from this machine, and lets Chromium draw each page light and dark, 1400 and 390 pixels wide
and at its full height, and as a PDF. ``make screenshots`` writes all pages into ``screenshots/``.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import markdown

__all__ = ["PAGES", "main", "readme_page"]

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "readme": "readme.html",
    "home": "index.html",
    "losses": "losses/index.html",
    "loss": "losses/RecallLoss.html",
    "cheat-sheet": "cheat-sheet.html",
    "which-loss": "which-loss.html",
    "how-to-read": "report.html",
    "statistics": "statistics.html",
    "performance": "performance.html",
    "experiments": "experiments.html",
    "report-losses": "experiments/reports/digits_lt.html",
    "report-methods": "experiments/reports/digits_lt_methods.html",
    "report-multi-label": "experiments/reports/coco18.html",
    "report-segmentation": "experiments/reports/camvid.html",
}
"""Pages by the names of their pictures."""
WIDTHS = (1400, 390)
SCHEMES = {"light": "1", "dark": "0"}
"""Colour schemes, and what Chromium calls them."""
TALLEST = 16_000
"""Maximum height of a picture, which Chromium's own limit requires."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--no-first-run", "--hide-scrollbars", "--virtual-time-budget=4000"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
FRAME = """<!doctype html><title></title>
<iframe src="/%s" style="width:%dpx;height:600px;border:0"></iframe>
<script>onload = () => setTimeout(() => {
  document.title = document.querySelector("iframe").contentDocument.documentElement.scrollHeight; }, 1500);</script>"""
STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:860px;margin:0 auto;padding:24px}
body{color:#1f2328;background:#fff}img{max-width:100%}
a{color:#0969da}code{font:85% ui-monospace,monospace;background:#818b981f;padding:.2em .4em;border-radius:6px}
pre{background:#f6f8fa;padding:16px;overflow:auto;border-radius:6px}pre code{background:none;padding:0}
table{border-collapse:collapse;display:block;overflow:auto}td,th{border:1px solid #d1d9e0;padding:6px 13px}
h1,h2{border-bottom:1px solid #d1d9e0b3;padding-bottom:.3em}
@media(prefers-color-scheme:dark){body{color:#f0f6fc;background:#0d1117}a{color:#4493f8}pre{background:#151b23}}"""


def readme_page() -> str:
    """The README as HTML, close to how GitHub shows it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    body = markdown.markdown(text, extensions=["tables", "fenced_code", "sane_lists"])
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
    return f"<!doctype html><html><head><title>README</title>{head}</head><body>{body}</body></html>"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Requests are not printed."""


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    handler = functools.partial(_Quiet, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _browser() -> str:
    for name in BROWSERS:
        if path := shutil.which(name):
            return path
    raise SystemExit(f"no browser: none of {', '.join(BROWSERS)} is installed")


def _open(address: str, *options: str) -> str:
    """Open an address in a fresh browser; what it prints."""
    with tempfile.TemporaryDirectory() as profile:
        command = [_browser(), *OPTIONS, f"--user-data-dir={profile}", *options, address]
        return subprocess.run(command, capture_output=True, text=True, timeout=180, check=True).stdout


def _height(site: Path, address: str, page: str, width: int) -> int:
    """Height of a page of that width."""
    (site / "frame.html").write_text(FRAME % (page, width), encoding="utf-8")
    found = re.search(r"<title>(\d+)</title>", _open(f"{address}/frame.html", "--dump-dom"))
    return min(int(found[1]) if found else TALLEST, TALLEST)


def _build(site: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True)
    (site / "readme.html").write_text(readme_page(), encoding="utf-8")
    shutil.copytree(ROOT / "docs" / "images", site / "docs" / "images", dirs_exist_ok=True)


def main() -> None:
    """Draw the pages."""
    parser = argparse.ArgumentParser(prog="python -m website.screenshots", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"pages, of {', '.join(PAGES)} (all)")
    parser.add_argument("--out", type=Path, default=Path("screenshots"), help="folder (screenshots)")
    options = parser.parse_args()
    if unknown := set(options.names) - set(PAGES):
        parser.error(f"names must be among {', '.join(PAGES)}, got {', '.join(sorted(unknown))}")
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder)
        _build(site)
        with _served(site) as address:
            for name in options.names or PAGES:
                _draw(site, address, name, options.out.resolve())
                print(f"{options.out / name}-*")


def _draw(site: Path, address: str, name: str, out: Path) -> None:
    page = PAGES[name]
    for width in WIDTHS:
        size = f"--window-size={width},{_height(site, address, page, width)}"
        for scheme, code in SCHEMES.items():
            picture = f"--screenshot={out / f'{name}-{scheme}-{width}.png'}"
            _open(f"{address}/{page}", size, f"--blink-settings=preferredColorScheme={code}", picture)
    _open(f"{address}/{page}", "--no-pdf-header-footer", f"--print-to-pdf={out / f'{name}.pdf'}")


if __name__ == "__main__":
    main()
