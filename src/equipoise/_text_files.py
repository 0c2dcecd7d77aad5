"""Encoding of text files: UTF-8, or UTF-16 with a byte order mark. Anything else is an error, never guessed."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Any

__all__ = ["LONGEST_HEADER", "SAVE_AS_UTF8", "encoding_of", "header_of", "no_text", "read_options"]

LONGEST_HEADER = 2**26
"""Maximum number of characters of the first line to inspect."""

SAVE_AS_UTF8 = "save it as UTF-8, which spreadsheets offer as CSV UTF-8"
"""Advice for a file with another encoding."""


def encoding_of(file: Path) -> str:
    """``"utf-16"`` if a file begins with its byte order mark, otherwise ``"utf-8-sig"``, UTF-8 with or without one."""
    with file.open("rb") as opened:
        start = opened.read(2)
    return "utf-16" if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"


def header_of(file: Path) -> str:
    """The first line of a CSV file."""
    with file.open(encoding=encoding_of(file), errors="replace") as opened:
        return opened.readline(LONGEST_HEADER)


def read_options(arrow: Any, file: Path, header: str, delimiter: str = ",") -> Any:  # noqa: ANN401  (pyarrow has no types)
    """Options of pyarrow for a CSV file with this header.

    Blanks around the names of columns are removed. Every column costs time in every block, and a row must fit into a
    block, so the block size grows with the header.
    """
    names = header.rstrip("\r\n").split(delimiter)
    trimmed = [name.strip() for name in names]
    rename = trimmed != names and '"' not in header and header.endswith("\n")
    return arrow.csv.ReadOptions(
        encoding=encoding_of(file).removesuffix("-sig"),  # pyarrow handles the mark of UTF-8
        block_size=max(2**20, min(64 * len(header), 2**30)),
        **({"column_names": trimmed, "skip_rows": 1} if rename else {}),
    )


def no_text(file: Path) -> str | None:
    """Description of the first invalid byte in a file, None if it is valid."""
    encoding = encoding_of(file)
    try:
        if encoding == "utf-16":
            file.read_text(encoding=encoding)
            return None
        with file.open("rb") as opened:
            for number, line in enumerate(opened, start=1):
                if b"\0" in line:
                    return f"a zero byte in line {number}, as in UTF-16 without a byte order mark"
                line.decode("utf-8")
    except UnicodeDecodeError as error:
        if encoding == "utf-16":
            return f"something else in it ({error.reason})"
        return f"the byte 0x{error.object[error.start]:02x} in line {number}, as in Latin-1 or Windows-1252"
    return None
