"""What stands in a page."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np


class Reader(HTMLParser):
    """Elements, and the words between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.words.append(data.strip())


def labels(reader):
    """What the figures are said to show."""
    return [
        attributes["aria-label"] for tag, attributes in reader.tags if tag == "svg" and "aria-hidden" not in attributes
    ]


def brightness(colour):
    return np.mean([int(part) for part in re.findall(r"\d+", colour)])
