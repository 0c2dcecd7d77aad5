"""A page in a real browser: what it shows, says and loads."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--virtual-time-budget=3000",
    "--enable-logging=stderr",
)


@dataclass(frozen=True)
class Visit:
    """The page after its scripts ran, what it wrote to the console, and the addresses that it asked for."""

    dom: str
    console: list[str]
    requests: list[str]


def find_browser() -> str:
    """The browser; skips the test without one, or fails if one is required."""
    for name in NAMES:
        path = shutil.which(name)
        if path:
            return path
    reason = f"no browser: none of {', '.join(NAMES)} is installed"
    if os.environ.get("EQUIPOISE_REQUIRE_BROWSER"):
        pytest.fail(reason)
    pytest.skip(reason)


def visit(page: Path | str, folder: Path, *options: str) -> Visit:
    """Open a file or an address; ``folder`` is for what the browser writes."""
    log = folder / "net.json"
    profile = folder / "profile"
    command = [find_browser(), *OPTIONS, f"--user-data-dir={profile}", f"--log-net-log={log}", *options, "--dump-dom"]
    address = page if isinstance(page, str) else page.as_uri()
    ran = subprocess.run([*command, address], capture_output=True, text=True, timeout=120, check=True)
    shutil.rmtree(profile, ignore_errors=True)
    console = re.findall(r":CONSOLE[^\]]*\] (.*)", ran.stderr)
    return Visit(ran.stdout, console, _requests(json.loads(log.read_text(encoding="utf-8"))))


def _requests(log: dict) -> list[str]:
    """Addresses that a page asked for; requests of the browser itself come from no page."""
    start = log["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    started = [event.get("params", {}) for event in log["events"] if event["type"] == start]
    return [params["url"] for params in started if params.get("initiator", "not an origin") != "not an origin"]


PROBE = """<script>
const size = e => { const r = e.getBoundingClientRect(); return [r.width, r.height]; };
const style = e => getComputedStyle(e);
parent.postMessage(JSON.stringify({
  width: innerWidth,
  needed: document.documentElement.scrollWidth,
  figures: [...document.querySelectorAll("figure svg")].map(e => [e.getAttribute("aria-label"), ...size(e)]),
  firstCells: [...document.querySelectorAll("td:first-child")].map(e => size(e)[0]).filter(w => w > 0),
  colours: [style(document.body).color, style(document.querySelector("figure svg text")).fill],
  paper: style(document.body).backgroundColor,
  ids: [...document.querySelectorAll("[id]")].map(e => e.id),
  tables: [...document.querySelectorAll(".scroll")].map(e => [e.clientWidth, e.scrollWidth]),
  lost: [...document.querySelectorAll("use")].filter(e => !document.querySelector(e.getAttribute("xlink:href"))).length,
}), "*");
</script>"""
FRAME = """<!doctype html><title></title>
<script>onmessage = event => { document.title = event.data; };</script>
<iframe src="measured.html" style="width:%dpx;height:2000px;border:0"></iframe>"""


def measure(page: Path, folder: Path, width: int, *options: str) -> dict:
    """Layout of the page by the browser in a frame of that width: pixels and colours, told by a script in a copy."""
    (folder / "measured.html").write_text(
        page.read_text(encoding="utf-8").replace("</body>", PROBE + "</body>"), encoding="utf-8"
    )
    (folder / "frame.html").write_text(FRAME % width, encoding="utf-8")
    seen = visit(folder / "frame.html", folder, *options)
    title = re.search(r"<title>(.*?)</title>", seen.dom, re.DOTALL)
    return json.loads(html.unescape(title.group(1)))
