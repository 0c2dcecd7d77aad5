"""How text files of users are encoded: in UTF-8, or in UTF-16 that says so. Anything else is named, never guessed."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Any

__all__ = ["LONGEST_HEADER", "SAVE_AS_UTF8", "encoding_of", "header_of", "no_text", "read_options"]

LONGEST_HEADER = 2**26
"""Characters of the first line that are looked at."""

SAVE_AS_UTF8 = "save it as UTF-8, which spreadsheets offer as CSV UTF-8"
"""What to do about a file that is none."""


def encoding_of(file: Path) -> str:
    """``"utf-16"`` where a file begins with the mark of it, otherwise ``"utf-8-sig"``, UTF-8 with or without a mark."""
    with file.open("rb") as opened:
        start = opened.read(2)
    return "utf-16" if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"


def header_of(file: Path) -> str:
    """The first line of a CSV file."""
    with file.open(encoding=encoding_of(file), errors="replace") as opened:
        return opened.readline(LONGEST_HEADER)


def read_options(arrow: Any, file: Path, header: str, delimiter: str = ",") -> Any:  # noqa: ANN401  (pyarrow has no types)
    """Options of pyarrow for a CSV file with this header.

    Names of columns lose the blanks around them, as people write them behind commas. Every column costs time in every
    block, and a row must fit into one, so blocks grow with the header.
    """
    names = header.rstrip("\r\n").split(delimiter)
    trimmed = [name.strip() for name in names]
    rename = trimmed != names and '"' not in header and header.endswith("\n")
    return arrow.csv.ReadOptions(
        encoding=encoding_of(file).removesuffix("-sig"),  # a mark of UTF-8 it knows itself
        block_size=max(2**20, min(64 * len(header), 2**30)),
        **({"column_names": trimmed, "skip_rows": 1} if rename else {}),
    )


def no_text(file: Path) -> str | None:
    """What in a file is no text in its encoding, in words; None where all of it is."""
    encoding = encoding_of(file)
    try:
        if encoding == "utf-16":
            file.read_text(encoding=encoding)
            return None
        with file.open("rb") as opened:
            for number, line in enumerate(opened, start=1):
                if b"\0" in line:
                    return f"a zero byte in line {number}, as in UTF-16 without its mark"
                line.decode("utf-8")
    except UnicodeDecodeError as error:
        if encoding == "utf-16":
            return f"something else in it ({error.reason})"
        return f"the byte 0x{error.object[error.start]:02x} in line {number}, as in Latin-1 or Windows-1252"
    return None
