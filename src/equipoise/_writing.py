"""How files are written: in a private folder beside their place, then to disk, then into place by one rename.

Nothing is written through a symbolic link, and nobody ever sees half of a file.
"""

from __future__ import annotations

import errno
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from equipoise._reading import InputError

try:
    import fcntl
except ImportError:  # not on this system: nothing is locked
    fcntl = None  # type: ignore[assignment]

__all__ = ["appearing", "check_place", "clear_drafts", "move", "no_empty_folders", "open_unlinked", "write_text"]

DRAFT = ".draft-"
"""Between the name of what is written and a random word, in the name of the folder it is written in."""


def check_place(path: Path) -> None:
    """Raise where no file can be written."""
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {str(path.parent)!r} must exist, found none; create it first")
    if path.is_dir():
        raise InputError(f"{path}: there is a folder of that name; remove it or choose another name")


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """Where to write a file or folder that becomes ``path`` when all is on disk, and vanishes when that fails.

    It lies in a new folder beside ``path`` with a random name that nobody else may enter: no link leads out of it. A
    process that is killed leaves that folder; :func:`clear_drafts` and the next writer of ``path`` remove it.
    """
    check_place(path)
    clear_drafts(path.parent, path.name)
    with _private_folder(path) as folder:
        draft = folder / path.name
        yield draft
        move(draft, path)


def write_text(path: Path, text: str) -> None:
    """Write text in UTF-8 so that a reader sees the old file or the new one, never half of it."""
    with appearing(path) as draft:
        draft.write_text(text, encoding="utf-8", errors="backslashreplace")


def move(source: Path, target: Path) -> None:
    """Rename a file or folder of the same disk once all of it is on disk; a file at ``target`` is replaced."""
    for path in [*source.rglob("*"), source] if source.is_dir() else [source]:
        _sync(path)
    source.replace(target)
    _sync(target.parent)


def clear_drafts(folder: Path, name: str | None = None) -> None:
    """Remove what killed writers of a file left in a folder, or of all files below it; live ones hold a lock."""
    drafts = folder.rglob(f".*{DRAFT}*") if name is None else folder.glob(f".{glob.escape(name)}{DRAFT}*")
    for draft in list(drafts):
        if fcntl is None or draft.is_symlink() or not draft.is_dir():
            continue
        with suppress(OSError):
            handle = os.open(draft, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(draft, ignore_errors=True)
            finally:
                os.close(handle)


@contextmanager
def no_empty_folders(path: Path) -> Iterator[None]:
    """Where the body fails, remove a folder that it made, and those above it, as far as they are empty."""
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        yield
    except BaseException:
        for folder in new:
            with suppress(OSError):
                folder.rmdir()
        raise


def open_unlinked(path: Path, mode: str = "a") -> IO[str]:
    """Open a text file, such as a log or a lock, that is made where it is missing; a symbolic link is refused."""
    return open(path, mode, encoding="utf-8", errors="backslashreplace", opener=_without_links)


def _without_links(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, "it must be a file, found a symbolic link; remove it", path) from None


@contextmanager
def _private_folder(path: Path) -> Iterator[Path]:
    """A new folder beside ``path`` for this process alone, locked while it is needed."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}{DRAFT}", dir=path.parent))
        handle = None
        try:
            if fcntl is not None:
                handle = os.open(folder, os.O_RDONLY)
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(handle, fcntl.LOCK_EX)
                if not folder.is_dir():  # another writer of the same path took it for a leftover
                    continue
            yield folder
            return
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            if handle is not None:
                os.close(handle)


def _sync(path: Path) -> None:
    """Wait until a file, or the list of files of a folder, is on disk."""
    if path.is_symlink() or (path.is_dir() and os.name != "posix"):
        return
    try:
        handle = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    except PermissionError:  # a folder that may be written but not read
        return
    try:
        os.fsync(handle)
    except OSError as error:  # file systems that cannot do that
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)
